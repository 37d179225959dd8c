"""The train stage: killed anywhere, run with any number of processes, it ends with the same bits.

What processes are needed for runs in processes of its own; all else in this one, where `here` saves the seconds that each takes to start.
"""

import functools
import io
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pipeline.data.datasets import load
from pipeline.models import build
from pipeline.params import Params, VariantSettings, load_variant
from pipeline.runner import pool, replay, seeds
from pipeline.runner.train import plan, unfrozen
from pipeline.stages import train as stage
from pipeline.stages.resolve import prune
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from pipeline.training.engine import Trainer, set_reproducible
from pipeline.training.records import EpochRow
from tests.helpers import flip_bit, is_worker, rewrite, stored, trains_here, variant, wait_until, workers_of

SEEDS = (0, 1, 2)


Workplace = Callable[..., Path]


def lay_out(directory: Path, arrays: Path, study: Params, seeds: tuple[int, ...] = SEEDS, epochs: int = 6) -> Path:
    """A working directory in which the stage `train tiny` can run."""
    own = {"seeds": seeds, "epochs": epochs, "batch_size": 64, "learning_rate": 0.005, "train_images": 512}
    settings = variant(study, {"patch": 14, "blocks": 1, "dropout": 0.1}, **own)
    for folder in ("configs", "data", "store/trainings"):
        (directory / folder).mkdir(parents=True)
    (directory / "configs/tiny.json").write_text(settings.to_json())
    (directory / "data/arrays").symlink_to(arrays)
    return directory


@pytest.fixture
def workplace(tmp_path: Path, arrays: Path, study: Params) -> Workplace:
    """Makes such a directory, once."""
    return functools.partial(lay_out, tmp_path, arrays, study)


def start(directory: Path, **environment: str) -> subprocess.Popen[str]:
    own = {**os.environ, "LAB_DEVICE": "cpu", **environment}
    command, pipes = [sys.executable, "-m", "pipeline.stages.train", "tiny"], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=directory, env=own, text=True, **pipes)


def here(directory: Path, watch: Callable[[pool.Message], None] = lambda message: None) -> str:
    """The stage in this process, with a worker's own functions called where it would start workers. Returns what it prints.

    Args:
        watch: gets every message after the stage has taken it.
    """

    def run(assignments: Sequence[pool.Assignment], handle: pool.Handle, cards: list[str]) -> None:
        trains_here(assignments, lambda assignment, message: (handle(assignment, message), watch(message)))

    threads = torch.get_num_threads()
    set_reproducible(torch.device("cpu"))
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.chdir(directory)
            patch.setenv("LAB_DEVICE", "cpu")
            patch.setattr(pool, "run_all", run)
            stage.main(["tiny"])
    finally:
        torch.set_num_threads(threads)
    return out.getvalue()


def outcome(directory: Path) -> tuple[list[list[str]], dict[str, str], dict[str, np.ndarray], dict[str, Any]]:
    """Everything that has to be equal: the table without its seconds, the digests of all weights, traces and first weights, the summary."""
    run = seeds.read_record(stored(directory, "tiny"))
    table = [[repr(value) for value in row[:-1]] for row in map(EpochRow._make, run["epochs"])]
    return table, run["outputs"]["weights"], load_file(stored(directory, "tiny")), run["metrics"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, arrays: Path, study: Params) -> Path:
    """Three seeds trained one after another; `first-epoch.part` is the checkpoint that the first one had after its first epoch."""
    directory = lay_out(tmp_path_factory.mktemp("unbroken"), arrays, study)

    def keep(message: pool.Message) -> None:
        if (message.kind, message.seeds, message.epoch) == ("epoch", [0], 1):
            shutil.copy(*(directory / FINISHED).glob("*/seed-0.*.part"), directory / "first-epoch.part")

    assert "tiny  seed 2  epoch 6/6  train loss" in here(directory, keep)
    return directory


@pytest.fixture
def continued(workplace: Workplace, unbroken: Path) -> Path:
    """A working directory with the finished seeds of `unbroken`, and without its store."""
    directory = workplace()
    shutil.copytree(unbroken / ".checkpoints", directory / ".checkpoints")
    return directory


def assert_same(directory: Path, unbroken: Path) -> None:
    np.testing.assert_equal(outcome(directory), outcome(unbroken))


def test_a_file_of_the_store(unbroken: Path) -> None:
    """All seeds' records and traces, and the first one's weights, which are ordinary weights of an ordinary module."""
    path = stored(unbroken, "tiny")
    run, parts = seeds.read_record(path), seeds.load(path, unbroken / FINISHED)
    last = [row.test_accuracy for row in map(EpochRow._make, run["epochs"]) if row.epoch == 6]
    assert run["metrics"]["test_accuracy_mean"] == pytest.approx(np.mean(last))
    assert run["metrics"]["test_accuracy_sd"] == pytest.approx(np.std(last, ddof=1))
    assert run["metrics"]["n"] == len(last) == 3
    assert run["started"] <= run["finished"]
    assert [part.seed for part in parts] == run["seeds"] == list(SEEDS)
    assert [part.has_weights for part in seeds.load(path)] == [True, False, False]
    for part in parts:
        weights = {f"model.{name}": value for name, value in part.weights.items()}
        assert seeds.digest(weights) == run["outputs"]["weights"][str(part.seed)]
    model = build(seeds.settings_of(run).model)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in parts[0].weights.items()})
    with pytest.raises(UserError, match=r"The weights of tiny's seed 1, 2 are not here: .*`REPLAY=0 dvc repro"):
        seeds.load_weights(path, SEEDS, unbroken / "nowhere")


def test_a_clone_keeps_seeds_without_their_weights_and_trains_what_is_new(
    workplace: Workplace, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under any name of the variant, and by other code after a replay, which needs no weights. Then all seeds anew, to the same bits."""
    directory = workplace()
    shutil.copyfile(stored(unbroken, "tiny"), stored(directory, "formerly"))
    assert epochs_trained(here(directory)) == 0
    assert_same(directory, unbroken)
    run = seeds.read_record(stored(directory, "tiny"))

    shutil.rmtree(directory / ".checkpoints")
    stored(directory, "formerly").unlink()
    others = [group | {"code_hash": "f" * 64} for group in run["trainings"]]
    rewrite(stored(directory, "tiny"), code_hash="f" * 64, trainings=others, metrics=run["metrics"] | {"flops": 1})
    out = here(directory)
    assert epochs_trained(out) == 0
    assert "3 finished seeds kept, 3 of them after a replay" in out
    assert_same(directory, unbroken)
    after = seeds.read_record(stored(directory, "tiny"))
    assert (after["training_id"], after["code_hash"], after["metrics"]) == (run["training_id"], "f" * 64, run["metrics"])
    rewrite(stored(directory, "tiny"), data_digest="f" * 64)  # of the same training images and other test images
    here(directory)
    assert seeds.read_record(stored(directory, "tiny"))["training_id"] != run["training_id"]

    change(directory, seeds=(*SEEDS, 7))
    assert epochs_trained(here(directory)) == 6
    monkeypatch.setenv("REPLAY", "0")
    change(directory, seeds=SEEDS)
    assert epochs_trained(here(directory)) == 18  # nothing of the code before holds, and the weights are here then
    assert_same(directory, unbroken)
    assert all(part.has_weights for part in seeds.load(stored(directory, "tiny"), directory / FINISHED))


def test_the_seeds_of_a_clone_outlive_other_settings_of_the_same_name(workplace: Workplace, unbroken: Path) -> None:
    directory = workplace()
    shutil.copyfile(stored(unbroken, "tiny"), stored(directory, "tiny"))  # the only file that has them
    change(directory, epochs=2)
    assert epochs_trained(here(directory)) == 6
    change(directory, epochs=6)
    assert epochs_trained(here(directory)) == 0
    assert_same(directory, unbroken)
    config = seeds.read_record(stored(directory, "tiny"))["config"]
    del config["model"]["blocks"]  # as if it were an option that came later, without a line in FROZEN
    lacking = [replace(part, origin=part.origin | {"config": config}) for part in seeds.load(stored(directory, "tiny"))]
    assert "have no model.blocks: give it a line in FROZEN" in str(unfrozen(load_variant(directory / "configs/tiny.json"), lacking))


def test_another_first_seed_trains_where_its_weights_are_not_here(workplace: Workplace, unbroken: Path) -> None:
    directory = workplace(seeds=(1, 0))
    shutil.copyfile(stored(unbroken, "tiny"), stored(directory, "tiny"))
    assert epochs_trained(here(directory)) == 6
    assert seeds.load(stored(directory, "tiny"))[0].has_weights
    before, after = (seeds.read_record(stored(one, "tiny"))["outputs"]["weights"] for one in (unbroken, directory))
    assert after == {seed: before[seed] for seed in ("1", "0")}


def test_a_file_that_cannot_be_read_is_not_trained_over_but_written_from_finished_seeds(workplace: Workplace, unbroken: Path) -> None:
    """One whose record has an option that is gone, and one that is damaged."""
    directory = workplace()
    path = stored(directory, "tiny")
    shutil.copyfile(stored(unbroken, "tiny"), path)
    config = seeds.read_record(path)["config"]
    config["model"]["gone"] = 1
    rewrite(path, config=config)
    with pytest.raises(UserError, match=r"model\.gone"):
        here(directory)
    assert not [*(directory / FINISHED).glob("*/seed-*")]
    shutil.copyfile(stored(unbroken, "tiny"), path)
    damaged = flip_bit(path, 0.99)
    with pytest.raises(UserError, match=r"store/trainings/tiny\.safetensors does not hold .*`git checkout"):
        here(directory)
    assert path.read_bytes() == damaged
    shutil.copytree(unbroken / ".checkpoints", directory / ".checkpoints")
    assert epochs_trained(here(directory)) == 0
    assert_same(directory, unbroken)


@pytest.mark.parametrize("place", [0.001, 0.9])
def test_the_file_of_a_variant_that_is_gone_goes_when_its_seeds_are_kept(
    tmp_path: Path, study: Params, unbroken: Path, monkeypatch: pytest.MonkeyPatch, place: float
) -> None:
    monkeypatch.chdir(tmp_path)
    former = stored(Path(), "formerly")
    former.parent.mkdir(parents=True)
    shutil.copyfile(stored(unbroken, "tiny"), former)
    flip_bit(former, place)
    (said,) = prune(former.parent, study)
    assert said.startswith(f"{former} left, ")
    assert not list(FINISHED.glob("*/*.done"))
    shutil.copyfile(stored(unbroken, "tiny"), former)
    assert prune(former.parent, study) == [f"{former} removed: params.yaml no longer names this variant"]
    assert not former.exists()
    assert len(list(FINISHED.glob("*/*.done"))) == 3


@pytest.mark.slow
def test_killed_twice_and_run_again_two_processes_give_the_same_bits_as_one(workplace: Workplace, unbroken: Path) -> None:
    """Two processes, whose parent is killed with -9, then one of them, against seeds that one process trained without a break."""
    directory = workplace()
    process = start(directory, LAB_PROCESSES="2")
    assert process.stdout is not None
    for _ in range(4):
        assert process.stdout.readline()
    started = workers_of(process)
    assert started
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(map(is_worker, started)))  # no worker outlives its parent

    process = start(directory, LAB_PROCESSES="2")
    assert process.stdout is not None
    assert any("goes on after epoch" in line for line in process.stdout)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.count("error:") == 1
    assert "status -9" in err
    assert "run the same command again" in err
    assert "Traceback" not in err
    out = here(directory)
    assert "goes on after epoch" in out
    assert "tiny  seed 2  epoch 6/6  train loss" in out
    assert_same(directory, unbroken)


@pytest.mark.usefixtures("unbroken")  # by which all is compiled: what a compiler keeps would not fit either
def test_a_full_disk_is_one_sentence_and_loses_nothing(workplace: Workplace) -> None:
    """So small a one that the first checkpoint does not fit: the kernel refuses files over 20 kB."""
    directory, limits = workplace(epochs=2, seeds=(0,)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^A file cannot be used") as caught:
            here(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.status == 2
    assert not list((directory / ".checkpoints").rglob("*.tmp"))
    assert epochs_trained(here(directory)) == 2


def test_what_an_edited_worker_would_train_is_refused(workplace: Workplace, arrays: Path, tmp_path: Path) -> None:
    """A worker that starts after an edit has other code than the record of its trainings would say."""
    directory = workplace()
    settings = load_variant(directory / "configs" / "tiny.json")
    job = pool.Job(settings, arrays, tmp_path, "cpu", {"code_hash": "f" * 64})
    found: list[pool.Message] = []
    # A worker's messages come through a pipe.
    trains_here([pool.Assignment(job, pool.Task([0]))], lambda _, message: found.append(pickle.loads(pickle.dumps(message))))
    assert [message.error and message.error.status for message in found] == [2]
    assert not list(tmp_path.glob("seed-*"))


def change(directory: Path, **train: Any) -> None:
    """Other options of the training in configs/tiny.json."""
    config = directory / "configs" / "tiny.json"
    settings = VariantSettings.model_validate_json(config.read_text())
    config.write_text(settings.model_copy(update={"train": settings.train.model_copy(update=train)}).to_json())


def epochs_trained(out: str) -> int:
    return out.count("  epoch ")


def test_seeds_add_up(workplace: Workplace, unbroken: Path) -> None:
    """Three seeds, after one that was trained before, are bitwise those of one training; so is one after three; and back costs nothing."""
    directory = workplace(seeds=(1,))
    out = here(directory)
    assert epochs_trained(out) == 6
    one = outcome(directory)
    change(directory, seeds=SEEDS)
    out = here(directory)
    assert epochs_trained(out) == 12
    assert "1 finished seed kept" in out
    assert_same(directory, unbroken)
    run = seeds.read_record(stored(directory, "tiny"))
    assert sorted(seed for training in run["trainings"] for seed in training["seeds"]) == [0, 1, 2]

    change(directory, seeds=(1,))
    assert epochs_trained(here(directory)) == 0
    np.testing.assert_equal(outcome(directory), one)

    change(directory, seeds=SEEDS, epochs=2)  # other settings, and back to the first
    assert epochs_trained(here(directory)) == 6
    change(directory, epochs=6)
    assert epochs_trained(here(directory)) == 0
    assert_same(directory, unbroken)


@pytest.mark.parametrize("code", [None, "f" * 64], ids=["this code", "other code"])
def test_the_seeds_of_a_gpu_are_kept_on_the_cpu(continued: Path, unbroken: Path, code: str | None) -> None:
    """Whatever stack trained them; those of other code after a replay that allows for rounding."""
    gpu = {"device": "cuda", "device_name": "NVIDIA H200", "attention": "fused-cuda", "graphs": "captured", "stack": list(SEEDS)}
    trainer = Trainer(load_variant(continued / "configs/tiny.json"), load(continued / "data/arrays"), SEEDS, torch.device("cpu"))
    trainer.optimizer.coefficients = trainer.optimizer.coefficients.float()  # as a GPU has them
    tables = replay.tables(trainer)
    for path in (continued / FINISHED).glob("*/*.done"):
        part = seeds.read(path)
        path.unlink()
        own = {**gpu, "tables": tables[part.seed], **({"code_hash": code} if code else {})}
        seeds.write(path.parent, replace(part, origin={**part.origin, **own}))
    out = here(continued)
    assert epochs_trained(out) == 0
    assert f"3 finished seeds kept{', 3 of them after a replay' if code else ''}" in out
    assert_same(continued, unbroken)
    trainings = seeds.read_record(stored(continued, "tiny"))["trainings"]  # several where the replays' seconds differ
    assert sorted(seed for training in trainings for seed in training["seeds"]) == [0, 1, 2]
    for training in trainings:
        assert (training["device"], training["graphs"]) == ("cuda", "captured")
        assert [one["exact"] for one in training["replays"]] == ([False] if code else [])


def test_which_stack_of_a_gpu_is_replayed(study: Params) -> None:
    """Seeds of the fused engine need no neighbours; torch's engine needs the whole stack, because grouping decides rounding."""
    base = study.resolve("base")
    settings = base.model_copy(update={"train": base.train.model_copy(update={"seeds": (0, 1, 2, 3)})})
    for engine, expected in (("fused", [([0, 1], True), ([2, 3], False)]), ("torch: dropout", [([0, 1, 2, 3], False)])):
        origin = {"code_hash": "c" * 64, "engine": engine, "stack": [0, 1, 9], "replays": []}
        found = {seed: seeds.Finished(seed, {"model.a": np.zeros(1)}, (), origin) for seed in (0, 1)}
        assert [(task.seeds, task.replay) for task in plan(settings, found, "d" * 64, "cuda")] == expected


@pytest.mark.parametrize("damage", ["finished", "part"])
def test_a_damaged_seed_trains_anew_with_one_line(continued: Path, unbroken: Path, damage: str) -> None:
    path = next((continued / FINISHED).glob("*/seed-0.*.done"))
    if damage == "part":
        path.unlink()
        path = path.with_suffix(".part")
        shutil.copy(unbroken / "first-epoch.part", path)
    flip_bit(path, 1 / 3)
    out = here(continued)
    assert len([line for line in out.splitlines() if "does not match its checksum" in line]) == 1
    assert "goes on" not in out
    assert epochs_trained(out) == 6
    assert_same(continued, unbroken)
