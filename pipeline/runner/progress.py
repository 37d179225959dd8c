"""What trainings print while they run: a line for each epoch, with the time that is left."""

import time
from collections.abc import Sequence

from pipeline.training.records import EpochRow


class Progress:
    """The time left of any number of groups of seeds, by their names. Their work is counted in one unit, which does not matter."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}
        self._done, self._start = 0.0, time.monotonic()

    def expect(self, name: str, work: float) -> None:
        """So much is left to do of a group that waits, or begins. The time left is that of trainings: replays come before."""
        if not self._done:
            self._start = time.monotonic()
        self._left[name] = work

    def epoch(self, name: str, work: float, rows: Sequence[EpochRow], text: str) -> None:
        """A group has finished an epoch, with these rows of its seeds; so much is left to do of it."""
        self._done += self._left[name] - work
        self._left[name] = work
        left = (time.monotonic() - self._start) / self._done * sum(self._left.values())
        print(f"{name}  {text}  {_figures(rows)}  {duration(left)} left")

    def end(self, name: str) -> None:
        """A group has ended, finished or not."""
        self._left.pop(name, None)


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
