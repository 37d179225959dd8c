"""One thin module per DVC stage; and `sync`, with which the report stage completes the MLflow store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from pipeline.system.errors import UserError

_SETTINGS = (Path("params.yaml"), Path("claims.yaml"))


def settled(main: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    """A stage's main, which fails if the settings change while it runs: DVC looks at them at its end, and would take them for read."""

    @functools.wraps(main)
    def run(argv: list[str]) -> None:
        before = [path.read_bytes() if path.exists() else b"" for path in _SETTINGS]
        main(argv)
        if before != [path.read_bytes() if path.exists() else b"" for path in _SETTINGS]:
            raise UserError("params.yaml or claims.yaml changed while this stage ran: run the same command again.")

    return run
