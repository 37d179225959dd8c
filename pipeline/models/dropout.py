"""Counter-based dropout, and its random bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.kernels import dropout, fuses_dropout

# Elements whose random bits are drawn at a time. Drawing those of a long attention's 20 million weights at once would allocate new
# memory for each of about twenty operations and take four times as long on the CPU.
_PART = 2**20


class Dropout(nn.Module):
    """Dropout whose mask is a function of (key, call, element), not of a generator's hidden state.

    So a seed's masks are the same alone and in a stack, on any device, and after a resume, because the call counter is a buffer that
    is stored with the weights. Counter-based random numbers: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

    Args:
        probability: with which an element is set to zero; the others are divided by 1 - probability.
    """

    key: Tensor
    calls: Tensor

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        if probability:
            self.register_buffer("key", torch.randint(2**31, ()))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or not self.probability:
            return x
        if fuses_dropout(x, self.key):
            result = dropout(x, int(self.key), int(self.calls), self.probability)
            self.calls += 1
            return result
        keep = torch.cat([self._keep(part) for part in torch.arange(x.numel(), device=x.device).split(_PART)])
        self.calls += 1
        return x * keep.view(x.shape) / (1 - self.probability)

    def _keep(self, index: Tensor) -> Tensor:
        return mix(mix(index + self.key) + self.calls) >= int(self.probability * 2**32)


def mix(bits: Tensor) -> Tensor:
    """A bijection of 32-bit words whose output bits each depend on all input bits (multiply and xor-shift, Steele et al. 2014)."""
    bits = bits & 0xFFFFFFFF
    for multiplier, shift in ((0x7FEB352D, 15), (0x2C1B3C6D, 16)):  # both below 2^31, so that the int64 product cannot overflow
        bits ^= bits >> shift
        bits *= multiplier
        bits &= 0xFFFFFFFF
    bits ^= bits >> 16
    return bits
