"""One training of variant `base` in the working directory, with MLflow or without: `python -m benchmarks.tracked tracked|silent`.

Prints a line of JSON: wall seconds; seconds that the end of the training waited for MLflow; processor seconds of the coordinating
process, in which MLflow runs, and of the workers; the epochs that were trained, of all seeds.
"""

from __future__ import annotations

import json
import resource
import shutil
import time

# Nothing here may import torch: the coordinating process of a training does not either.
from pipeline.errors import UserError, run_command
from pipeline.runner import train
from pipeline.stages import train as stage
from pipeline.study import files
from pipeline.tracking.live import Live
from pipeline.training.records import EpochRow


class SilentLive(Live):
    """A log whose thread ends at once: the same training without MLflow."""

    def _work(self) -> None:
        pass


def main(argv: list[str]) -> None:
    if argv not in (["tracked"], ["silent"]):
        raise UserError("Usage: python -m benchmarks.tracked tracked|silent")
    tracker = Live if argv == ["tracked"] else SilentLive
    waited, epochs = 0.0, 0

    class Timed(tracker):  # type: ignore[misc, valid-type]
        def epoch(self, row: EpochRow) -> None:
            nonlocal epochs
            epochs += 1
            super().epoch(row)

        def close(self, status: str) -> None:
            nonlocal waited
            start = time.perf_counter()
            super().close(status)
            waited = time.perf_counter() - start

    train.Live = Timed  # type: ignore[attr-defined]
    for kept in (files.CHECKPOINTS, files.RUNS):  # else the training before leaves nothing to train
        shutil.rmtree(kept, ignore_errors=True)
    start = time.perf_counter()
    stage.main(["base"])
    result = {"wall": time.perf_counter() - start, "wait": waited, "epochs": epochs}
    for name, who in (("coordinator", resource.RUSAGE_SELF), ("workers", resource.RUSAGE_CHILDREN)):
        usage = resource.getrusage(who)
        result[name] = usage.ru_utime + usage.ru_stime
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    run_command(main)
