"""The environment variables of this process and of all that it starts."""

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# By which other projects, shells and notebooks would decide what programs of ours do; the Makefile exports none of them either.
FOREIGN = frozenset(Path(__file__).with_name("foreign-variables.txt").read_text().split())


def clean() -> None:
    """Has this process, and every program that it starts, run as if it were this project's alone."""
    for name in FOREIGN & os.environ.keys():
        del os.environ[name]
    os.environ["PYTHONPATH"] = str(_ROOT)  # a stage runs the code of its checkout, and not what is installed
    os.environ["MPLBACKEND"] = "agg"
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt != "*":  # no proxy leads to a server on this machine
        exempt = ",".join(dict.fromkeys((*filter(None, exempt.split(",")), "localhost", "127.0.0.1")))
        os.environ.update(no_proxy=exempt, NO_PROXY=exempt)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # in a container; DVC asks for the name, and for a home
        os.environ.setdefault("LOGNAME", str(os.getuid()))
        os.environ.setdefault("HOME", str(_ROOT / "build" / "home"))


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
