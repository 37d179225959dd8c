"""What tests of several folders do: run git, wait, train to the end, flip a bit, watch a command's workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from safetensors.numpy import load_file

from pipeline import params
from pipeline.runner import pool, seeds
from pipeline.stages import resolve
from pipeline.study.statistics import Interval

if TYPE_CHECKING:
    from pipeline.training.engine import Trainer

ROOT = Path(__file__).parent.parent
# Whose variants the tests take: the study of the repository where they were written, of which a study of its own has a copy.
STUDY = ROOT / "tests" / "catalogue" if (ROOT / "tests" / "catalogue").exists() else ROOT
of_this_study = pytest.mark.skipif(STUDY != ROOT, reason="tests the study of the repository that made this one")
PATIENCE = 150  # seconds, for machines that do other work


def git(folder: Path, *arguments: str) -> str:
    """What git printed there, for somebody at a fixed date, whatever git is configured with here."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_{what}": f"{who.lower()}@example.org" for what in ("NAME", "EMAIL")}
        environment[f"GIT_{who}_DATE"] = "2026-01-02T03:04:05+02:00"
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path, message: str = "results") -> str:
    """A commit of all that lies there; its id."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--allow-empty-message", "--message", message)
    return git(folder, "rev-parse", "HEAD").strip()


def wait_until(met: Callable[[], object]) -> None:
    """Until a condition is met; fails where that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ends(interval: Interval | None) -> tuple[float, float]:
    """Of an interval that has to be there."""
    assert interval is not None
    return interval.low, interval.high


def variant(study: params.Params, model: dict[str, Any], **train: Any) -> params.VariantSettings:
    """The study's base with other options, on the digits; keywords change how it is trained."""
    data, of = params.DataSettings(dataset="digits"), study.train.model_copy(update=train)
    return params.VariantSettings(data=data, train=of, model=study.base.changed(model))


def finish(trainer: Trainer) -> None:
    """Trains all epochs that are left."""
    while not trainer.done:
        trainer.run_epoch()


def resumed(make: Callable[[], Any], trainer: Trainer) -> Any:
    """A new trainer that goes on from where one stands, at its end; torch's global generator has moved meanwhile."""
    import torch

    torch.manual_seed(99)
    other = make()
    other.load(trainer.state(), epoch=trainer.epoch, rows=trainer.rows, failed=trainer.failed)
    finish(other)
    return other


def assert_bitwise(a: Trainer, b: Trainer) -> None:
    """Rows but for their times, and the whole state."""
    assert [row[:6] for row in a.rows] == [row[:6] for row in b.rows]
    state = b.state()
    assert [name for name, value in a.state().items() if not value.equal(state[name])] == []


def captioner(shape: params.Shape | None = None, **changes: Any) -> params.CaptionerSettings:
    """Of a small captioner with three blocks that read and two that write."""
    plain = {
        "architecture": "captioner", "dim": 12, "heads": 3, "mlp_dim": 20, "encoder_blocks": 3, "decoder_blocks": 2, "norm": "pre",
        "position": "learned", "memory": 0, "meshed": False, "dropout": 0.0,
    }  # fmt: skip
    return params.CaptionerSettings.model_validate(plain | changes, context=shape and {"shape": shape})


def lay_out(directory: Path, raw: dict[str, Any], arrays: Path) -> params.Params:
    """A study of these settings after its stages before train."""
    (directory / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    settings = params.load(directory / "params.yaml")
    resolve.write_configs(settings, directory / "configs")
    shutil.copytree(arrays, directory / "data/arrays", dirs_exist_ok=True)
    return settings


def read_study() -> dict[str, Any]:
    """The study as plain YAML, without the timings of its variants' networks: a test that has other variants lacks them."""
    raw = params.study.read_both(STUDY / "params.yaml")
    raw["timing"]["subjects"] = {name: of for name, of in raw["timing"]["subjects"].items() if "from" not in of}
    return raw


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Has a folder's params.yaml changed."""
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))


def trains_here(assignments: Sequence[pool.Assignment], handle: pool.Handle, **_: Any) -> None:
    """An engine that has a worker's own functions called in this process."""
    from pipeline.data.datasets import load

    for assignment in assignments:
        for message in pool.messages(assignment, lambda job: load(job.arrays)):
            handle(assignment, message)


def flip_bit(path: Path, place: float = 0.5) -> bytes:
    """Flips one bit of a file, in its middle or after another share of it; gives the damaged content."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    return bytes(content)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the workers that a command has started."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in children if is_worker(int(child))]


def is_worker(pid: int) -> bool:
    """Whether a process runs and was started by multiprocessing as a worker."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty once it has ended
    except (FileNotFoundError, ProcessLookupError):
        return False


def approve(path: Path, text: str) -> None:
    """Holds a text to an approved file. With APPROVE=1 in the environment the file is written, to be read as a difference in git."""
    if os.environ.get("APPROVE"):
        path.write_text(text)
    assert text == path.read_text()


def stored(root: Path, variant: str) -> Path:
    """A variant's file in the store below a folder."""
    return root / "store/trainings" / f"{variant}.safetensors"


def rewrite(path: Path, **changes: Any) -> None:
    """Gives a variant's file other entries in its record, which is sealed again."""
    seeds.write_record(path, seeds.read_record(path) | changes, load_file(path))
