"""DVC stage `train@VARIANT`: the seeds of a variant, from initial weights to runs/VARIANT/.

Only what is missing trains. A seed that was finished by this code is kept; one that was finished by other code is kept when its
replay shows that this code computes the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline import provenance
from pipeline.errors import UserError, run_command
from pipeline.params import VariantSettings, load_variant
from pipeline.runner import finished, results, workers
from pipeline.runner.finished import Finished
from pipeline.runner.lock import variant_lock
from pipeline.runner.progress import Screen, TrainingProgress
from pipeline.study.files import ARRAYS, CONFIGS, FINISHED, RUNS
from pipeline.tracking.live import Live
from pipeline.training.records import EpochRow
from pipeline.training.tasks import data_digest


def main(argv: list[str]) -> None:
    if len(argv) != 1 or argv[0].startswith("-"):
        raise UserError("Usage: python -m pipeline.stages.train VARIANT")
    variant = argv[0]
    workers.die_with_dvc()
    settings = load_variant(CONFIGS / f"{variant}.json")
    device = workers.choose_device()
    place = finished.folder(FINISHED, settings, data_digest(settings.task, ARRAYS))
    with variant_lock(place / "lock", variant):
        train(variant, settings, device, place)


def train(variant: str, settings: VariantSettings, device: str, place: Path) -> None:
    """Finishes the seeds that are missing, and writes runs/VARIANT.

    Args:
        device: "cpu" or "cuda".
        place: where finished seeds of these settings lie.

    Raises:
        UserError: status 1 when a loss was not finite or a process died, 2 when something has to be mended first.
    """
    unreadable = gather([place]).get(variant)
    training = look_up(variant, settings, device, place, provenance.origin(device, settings.task), unreadable)
    if training.tasks:
        processes = workers.choose_processes() if device == "cpu" else 1
        with training.progress.screen:
            try:
                workers.run(training.job, training.tasks, processes, training.handle)
                training.finish()
            except BaseException:
                training.fail()
                raise
    else:
        training.finish()


def gather(places: Collection[Path]) -> dict[str, UserError]:
    """Copies finished seeds from runs/ to the folder of their settings, if it is one of `places`.

    Returns:
        By variant, why results in runs/ cannot be used.
    """
    results.restore_runs(RUNS, lambda name: (CONFIGS / f"{name}.json").exists())
    unreadable = {}
    for path in RUNS.glob("*/run.json"):
        try:
            results.keep(path.parent, FINISHED, only=places)
        except UserError as error:
            unreadable[path.parent.name] = error
    return unreadable


def look_up(
    variant: str,
    settings: VariantSettings,
    device: str,
    place: Path,
    origin: dict[str, Any],
    unreadable: UserError | None,
    *,
    screen: Screen | None = None,
    epoch_work: float = 1.0,
) -> Training:
    """What there is to do for a variant. The caller holds its lock.

    Args:
        origin: what `provenance.origin` gives for the task.
        unreadable: why results of this variant cannot be used.
        screen, epoch_work: as for `TrainingProgress`.

    Raises:
        UserError: there is something to train, and results cannot be used; with REPLAY=0 they are trained over.
    """
    found, damaged = finished.find(place, origin["code_hash"], settings)
    tasks = plan(settings, found, origin["code_hash"], device)
    if tasks and unreadable is not None and replays():  # hours of training would replace what a second may restore
        raise unreadable
    groups = [task.seeds for task in tasks if not task.replay]
    progress = TrainingProgress(variant, groups, settings.train.epochs, screen=screen, epoch_work=epoch_work)
    for fault in damaged:
        progress.say(f"{fault}: its seed is trained anew.")
    return Training(variant, workers.Job(settings, ARRAYS, place, device, origin), tasks, progress)


def plan(settings: VariantSettings, found: Mapping[int, Finished], code: str, device: str) -> list[workers.Task]:
    """The groups of seeds to replay and to train, so that all seeds of the settings are finished by this code.

    REPLAY=0 in the environment keeps none that other code has trained, whether or not a replay has accepted it.

    Args:
        found: all finished seeds of these settings; their tensors are not looked at.
    """
    replay = replays()
    stacks: list[list[int]] = []  # of finished seeds; torch's engine needs them as CUDA trained them, because grouping decides rounding
    for seed in settings.train.seeds:
        if replay and seed in found and code not in found[seed].codes:
            stack = found[seed].origin["stack"] if device == "cuda" else [seed]
            if found[seed].is_fused:
                stack = [one for one in stack if one in found]
            if stack not in stacks:
                stacks.append(stack)
    replayed = [stack for stack in stacks if all(seed in found for seed in stack)]
    own = {seed for seed, part in found.items() if code in (part.codes if replay else [part.origin["code_hash"]])}
    kept = own | {seed for stack in replayed for seed in stack}
    missing = [seed for seed in settings.train.seeds if seed not in kept]
    groups = workers.make_groups(missing, device, stackable=settings.stackable) if missing else []
    return [*(workers.Task(stack, replay=True) for stack in replayed), *(workers.Task(group) for group in groups)]


def replays() -> bool:
    """Whether seeds of other code are replayed and, where they compute the same, kept."""
    return os.environ.get("REPLAY") != "0"


class Training:
    """The state of a variant's training in the coordinating process, updated by the workers' messages.

    Attributes:
        tasks: what there is to replay and to train.
    """

    def __init__(self, variant: str, job: workers.Job, tasks: list[workers.Task], progress: TrainingProgress) -> None:
        self.job = job
        self.tasks = tasks
        self.progress = progress
        self._variant = variant
        self._settings = job.settings
        self._place = job.folder
        self._origin = job.origin
        self._live: Live | None = None
        self._last: dict[int, list[EpochRow]] = {}  # by the group's first seed
        self._failed: dict[int, int] = {}
        self._trained: set[int] = set()
        self._replayed: set[int] = set()

    def handle(self, message: workers.Message) -> None:
        """Takes one message of a worker."""
        match message:
            case workers.Replayed(seeds=seeds, parted=None):
                self._replayed |= set(seeds)
            case workers.Replayed(seeds=seeds, parted=parted):
                self.progress.say(f"{self._variant}  trained anew, because the code computes something else: {parted}")
            case workers.Gone():
                self.progress.again(message.seeds)
                self.progress.say(f"{self._variant}  {message.reason}")
            case workers.Started():
                self._start(message.facts)
                self._trained |= set(message.seeds)
                if message.warning:
                    self.progress.say(f"{message.warning}: seeds {message.seeds} start from the beginning.")
                self.progress.started(message.seeds, message.epoch)
                self._record(message.seeds, message.rows)
            case workers.Epoch():
                self.progress.epoch(message.seeds, message.epoch, message.rows)
                self._record(message.seeds, message.rows)
                if message.note:
                    self.progress.say(message.note)
            case workers.Done():
                self._failed |= message.failed
                self.progress.finished(message.seeds, self._last.get(message.seeds[0], []))

    def finish(self) -> None:
        """Writes runs/VARIANT. Raises UserError with status 1 when a seed's loss was not finite."""
        parts = self._parts()
        directory = RUNS / self._variant
        code = results.last_code(self._place, self._variant, parts, self._origin["code_hash"])
        results.write(directory, self._settings, parts, self._describe(code), code)
        if count := sum(part.seed not in self._trained for part in parts):
            how = f", {len(self._replayed)} of them after a replay" if self._replayed else ""
            self.progress.say(f"{self._variant}  {count} finished seed{'s' * (count != 1)} kept{how}")
        self._end("SCHEDULED")

    def leave(self) -> None:
        """Leaves the finished seeds for the stage to write runs/VARIANT from. Raises UserError as `finish` does."""
        self._parts()
        self._end("SCHEDULED")

    def _parts(self) -> list[Finished]:
        """The finished seeds, in the order of the settings."""
        if self._failed:
            where = "; ".join(f"seed {seed} in epoch {epoch}" for seed, epoch in sorted(self._failed.items()))
            raise UserError(
                f"The loss of variant {self._variant} was not finite: {where}."
                " Lower train.learning_rate or change the variant in params.yaml; with `divergence: record` it is a result like any other.",
                status=1,
            )
        seeds = self._settings.train.seeds
        found, damaged = finished.find(self._place, self._origin["code_hash"], self._settings)
        if lost := [str(seed) for seed in seeds if seed not in found or self._origin["code_hash"] not in found[seed].codes]:
            raise UserError(
                f"Of variant {self._variant}, what seed {', '.join(lost)} left was damaged ({'; '.join(damaged)}):"
                " run the same command again, which trains it anew.",
                status=1,
            )
        return [found[seed] for seed in seeds]

    def fail(self) -> None:
        """Ends the MLflow runs of a training that cannot be finished."""
        self._end("FAILED")

    def _end(self, status: str) -> None:
        if self._live is not None:
            self._live.close(status)

    def _start(self, facts: workers.Facts) -> None:
        """Begins tracking with the first group that trains, because only its message completes the run's description."""
        if self._live is not None:
            return
        if self._origin["device"] == "cuda" and not self._settings.stackable:
            self.progress.say("This network cannot be stacked: its seeds train one after another.")
        if self._origin["device"] == "cuda":
            self.progress.say(f"{self._variant}  engine: {facts.engine}")
        elif not facts.attention.startswith("fused") and facts.attention != "none":
            self.progress.say(f"{self._variant}  attention is not computed by the fused kernel but as: {facts.attention}")
        run = self._describe(self._origin["code_hash"]) | self._origin
        run |= {name: getattr(facts, name) for name in ("engine", "attention", "device_name")} | {"started": workers.now()}
        # On CUDA the processor has time to spare, so the run can be watched from the start.
        self._live = Live(run, start_after=0.0) if self._origin["device"] == "cuda" else Live(run)

    def _describe(self, code: str) -> dict[str, Any]:
        """What run.json says of the training as a whole, before its seeds' origins; docs/architecture.md explains it.

        Args:
            code: hash of the code that trained its last seed.
        """
        return {
            "training_id": results.training_id(self._place, self._variant, self._settings.train.seeds, code),
            "variant": self._variant,
            "stage": f"train@{self._variant}",
            "config": self._settings.model_dump(mode="json"),
            "config_hash": self._settings.config_hash,
            "data_digest": data_digest(self._settings.task, ARRAYS),
            "dataset": self._settings.data.dataset,
            "seeds": list(self._settings.train.seeds),
        }

    def _record(self, seeds: list[int], rows: list[EpochRow]) -> None:
        assert self._live is not None
        if rows:
            self._last[seeds[0]] = [row for row in rows if row.epoch == rows[-1].epoch]
        for row in rows:
            self._live.epoch(row)


if __name__ == "__main__":
    run_command(main)
