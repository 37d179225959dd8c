"""Whether another version of the code computes what a finished training computed, without training again.

A training is a fold: a step function over tables that are known beforehand. The tables are compared whole, by digest; the step
function over the first `REPLAYED_STEPS` steps, on another kind of processor over half of them, loss by loss; the test by testing the
stored weights, where they are here. Code that acts only after these steps, and is in none of the tables, is not compared.

On the kind of processor that trained, everything has to be equal to the last bit. Another kind rounds differently: there, the tables
have to be equal to the last bit, and the rest up to rounding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.params import TrainSettings
from pipeline.runner.seeds import IMAGES_APART, REPLAYED_STEPS, TEST_TOLERANCE, Finished

if TYPE_CHECKING:  # the evaluation's coordinator needs no torch
    from torch import Tensor

    from pipeline.training.engine import Trainer

# Steps enlarge the rounding of another kind of processor: the losses of wide-1 differ by 2e-7 of their size in step 5, by 0.002 in step
# 25 and by 0.1 in step 50, so half of the fifty steps tell other code from chaos, and all of them do not. Between the AVX-512, AVX2 and
# SSE4.2 code of one processor, the base's losses differ by 1e-7 of their size in fifty steps and its gradient norms by 1e-6; the CNN's by
# 0.007 and 0.09, the most, because of its batch norm. In single steps it is farther off: between two kinds of AVX-512 its norms differ by
# 0.40 in three steps of fifty, and by 1.3 in one, at the same loss.
TOLERANCES = {"loss": 0.02, "gradient_norm": 0.2}
_FARTHER = {"loss": 0.06, "gradient_norm": 10.0}  # for a tenth of the steps
_TABLES = {
    "weights": "the initial weights of seed {seed} are others",
    "order": "the order of the images of seed {seed} is another",
    "augmentation": "the augmentation of seed {seed} is another",
    "rates": "the learning rates are others",
}


def tables(trainer: Trainer) -> dict[int, dict[str, str]]:
    """Digests, by seed, of what a training reads and does not compute. The trainer must not have taken a step yet.

    Keys: `weights`, the initial ones with all buffers; `order` of the images in every epoch; `rates`, what the optimiser takes from its
    table in every step, in float32, because the last bits of roots and powers depend on the processor; `augmentation`, the numbers drawn
    in every step, empty where there is none.
    """
    state = {name: value.cpu() for name, value in trainer.stack.state().items()}
    rates = _digest([trainer.optimizer.coefficients.cpu().float()])
    result = {}
    for i, seed in enumerate(trainer.seeds):
        steps = trainer.num_steps * any(True for _ in trainer.learning.draws(i, 1))  # what draws nothing in a step never draws
        result[seed] = {
            "weights": _digest(state[name][i] for name in sorted(state)),
            "order": _digest(trainer.orders(seed)),
            "augmentation": _digest(trainer.learning.draws(i, steps)),
            "rates": rates,
        }
    return result


def other_tables(train: TrainSettings, num_steps: int, new: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    """The names of the tables of a seed that differ between two trainings, given what `tables` says of each.

    Of the optimiser's table a record of earlier versions may have the digest in float64, which is of the same numbers and another.
    """
    others = [name for name in _TABLES if new[name] != old[name]]
    if "rates" in others and {new["rates"], old["rates"]} <= _rates(train, num_steps):
        others.remove("rates")
    return others


def _rates(train: TrainSettings, num_steps: int) -> set[str]:
    """The digests of the optimiser's table in both precisions."""
    import torch

    from pipeline.training.optimizers import make_optimizer

    optimizer = make_optimizer(train, [torch.zeros(1)], num_seeds=1, stacked=False, total_steps=num_steps)
    return {_digest([optimizer.coefficients]), _digest([optimizer.coefficients.float()])}


def first_difference(trainer: Trainer, parts: Sequence[Finished], first: Finished | None = None, *, exact: bool) -> str | None:
    """Where today's code first differs from a finished training, as a clause; None where it computes the same.

    Args:
        trainer: a new one, of the very stack that was trained; it is used up.
        parts: the finished seeds, in the stack's order.
        first: the variant's first seed, whose weights are tested in place of those that are elsewhere: the test is the same for all.
        exact: whether this is the kind of processor that trained.
    """
    import torch

    tested = [part if part.has_weights else first for part in parts]
    if other := sorted({name for part in tested if part for name in part.weights.keys() ^ trainer.stack.state().keys()}):
        return f"the weights have other names: {', '.join(other[:3])}"
    for seed, found in tables(trainer).items():
        stored = next(part for part in parts if part.seed == seed).origin["tables"]
        if others := other_tables(trainer.settings.train, trainer.num_steps, found, stored):
            return _TABLES[others[0]].format(seed=seed)
    count = min(REPLAYED_STEPS if exact else REPLAYED_STEPS // 2, trainer.num_steps)
    trainer.run_steps(count)
    for name, what in (("loss", ""), ("gradient_norm", "the gradient norm of ")):
        new = getattr(trainer.trace, name)[:, :count].cpu().numpy()
        old = np.stack([part.tensors[f"trace.{name}"][:count] for part in parts])
        same = _equal(new, old) if exact else _near(new, old, TOLERANCES[name], _FARTHER[name])
        if not same.all():
            step, i = np.argwhere(~same.T)[0]  # the first step, then the first seed
            return f"{what}step {step + 1} of seed {parts[i].seed}: {new[i, step]:.9g} was {old[i, step]:.9g}"
    if not any(tested):
        return None
    state = {name: value.clone() for name, value in trainer.stack.state().items()}
    for i, part in enumerate(tested):
        for name, value in part.weights.items() if part else ():
            state[name][i] = torch.from_numpy(value)
    trainer.stack.load(state)
    losses, accuracies = trainer.test()
    for own, part, loss, accuracy in zip(parts, tested, losses, accuracies, strict=True):
        same = exact and own is part  # the first seed may be of another processor
        if part and (fault := test_difference(part, loss, accuracy, trainer.learning.num_tests, exact=same)) is not None:
            return f"the test of seed {part.seed}: {fault}"
    return None


def _near(new: np.ndarray, old: np.ndarray, tolerance: float, farther: float) -> np.ndarray:
    """Which of a seed's steps (seed, step) are the same up to rounding: a tenth of them may lie farther off."""
    near, far = (np.isclose(new, old, rtol=one, equal_nan=True) for one in (tolerance, farther))
    few = (~near).mean(axis=1, keepdims=True) <= 0.1
    result: np.ndarray = near | (far & few)
    return result


def test_difference(part: Finished, loss: float, accuracy: float, num_images: int, *, exact: bool) -> str | None:
    """How a test of a finished seed's weights differs from its training's last row, as a clause; None where it does not."""
    last = part.rows[-1]
    same_loss = (
        _equal(loss, last.test_loss)
        if exact
        else math.isclose(loss, last.test_loss, rel_tol=TEST_TOLERANCE) or (not math.isfinite(loss) and not math.isfinite(last.test_loss))
    )
    if not same_loss:
        return f"loss {loss:.9g} was {last.test_loss:.9g}"
    if abs(round(accuracy * num_images) - round(last.test_accuracy * num_images)) > (0 if exact else IMAGES_APART):
        return f"accuracy {accuracy:.4%} was {last.test_accuracy:.4%}"
    return None


def _equal(new: Any, old: Any) -> Any:
    return (new == old) | ((new != new) & (old != old))


def _digest(arrays: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        values = array.detach().contiguous().numpy()
        digest.update(f"{values.dtype} {values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:32]
