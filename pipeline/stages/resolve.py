"""DVC stage `resolve`: one settings file a variant, so that a change of params.yaml retrains only what it touches."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shutil
from pathlib import Path

from pipeline.errors import UserError, run_command
from pipeline.files import write_changed
from pipeline.params import Params, load
from pipeline.runner import seeds
from pipeline.study.files import CONFIGS, FINISHED, RUNS


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.resolve", description=__doc__).parse_args(argv)
    params = load()
    write_configs(params, CONFIGS)
    for line in prune(RUNS, params):
        print(line)


def write_configs(params: Params, directory: Path) -> None:
    """Writes `directory/VARIANT.json` for every variant where it has changed, and removes those of variants that are gone.

    `order.txt` changes with the order of variants and timed subjects, which tables and pages have, and DVC does not look at.
    """
    ordered = params.model_dump_json(include={"variants": True, "timing": {"subjects"}})
    write_changed(directory / "order.txt", f"{hashlib.sha256(ordered.encode()).hexdigest()}\n")
    for variant in params.variants:
        write_changed(directory / f"{variant}.json", params.resolve(variant).to_json())
    for path in directory.glob("*.json"):
        if path.stem not in params.variants:
            path.unlink()


def prune(runs: Path, params: Params) -> list[str]:
    """Removes results of variants that params.yaml no longer has, but for their finished seeds. Returns what there is to say.

    What is no training stays: links, and folders that hold other files. So do damaged results, whose seeds cannot be kept. Seeds that
    DVC has are copied only where a variant of other name trains the same.
    """
    there = {path.name for path in runs.glob("*")}
    # A variant that was only renamed finds its seeds again, in a fresh clone, too.
    seeds.restore_runs(runs, lambda name: name not in params.variants)
    lock, wanted = seeds.read_lock(), {params.resolve(variant).training_hash for variant in params.variants}
    gone = [path for path in sorted(runs.glob("*")) if path.name not in params.variants and _is_training(path)]
    said = []
    for path in gone:
        try:
            stored = all(seeds.is_stored(path / name, lock) for name in (seeds.RUN, *seeds.OUTPUTS))
            if not stored or _training_hash(path) in wanted:
                seeds.keep(path, FINISHED)
        except UserError as error:
            fault = str(error).partition(": ")[0]
            said.append(
                f"runs/{path.name} left, though params.yaml no longer names this variant, because its seeds cannot be kept: {fault}."
                " Restore that file, or remove the folder."
            )
            continue
        shutil.rmtree(path)
        if path.name in there:
            said.append(f"runs/{path.name} removed: params.yaml no longer names this variant")
    return said


def _training_hash(path: Path) -> str | None:
    """That of the settings in a run.json; None for one of an older form."""
    with contextlib.suppress(ValueError, KeyError):
        return seeds.settings_of(seeds.read_run(path)).training_hash
    return None


def _is_training(path: Path) -> bool:
    """Whether a folder holds what a train stage writes, or DVC beside it, and nothing else."""
    ours = {seeds.RUN, *seeds.OUTPUTS, ".gitignore"}
    return path.is_dir() and not path.is_symlink() and all(entry.name in ours or entry.suffix == ".tmp" for entry in path.iterdir())


if __name__ == "__main__":
    run_command(main)
