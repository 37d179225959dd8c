"""What a training says while it runs: live lines on a terminal, one plain line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pipeline.training.records import EpochRow


class TrainingProgress:
    """Progress of one variant.

    Args:
        variant: its name.
        groups: the seeds that train together, group by group.
        epochs: epochs of each.
    """

    def __init__(self, variant: str, groups: list[list[int]], epochs: int) -> None:
        self._variant = variant
        self._epochs = epochs
        self._total = epochs * len(groups)
        self._done = {tuple(group): 0 for group in groups}
        self._resumed = 0
        self._start = time.monotonic()
        self._console = Console(stderr=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
        )
        self._live = self._console.is_terminal
        self._overall = self._bar.add_task(variant, total=self._total, text="starting")
        self._tasks: dict[tuple[int, ...], TaskID] = {}

    def __enter__(self) -> TrainingProgress:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, seeds: list[int], epoch: int) -> None:
        """A group begins, after `epoch` epochs that an earlier process had finished."""
        key = tuple(seeds)
        self._done[key] = epoch
        self._resumed += epoch
        if epoch:
            self.say(f"{self._variant}  {_group(seeds)}  goes on after epoch {epoch} of {self._epochs}")
        self._tasks[key] = self._bar.add_task(f"  {_group(seeds)}", total=self._epochs, completed=epoch, text="")

    def kept(self, seeds: list[int]) -> None:
        """A group was finished before and is kept."""
        self._done[tuple(seeds)] = self._epochs
        self._resumed += self._epochs
        self._bar.update(self._overall, completed=sum(self._done.values()))

    def epoch(self, seeds: list[int], epoch: int, rows: list[EpochRow]) -> None:
        """A group has finished an epoch."""
        key = tuple(seeds)
        self._done[key] = epoch
        left = f"{_duration(self._seconds_left())} left"
        figures = _figures(rows)
        if self._live:
            self._bar.update(self._tasks[key], completed=epoch, text=f"epoch {epoch}/{self._epochs}  {figures}")
            self._bar.update(self._overall, completed=sum(self._done.values()), text=left)
        else:
            self.say(f"{self._variant}  {_group(seeds)}  epoch {epoch}/{self._epochs}  {figures}  {left}")

    def finished(self, seeds: list[int], rows: list[EpochRow]) -> None:
        """A group is through; `rows` are its last epoch's."""
        if self._live:
            self._bar.remove_task(self._tasks.pop(tuple(seeds)))
            self.say(f"{self._variant}  {_group(seeds)}  finished  {_figures(rows)}")

    def say(self, sentence: str) -> None:
        """One line above the bars."""
        if self._live:
            self._console.print(sentence, highlight=False, soft_wrap=True)
        else:
            print(sentence, file=sys.stdout, flush=True)

    def _seconds_left(self) -> float:
        done = sum(self._done.values())
        fresh = done - self._resumed
        return (time.monotonic() - self._start) / max(fresh, 1) * (self._total - done)


def _group(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}..{seeds[-1]} ({len(seeds)} in one stack)"


def _figures(rows: list[EpochRow]) -> str:
    if not rows:
        return "no finite loss"
    count = len(rows)
    train, test, accuracy = (sum(getattr(row, name) for row in rows) / count for name in ("train_loss", "test_loss", "test_accuracy"))
    return f"train loss {train:.4f}  test loss {test:.4f}  accuracy {accuracy:7.2%}  {rows[0].seconds:.1f} s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
