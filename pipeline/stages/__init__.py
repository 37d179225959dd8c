"""One thin module per DVC stage; and `sync`, with which the report stage completes the MLflow store."""

from collections.abc import Callable
from pathlib import Path

from pipeline.system.errors import UserError


def _said() -> list[bytes]:
    return [path.read_bytes() for path in (Path("params.yaml"), Path("claims.yaml")) if path.exists()]


def settled(main: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    """A stage's main, which fails if the settings change while it runs: DVC looks at them at its end, and would take them for read."""

    def run(argv: list[str]) -> None:
        before = _said()
        main(argv)
        if _said() != before:
            raise UserError("params.yaml or claims.yaml changed while this stage ran: run the same command again.")

    return run
