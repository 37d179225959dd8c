"""Optimisers for one model or a stack of seeds, whose whole state lives on the device.

The learning rate of a step, and whatever else a step needs that depends only on its number, is a row of a table that was
computed beforehand; a counter on the device picks it. So a step is the same launches every time, the host waits for nothing, and
a CUDA graph that captured one step goes on through the schedule when it is replayed.

All arithmetic on weights is elementwise, so a stack's weights are updated as they are; what is a sum over a model's weights, the
norm of its gradient, is taken for each seed by itself. `torch.optim` has the same updates (tests compare them), but importing
it takes longer than a demo's training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipeline.params import TrainSettings
from pipeline.training import schedules

BETA1, EPSILON = 0.9, 1e-8  # Kingma and Ba 2015; torch's own


class Optimizer(ABC):
    """Clipping, the table of coefficients and the state; a subclass has the update.

    A seed's gradient whose L2 norm is above `settings.clip_norm` is scaled down to it (Pascanu et al. 2013, algorithm 1).

    Args:
        parameters: leaf tensors on one device; `step` takes their gradients and clears them.
        settings: momentum, beta2, weight_decay, clip_norm.
        rates: the learning rate of each step (total_steps,), float64.
        num_seeds: models.
        stacked: parameters have a leading seed dimension; else they are one model's.

    Attributes:
        coefficients: what the update of each step takes (total_steps, coefficient).
    """

    def __init__(self, parameters: Sequence[Tensor], settings: TrainSettings, rates: Tensor, *, num_seeds: int, stacked: bool) -> None:
        assert stacked or num_seeds == 1
        self._settings, self._num_seeds, self._stacked = settings, num_seeds, stacked
        self._parameters = list(parameters)
        self._averages = {name: [torch.zeros_like(parameter) for parameter in self._parameters] for name in self._names()}
        device = self._parameters[0].device
        # CUDA's fused updates read a learning rate as float32; on the CPU it stays exactly the number that the schedule gave.
        self.coefficients = self._table(rates).to(device, torch.float32 if device.type == "cuda" else torch.float64)
        self._step = torch.zeros((), dtype=torch.int64, device=device)  # steps done

    @torch.no_grad()
    def step(self) -> Tensor:
        """One update from the gradients, which are then None.

        Returns:
            The L2 norm of each seed's gradient before clipping (seed,), float32; inf or nan where the gradient is not finite.
        """
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
            parameter.grad = None
        norm = self._norm(gradients)
        if self._settings.clip_norm is not None:
            self._scale(gradients, (self._settings.clip_norm / norm).clamp(max=1).float())
        # The rehearsal of a step before its capture may count past the last row; it is taken back, but needs one to read.
        row = self._step.clamp(max=len(self.coefficients) - 1).view(1)
        self._step += 1
        # Not `[row]`: an index that is a single number is read by the host.
        self._update(gradients, *self.coefficients.index_select(0, row).squeeze(0).unbind())
        return norm.float()

    def state(self) -> dict[str, Tensor]:
        """Steps done and running averages, by name; the tensors themselves."""
        averages = {f"{name}.{i}": tensor for name, tensors in self._averages.items() for i, tensor in enumerate(tensors)}
        return {"step": self._step, **averages}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _names(self) -> tuple[str, ...]:
        """The running averages that are kept for every parameter."""
        return ("mean", "square")

    def _table(self, rates: Tensor) -> Tensor:
        """What `_update` gets in each step, (total_steps, coefficient)."""
        return rates[:, None]

    @abstractmethod
    def _update(self, gradients: list[Tensor], *coefficients: Tensor) -> None:
        """Changes parameters and averages in place. `coefficients`: the step's row of the table, each a tensor without dimensions."""

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """(seed,), float64: the squares of large float32 numbers overflow float32."""
        flat = torch.cat([gradient.reshape(self._num_seeds, -1) for gradient in gradients], dim=1)  # (seed, weight)
        return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)

    def _scale(self, gradients: list[Tensor], factor: Tensor) -> None:
        """Multiplies each seed's gradient by its factor (seed,)."""
        if self._stacked:
            torch._foreach_mul_(gradients, [factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients])
        else:
            torch._foreach_mul_(gradients, factor.squeeze(0))


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): AdamW."""

    def _update(self, gradients: list[Tensor], *coefficients: Tensor) -> None:
        torch._fused_adamw_(
            self._parameters, gradients, self._averages["mean"], self._averages["square"], [], [self._step.float()] * len(gradients),
            lr=coefficients[0], beta1=BETA1, beta2=self._settings.beta2, weight_decay=self._settings.weight_decay, eps=EPSILON,
            amsgrad=False, maximize=False,
        )  # fmt: skip


class RAdam(Optimizer):
    """Rectified Adam (Liu et al. 2020, algorithm 2) with decoupled weight decay.

    In the first five steps, where the variance of the adaptive rate has no bound, the update is the mean alone.
    """

    def _table(self, rates: Tensor) -> Tensor:
        """The share of a weight that decay leaves, the adaptive update's rate, the mean's own; one of the two rates is 0."""
        step, beta2 = torch.arange(1, len(rates) + 1, dtype=torch.float64), self._settings.beta2
        correction1, correction2 = 1 - BETA1**step, 1 - beta2**step
        limit = 2 / (1 - beta2) - 1  # of the next, the length of the simple average that the running one resembles
        length = limit - 2 * step * (1 - correction2) / correction2
        rectification = ((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)).sqrt()
        rates_of_mean = rates / correction1
        adaptive = torch.where(length > 5, rates_of_mean * rectification * correction2.sqrt(), 0)
        plain = torch.where(length > 5, 0, rates_of_mean)
        return torch.stack([1 - rates * self._settings.weight_decay, adaptive, plain], dim=1)

    def _update(self, gradients: list[Tensor], *coefficients: Tensor) -> None:
        kept, adaptive, plain = coefficients
        means, squares = self._averages["mean"], self._averages["square"]
        if self._settings.weight_decay:
            torch._foreach_mul_(self._parameters, kept)
        torch._foreach_lerp_(means, gradients, 1 - BETA1)
        torch._foreach_mul_(squares, self._settings.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - self._settings.beta2)
        rates = torch._foreach_sqrt(squares)
        torch._foreach_add_(rates, EPSILON)
        torch._foreach_reciprocal_(rates)
        torch._foreach_mul_(rates, adaptive)
        torch._foreach_add_(rates, plain, alpha=1)  # without alpha it takes a number, which the host would read from the tensor
        torch._foreach_addcmul_(self._parameters, means, rates, -1)


class SGD(Optimizer):
    """Gradient descent: velocity = momentum velocity + gradient + weight_decay weight, weight = weight - rate velocity."""

    def _names(self) -> tuple[str, ...]:
        return ("velocity",) if self._settings.momentum else ()

    def _update(self, gradients: list[Tensor], *coefficients: Tensor) -> None:
        torch._fused_sgd_(
            self._parameters, gradients, self._averages.get("velocity", []), weight_decay=self._settings.weight_decay,
            momentum=self._settings.momentum, lr=coefficients[0], dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


def make_optimizer(settings: TrainSettings, parameters: Sequence[Tensor], *, num_seeds: int, stacked: bool, total_steps: int) -> Optimizer:
    """The optimiser that the settings name, before its first step.

    Args:
        settings: all but seeds and images.
        parameters: leaf tensors on one device.
        num_seeds: models.
        stacked: parameters have a leading seed dimension; else they are one model's.
        total_steps: steps of the whole training, which schedules need to know.
    """
    kinds: dict[str, type[Optimizer]] = {"adam": Adam, "radam": RAdam, "sgd": SGD}
    rates = schedules.table(settings, total_steps)
    return kinds[settings.optimizer](parameters, settings, rates, num_seeds=num_seeds, stacked=stacked)
