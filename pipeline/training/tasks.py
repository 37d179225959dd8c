"""The tasks that networks are trained for. A task's own modules hold its data and its losses; the engine knows neither."""

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
        num_examples: size of the training set.
        num_tests: number of examples in a test.
    """

    num_examples: int
    num_tests: int

    def begin(self, epoch: int) -> None:
        """Makes the stack ready to train in an epoch; epochs count from 1."""
        ...

    def losses(self, index: Tensor, step: Tensor) -> Tensor:
        """See `pipeline.training.step.Losses`."""
        ...

    def test(self) -> tuple[Tensor, Tensor]:
        """Tests the models as they are now: mean cross-entropy in nats and accuracy, (seed,) float64 each."""
        ...

    def draws(self, place: int, num_steps: int) -> Iterator[Tensor]:
        """The random numbers that the examples of the seed at `place` use in each step of a training, for replay to compare."""
        ...


@dataclass(frozen=True)
class Task:
    """Where the parts of a task are.

    Attributes:
        data: the module with `load(arrays)` and `data_digest(arrays)`, where `arrays` is the folder that the prepare stage wrote.
        learning: `module:class` of its `Learning`.
    """

    data: str
    learning: str


TASKS = {
    "classification": Task("pipeline.data.datasets", "pipeline.training.classification:Classification"),
    "captioning": Task("pipeline.captioning.data", "pipeline.captioning.learning:Captioning"),
}


def load(task: str, arrays: Path) -> Any:
    """The data that a task's networks are trained and tested on. Raises UserError if they are missing or damaged."""
    return resolve_name(f"{TASKS[task].data}:load")(arrays)


def data_digest(task: str, arrays: Path) -> str:
    """A digest of the data, 64 hexadecimal digits. Raises UserError if they are missing."""
    return str(resolve_name(f"{TASKS[task].data}:data_digest")(arrays))


def learning(settings: VariantSettings) -> Any:
    """The class of the variant's `Learning`."""
    return resolve_name(TASKS[settings.task].learning)
