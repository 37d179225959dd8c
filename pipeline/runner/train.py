"""Finishes the seeds of any number of variants: one for its stage, all for `make train`, a single seed again for `make verify`.

Only what is missing trains. A seed that was finished by this code is kept; one that was finished by other code is kept when its
replay shows that this code computes the same. The longest group begins first: list scheduling by longest processing time, which takes
at most 4/3 - 1/(3 n) times the shortest time that n processes could take (Graham 1969, theorem 2).
"""

from __future__ import annotations

import contextlib
import fnmatch
import heapq
import os
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from pipeline.params import Params, VariantSettings, flatten
from pipeline.params import recorded as recorded_settings
from pipeline.params.variant import completed
from pipeline.runner import pool, seeds
from pipeline.runner.pool import Assignment, Engine, Job, Task
from pipeline.runner.progress import Progress, group_name
from pipeline.runner.seeds import Finished
from pipeline.system import provenance
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError
from pipeline.system.paths import ARRAYS, FINISHED, TRAININGS
from pipeline.system.provenance import device_name, same_processor, training_code
from pipeline.tracking.live import Live
from pipeline.training.tasks import TASKS, data_digest

# This share of the recorded epochs is taken to have had the machine for itself: other work makes an epoch longer, up to fifty times in a
# study of days, and nothing makes it shorter.
_UNDISTURBED = 0.1
# A training step is a forward pass, as a test's, and a backward pass, which costs twice as much.
_TEST_OVER_STEP = 1 / 3


# --- what there is to do ---


@dataclass(frozen=True)
class Entry:
    """What there is to do for a variant.

    Attributes:
        tasks: what would be replayed and trained, in order.
        found: all finished seeds of its settings, of whatever code; tensors may be missing.
        damaged: a clause about every file of a finished seed that is not what was written.
    """

    variant: str
    settings: VariantSettings
    tasks: tuple[Task, ...]
    found: tuple[Finished, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def replayed(self) -> list[int]:
        return [seed for task in self.tasks if task.replay for seed in task.seeds if seed in self.settings.train.seeds]

    @property
    def trained(self) -> list[int]:
        return [seed for task in self.tasks if not task.replay for seed in task.seeds]

    @property
    def kept(self) -> list[int]:
        return [seed for seed in self.settings.train.seeds if seed not in {*self.replayed, *self.trained}]


def survey(params: Params, device: str) -> list[Entry]:
    """What `dvc repro` would do with each variant, in the order of params.yaml. Raises UserError as `look_up` does."""
    return look_up({variant: params.resolve(variant) for variant in params.variants}, device)


def look_up(variants: Mapping[str, VariantSettings], device: str) -> list[Entry]:
    """What there is to do for each variant.

    Args:
        device: "cpu" or "cuda".

    Raises:
        UserError: something would be trained, and a record has an option that the code does not know.
    """
    digests = dict.fromkeys(TASKS, "*")  # without the data their digest is unknown; the settings name the data set, too
    for task in TASKS:
        with contextlib.suppress(UserError):
            digests[task] = data_digest(task, ARRAYS)
    patterns = {variant: seeds.folder(Path(), settings, digests[settings.task]).name for variant, settings in variants.items()}
    stored, unreadable = list[tuple[str, list[Finished]]](), dict[str, UserError]()
    for path in sorted(TRAININGS.glob(f"*{seeds.SUFFIX}")):
        try:
            run = seeds.read_record(path)
            place = seeds.folder(Path(), seeds.settings_of(run), run["data_digest"]).name
            if any(fnmatch.fnmatch(place, pattern) for pattern in patterns.values()):
                stored.append((place, seeds.load(path)))
        except UserError as error:
            unreadable[path.stem] = error
    # A commit's own code in a judgement (`worktree`) meets the trainings of later code, which are not its own.
    entries, gone = [], None if os.environ.get("LAB_COMMIT") else forgotten(variants.values(), patterns.values())
    for variant, settings in variants.items():
        code = training_code(settings.task)
        here = [seeds.read_all(folder) for folder in sorted(FINISHED.glob(patterns[variant]))]
        there = [found for place, found in stored if fnmatch.fnmatch(place, patterns[variant])]
        parts = [part for found in (*(found for found, _ in here), *there) for part in found]
        tasks = plan(settings, seeds.best(parts, code, settings), code, device)
        # Hours of training would replace what a second may restore.
        fault = unreadable.get(variant) or (None if all(task.replay for task in tasks) else unfrozen(settings, parts) or gone)
        if tasks and replays() and fault is not None:
            raise fault
        damaged = [clause for _, clauses in here for clause in clauses.values()]
        entries.append(Entry(variant, settings, tuple(tasks), tuple(parts), tuple(damaged)))
    return entries


def unfrozen(settings: VariantSettings, parts: Iterable[Finished]) -> UserError | None:
    """That finished seeds of this key lack an option that has no line in `FROZEN`, so that they count as of other settings."""
    own = dict(flatten(settings.model_dump(mode="json")))
    others = [dict(flatten(completed(part.origin["config"]))) for part in parts if not settings.trained_as(part.origin["config"])]
    if lacking := sorted({name for found in others for name in own.keys() - found.keys()}):
        return UserError(
            f"Finished seeds have no {', '.join(lacking)}: give it a line in FROZEN of pipeline/params/variant.py with the value that they"
            " had, or train them anew with `REPLAY=0`."
        )
    return None


def forgotten(variants: Iterable[VariantSettings], patterns: Collection[str]) -> UserError | None:
    """That a finished seed has an option that the code does not know, and all others as a variant has them: it may be the variant's own.

    Its settings have another key now, under which it is not found.
    """
    wanted = [dict(flatten(settings.model_dump(mode="json", exclude={"train": {"seeds"}}))) for settings in variants]
    for place in sorted(FINISHED.glob("*/")):
        for path in [] if any(fnmatch.fnmatch(place.name, one) for one in patterns) else seeds.paths(place)[:1]:
            try:
                recorded_settings(config := seeds.read(path).origin["config"], str(path))
            except DamagedError:
                continue
            except UserError as error:
                found = dict(flatten(config))
                if any(all(found.get(name, value) == value for name, value in own.items()) for own in wanted):
                    return UserError(f"{error} If nobody wants these seeds, delete {place}.")
    return None


def plan(settings: VariantSettings, found: Mapping[int, Finished], code: str, device: str) -> list[Task]:
    """The groups of seeds to replay and to train, so that all seeds of the settings are finished by this code.

    REPLAY=0 in the environment keeps none that other code has trained, whether or not a replay has accepted it.

    Args:
        found: all finished seeds of these settings. Those whose weights are not here are kept, but for the first, and with REPLAY=0.
    """
    replay = replays()
    found = {seed: part for seed, part in found.items() if part.has_weights or (replay and seed != settings.train.seeds[0])}
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
    groups = pool.make_groups(missing, device, stackable=settings.stackable) if missing else []
    first = found.get(settings.train.seeds[0])  # whose weights are here
    return [*(Task(stack, tuple(found[seed] for seed in stack), first) for stack in replayed), *(Task(group) for group in groups)]


def replays() -> bool:
    """Whether seeds of other code are replayed and, where they compute the same, kept."""
    return os.environ.get("REPLAY") != "0"


# --- how long it takes ---


def recorded(entries: Iterable[Entry], device: str) -> dict[str, float]:
    """By variant, the seconds of a seed for a training image, of those whose settings this kind of processor has trained."""
    here, rates = device_name(device), {}
    for entry in entries:
        parts = [part for part in entry.found if same_processor(part.origin["device_name"], here)]
        per_epoch = [row.seconds / len(part.origin["stack"]) for part in parts for row in part.rows]  # a row's are of its whole stack
        if per_epoch:
            rates[entry.variant] = float(np.quantile(per_epoch, _UNDISTURBED)) / entry.settings.epoch_examples
    return rates


def estimated(entries: Sequence[Entry], rates: Mapping[str, float]) -> dict[str, float]:
    """The rates of all variants: of those without one, by the operations of their forward pass and the others' median.

    Without any rate the unit is not seconds. One variant alone, which is compared with none, may be left without, so that its stage
    needs no torch.
    """
    if len(entries) == 1 or all(entry.variant in rates for entry in entries):
        return dict(rates)
    from pipeline.models import count_flops

    flops = {entry.variant: max(count_flops(entry.settings.model), 1) for entry in entries}  # an own model may say that it has none
    factor = statistics.median(rate / flops[variant] for variant, rate in rates.items()) if rates else 1.0
    return {variant: rates.get(variant, count * factor) for variant, count in flops.items()}


def cost(entry: Entry, task: Task, rate: float) -> float:
    """Seconds of a process for one of a variant's tasks, without the start of the process."""
    train, tests = entry.settings.train, entry.settings.num_tests * _TEST_OVER_STEP
    if task.replay:
        return rate * len(task.seeds) * (min(seeds.REPLAYED_STEPS * train.batch_size, train.epochs * entry.settings.epoch_examples) + tests)
    return rate * len(task.seeds) * train.epochs * (entry.settings.epoch_examples + tests)


def makespan(seconds: Iterable[float], processes: int) -> float:
    """When the last of the tasks ends, in seconds from the beginning, where a free process takes the longest that waits."""
    free = [0.0] * processes  # when each is free, as a heap
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + one)
    return max(free)


# --- doing it ---


def train(
    entries: Sequence[Entry],
    device: str,
    engine: Engine,
    *,
    root: Path = FINISHED,
    assemble: bool = False,
    claims: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Does what there is to do. What cannot be finished of several variants stops none of the others.

    Args:
        entries: of `survey` or `look_up`.
        device: "cpu" or "cuda".
        root: of the folders of finished seeds. Of one of the caller's own MLflow is told nothing.
        assemble: whether to write the variant's file in the store, as the stage does.
        claims: by variant, the digests of the claims that speak of it, which its seeds keep.

    Raises:
        UserError: status 1 when some could not be finished, 2 when something has to be mended first.
    """
    places = {one.variant: seeds.folder(root, one.settings, data_digest(one.settings.task, ARRAYS)) for one in entries}
    rates = estimated(entries, recorded(entries, device)) if any(entry.tasks for entry in entries) else {}
    progress, faults, trainings = Progress(), set[int](), dict[str, _Training]()  # statuses of faults
    queue, planned = list[tuple[float, Assignment]](), defaultdict[Path, set[int]](set)

    def fault(error: UserError, of: str = "", status: int = 1) -> None:
        if len(entries) == 1:
            raise error
        faults.add(status)
        print(f"{of}{error}")

    def handle(assignment: Assignment, message: pool.Message) -> None:
        if message.kind == "started" and data_digest(assignment.job.settings.task, ARRAYS)[:12] not in assignment.job.folder.name:
            raise UserError("The data were changed while this command ran: run it again.")
        training = trainings[assignment.job.variant]
        training.handle(message)
        if message.error is not None:
            if message.error.status != 1:  # such as a full disk, for all of them
                raise message.error
            fault(message.error, f"{training.name(message.seeds)}: ")
        elif message.is_last and not training.left:
            conclude(training)

    def conclude(training: _Training) -> None:
        try:
            training.finish(assemble=assemble)
        except UserError as error:
            fault(error, status=error.status)  # not the machine's where a loss was not finite: it would be again

    with contextlib.ExitStack() as stack:
        refused = _lock(places, stack)
        if len(refused) == len(entries):
            raise next(iter(refused.values()))
        for refusal in refused.values():
            fault(refusal)
        try:
            for entry in entries:
                variant, settings, place = entry.variant, entry.settings, places[entry.variant]
                if variant in refused:
                    continue
                seeds.keep(entry.found, place)
                told = {one for name, of in places.items() if of == place for one in claims.get(name, ())}
                job = Job(settings, ARRAYS, place, device, provenance.origin(device, settings.task), tuple(sorted(told)), variant)
                # Variants that differ in seeds or names alone share a folder, and what one of them has begun is no other's.
                left = [(task, [seed for seed in task.seeds if seed not in planned[place]]) for task in entry.tasks]
                tasks = [task if task.replay else Task(own) for task, own in left if own]
                planned[place] |= {seed for task in tasks for seed in task.seeds}
                training = trainings[variant] = _Training(entry, job, tasks, progress, rates.get(variant, 1.0), live=root == FINISHED)
                queue += [(cost(entry, task, rates.get(variant, 1.0)), Assignment(job, task)) for task in tasks]
                if not tasks:
                    conclude(training)
            engine([one for _, one in sorted(queue, key=lambda item: -item[0])], handle)
        finally:
            for training in trainings.values():
                training.close("FAILED")
    if faults:
        raise UserError(
            "Not everything is trained, and the lines above say why. What is finished is kept: the same command trains the rest.",
            status=min(faults),
        )


def _lock(places: Mapping[str, Path], stack: contextlib.ExitStack) -> dict[str, UserError]:
    """Locks the folders, until the stack ends or the process does, however that happens. Returns which variants another one trains."""
    locks, refused = dict[Path, FileLock](), dict[str, UserError]()
    for variant, place in places.items():
        place.mkdir(parents=True, exist_ok=True)
        try:  # a lock that this process has may be taken again
            stack.enter_context(locks.setdefault(place, FileLock(place / "lock", timeout=0)))
        except Timeout:
            refused[variant] = UserError(f"Another trainer is working on variant {variant}: wait until it ends, then try again.", status=1)
    return refused


class _Training:
    """The state of a variant's training in the coordinating process, updated by the workers' messages. The caller holds its lock.

    Args:
        tasks: those that are its own; `left` of them are not finished.
        work: of a seed's training image, in the progress's unit.
        live: whether MLflow is told.
    """

    def __init__(self, entry: Entry, job: Job, tasks: Sequence[Task], progress: Progress, work: float, *, live: bool) -> None:
        self.variant, self.left, self._job, self._progress, self._live_wanted = entry.variant, len(tasks), job, progress, live
        self._work = work * (job.settings.epoch_examples + job.settings.num_tests * _TEST_OVER_STEP)  # of an epoch of a seed
        self._live: Live | None = None
        self._failed: dict[int, int] = {}
        self._trained: set[int] = set()
        self._replayed: set[int] = set()
        for fault in entry.damaged:
            print(f"{fault}: it does not count.")
        for task in tasks:
            if not task.replay:
                self._expect(task.seeds)

    def name(self, group: Sequence[int]) -> str:
        """What lines call a group of its seeds."""
        return f"{self.variant}  {group_name(group)}"

    def _expect(self, group: Sequence[int]) -> None:
        self._progress.expect(self.name(group), self._work_after(0, group))

    def _work_after(self, epoch: int, group: Sequence[int]) -> float:
        return self._work * len(group) * (self._job.settings.train.epochs - epoch)

    def handle(self, message: pool.Message) -> None:
        """Takes one message of a worker."""
        name, epochs, left = self.name(message.seeds), self._job.settings.train.epochs, self._work_after(message.epoch, message.seeds)
        if message.kind == "other":
            print(f"{self.variant}  trained anew, because the code computes something else: {message.note}")
            self._expect(message.seeds)
        elif message.note:
            print(f"{self.variant}  {message.note}")
        if message.kind == "started":
            self._start(message.facts)
            self._trained |= {*message.seeds}
            if message.epoch:
                print(f"{name}  goes on after epoch {message.epoch} of {epochs}")
            self._progress.expect(name, left)
        elif message.kind == "epoch":
            self._progress.epoch(name, left, message.rows, f"epoch {message.epoch}/{epochs}")
        elif message.is_last or message.error:
            self._failed |= message.failed
            self._replayed |= {*message.seeds} if message.kind == "same" else set()
            self.left -= message.is_last
            self._progress.end(name)
        if self._live is not None:
            for row in message.rows:
                self._live.epoch(row)

    def finish(self, *, assemble: bool) -> None:
        """Looks at the finished seeds, and writes the variant's file if it is to. Raises UserError when a seed's loss was not finite."""
        if self._failed:
            where = "; ".join(f"seed {seed} in epoch {epoch}" for seed, epoch in sorted(self._failed.items()))
            raise UserError(
                f"The loss of variant {self.variant} was not finite: {where}."
                " Lower train.learning_rate or change the variant in params.yaml; with `divergence: record` it is a result like any other."
            )
        if assemble:
            settings, code = self._job.settings, self._job.origin["code_hash"]
            found, _ = seeds.find(self._job.folder, code, settings)
            parts = [found[seed] for seed in settings.train.seeds if seed in found and code in found[seed].codes]
            if len(parts) < len(settings.train.seeds):
                raise UserError(f"What a seed of variant {self.variant} left was damaged: run the same command again.", status=1)
            description = self._describe(self._identity(parts))
            path = TRAININGS / f"{self.variant}{seeds.SUFFIX}"
            with contextlib.suppress(UserError):  # there is none yet, or none that can be read
                run = seeds.read_record(path)  # of other settings, maybe, whose seeds are nowhere else in a clone
                seeds.keep(seeds.load(path), seeds.folder(FINISHED, seeds.settings_of(run), run["data_digest"]))
            seeds.assemble(path, settings, parts, description)
            if count := sum(part.seed not in self._trained for part in parts):
                how = f", {len(self._replayed & {part.seed for part in parts})} of them after a replay" if self._replayed else ""
                print(f"{self.variant}  {count} finished seed{'s' * (count != 1)} kept{how}")
        self.close("SCHEDULED")

    def close(self, status: str) -> None:
        """Ends the MLflow runs, unless they have ended."""
        live, self._live = self._live, None
        if live is not None:
            live.close(status)

    def _start(self, facts: Mapping[str, Any]) -> None:
        """Says how the first group trains, and begins tracking with it, because only its message completes the run's description."""
        if self._trained:
            return
        on_gpu = self._job.device == "cuda"
        if on_gpu or not facts["attention"].startswith(("fused", "none")):
            print(f"{self.variant}  engine: {facts['engine']}, attention: {facts['attention']}")
        if self._live_wanted:
            run = self._describe(self._id(self._job.origin["code_hash"], facts["device_name"])) | self._job.origin | {"started": pool.now()}
            run |= {name: facts[name] for name in ("engine", "attention", "device_name")}
            # On CUDA the processor has time to spare, so the run can be watched from the start.
            self._live = Live(run, start_after=0.0) if on_gpu else Live(run)

    def _id(self, code: str, device_name: str) -> str:
        return seeds.training_id(self._job.folder, self.variant, self._job.settings.train.seeds, code, device_name)

    def _identity(self, parts: Sequence[Finished]) -> str:
        """The training's id, by the code that trained its last seed; that of the record where it has the same data and weights."""
        with contextlib.suppress(UserError):
            run = seeds.read_record(TRAININGS / f"{self.variant}{seeds.SUFFIX}")
            same = run["data_digest"] == data_digest(self._job.settings.task, ARRAYS)
            if same and run["outputs"]["weights"] == {str(part.seed): part.origin["weights"] for part in parts}:
                return str(run["training_id"])
        last = max(parts, key=lambda part: part.origin["finished"])
        return self._id(last.origin["code_hash"], last.origin["device_name"])

    def _describe(self, id: str) -> dict[str, Any]:
        """What the record says of the training as a whole, before its seeds' origins; docs/tables.md explains it."""
        settings = self._job.settings
        return {
            "training_id": id,
            "variant": self.variant,
            "stage": f"train@{self.variant}",
            "config": settings.model_dump(mode="json"),
            "config_hash": settings.config_hash,
            "data_digest": data_digest(settings.task, ARRAYS),
            "dataset": settings.data.dataset,
            "seeds": list(settings.train.seeds),
        }
