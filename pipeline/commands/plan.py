"""What a `dvc repro` would keep, replay and train, and how long that takes here; nothing is trained.

    python -m pipeline.commands.plan

It brings the text records that dvc.lock names and this folder lacks. Times come from earlier trainings on this kind of processor.
Without any, 20 steps are timed; .checkpoints/times.json keeps the result.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pipeline.commands import profiles
from pipeline.commands.catalogue import screen, show
from pipeline.errors import UserError, first_line, run_command
from pipeline.files import DamagedError, read_sealed, write_json
from pipeline.params import Params, VariantSettings, load
from pipeline.provenance import STAGE_CODE, code_hash, device_name, same_processor, training_code, versions
from pipeline.runner import checkpoint, finished, results, workers
from pipeline.runner.finished import Finished
from pipeline.runner.progress import duration
from pipeline.runner.schedule import makespan
from pipeline.stages import bring, train
from pipeline.study.files import ARRAYS, CHECKPOINTS, FINISHED, RUNS
from pipeline.training.records import EpochRow
from pipeline.training.tasks import TASKS, data_digest
from pipeline.training.tasks import load as load_data

TIMES = CHECKPOINTS / "times.json"
_WARM_UP, _CHUNK, _CHUNKS = 3, 5, 4  # steps: three that are not timed, then four times five
_UNDISTURBED = 0.1  # this share of the recorded epochs is taken to have had the machine for itself
_PATIENCE = 4.0  # seconds, after which no more steps are timed
# A training step is a forward pass and a backward pass, which costs twice as much.
_STEP_OVER_TEST = 3.0


@dataclass(frozen=True)
class Rate:
    """Seconds of a seed for one training image, and where the number comes from."""

    train: float
    source: str

    @property
    def test(self) -> float:
        """For one test image."""
        return self.train / _STEP_OVER_TEST


@dataclass(frozen=True)
class Entry:
    """What `dvc repro` would do with a variant.

    Attributes:
        tasks: what it would replay and train, in order.
        epochs_done: by a group's first seed, the epochs in its unfinished checkpoint.
    """

    variant: str
    settings: VariantSettings
    tasks: tuple[workers.Task, ...]
    epochs_done: Mapping[int, int]

    @property
    def replayed(self) -> list[int]:
        return [seed for task in self.tasks if task.replay for seed in task.seeds if seed in self.settings.train.seeds]

    @property
    def trained(self) -> list[int]:
        return [seed for task in self.tasks if not task.replay for seed in task.seeds]

    @property
    def kept(self) -> list[int]:
        return [seed for seed in self.settings.train.seeds if seed not in {*self.replayed, *self.trained}]

    @property
    def state(self) -> str:
        """`to train` where any seed is, else `replayed` where any is, else `kept`."""
        return "to train" if self.trained else "replayed" if self.replayed else "kept"


@dataclass(frozen=True)
class _Record:
    """Timed epochs of one training: `seconds` of a seed for one image. `keys`: see `_keys`."""

    variant: str
    keys: tuple[str, str, str]
    code: str
    finished: str
    seconds: tuple[float, ...]


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.commands.plan", description="What make repro would train.").parse_args(argv)
    profiles.refresh()
    params = load()
    bring.check_lock()
    bring.runs(params.variants)
    for path in without_outputs(results.read_lock()):
        mend = f"bring it back with `git checkout results`, or {path.parent.name} is trained anew"
        print(f"{path} is missing, and DVC does not have it: {mend}.")
    device = workers.choose_device()
    processes = len(workers.choose_cards(device))
    entries = survey(params, device)
    rates = recorded(params, device)
    waiting = [entry for entry in entries if entry.tasks and entry.variant not in rates]
    with_data = {task for task in {entry.settings.task for entry in waiting} if _digest(task)}
    if can_be_timed := [entry for entry in waiting if entry.settings.task in with_data]:
        rates |= measured(can_be_timed, device, processes if device == "cpu" else 1)
    header, lines = table(entries, rates, processes)
    show(screen(), "What `dvc repro` would do", header, lines)
    for line in summary(entries, rates, processes):
        print(line)
    if len(can_be_timed) < len(waiting):
        print("Times are missing because data are: run `dvc repro scenes` first, which makes them.")


def survey(params: Params, device: str) -> list[Entry]:
    """What `dvc repro` would do with each variant, in the order of params.yaml.

    Args:
        device: "cpu" or "cuda".

    Raises:
        UserError: something would be trained over a record of other settings than today's.
    """
    stage = code_hash(STAGE_CODE["train"])
    digests = {task: _digest(task) for task in TASKS}
    lock = results.read_lock()
    results.restore_runs(RUNS, params.variants.__contains__)
    incomplete = {path.parent.name for path in without_outputs(lock)}
    outlines = [
        (finished.folder(Path(), results.settings_of(run), run["data_digest"]).name, parts)
        for run, parts in _outlines(RUNS.glob("*/run.json"))
        if run["variant"] not in incomplete
    ]
    entries = []
    for variant in params.variants:
        settings = params.resolve(variant)
        code = training_code(settings.task)
        # Without the data their digest is unknown; the settings name the data set, too.
        pattern = finished.folder(Path(), settings, digests[settings.task] or "*").name
        places = sorted(FINISHED.glob(pattern))
        parts = [part for place in places for part in finished.read_all(place)[0]]
        parts += [part for place, found in outlines if fnmatch.fnmatch(place, pattern) for part in found]
        # Without its outputs DVC runs a stage that nothing else has changed.
        complete = (RUNS / variant / results.RUN).exists() and variant not in incomplete
        unchanged = train.replays() and complete and _unchanged(lock, variant, settings, stage)
        tasks = [] if unchanged else train.plan(settings, finished.best(parts, code, settings), code, device)
        if train.replays() and (RUNS / variant / results.RUN).exists() and not all(task.replay for task in tasks):
            with contextlib.suppress(KeyError):  # of an older form
                results.settings_of(results.read_run(RUNS / variant))
        epochs_done = {
            task.seeds[0]: epoch
            for task in tasks
            if not task.replay
            for place in places
            if (epoch := len({row.epoch for row in _checkpoint_rows(checkpoint.path_of(place, task.seeds, code), device)}))
        }
        entries.append(Entry(variant, settings, tuple(tasks), epochs_done))
    return entries


def without_outputs(lock: Mapping[str, Any]) -> list[Path]:
    """Weights and traces that a run.json in runs/ names and that are gone, here and from DVC's stores.

    Args:
        lock: what `results.read_lock` gives.
    """
    paths = [run.parent / name for run in sorted(RUNS.glob(f"*/{results.RUN}")) for name in results.OUTPUTS]
    gone = [path for path in paths if not path.exists() and not results.is_stored(path, lock)]
    return gone if gone and not bring.has_other_remote() else []  # which `make train` asks


def _digest(task: str) -> str | None:
    """Digest of a task's data; None if they are not here."""
    try:
        return data_digest(task, ARRAYS)
    except UserError:
        return None


def _unchanged(lock: Mapping[str, Any], variant: str, settings: VariantSettings, stage: str) -> bool:
    """Whether dvc.lock has all dependencies of a train stage as they are, so that DVC does not run it.

    Args:
        stage: hash of the code of the train stage.
    """
    try:
        read = {file["path"]: file["md5"] for file in lock[f"train@{variant}"]["deps"]}
        outs = [out for stage in ("prepare", "scenes") for out in lock[stage]["outs"]]
        made = {out["path"]: out["md5"] for out in outs if out["path"].startswith("data/")}
    except (LookupError, TypeError, AttributeError):
        return False
    texts = {f"configs/{variant}.json": settings.to_json(), "code-hashes/train.txt": f"{stage}\n"}
    expected = {path: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for path, text in texts.items()}
    return read == expected | made


def _outlines(paths: Iterator[Path]) -> Iterator[tuple[dict[str, Any], list[Finished]]]:
    """Content and seeds of each run.json. Files that cannot be read, or have an older form, are left out."""
    for path in sorted(paths):
        try:
            run = results.read_run(path.parent)
            results.settings_of(run)
            yield {**run, "variant": path.parent.name}, results.outline(run)
        except (UserError, ValueError, KeyError):
            continue


def _checkpoint_rows(path: Path, device: str) -> list[EpochRow]:
    """The epochs of a checkpoint from which this machine goes on; none where there is no such checkpoint."""
    try:
        content = checkpoint.metadata(read_sealed(path))
    except (FileNotFoundError, DamagedError):
        return []
    if checkpoint.why_not_from(content, device_name(device), versions(device)):
        return []
    return [EpochRow(*row) for row in content["rows"]]


def recorded(params: Params, device: str) -> dict[str, Rate]:
    """By variant, what earlier trainings on this kind of processor took; variants without any are left out.

    The nearest trainings count: those of the same settings, else of the same model and step, else of the same model. Of these the newest
    code counts, and the fast end of its epochs: other work on the machine makes an epoch longer, up to fifty times in a study of days, and
    nothing makes it shorter.
    """
    records = list(_records(params, device))
    rates = {}
    for variant in params.variants:
        for level, key in enumerate(_keys(params.resolve(variant))):
            found = [record for record in records if record.keys[level] == key]
            if not found:
                continue
            newest = max(found, key=lambda record: (record.finished, record.variant == variant))
            seconds = np.quantile([second for record in found if record.code == newest.code for second in record.seconds], _UNDISTURBED)
            source = "recorded" if level == 0 else "recorded, scaled" if newest.variant == variant else f"recorded of {newest.variant}"
            rates[variant] = Rate(float(seconds), source)
            break
    return rates


def _keys(settings: VariantSettings) -> tuple[str, str, str]:
    """Keys of a training's time, the nearest first: its settings, what decides the time of a step, its model."""
    step = settings.train.model_dump(include={"batch_size", "optimizer", "clip_norm", "augment"})
    model = settings.model.model_dump()
    return settings.training_hash, json.dumps([model, step], sort_keys=True), json.dumps(model, sort_keys=True)


def _records(params: Params, device: str) -> Iterator[_Record]:
    """Timed epochs: of the variants' finished seeds and checkpoints, and of runs/, also those of profiles."""
    name = device_name(device)
    for variant in params.variants:
        settings = params.resolve(variant)
        code = training_code(settings.task)
        for place in sorted(FINISHED.glob(finished.folder(Path(), settings, "*").name)):
            yield from _of_parts(variant, settings, finished.read_all(place)[0], name)
            for path in sorted(place.glob(f"*.{code[:12]}.part")):
                if rows := _checkpoint_rows(path, device):
                    stack = len({row.seed for row in rows})
                    yield _Record(variant, _keys(settings), code, workers.now(), _per_image(settings, rows, stack))
    for run, parts in _outlines(path for root in (RUNS, *Path("build").glob("*/runs")) for path in root.glob("*/run.json")):
        with contextlib.suppress(UserError):  # of another data set, whose images are not counted here
            yield from _of_parts(run["variant"], results.settings_of(run), parts, name)


def _of_parts(variant: str, settings: VariantSettings, parts: Sequence[Finished], name: str) -> Iterator[_Record]:
    for part in parts:
        if part.rows and same_processor(part.origin["device_name"], name):
            seconds = _per_image(settings, part.rows, len(part.origin["stack"]))
            yield _Record(variant, _keys(settings), part.origin["code_hash"], part.origin["finished"], seconds)


def _per_image(settings: VariantSettings, rows: Sequence[EpochRow], stack: int) -> tuple[float, ...]:
    """Seconds of a seed for one image, by epoch; a row's seconds are of its whole stack."""
    return tuple(row.seconds / settings.epoch_examples / stack for row in rows)


def measured(entries: Sequence[Entry], device: str, processes: int) -> dict[str, Rate]:
    """By variant, what a few steps take now, in as many processes at once as train. `TIMES` keeps what was timed.

    A variant whose steps fail has no time; a line says why.
    """
    name = device_name(device)
    known = _read_times()
    keys = {entry.variant: _time_key(entry.settings, name) for entry in entries}
    waiting = {keys[entry.variant]: entry for entry in reversed(entries) if keys[entry.variant] not in known}
    if waiting:
        console = Console(stderr=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, len(waiting)), context, _open, (device,)) as pool:
            jobs = [(key, entry, pool.submit(_time, entry.settings, _group(entry), device)) for key, entry in reversed(waiting.items())]
            with console.status("") as status:
                if not console.is_terminal:
                    console.print(f"Timing a few steps of {len(jobs)} variant{'s' * (len(jobs) != 1)}.", soft_wrap=True)
                for i, (key, entry, job) in enumerate(jobs):
                    status.update(f"timing a few steps of each variant: {i} of {len(jobs)}, {entry.variant}")
                    try:
                        known[key] = job.result()
                    except BrokenProcessPool:
                        raise UserError(
                            "A process that timed steps ended early (out of memory?); run the same command again: what is timed is kept.",
                            status=1,
                        ) from None
                    except (RuntimeError, MemoryError) as error:  # torch's own where memory does not suffice
                        print(f"{entry.variant} cannot be timed ({first_line(error)}), so its training would fail here, too.")
                        continue
                    write_json(TIMES, known)
    return {variant: Rate(known[key], "20 steps") for variant, key in keys.items() if key in known}


def _time_key(settings: VariantSettings, name: str) -> str:
    return hashlib.sha256(json.dumps([_keys(settings)[1], training_code(settings.task), name]).encode()).hexdigest()


def _group(entry: Entry) -> list[int]:
    """Seeds that train together."""
    return next((task.seeds for task in entry.tasks if not task.replay), entry.tasks[0].seeds)


def _read_times() -> dict[str, float]:
    try:
        return {key: float(seconds) for key, seconds in json.loads(TIMES.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


_data: dict[str, Any] = {}  # of a timing process, by task


def _open(device: str) -> None:
    """Sets a timing process up as a training's worker."""
    import torch

    from pipeline.training.engine import keep_freed_memory, set_reproducible

    set_reproducible(torch.device(device))
    keep_freed_memory()


def _time(settings: VariantSettings, seeds: list[int], device: str) -> float:
    """Seconds of a seed for one training image."""
    import torch

    from pipeline.training.fused import make_trainer

    if settings.task not in _data:
        _data[settings.task] = load_data(settings.task, ARRAYS)
    trainer = make_trainer(_shortened(settings), _data[settings.task], seeds, torch.device(device))

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()  # of this thread alone: the machine's load now says nothing about the hours to come

    trainer.run_steps(_WARM_UP)
    start, steps = clock(), 0
    while steps < _CHUNK * _CHUNKS and clock() - start < _PATIENCE:
        trainer.run_steps(_CHUNK)
        steps += _CHUNK
    return (clock() - start) / (steps * settings.train.batch_size * len(seeds))


def _shortened(settings: VariantSettings) -> VariantSettings:
    """The settings with as many whole batches as are timed. None is self-critical: that takes longer, and `_keys` does not name it."""
    length = {"epochs": 1, "epoch_images": settings.train.batch_size * (_WARM_UP + _CHUNK * _CHUNKS), "self_critical_epochs": 0}
    return settings.model_copy(update={"train": settings.train.model_copy(update=length)})


def epoch_cost(entry: Entry, rate: Rate) -> float:
    """Seconds of a process for an epoch of a seed, its test included."""
    return entry.settings.epoch_examples * rate.train + entry.settings.num_tests * rate.test


def seed_cost(entry: Entry, rate: Rate) -> float:
    """Seconds of a process for the whole training of a seed."""
    return entry.settings.train.epochs * epoch_cost(entry, rate)


def cost(entry: Entry, task: workers.Task, rate: Rate) -> float:
    """Seconds of a process for one of a variant's tasks, without the start of the process."""
    train = entry.settings.train
    if task.replay:
        shown = min(finished.REPLAYED_STEPS * train.batch_size, train.epochs * entry.settings.epoch_examples)
        return (shown * rate.train + entry.settings.num_tests * rate.test) * len(task.seeds)
    return (train.epochs - entry.epochs_done.get(task.seeds[0], 0)) * epoch_cost(entry, rate) * len(task.seeds)


def seconds(entries: Sequence[Entry], rates: Mapping[str, Rate], processes: int) -> float:
    """How long all tasks of the variants take together: the longest first, as commands/train.py runs them."""
    costs = [cost(entry, task, rates[entry.variant]) for entry in entries for task in entry.tasks]
    return makespan(costs, processes)


def estimated(entries: Sequence[Entry], rates: Mapping[str, Rate]) -> dict[str, Rate]:
    """The rates of all variants. One without a known time gets the others' median rate per operation of its forward pass."""
    if all(entry.variant in rates for entry in entries):
        return dict(rates)
    from pipeline.models import count_flops

    flops = {entry.variant: count_flops(entry.settings.model) for entry in entries}
    known = [rate.train / flops[variant] for variant, rate in rates.items()]
    factor = statistics.median(known) if known else 1e-9
    return {variant: Rate(count * factor, "arithmetic") for variant, count in flops.items()} | dict(rates)


def table(entries: Sequence[Entry], rates: Mapping[str, Rate], processes: int) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and lines of the list."""
    lines: list[Sequence[str]] = []
    for entry in entries:
        rate = rates.get(entry.variant) if entry.tasks else None
        epochs = entry.settings.train.epochs
        done = [f"{epoch} of {epochs} epochs of seed {seed}" for seed, epoch in entry.epochs_done.items()]
        an_epoch = None if rate is None else entry.settings.epoch_examples * rate.train
        lines.append(
            (
                entry.variant,
                _seeds(entry.kept),
                _seeds(entry.replayed),
                f"{_seeds(entry.trained)} x {epochs} epochs" if entry.trained else "",
                ", ".join(done),
                "" if an_epoch is None else f"{an_epoch:.3g} s" if an_epoch < 1000 else f"{an_epoch:.0f} s",
                "" if rate is None else rate.source,
                "" if rate is None else duration(seconds([entry], rates, processes)),
            )
        )
    return ("variant", "kept", "replayed", "trained", "in progress", "an epoch", "known from", "time"), lines


def summary(entries: Sequence[Entry], rates: Mapping[str, Rate], processes: int) -> list[str]:
    """The total and what it leaves out, a line each."""
    busy = [entry for entry in entries if entry.tasks]
    states = [entry.state for entry in entries]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("kept", "replayed", "to train") if state in states)
    line = f"{len(entries)} variant{'s' * (len(entries) != 1)}: {counts}"
    if trained := sum(len(entry.trained) for entry in entries):
        line += f": {trained} seed{'s' * (trained != 1)}"
    if busy and all(entry.variant in rates for entry in busy):
        line += f", about {duration(seconds(busy, rates, processes))} with {processes} process{'es' * (processes != 1)}"
    lines = [f"{line}."]
    if busy and rates:
        lines.append("Processes' starts, the timing stage, the tests of stored weights and the pages come on top: some minutes.")
    return lines


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}" if seeds else ""


if __name__ == "__main__":
    run_command(main)
