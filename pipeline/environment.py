"""The environment in which a command or a stage runs. A stage calls `python`, which may be any: the path decides.

This module has to be read by every Python 3, and by one that has no packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import sysconfig

TYPE_CHECKING = False  # typing's own, without the import
if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OLDEST = (3, 11)
_NEEDED = ("dvc", "mlflow", "numba", "pooch", "pydantic", "safetensors", "torch", "yaml")


def ensure() -> None:
    """Goes on where this Python has what is needed; else starts the same command in `.venv`, or ends with one sentence and status 2."""
    lack = _lack()
    if not lack:
        return
    own = os.path.join(_ROOT, ".venv")
    python = os.path.join(own, "bin", "python")
    arguments = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if arguments and os.access(python, os.X_OK) and not os.path.samefile(own, sys.prefix):
        sys.stdout.flush()
        os.execv(python, [python, *arguments[1:]])
    made = os.path.exists(python)
    mend = "activate the project's environment with `. .venv/bin/activate`" if made else "`make setup` makes an environment in .venv"
    print(f"error: {sys.executable} {lack}: {mend}, then run the command again.", file=sys.stderr)
    sys.exit(2)


def _lack() -> str:
    """What is missing here, as a clause; empty where nothing is."""
    if sys.version_info < _OLDEST:
        return f"is Python {sys.version_info[0]}.{sys.version_info[1]}, and the project needs {_OLDEST[0]}.{_OLDEST[1]} or a newer one"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    return f"has no {', '.join(missing)}" if missing else ""


# Site runs such a line when a Python starts, and DVC hands its path on to the stages.
_OWN_PROGRAMS_FIRST = (
    'import os, sys; own = os.path.join(sys.prefix, "bin"); path = os.environ.get("PATH", os.defpath).split(os.pathsep); '
    'os.environ["PATH"] = os.pathsep.join([own, *path[path[0] == own :]])\n'
)


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """These environment variables while the block lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def put_own_programs_first() -> None:
    """Has each start of this environment's Python put its programs first on the path: `.venv/bin/dvc` needs no activation then."""
    with open(os.path.join(sysconfig.get_path("purelib"), "own-programs-first.pth"), "w") as file:
        file.write(_OWN_PROGRAMS_FIRST)
