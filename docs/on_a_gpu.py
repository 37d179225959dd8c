"""What `docs/on_a_gpu.sh` runs: the data from data/raw, and new seeds of the variants of open claims, packed as finished seeds.

The train stage takes a finished seed of this code as its own (`pipeline.runner.seeds`), whatever device trained it, and evaluate tests
its weights. So weights travel, too: with trace and record a seed of the thesis's network has 60 kB, and the limit holds a thousand.
"""

from __future__ import annotations

import argparse
import os
import tarfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from benchmarks import gpu
from pipeline.params import DataSettings, Params, VariantSettings, load
from pipeline.runner import pool
from pipeline.runner.seeds import folder, read
from pipeline.system import provenance
from pipeline.system.errors import UserError, run_command
from pipeline.training import tasks
from pipeline.training.fused import FusedTrainer, make_trainer, why_not

ARRAYS, SEEDS = Path("data/arrays"), Path(".checkpoints/seeds")
# Open ones that a hundred seeds may decide; those that the study does not have are passed over.
CLAIMS = ("K1c", "T12c", "T12f", "T13c", "T14b", "K1d")
FIRST_SEED = 1000  # no seed from here on has been seen
TOGETHER = 50  # seeds of a stack; more are no faster, and a shorter stack is sooner safe
FILE_BYTES, FILES = 15 * 2**20, 4  # of packed seeds


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.on_a_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("prepare", "seeds"))
    parser.add_argument("--seconds", type=float, default=300.0, help="time for the seeds")
    parser.add_argument("--epochs", type=int, help="fewer than params.yaml has, to try this script")
    parser.add_argument("--count", type=int, default=100, help="seeds of each variant")
    parser.add_argument("--claims", type=lambda text: text.split(","), default=CLAIMS, help="claims, in their order")
    given = parser.parse_args(argv)
    if given.step == "prepare":
        prepare()
        return
    if given.seconds < 1:
        raise UserError("No time is left for seeds.")
    seeds(given.claims, given.count, time.monotonic() + given.seconds, Packer(Path(os.environ.get("OUT", "build/on-a-gpu"))), given.epochs)


def prepare() -> None:
    """Makes data/arrays where they are not. Raises UserError where a GPU is here and the fused engine does not run on it."""
    import torch

    from pipeline.data.datasets import prepare as make

    if not (ARRAYS / "dataset.json").exists():
        make(DataSettings(dataset="mnist"), Path("data/raw"), ARRAYS)
    device = pool.choose_device()
    installed = {name: gpu.version(name) for name in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")}
    print(f"{provenance.device_name(device)}, {provenance.versions(device) | installed}", flush=True)
    given = load().resolve("base"), tasks.load("classification", ARRAYS), [0], torch.device(device)
    engine = make_trainer(*given).engine
    if device == "cuda" and engine != "fused":
        try:
            FusedTrainer(*given).check()
        except Exception:
            traceback.print_exc()  # a compiler's log has many lines, of which `engine` names the first
        raise UserError(f"The fused engine does not run here ({engine}), and all that follows is of it.")


def chosen(params: Params, claims: tuple[str, ...], device: str) -> Iterator[tuple[str, VariantSettings]]:
    """The variants of these claims, each once; on a GPU those that the fused engine trains, for others would take all of the time."""
    import torch

    listed = dict.fromkeys(
        variant for claim in claims if claim in params.claims for side in params.claims[claim].comparisons for variant in side.variants
    )
    for variant in listed:
        settings = params.resolve(variant)
        reason = why_not(settings, torch.device(device)) if device == "cuda" else None
        if reason is None:
            yield variant, settings
        else:
            print(f"{variant}: left out, because torch's engine would train it ({reason})", flush=True)


class Packer:
    """Packs files into a few archives, each of them whole at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._packed = folder, [list[Path]()]
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, paths: list[Path]) -> bool:
        """Whether they still fit; if not, they are left out."""
        if sum(path.stat().st_size for path in (*self._packed[-1], *paths)) > FILE_BYTES:
            if len(self._packed) == FILES:
                return False
            self._packed.append([])
        self._packed[-1] += paths
        path = self._folder / f"seeds-{len(self._packed)}.tar.gz"
        with tarfile.open(path.with_suffix(".new"), "w:gz", compresslevel=6) as archive:
            for one in self._packed[-1]:
                archive.add(one)
        path.with_suffix(".new").rename(path)
        return True


def seeds(claims: tuple[str, ...], count: int, until: float, packer: Packer, epochs: int | None) -> None:
    """Trains new seeds, variant by variant, until the time or the room is used up."""
    device, params, packed = pool.choose_device(), load(), 0
    data, digest = tasks.load("classification", ARRAYS), tasks.data_digest("classification", ARRAYS)
    for variant, wanted in chosen(params, claims, device):
        length = {} if epochs is None else {"epochs": epochs}
        settings = wanted.model_copy(update={"train": wanted.train.model_copy(update={"seeds": (0,), **length})})
        place = folder(SEEDS, settings, digest)
        origin = provenance.origin(device, settings.task)
        job = pool.Job(settings, ARRAYS, place, device, origin, params.claims_of(variant))
        for first in range(FIRST_SEED, FIRST_SEED + count, TOGETHER):
            group = list(range(first, min(first + TOGETHER, FIRST_SEED + count)))
            missing = [seed for seed in group if not (place / f"seed-{seed}.{origin['code_hash'][:12]}.done").exists()]
            begin = time.monotonic()
            for part in pool.make_groups(missing, device, stackable=settings.stackable) if missing else []:
                try:
                    engine = train(pool.Assignment(job, pool.Task(part)), data, until)
                except UserError as error:  # one variant's trouble, as no memory, keeps none from the others
                    print(f"{variant}: {error}", flush=True)
                    break
                if engine is None:
                    print(f"{variant}: no time for seeds {first} and on; {packed} seeds are packed", flush=True)
                    return
                if device == "cuda" and engine != "fused":
                    print(f"{variant}: left out, because torch's engine would train it ({engine})", flush=True)
                    break
            paths = [path for seed in group for path in sorted(place.glob(f"seed-{seed}.*.done"))]
            if not paths:
                break
            if not packer.add(paths):
                print(f"{variant}: no room for seeds {first} and on; {packed} seeds are packed", flush=True)
                return
            packed += len(paths)
            parts = [read(path) for path in paths]
            mean = sum(part.rows[-1].test_accuracy for part in parts) / len(parts)
            took, engines = time.monotonic() - begin, ", ".join(sorted({part.origin["engine"] for part in parts}))
            print(f"{variant}: seeds {first} to {group[-1]}, accuracy {mean:.4%} in the mean, {took:.1f} s, {engines}", flush=True)
    print(f"{packed} seeds are packed, all that were asked for", flush=True)


def train(assignment: pool.Assignment, data: object, until: float) -> str | None:
    """Trains a stack and returns its engine; None where it was given up, as by its first epochs the time left does not suffice.

    On a GPU, where all seeds are to be trained by the fused engine, a stack that torch's would train is given up as it starts.
    """
    engine, epochs = "", assignment.job.settings.train.epochs
    for message in pool.messages(assignment, lambda _: data):
        if message.error is not None:
            raise message.error
        if message.kind == "started":
            begin, engine = time.monotonic(), str(message.facts["engine"])
            if assignment.job.device == "cuda" and engine != "fused":
                break
        if message.kind == "epoch":
            left = (time.monotonic() - begin) / message.epoch * (epochs - message.epoch)
            if time.monotonic() + left > until:
                return None
    return engine


if __name__ == "__main__":
    run_command(main)
