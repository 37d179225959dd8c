"""`dvc repro` for a study that may have been killed before: checks params.yaml, mends what a kill left, trains, then runs DVC.

`pipeline.commands.train` trains all variants at once; the train stages then only assemble.

python -m pipeline.commands.repro [ARGUMENTS OF dvc repro]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import params
from pipeline.commands import mending
from pipeline.errors import UserError, run_command
from pipeline.provenance import training_code
from pipeline.runner import seeds
from pipeline.runner.pool import choose_processes, die_with_parent
from pipeline.stages import bring
from pipeline.study.files import RUNS

_INTERRUPTED = {130, 252}  # exit statuses after Ctrl-C: a command's of this project, and DVC's


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.repro", usage="%(prog)s [ARGUMENTS OF dvc repro]", description="Mends, trains, runs dvc repro."
    )
    arguments = parser.parse_known_args(argv)[1]
    reproduce(Path(), arguments)


def reproduce(directory: Path, arguments: Sequence[str] = ()) -> None:
    """Mends what a kill left in a repository, trains all that is missing, then runs `dvc repro`.

    Raises:
        UserError: params.yaml is wrong, or (status 1) a training or DVC failed; what went wrong has been printed by then.
        KeyboardInterrupt: Ctrl-C was pressed; what ran has ended.
    """
    choose_processes()  # refuses a bad number now, and not after the stages before
    settings = params.load(directory / "params.yaml")
    stages = _stages(directory, settings)
    if not (directory / ".dvc").is_dir():
        raise UserError(f"There is no .dvc/ in {directory.resolve()}: run the command from the root of a clone.")
    bring.check_place(directory)
    for line in mending.mend(directory, stages):
        print(line, flush=True)
    if not arguments:  # with arguments DVC may run a part of the study that trains nothing
        _run(directory, "make train", ["-m", "pipeline.commands.train"], stages)
        # Replays had accepted these, so that to DVC nothing has changed.
        if os.environ.get("REPLAY") == "0" and (trained := _of_other_code(directory, settings)):
            _run(directory, "dvc repro", ["-m", "dvc", "repro", "--force", "--single-item", *trained], stages)
    _run(directory, "dvc repro", ["-m", "dvc", "repro", *arguments], stages)


def read_stages(path: Path) -> dict[str, Any]:
    """The content of a dvc.yaml. Raises UserError where it holds no stages, or one that is no mapping."""
    content = params.read(path)
    stages = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        raise UserError("dvc.yaml holds no stages, or one without a body: bring it back with `git checkout dvc.yaml`.")
    return content


def _stages(directory: Path, settings: params.Params) -> list[str]:
    """Names of the stages of dvc.yaml; it repeats a stage for each variant, or not at all."""
    return [
        f"{name}@{variant}" if variant else name
        for name, stage in read_stages(directory / "dvc.yaml")["stages"].items()
        for variant in (settings.variants if "foreach" in stage else [None])
    ]


def _of_other_code(directory: Path, settings: params.Params) -> list[str]:
    """The train stages whose results hold seeds that other code has trained."""
    found = []
    for variant in settings.variants:
        code = training_code(settings.resolve(variant).task)
        with contextlib.suppress(UserError, ValueError, KeyError):  # of an older form: DVC runs the stage anyway
            if any(group["code_hash"] != code for group in seeds.read_run(directory / RUNS / variant)["trainings"]):
                found.append(f"train@{variant}")
    return found


def _run(directory: Path, name: str, arguments: Sequence[str], stages: Sequence[str]) -> None:
    """Runs a command that may run DVC, called `name`. While it runs, dvc.lock is copied whenever it has changed.

    Raises:
        UserError: it failed; it has printed why.
        KeyboardInterrupt: Ctrl-C was pressed; it has ended.
    """
    this = os.getpid()
    # Stages call `python`; it has to be this one.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env=os.environ | {"PATH": path},
        preexec_fn=lambda: die_with_parent(this),
    )
    try:
        status = None
        while status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = command.wait(timeout=1)
            with contextlib.suppress(OSError):  # a copy that cannot be written stops nothing
                mending.keep(directory, stages)
    except KeyboardInterrupt:
        # A terminal interrupts the whole group, which ends by itself. A signal to this process alone does not, so the command is ended.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            command.wait(timeout=10)
        command.terminate()
        command.wait()
        raise
    if status in _INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        where = "" if directory.resolve() == Path.cwd() else f" in {os.path.relpath(directory)}"
        raise UserError(f"`{name}` failed{where}; the lines above say why.", status=1)


if __name__ == "__main__":
    run_command(main)
