"""What networks are trained for. A task has its data and its way of learning in modules of its own; the engine knows neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.params import VariantSettings

if TYPE_CHECKING:
    from torch import Tensor


class Learning(Protocol):
    """A task as the engine sees it, for one group of seeds.

    It is made from the settings, the data, the seeds, their stack, the driver of steps and the device.

    Attributes:
        num_examples: of the training set.
        num_tests: what a test counts.
    """

    num_examples: int
    num_tests: int

    def begin(self, epoch: int) -> None:
        """Makes the stack ready to train in an epoch, counted from 1."""
        ...

    def losses(self, index: Tensor, step: Tensor) -> Tensor:
        """See `pipeline.training.step.Losses`."""
        ...

    def test(self) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy in nats and share that is right, (seed,) float64 each, of the models as they are now."""
        ...

    def draws(self, place: int, num_steps: int) -> Iterator[Tensor]:
        """The random numbers that the examples of one of the seeds take in the steps of a training, for replay to compare."""
        ...


@dataclass(frozen=True)
class Task:
    """Where a task's parts are.

    Attributes:
        data: the module with `load(arrays)` and `data_digest(arrays)`, arrays being the folder that the prepare stage wrote.
        learning: `module:class` of its `Learning`.
    """

    data: str
    learning: str


TASKS = {
    "classification": Task("pipeline.data.datasets", "pipeline.training.classification:Classification"),
    "captioning": Task("pipeline.captioning.data", "pipeline.captioning.learning:Captioning"),
}


def load(task: str, arrays: Path) -> Any:
    """The data that a task's networks are trained and tested on. Raises UserError where they are missing or damaged."""
    return resolve_name(f"{TASKS[task].data}:load")(arrays)


def data_digest(task: str, arrays: Path) -> str:
    """64 hexadecimal digits that tell these data from all others. Raises UserError where they are missing."""
    return str(resolve_name(f"{TASKS[task].data}:data_digest")(arrays))


def learning(settings: VariantSettings) -> Any:
    """The class of the variant's `Learning`."""
    return resolve_name(TASKS[settings.task].learning)
