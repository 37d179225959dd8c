"""How far the loss's gradient reaches back through the rows that a recurrent network has read (Bengio et al. 1994).

In a plain network every step back multiplies it by the recurrent weights and the slope of tanh, so it shrinks or grows
geometrically; an LSTM's cell state passes it on by the forget gate alone (Hochreiter and Schmidhuber 1997).
"""

from __future__ import annotations

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.measures.definitions import FloatArray
from pipeline.models.baselines import RowReader
from pipeline.training.classification import pixels

NUM_IMAGES = 256  # test images, the first ones


def states(recurrent: nn.RNN | nn.LSTM, rows: Tensor) -> list[Tensor]:
    """The hidden state after each row, (batch, width) each, as torch's own layer computes it, but step by step.

    Args:
        recurrent: of one layer.
        rows: (batch, row, input).
    """
    weights = [getattr(recurrent, f"{kind}_l0") for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
    hidden = cell = rows.new_zeros(len(rows), recurrent.hidden_size)
    result = []
    for row in rows.unbind(1):
        gates = F.linear(row, *weights[:2]) + F.linear(hidden, *weights[2:])
        if isinstance(recurrent, nn.LSTM):
            enter, forget, new, leave = gates.chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        else:
            hidden = gates.tanh()
        result.append(hidden)
    return result


def state_gradients(module: nn.Module, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> FloatArray:
    """L2 norms of the gradient of the mean cross-entropy at the hidden states of all images, (row,); in float64.

    At the state after a row counts all that it does to later rows, in an LSTM through the later cell states, too, but not the cell
    state beside it.

    Args:
        module: a network that reads rows; it is left as it was.
        images: uint8, as `Dataset` has them; `labels` (image,) are their classes.
    """
    assert isinstance(module, RowReader)
    model = copy.deepcopy(module).double()
    device = next(model.parameters()).device
    rows = pixels(torch.from_numpy(images).to(device), 1).double().transpose(1, 2).flatten(2)  # as in the network's forward
    found = states(model.recurrent, rows)
    loss = F.cross_entropy(model.head(found[-1]), torch.from_numpy(labels).long().to(device))
    norms: FloatArray = torch.stack([gradient.norm() for gradient in torch.autograd.grad(loss, found)]).cpu().numpy()
    return norms


def log_ratio(norms: FloatArray) -> float:
    """Base-10 logarithm of the first of the norms over the last; not finite where either is 0 or no number."""
    first, last = float(norms[0]), float(norms[-1])
    return math.log10(first / last) if first > 0 and 0 < last < math.inf else math.nan
