"""Trains all that `make plan` lists, over all variants at once, on this machine or a cluster; `dvc repro` then only assembles.

    python -m pipeline.commands.train [--jobs N] [--on here|ray]

DVC runs one stage after another, and a stage trains one variant. Here a free process takes the longest training that waits, of any
variant. Finished seeds go to .checkpoints/seeds, where the train stages look for them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline import provenance
from pipeline.commands import plan, profiles, repro
from pipeline.commands.plan import Entry, Rate
from pipeline.errors import UserError, run_command
from pipeline.params import load, shown
from pipeline.runner import cluster, finished, results, workers
from pipeline.runner.lock import variant_lock
from pipeline.runner.progress import Screen, group_name, study_line
from pipeline.runner.schedule import Queue
from pipeline.runner.workers import Assignment
from pipeline.stages import bring
from pipeline.stages import train as stage
from pipeline.study.files import ARRAYS, FINISHED, RUNS
from pipeline.training.tasks import data_digest

# These stages, with those before them, make what the train stages read.
_INPUTS = ("code", "scenes", "resolve")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.train", description="Trains all that `make plan` lists.")
    parser.add_argument("--jobs", default="", metavar="N", help="processes; by default LAB_PROCESSES, else one per core or GPU")
    parser.add_argument("--on", default="", metavar="ENGINE", help="here: processes of this machine (default); ray: a Ray cluster")
    given = parser.parse_args(argv)
    bring.check_place()
    jobs = workers.count_of("JOBS", given.jobs) if given.jobs else None
    device = workers.choose_device()
    run_all: Engine
    if given.on == "ray":
        cluster.require()
        run_all = functools.partial(cluster.run_all, device=device, jobs=jobs)
    elif given.on in ("", "here"):
        run_all = functools.partial(workers.run_all, cards=workers.choose_cards(device, jobs))
    else:
        raise UserError(f"ON is {shown(given.on)}; the choices are here and ray.")
    profiles.refresh()
    params = load()
    if bring.has_other_remote():
        bring.pull(RUNS / variant / name for variant in params.variants for name in (results.RUN, *results.OUTPUTS))
    bring.runs(params.variants)  # and says which cannot be had, before they are trained again
    if not any(entry.tasks for entry in plan.survey(params, device)):
        print("Nothing is to be trained.")
        return
    repro.reproduce(Path(), _INPUTS)
    train(device, run_all)


class Engine(Protocol):
    """Works on all that the queue holds; see `workers.run_all`."""

    def __call__(
        self,
        queue: Queue[Assignment],
        *,
        handle: Callable[[Assignment, workers.Message], None],
        lost: Callable[[Assignment, UserError], None],
    ) -> None: ...


def train(device: str, run_all: Engine) -> None:
    """Finishes all seeds that are missing; the stages before train have run.

    Args:
        device: "cpu" or "cuda".

    Raises:
        UserError: status 1 when some could not be finished, 2 when something has to be mended first.
    """
    params = load()
    entries = plan.survey(params, device)
    if not any(entry.tasks for entry in entries):
        print("Nothing is to be trained.")
        return
    study = _Study(entries, plan.estimated(entries, plan.recorded(params, device)), device)
    with contextlib.ExitStack() as locks:
        study.begin(locks)
        with study.screen:
            try:
                run_all(study.queue, handle=study.handle, lost=study.lost)
            finally:
                study.close()
    study.judge()


@dataclass
class _Open:
    """A variant in training. `left`: of its tasks; `broken`: whether one of them was lost."""

    entry: Entry
    training: stage.Training
    left: int
    broken: bool = False


class _Study:
    """The state of all trainings, in the coordinating process.

    Args:
        entries: all variants.
        rates: for each.

    Attributes:
        queue: what waits for a process.
    """

    def __init__(self, entries: Sequence[Entry], rates: Mapping[str, Rate], device: str) -> None:
        self.queue: Queue[Assignment] = Queue()
        self.screen = Screen("all trainings")
        self._entries = entries
        self._rates = rates
        self._device = device
        self._origins: dict[str, dict[str, Any]] = {}
        self._unreadable: dict[str, UserError] = {}
        # By folder of finished seeds, which variants share that differ in their seeds or names alone.
        self._waiting: dict[Path, list[Entry]] = defaultdict(list)
        self._locks: dict[Path, contextlib.ExitStack] = {}
        self._open: dict[Path, _Open] = {}
        self._finished = {entry.variant for entry in entries if not entry.tasks}
        self._faults = 0

    def begin(self, locks: contextlib.ExitStack) -> None:
        """Locks all that is to be trained, looks up again what that is, and begins. What another process trains is left to it.

        Raises:
            UserError: another process trains all of it.
        """
        for entry in self._entries:
            if entry.tasks:
                place = finished.folder(FINISHED, entry.settings, data_digest(entry.settings.task, ARRAYS))
                self._waiting[place].append(entry)
        refused = []
        for place, (first, *_) in list(self._waiting.items()):
            lock = locks.enter_context(contextlib.ExitStack())
            try:
                lock.enter_context(variant_lock(place / "lock", first.variant))
                self._locks[place] = lock
            except UserError as error:
                refused.append(error)
                del self._waiting[place]
        if not self._waiting:
            raise refused[0]
        for refusal in refused:
            self._fault(str(refusal))
        waiting = [entry for entries in self._waiting.values() for entry in entries]
        self._origins = {entry.variant: provenance.origin(self._device, entry.settings.task) for entry in waiting}
        self._unreadable = stage.gather(self._waiting)
        for place in self._waiting:
            self._next(place)

    def handle(self, assignment: Assignment, message: workers.Message) -> None:
        variant = self._open[assignment.job.folder]
        variant.training.handle(message)
        if isinstance(message, workers.Done) or (isinstance(message, workers.Replayed) and message.parted is None):
            self._ended(assignment)

    def lost(self, assignment: Assignment, error: UserError) -> None:
        """Leaves out a group whose process died; the others go on. Raises an error that stops all, such as a full disk."""
        if error.status != 1:
            raise error
        variant = self._open[assignment.job.folder]
        variant.broken = True
        variant.training.progress.ended(assignment.task.seeds)
        self._fault(f"{variant.entry.variant}  {group_name(assignment.task.seeds)}: {error}")
        self._ended(assignment)

    def close(self) -> None:
        """Ends the MLflow runs of variants that are still in training."""
        if self._open:
            with ThreadPoolExecutor(len(self._open)) as pool:
                list(pool.map(lambda variant: variant.training.fail(), self._open.values()))

    def judge(self) -> None:
        """Raises UserError with status 1 where something was not finished."""
        if self._faults:
            raise UserError(
                "Not everything is trained, and the lines above say why. What is finished is kept: the same command trains the rest.",
                status=1,
            )

    def _next(self, place: Path) -> None:
        """Begins the next variant of a folder that has anything to train. Without one the folder is left to the train stages."""
        while self._waiting[place]:
            entry = self._waiting[place].pop(0)
            rate = self._rates[entry.variant]
            try:
                training = stage.look_up(
                    entry.variant,
                    entry.settings,
                    self._device,
                    place,
                    self._origins[entry.variant],
                    self._unreadable.get(entry.variant),
                    screen=self.screen,
                    epoch_work=plan.epoch_cost(entry, rate),
                )
            except UserError as error:
                self._fault(str(error))
                continue
            if training.tasks:
                self._open[place] = _Open(entry, training, len(training.tasks))
                for task in training.tasks:
                    self.queue.put(Assignment(training.job, task), plan.cost(entry, task, rate))
                return
            self._finished.add(entry.variant)
        self._locks.pop(place).close()

    def _ended(self, assignment: Assignment) -> None:
        """Counts a task as ended. After a variant's last one its seeds are left to its stage."""
        place = assignment.job.folder
        variant = self._open[place]
        variant.left -= 1
        if variant.left:
            return
        del self._open[place]
        try:
            if not variant.broken:
                variant.training.leave()
                self._finished.add(variant.entry.variant)
        except UserError as error:
            variant.broken = True
            self._fault(str(error))
        if variant.broken:
            variant.training.fail()
        else:
            self.screen.say(self._line())
        self._next(place)

    def _line(self) -> str:
        whole = sum(len(entry.settings.train.seeds) * plan.seed_cost(entry, self._rates[entry.variant]) for entry in self._entries)
        share = round(1 - self.screen.work_left() / whole, 6)  # a rounding error is no work
        return study_line(len(self._finished), len(self._entries), share, self.screen.seconds(), self.screen.seconds_left())

    def _fault(self, sentence: str) -> None:
        self._faults += 1
        self.screen.say(sentence)


if __name__ == "__main__":
    run_command(main)
