"""`make repro`: checks the settings, trains all that is missing by `make train`, then runs `dvc repro`, whose train stages only assemble.

    python -m pipeline.commands.repro [ARGUMENTS OF dvc repro]

After a kill the same command goes on.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline import params
from pipeline.data.fetch import is_noted
from pipeline.runner.pool import choose_processes
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_bytes
from pipeline.system.processes import die_with_parent
from pipeline.system.provenance import check_git

LOCK = "dvc.lock"
COPY = Path(".checkpoints/dvc.lock")  # as it was before DVC was started; here while DVC runs, or if it was killed
_INTERRUPTED = {130, 252}  # exit statuses after Ctrl-C: a command's of this project, and DVC's


def main(argv: list[str]) -> None:
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return
    reproduce(Path(), argv)
    if not argv:
        print("The pages: reports/README.md")


def reproduce(directory: Path, arguments: Sequence[str] = (), *, wait: bool = False) -> None:
    """Trains all that is missing, then runs `dvc repro`; with arguments of `dvc repro` it runs that alone.

    Args:
        wait: for another command like this one, in place of refusing to run beside it.

    Raises:
        UserError: the settings are wrong, or (status 1) a training or DVC failed; what went wrong has been printed by then.
        KeyboardInterrupt: Ctrl-C was pressed; what ran has ended.
    """
    choose_processes()  # refuses a bad number now, and not after the stages before
    settings = params.load(directory / "params.yaml")
    check_place(directory)
    with _guarded(directory, wait=wait):
        if own_data_changed(settings, directory):
            run(directory, "dvc repro", "dvc", "repro", "--force", "--single-item", "fetch")
            run(directory, "dvc repro", "dvc", "repro", data_stage(directory))
    if not arguments:  # with arguments DVC may run a part of the study that trains nothing
        run(directory, "make train", "pipeline.commands.train")
        if os.environ.get("REPLAY") == "0":  # to DVC nothing has changed where a replay had accepted what was trained anew
            with _guarded(directory):
                stages = [f"train@{variant}" for variant in settings.variants]
                run(directory, "dvc repro", "dvc", "repro", "resolve")  # a variant that trains nothing has no settings file yet
                run(directory, "dvc repro", "dvc", "repro", "--force", "--single-item", *stages)
    with _guarded(directory, wait=wait):
        run(directory, "dvc repro", "dvc", "repro", *arguments)


def check_place(directory: Path = Path()) -> None:
    """Raises UserError where git, or DVC for want of it, does not work in a repository."""
    config = directory / ".dvc/config"
    check_git(directory, needed=config.is_file() and "no_scm" not in config.read_text(encoding="utf-8"))


def own_data_changed(settings: params.Params, directory: Path = Path()) -> bool:
    """Whether data of one's own, which lie elsewhere, are no longer those that were read. Raises UserError where there are none."""
    own = settings.data.model_copy(update={"path": str(directory / Path(settings.data.path or "").expanduser())})
    return own.source.shape is None and not is_noted(own, directory / "data" / "raw")


def data_stage(directory: Path = Path()) -> str:
    """The last stage that makes data: scenes, or prepare in a study without captions."""
    stages = params.read(directory / "dvc.yaml") or {}
    return "scenes" if "scenes" in stages.get("stages", {}) else "prepare"


@contextlib.contextmanager
def _guarded(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Keeps a copy of dvc.lock while DVC runs; first puts back the copy that a killed command left, and removes DVC's list of readers.

    DVC writes both files in place, so a kill may cut them.

    Raises:
        UserError: another command like this one runs here.
    """
    lock, copy = directory / LOCK, directory / COPY
    copy.parent.mkdir(exist_ok=True)
    try:
        held = FileLock(copy.parent / "repro.lock").acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise UserError("Another `make repro` runs DVC here: wait until it ends, then run this one again.") from None
    with held:
        if copy.exists():
            if not _is_whole(lock, copy):  # else DVC, or git since then, has written it to its end
                _put_back(copy, lock)
                print("The last command was killed: dvc.lock is as it was before again; what is finished is not done anew.")
            (directory / ".dvc" / "tmp" / "rwlock").unlink(missing_ok=True)
        write_bytes(copy, lock.read_bytes() if lock.exists() else b"")
        try:
            yield
        except BaseException:
            if not _is_whole(lock, copy):
                _put_back(copy, lock)
            raise
        finally:
            copy.unlink(missing_ok=True)


def _is_whole(lock: Path, copy: Path) -> bool:
    """Whether DVC, which writes all stages anew and never fewer than there were, has come to the file's end."""
    with contextlib.suppress(UserError, AttributeError, TypeError):
        before, now = ((params.read(path) or {}).get("stages", {}).keys() for path in (copy, lock))
        return bool(now >= before) and lock.read_bytes().endswith(b"\n")
    return False


def _put_back(copy: Path, lock: Path) -> None:
    if copy.stat().st_size:
        copy.replace(lock)
    else:  # there was none
        lock.unlink(missing_ok=True)


def run(directory: Path, name: str, *module: str, python: Path = Path(sys.executable), **environment: str) -> None:
    """Runs `python -m MODULE ARGUMENTS`, called `name`, in a directory. Raises as `reproduce` does where it failed."""
    this = os.getpid()
    # Stages call `python`; it has to be this one.
    own = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}", **environment}
    command = subprocess.Popen([str(python), "-m", *module], cwd=directory, env=own, preexec_fn=lambda: die_with_parent(this))
    try:
        status = command.wait()
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
