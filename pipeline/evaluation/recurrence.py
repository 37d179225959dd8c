"""How far the loss's gradient reaches back through the rows that a recurrent network has read (Bengio et al. 1994).

In a plain recurrent network every step back multiplies the gradient by the recurrent weights and the slope of tanh, so it shrinks or
grows geometrically. Along an LSTM's cell state it is multiplied by the forget gate only (Hochreiter and Schmidhuber 1997).
"""

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.measures.definitions import FloatArray
from pipeline.models.baselines import RowReader
from pipeline.models.pixels import scaled
from pipeline.training.classification import pixels

NUM_IMAGES = 256  # the first test images


def states(recurrent: nn.RNN | nn.LSTM, rows: Tensor) -> list[Tensor]:
    """What is carried from each row to the next, computed step by step with the same result as torch's layer.

    Args:
        recurrent: has one layer.
        rows: (batch, row, input).

    Returns:
        For each row (batch, width), the hidden state; of an LSTM (batch, 2 width), the hidden state and then the cell state.
    """
    weights = [getattr(recurrent, f"{kind}_l0") for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
    width = recurrent.hidden_size
    state = rows.new_zeros(len(rows), width * (2 if isinstance(recurrent, nn.LSTM) else 1))
    result = []
    for row in rows.unbind(1):
        gates = F.linear(row, *weights[:2]) + F.linear(state[:, :width], *weights[2:])
        if isinstance(recurrent, nn.LSTM):
            enter, forget, new, leave = gates.chunk(4, dim=-1)
            cell = forget.sigmoid() * state[:, width:] + enter.sigmoid() * new.tanh()
            state = torch.cat([leave.sigmoid() * cell.tanh(), cell], dim=-1)
        else:
            state = gates.tanh()
        result.append(state)
    return result


def state_gradients(module: nn.Module, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> FloatArray:
    """L2 norms of the gradient of the mean cross-entropy at the states, over all images, (row,) float64.

    A state is all that is carried to the next row: without its cell state the way would be missing on which an LSTM keeps a gradient.

    Args:
        module: a network that reads rows; it is left as it was.
        images: uint8, as `Dataset` has them, with `labels` (image,).
    """
    assert isinstance(module, RowReader)
    model = copy.deepcopy(module).double()
    device = next(model.parameters()).device
    read = scaled(model, pixels(torch.from_numpy(images).to(device), 1).double())
    found = states(model.recurrent, read.transpose(1, 2).flatten(2))  # the rows, as in the network's forward
    loss = F.cross_entropy(model.head(found[-1][:, : model.recurrent.hidden_size]), torch.from_numpy(labels).long().to(device))
    norms: FloatArray = torch.stack([gradient.norm() for gradient in torch.autograd.grad(loss, found)]).cpu().numpy()
    return norms


def log_ratio(norms: FloatArray) -> float:
    """Base-10 logarithm of the first norm over the last; not finite if either is 0, infinite or NaN."""
    first, last = float(norms[0]), float(norms[-1])
    return math.log10(first / last) if first > 0 and 0 < last < math.inf else math.nan
