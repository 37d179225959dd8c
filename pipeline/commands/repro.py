"""`dvc repro` for a study that may have been killed before: checks params.yaml, mends what a kill left, then runs DVC.

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

from pipeline import params
from pipeline.commands import mending
from pipeline.errors import UserError, run_command
from pipeline.runner.progress import STUDY
from pipeline.runner.workers import die_with_parent
from pipeline.study.files import CHECKPOINTS

WORK = CHECKPOINTS / "study.json"

_INTERRUPTED = 252  # DVC's exit status after Ctrl-C


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.repro", usage="%(prog)s [ARGUMENTS OF dvc repro]", description=__doc__.splitlines()[0]
    )
    reproduce(Path(), parser.parse_known_args(argv)[1])


def reproduce(directory: Path, arguments: Sequence[str] = ()) -> None:
    """Runs `dvc repro` in a repository, after what a kill left there has been mended.

    Raises:
        UserError: params.yaml is wrong, or (status 1) DVC failed; what went wrong has been printed by then.
        KeyboardInterrupt: Ctrl-C was pressed; DVC has ended.
    """
    settings = params.load(directory / "params.yaml")
    stages = _stages(directory, settings)
    if not (directory / ".dvc").is_dir():
        raise UserError(f"There is no .dvc/ in {directory.resolve()}: run the command from the root of a clone.")
    for line in mending.mend(directory, stages):
        print(line, flush=True)
    status = _run(directory, arguments, stages)
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        where = "" if directory.resolve() == Path.cwd() else f" in {os.path.relpath(directory)}"
        raise UserError(f"`dvc repro` failed{where}; the lines above say why.", status=1)


def _stages(directory: Path, settings: params.Params) -> list[str]:
    """Names of the stages of dvc.yaml; it repeats a stage for each variant, or not at all."""
    content = params.read(directory / "dvc.yaml")
    stages = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(stages, dict):
        raise UserError("dvc.yaml holds no stages: bring it back with `git checkout dvc.yaml`.")
    return [
        f"{name}@{variant}" if variant else name
        for name, stage in stages.items()
        for variant in (settings.variants if "foreach" in stage else [None])
    ]


def _write_work(directory: Path) -> dict[str, str]:
    """Writes down how much work the study is, so that train stages can say how much of it is done.

    Returns:
        What they need in their environment for that; empty where the work is not known.
    """
    # A process of its own: it may import torch, whose memory the training needs.
    found = subprocess.run([sys.executable, "-m", "pipeline.commands.plan", "--work", WORK], cwd=directory)
    return {STUDY: str(WORK)} if found.returncode == 0 else {}


def _run(directory: Path, arguments: Sequence[str], stages: Sequence[str]) -> int:
    """DVC's exit status. While it runs, dvc.lock is copied whenever it has changed."""
    this = os.getpid()
    # Stages call `python`; it has to be this one.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    if not arguments:  # with arguments DVC may do another part of the study than the plan is of
        environment |= _write_work(directory)
    command = [sys.executable, "-m", "dvc", "repro", *arguments]
    dvc = subprocess.Popen(command, cwd=directory, env=environment, preexec_fn=lambda: die_with_parent(this))
    try:
        status = None
        while status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = dvc.wait(timeout=1)
            with contextlib.suppress(OSError):  # a copy that cannot be written stops nothing
                mending.keep(directory, stages)
    except KeyboardInterrupt:
        # A terminal interrupts DVC and its stage, too, and they end by themselves; a signal to this process alone has to end them.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            dvc.wait(timeout=10)
        dvc.terminate()
        dvc.wait()
        raise
    return status


if __name__ == "__main__":
    run_command(main)
