"""What trainings print while they run: bars with lines above them on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import progress
from rich.console import Console

from pipeline.training.records import EpochRow


@dataclass
class _Group:
    work: float  # of an epoch
    epochs: int
    left: int
    bar: progress.TaskID


class Progress(progress.Progress):
    """The progress of any number of groups of seeds, by their names. Their work is counted in one unit, which does not matter."""

    def __init__(self) -> None:
        console = Console()
        columns = progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=24), progress.TextColumn("{task.fields[text]}")
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._groups: dict[str, _Group] = {}
        self._done, self._start = 0.0, time.monotonic()
        self._overall = self.add_task("all trainings", total=None, text="starting")

    def expect(self, name: str, epochs: int, work: float) -> None:
        """A group is to train so many epochs, of so much work each."""
        self._groups[name] = _Group(work, epochs, epochs, self.add_task(f"  {name}", total=epochs, visible=False, text=""))

    def begin(self, name: str, epoch: int) -> None:
        """A group begins, after `epoch` epochs of an earlier process. The time left is that of trainings: replays come before."""
        if not self._done:
            self._start = time.monotonic()
        group = self._groups[name]
        group.left = group.epochs - epoch
        if epoch:
            self.say(f"{name}  goes on after epoch {epoch} of {group.epochs}")
        self.update(group.bar, completed=epoch, visible=True)

    def epoch(self, name: str, epoch: int, rows: Sequence[EpochRow]) -> None:
        """A group has finished an epoch; `rows` are its seeds'."""
        group = self._groups[name]
        group.left = group.epochs - epoch
        self._done += group.work
        left = sum(group.left * group.work for group in self._groups.values())
        said = f"{duration((time.monotonic() - self._start) / self._done * left)} left"
        text = f"epoch {epoch}/{group.epochs}  {_figures(rows)}"
        self.update(group.bar, completed=epoch, text=text)
        self.update(self._overall, completed=self._done, total=self._done + left, text=said)
        if self.disable:
            self.say(f"{name}  {text}  {said}")

    def end(self, name: str) -> None:
        """A group has ended, finished or not; of one that was not expected, nothing changes."""
        if (group := self._groups.pop(name, None)) is not None:
            self.remove_task(group.bar)

    def say(self, sentence: str) -> None:
        """One line above the bars."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def group_name(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}..{seeds[-1]} ({len(seeds)} in one stack)"


def _figures(rows: Sequence[EpochRow]) -> str:
    if not rows:
        return "no finite loss"
    train, test, accuracy = (sum(getattr(row, name) for row in rows) / len(rows) for name in ("train_loss", "test_loss", "test_accuracy"))
    return f"train loss {train:.4f}  test loss {test:.4f}  accuracy {accuracy:7.2%}  {rows[0].seconds:.1f} s"


def duration(seconds: float) -> str:
    """A time in words, to the second, or to the minute from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
