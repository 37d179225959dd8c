"""DVC stage `timing`: times the networks of claims about speed, interleaved, into timing/cpu.json or a GPU's timing/cuda.json."""

import datetime
import os
import time

from pipeline.data.datasets import load as load_data
from pipeline.params import load as load_params
from pipeline.runner.pool import choose_device
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_json
from pipeline.system.paths import ARRAYS, TIMINGS
from pipeline.system.processes import die_with_dvc
from pipeline.system.provenance import git_state


def main(_: list[str]) -> None:
    die_with_dvc()
    # Read when torch is imported. Otherwise the profiler prints lines that look like faults on a machine without a GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    params = load_params()
    dataset = load_data(ARRAYS)
    device = choose_device()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    begin = time.monotonic()
    import torch  # takes seconds, so not before the input is known to be there

    from pipeline.timing.measure import measure

    def say(line: str) -> None:
        print(f"timing, {time.monotonic() - begin:5.1f} s: {line}", flush=True)

    try:
        results = measure(params, dataset, torch.device(device), say)
    except FloatingPointError:
        raise UserError("The loss of a timed model was not finite: its settings in timing.subjects do not train.", status=1) from None
    commit, dirty = git_state()
    write_json(TIMINGS / f"{device}.json", {"started": started, "git_commit": commit, "git_dirty": dirty, **results})


if __name__ == "__main__":
    run_command(main)
