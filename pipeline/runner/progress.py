"""What a training prints while it runs: live lines on a terminal, one plain line per epoch elsewhere; and how far the study is."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pipeline.files import write_json
from pipeline.training.records import EpochRow

STUDY = "LAB_STUDY"
_SILENCE = 600  # seconds


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

    def again(self, seeds: list[int], groups: list[list[int]]) -> None:
        """A group begins once more, as these groups."""
        del self._done[tuple(seeds)]
        self._done |= {tuple(group): 0 for group in groups}
        self._total += self._epochs * (len(groups) - 1)
        self._bar.update(self._overall, total=self._total)
        if tuple(seeds) in self._tasks:
            self._bar.remove_task(self._tasks.pop(tuple(seeds)))

    def kept(self, seeds: list[int]) -> None:
        """A group was finished before and is kept."""
        self._done[tuple(seeds)] = self._epochs
        self._resumed += self._epochs
        self._bar.update(self._overall, completed=sum(self._done.values()))

    def epoch(self, seeds: list[int], epoch: int, rows: list[EpochRow]) -> None:
        """A group has finished an epoch."""
        key = tuple(seeds)
        self._done[key] = epoch
        left = f"{duration(self._seconds_left())} left"
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

    def share(self) -> float:
        """Of the epochs that this process has to train, what it has done."""
        fresh = sum(self._done.values()) - self._resumed
        return fresh / max(self._total - self._resumed, 1)

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


class StudyProgress:
    """How much of a whole `dvc repro` is done. Nothing is said where the environment variable LAB_STUDY names no file.

    `pipeline.commands.repro` writes the JSON file that it names. Its keys: `variants`, for each one the work of all of its seeds and
    the part of it that was missing at the start, in one unit for all; `finished`, the names of those that were finished since;
    `seconds`, what their stages took.

    Args:
        variant: the one that is in training.
    """

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self._start = self._last = time.monotonic()
        self._path = Path(os.environ[STUDY]) if STUDY in os.environ else None

    def now_and_then(self, share: float) -> str | None:
        """The line, when none was said for ten minutes. `share`: of this variant's missing work, what is done."""
        if time.monotonic() - self._last < _SILENCE:
            return None
        self._last = time.monotonic()
        return self._line(share)

    def finish(self) -> str | None:
        """The line after the variant is finished, which is noted."""
        line = self._line(1.0)
        if self._path is not None and line is not None:
            study = json.loads(self._path.read_text(encoding="utf-8"))
            study["finished"].append(self._variant)
            study["seconds"] += time.monotonic() - self._start
            write_json(self._path, study)
        return line

    def _line(self, share: float) -> str | None:
        try:
            study = json.loads(self._path.read_text(encoding="utf-8")) if self._path else {}
            variants, finished = study["variants"], {*study["finished"]}
            shares = {variant: float(variant in finished) for variant in variants} | {self._variant: share}
            done = sum(shares[variant] * missing for variant, (_, missing) in variants.items())
        except (OSError, ValueError, LookupError, TypeError):
            return None
        whole, missing = (sum(work[i] for work in variants.values()) for i in (0, 1))
        seconds = study["seconds"] + time.monotonic() - self._start
        count = sum(shares[variant] == 1 or not work[1] for variant, work in variants.items())
        return study_line(count, len(variants), 1 - (missing - done) / whole, seconds, seconds / done * (missing - done) if done else None)


def study_line(count: int, variants: int, share: float, seconds: float, left: float | None) -> str:
    """How far a study is.

    Args:
        count: variants that are finished, of so many.
        share: of the study's whole work, what is done, by this run or before it.
        seconds: that this run has trained.
        left: seconds that it still needs; None where that is not known.
    """
    rest = "" if left is None else f", about {duration(left)} left" if left >= 0.5 else ", nothing left"
    return f"study: {count} of {variants} variants ({math.floor(100 * share)} %), {duration(seconds)} done{rest}"


def _group(seeds: list[int]) -> str:
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
