"""Ensures that a command or a stage runs in the project's environment. A stage calls `python`, which may be any Python on the path.

Every Python 3 has to be able to import this module, even without packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import sys
import sysconfig

TYPE_CHECKING = False  # type checkers treat this as typing.TYPE_CHECKING; importing typing would take time
if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OLDEST = (3, 11, 4)
with open(os.path.join(_ROOT, "pipeline", "foreign-variables.txt")) as _file:
    # By which other projects, shells and notebooks would decide what programs of ours do; the Makefile exports none of them either.
    FOREIGN = frozenset(_file.read().split())
_NEEDED = ("dvc", "mlflow", "numba", "pooch", "pydantic", "safetensors", "torch", "yaml")


def clean() -> None:
    """Has this process, and every program that it starts, run as if it were this project's alone."""
    for name in FOREIGN & os.environ.keys():
        del os.environ[name]
    os.environ["PYTHONPATH"] = _ROOT  # a stage runs the code of its checkout, and not what is installed
    os.environ["MPLBACKEND"] = "agg"
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt != "*":  # no proxy leads to a server on this machine
        exempt = ",".join(dict.fromkeys((*filter(None, exempt.split(",")), "localhost", "127.0.0.1")))
        os.environ.update(no_proxy=exempt, NO_PROXY=exempt)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # in a container; DVC asks for the name, and for a home
        os.environ.setdefault("LOGNAME", str(os.getuid()))
        os.environ.setdefault("HOME", os.path.join(_ROOT, "build", "home"))


def ensure() -> None:
    """Returns if this Python has all packages. Else starts the same command in `.venv`, or ends with one sentence and status 2."""
    lack = _lack()
    if not lack:
        return
    own = os.path.join(_ROOT, ".venv")
    python = os.path.join(own, "bin", "python")
    arguments = getattr(sys, "orig_argv", None)  # since Python 3.10
    if arguments and os.access(python, os.X_OK) and not os.path.samefile(own, sys.prefix):
        sys.stdout.flush()
        os.execv(python, [python, *arguments[1:]])
    if os.path.exists(python) and not os.path.samefile(own, sys.prefix):
        mend = "activate the project's environment with `. .venv/bin/activate`"
    else:  # there is none, or its installation was interrupted
        mend = "`make setup` makes a whole environment in .venv"
    print(f"error: {sys.executable} {lack}: {mend}, then run the command again.", file=sys.stderr)
    sys.exit(2)


def _lack() -> str:
    """What this Python lacks, as a clause; empty if nothing."""
    if sys.version_info < _OLDEST:
        here, oldest = (".".join(map(str, version[:3])) for version in (sys.version_info, _OLDEST))
        return f"is Python {here}, and the project needs {oldest} or a newer one"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    return f"has no {', '.join(missing)}" if missing else ""


# Python's `site` module runs such a line of a .pth file at start, and DVC passes its PATH on to the stages.
_OWN_PROGRAMS_FIRST = (
    'import os, sys; own = os.path.join(sys.prefix, "bin"); path = os.environ.get("PATH", os.defpath).split(os.pathsep); '
    'os.environ["PATH"] = os.pathsep.join([own, *path[path[0] == own :]])\n'
)


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Sets these environment variables while the block runs."""
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
    """Makes this environment's Python put its programs first on the PATH at every start, so that `.venv/bin/dvc` needs no activation."""
    with open(os.path.join(sysconfig.get_path("purelib"), "own-programs-first.pth"), "w") as file:
        file.write(_OWN_PROGRAMS_FIRST)
