"""What a fresh clone lacks of the files that dvc.lock names, brought from the remote of DVC that has them.

Train stages take what they lack from DVC's cache and from results/, the remote that travels with the repository; with another remote
nothing is here before somebody asks for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from pipeline.errors import UserError, first_line
from pipeline.files import replacing
from pipeline.provenance import check_git, mapping
from pipeline.runner import results
from pipeline.study.files import RUNS

_CONFIG = Path(".dvc")
_TRAVELS = Path("results")  # the folder of the remote that git tracks


def runs(variants: Collection[str]) -> None:
    """Brings each missing or damaged run.json of these variants. Raises UserError as `files` does."""
    results.restore_runs(RUNS, lambda name: name in variants)
    paths = [RUNS / variant / results.RUN for variant in variants]
    if _missing(paths) and has_other_remote():
        files(paths)


def check_place(directory: Path = Path()) -> None:
    """Raises UserError where git, or DVC for want of it, does not work in a repository."""
    config = directory / _CONFIG / "config"
    check_git(directory, needed=config.is_file() and "no_scm" not in config.read_text(encoding="utf-8"))


def check_lock() -> None:
    """Raises UserError as `check_place` does, and where dvc.lock cannot be read: all that it names would seem untrained."""
    check_place()
    try:
        text = Path("dvc.lock").read_bytes()
    except FileNotFoundError:
        return
    content = mapping(text)
    if (text.strip() and not content) or not isinstance(content.get("stages", {}), dict):
        raise UserError("dvc.lock cannot be read: `git checkout dvc.lock` brings back the last commit's.")


def files(paths: Iterable[Path]) -> None:
    """Brings those of the files that are missing and that dvc.lock names, and says so. They do not go through DVC's cache.

    DVC's own `pull` needs seconds for each file that is named, and may not run beside a `dvc repro`.

    Raises:
        UserError: status 1; DVC cannot read its remote.
    """
    missing = _missing(paths)
    if not missing or not _CONFIG.is_dir():
        return
    from dvc.api import DVCFileSystem

    brought, gone = [], []
    try:
        stored = DVCFileSystem(str(Path.cwd()))
        for path in missing:
            try:
                stored.info(path.as_posix())  # `exists` would keep a fault of the remote to itself
            except FileNotFoundError:  # dvc.lock names the folder, which never had this file
                continue
            try:
                with replacing(path) as temporary:
                    stored.get_file(path.as_posix(), str(temporary))
                brought.append(path)
            except FileNotFoundError:
                gone.append(path)
    except Exception as error:  # each kind of remote has its own
        raise UserError(
            f"DVC cannot bring {missing[0]} ({first_line(error)}): mend that, or see what `dvc pull --allow-missing` says.", status=1
        ) from None
    if brought:
        print(f"Brought from where DVC has them: {_listed(brought)}.", flush=True)
    if gone:
        print(
            f"dvc.lock names {_listed(gone)}, and neither DVC's cache nor its remote gives it: see that the remote can be reached,"
            " and run `dvc push` where the study ran.",
            flush=True,
        )


def pull(paths: Iterable[Path]) -> None:
    """Has DVC pull all that was pushed, where one of these files is missing that dvc.lock names.

    Raises:
        UserError: status 1; DVC failed and has said why.
    """
    # Without the option DVC fails over the data, which are not pushed.
    command = [sys.executable, "-m", "dvc", "pull", "--allow-missing", "--quiet"]
    if _missing(paths) and subprocess.run(command).returncode:
        raise UserError("`dvc pull --allow-missing` failed; the lines above say why.", status=1)


def has_other_remote() -> bool:
    """Whether DVC's default remote is another one than results/. Raises UserError where DVC's settings cannot be read."""
    from dvc.config import Config, ConfigError

    try:
        config = Config(_CONFIG.absolute(), validate=False) if _CONFIG.is_dir() else {}
    except ConfigError as error:
        raise UserError(f"{_CONFIG / 'config'} cannot be read ({first_line(error)}): mend it.") from None
    url = config.get("remote", {}).get(config.get("core", {}).get("remote"), {}).get("url")
    return url is not None and Path(url).resolve() != _TRAVELS.resolve()


def _missing(paths: Iterable[Path]) -> list[Path]:
    """Those that are not here, though dvc.lock names them or their folder."""
    missing = [path for path in paths if not path.exists()]
    if not missing:
        return []
    try:
        named = {out["path"] for stage in results.read_lock().values() for out in stage.get("outs", ())}
    except (LookupError, TypeError, AttributeError):
        return []
    return [path for path in missing if {path.as_posix(), path.parent.as_posix()} & named]


def _listed(paths: list[Path]) -> str:
    return f"{paths[0]}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
