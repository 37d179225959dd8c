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
from pipeline.provenance import check_git, mapping
from pipeline.runner import seeds
from pipeline.study.files import RUNS

_CONFIG = Path(".dvc/config")


def check_place(directory: Path = Path()) -> None:
    """Raises UserError where git, or DVC for want of it, does not work in a repository."""
    config = directory / _CONFIG
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


def runs(variants: Collection[str], names: Collection[str] = (seeds.RUN,)) -> None:
    """Brings each missing or damaged run.json of these variants, or other files of runs/ too. Raises UserError as `pull` does.

    What DVC's cache or results/ has of the others is left to the stages.
    """
    seeds.restore_runs(RUNS, variants.__contains__)
    lock = seeds.read_lock()
    paths = [RUNS / variant / name for variant in variants for name in names]
    pull(path for path in paths if not seeds.is_stored(path, lock))


def pull(paths: Iterable[Path]) -> None:
    """Has DVC pull all that was pushed, where one of these files is missing that dvc.lock names, or whose folder it names.

    One command for all, because DVC needs seconds for each file that it is given.

    Raises:
        UserError: status 1; DVC failed and has said why.
    """
    named = {out.get("path") for stage in seeds.read_lock().values() for out in stage.get("outs", ())}
    missing = [path for path in paths if not path.exists() and {path.as_posix(), path.parent.as_posix()} & named]
    if not missing or not _has_remote():
        return
    # Without the option DVC fails over the data, which are not pushed.
    if subprocess.run([sys.executable, "-m", "dvc", "pull", "--allow-missing", "--quiet"]).returncode:
        raise UserError("`dvc pull --allow-missing` failed; the lines above say why.", status=1)
    if gone := [str(path) for path in missing if not path.exists() and path.as_posix() in named]:
        print(f"dvc.lock names {', '.join(gone[:3])}, {len(gone)} in all, and its remote does not have it: `dvc push` where the study ran.")


def _has_remote() -> bool:
    """Whether DVC has a default remote. Raises UserError where its settings cannot be read."""
    from dvc.config import Config, ConfigError

    try:
        return _CONFIG.is_file() and bool(Config(_CONFIG.parent.absolute(), validate=False).get("core", {}).get("remote"))
    except ConfigError as error:
        raise UserError(f"{_CONFIG} cannot be read ({first_line(error)}): mend it.") from None
