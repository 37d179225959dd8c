"""What a training prints while it runs: live lines on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pipeline.training.records import EpochRow


class Screen:
    """Shows the progress of trainings: bars with lines above them on a terminal, only lines elsewhere.

    Args:
        title: of the overall bar.
    """

    def __init__(self, title: str) -> None:
        self._work = self._done = 0.0
        self._running: dict[object, tuple[float, float]] = {}  # by group: when its epoch began, and the epoch's work
        self._worked = 0.0  # seconds of all epochs that have ended, which side by side pass faster than the clock
        self._start = time.monotonic()
        self._console = Console(stderr=False)
        self.live = self._console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
        )
        self._overall = self.bar.add_task(title, total=None, text="starting")

    def __enter__(self) -> Screen:
        if self.live:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def expect(self, work: float) -> None:
        """Adds work that is to be done, in one unit for all trainings; a negative amount removes it."""
        self._work += work
        self.bar.update(self._overall, total=self._work)

    def begin(self, group: object, work: float) -> None:
        """An epoch of a group begins, of so much work."""
        self._running[group] = (time.monotonic(), work)

    def rest(self, group: object) -> None:
        """A group has ended, whether or not within an epoch."""
        self._running.pop(group, None)

    def advance(self, group: object) -> None:
        """A group's epoch has ended."""
        begun, work = self._running.pop(group)
        self._worked += time.monotonic() - begun
        self._done += work
        self.bar.update(self._overall, completed=self._done, text=self.time_left())

    def work_left(self) -> float:
        return self._work - self._done

    def seconds_left(self) -> float | None:
        """At the pace so far; None while nothing is done. A replay ends before any work is."""
        if not self._done:
            return None
        # The part of the epochs that run counts, too: at the first epoch's end of two groups side by side it is as much as is done.
        now, pace = time.monotonic(), self._worked / self._done
        under_way = sum(min(work, (now - begun) / pace) if pace else 0.0 for begun, work in self._running.values())
        return self.seconds() / (self._done + under_way) * (self.work_left() - under_way)

    def time_left(self) -> str:
        """The same in words; empty while nothing is done."""
        left = self.seconds_left()
        return "" if left is None else f"{duration(left)} left"

    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._start

    def say(self, sentence: str) -> None:
        """One line above the bars."""
        if self.live:
            self._console.print(sentence, highlight=False, soft_wrap=True)
        else:
            print(sentence, file=sys.stdout, flush=True)


class TrainingProgress:
    """Progress of one variant.

    Args:
        variant: its name.
        groups: the seeds that train together, group by group.
        epochs: epochs of each.
        screen: where it is shown, beside other variants; by default its own.
        epoch_work: work of one epoch of one seed, in the screen's unit.
    """

    def __init__(
        self, variant: str, groups: list[list[int]], epochs: int, *, screen: Screen | None = None, epoch_work: float = 1.0
    ) -> None:
        self.screen = screen or Screen(variant)
        self._variant = variant
        self._epochs = epochs
        self._epoch_work = epoch_work
        self._left: dict[tuple[int, ...], int] = {}  # epochs, by group
        self._tasks: dict[tuple[int, ...], TaskID] = {}
        for group in groups:
            self._expect(group)

    def started(self, seeds: list[int], epoch: int) -> None:
        """A group begins, after `epoch` epochs of an earlier process."""
        if tuple(seeds) not in self._left:  # its replay differed, so it trains after all
            self._expect(seeds)
        self._left[tuple(seeds)] -= epoch
        self.screen.expect(-epoch * self._work_of(seeds))
        if epoch:
            self.say(f"{self._variant}  {group_name(seeds)}  goes on after epoch {epoch} of {self._epochs}")
        self.screen.begin(self._key(seeds), self._work_of(seeds))
        self._tasks[tuple(seeds)] = self.screen.bar.add_task(
            f"  {self._variant}  {group_name(seeds)}", total=self._epochs, completed=epoch, text=""
        )

    def again(self, seeds: list[int]) -> None:
        """A group begins once more."""
        self.ended(seeds)
        self._expect(seeds)

    def epoch(self, seeds: list[int], epoch: int, rows: list[EpochRow]) -> None:
        """A group has finished an epoch."""
        self._left[tuple(seeds)] -= 1
        self.screen.advance(self._key(seeds))
        if self._left[tuple(seeds)]:
            self.screen.begin(self._key(seeds), self._work_of(seeds))
        figures = _figures(rows)
        if self.screen.live:
            self.screen.bar.update(self._tasks[tuple(seeds)], completed=epoch, text=f"epoch {epoch}/{self._epochs}  {figures}")
        else:
            self.say(f"{self._variant}  {group_name(seeds)}  epoch {epoch}/{self._epochs}  {figures}  {self.screen.time_left()}")

    def finished(self, seeds: list[int], rows: list[EpochRow]) -> None:
        """A group has finished; `rows` are its last epoch's."""
        self.ended(seeds)
        if self.screen.live:
            self.say(f"{self._variant}  {group_name(seeds)}  finished  {_figures(rows)}")

    def ended(self, seeds: list[int]) -> None:
        """A group has ended, finished or not."""
        self.screen.rest(self._key(seeds))
        if (task := self._tasks.pop(tuple(seeds), None)) is not None:
            self.screen.bar.remove_task(task)
        self.screen.expect(-self._left.pop(tuple(seeds), 0) * self._work_of(seeds))

    def say(self, sentence: str) -> None:
        """One line above the bars."""
        self.screen.say(sentence)

    def _expect(self, seeds: list[int]) -> None:
        self._left[tuple(seeds)] = self._epochs
        self.screen.expect(self._epochs * self._work_of(seeds))

    def _key(self, seeds: list[int]) -> object:
        return self._variant, *seeds

    def _work_of(self, seeds: list[int]) -> float:
        """Of an epoch."""
        return len(seeds) * self._epoch_work


def study_line(count: int, variants: int, share: float, seconds: float, left: float | None) -> str:
    """How far a study is.

    Args:
        count: variants that are finished, of so many.
        share: of the study's whole work that is done, by this run or before it.
        seconds: that this run has trained.
        left: seconds that it still needs; None where unknown.
    """
    rest = "" if left is None else f", about {duration(left)} left" if left >= 0.5 else ", nothing left"
    return f"study: {count} of {variants} variants ({math.floor(100 * share)} %), {duration(seconds)} done{rest}"


def group_name(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}..{seeds[-1]} ({len(seeds)} in one stack)"


def _figures(rows: list[EpochRow]) -> str:
    if not rows:
        return "no finite loss"
    count = len(rows)
    train, test, accuracy = (sum(getattr(row, name) for row in rows) / count for name in ("train_loss", "test_loss", "test_accuracy"))
    return f"train loss {train:.4f}  test loss {test:.4f}  accuracy {accuracy:7.2%}  {rows[0].seconds:.1f} s"


def duration(seconds: float) -> str:
    """A time in words, to the second, or to the minute from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
