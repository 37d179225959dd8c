"""The train stage: killed anywhere, run with any number of processes, it ends with the same bits.

What processes are needed for runs in processes of its own; all else in this one, where `here` saves the seconds that each takes to start.
"""

from __future__ import annotations

import io
import json
import os
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
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.files import read_sealed, sha256, write_sealed
from pipeline.models import build
from pipeline.params import DataSettings, ModelSettings, Params, VariantSettings, load_variant
from pipeline.runner import pool, replay, seeds
from pipeline.runner.train import plan
from pipeline.stages import train as stage
from pipeline.stages.resolve import prune
from pipeline.study.files import FINISHED, RUNS
from pipeline.training.engine import Trainer, set_reproducible
from tests.helpers import flip_bit, is_worker, wait_until, workers_of

SEEDS = (0, 1, 2)


def lay_out(
    directory: Path,
    arrays: Path,
    study: Params,
    *,
    epochs: int = 6,
    seeds: tuple[int, ...] = SEEDS,
    learning_rate: float = 0.005,
    optimizer: str = "adam",
    **model: Any,
) -> Path:
    """A working directory in which the stage `train tiny` can run."""
    settings = VariantSettings(
        data=DataSettings(dataset="digits"),
        train=study.train.model_copy(
            update={
                "seeds": seeds,
                "epochs": epochs,
                "batch_size": 64,
                "learning_rate": learning_rate,
                "optimizer": optimizer,
                "train_images": 512,
            }
        ),
        model=ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1, "dropout": 0.1} | model),
    )
    (directory / "configs").mkdir(parents=True)
    (directory / "configs" / "tiny.json").write_text(settings.to_json())
    (directory / "data").mkdir()
    (directory / "data" / "arrays").symlink_to(arrays)
    return directory


def start(directory: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.stages.train", "tiny"],
        cwd=directory,
        env={**os.environ, "LAB_DEVICE": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def here(directory: Path, watch: Callable[[pool.Message], None] = lambda message: None) -> str:
    """The stage in this process, with a worker's own functions called where it would start workers. Returns what it prints.

    Args:
        watch: gets every message after the stage has taken it.
    """

    def run(assignments: Sequence[pool.Assignment], *, handle: Callable[..., None], lost: Callable[..., None], cards: list[str]) -> None:
        for assignment in assignments:
            for message in pool.messages(assignment, lambda job: load(job.arrays)):
                handle(assignment, message)
                watch(message)

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


def outcome(directory: Path) -> tuple[list[list[str]], dict[str, torch.Tensor]]:
    """Everything that has to be equal: the table without its seconds, the weights."""
    rows = seeds.epoch_rows(seeds.read_run(directory / "runs" / "tiny"))
    table = [[repr(value) for value in row[:-1]] for row in rows]
    return table, load_file(directory / "runs" / "tiny" / "model.safetensors")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, arrays: Path, study: Params) -> Path:
    """Three seeds trained one after another; `first-epoch.part` is the checkpoint that the first one had after its first epoch."""
    directory = lay_out(tmp_path_factory.mktemp("unbroken"), arrays, study)

    def keep(message: pool.Message) -> None:
        if isinstance(message, pool.Epoch) and (message.seeds, message.epoch) == ([0], 1):
            shutil.copy(*(directory / ".checkpoints" / "seeds").glob("*/seed-0.*.part"), directory / "first-epoch.part")

    assert "tiny  seed 2  epoch 6/6  train loss" in here(directory, keep)
    return directory


def test_a_record_with_an_option_that_is_gone_is_not_trained_over(unbroken: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(unbroken, directory, symlinks=True, ignore=shutil.ignore_patterns(".checkpoints"))
    run = seeds.read_run(directory / "runs" / "tiny")
    run["config"]["model"]["gone"] = 1
    seeds.write_run(directory / "runs" / "tiny", run)
    with pytest.raises(UserError, match=r"model\.gone"):
        here(directory)
    assert not [*(directory / FINISHED).glob("*/seed-*")]


def continued(directory: Path, arrays: Path, study: Params, unbroken: Path, **settings: Any) -> Path:
    """A working directory with the finished seeds of `unbroken`, and without its runs/."""
    lay_out(directory, arrays, study, **settings)
    shutil.copytree(unbroken / ".checkpoints", directory / ".checkpoints")
    return directory


def assert_same(directory: Path, unbroken: Path) -> None:
    table, weights = outcome(directory)
    expected_table, expected_weights = outcome(unbroken)
    assert table == expected_table
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name


def test_files_of_a_run(unbroken: Path, study: Params) -> None:
    directory = unbroken / "runs" / "tiny"
    assert sorted(path.name for path in directory.iterdir()) == ["model.safetensors", "run.json", "steps.npz"]
    metrics = seeds.read_run(directory)["metrics"]
    last = [row for row in seeds.epoch_rows(seeds.read_run(directory)) if row.epoch == 6]
    accuracies = [row.test_accuracy for row in last]
    assert [row.seed for row in last] == list(SEEDS)
    assert metrics["test_accuracy_mean"] == pytest.approx(np.mean(accuracies))
    assert metrics["test_accuracy_sd"] == pytest.approx(np.std(accuracies, ddof=1))
    assert metrics["n"] == 3
    assert all(isinstance(value, int | float) for value in metrics.values())
    run = seeds.read_run(directory)
    assert run["outputs"] == {name: sha256(directory / name) for name in seeds.OUTPUTS}
    assert run["seeds"] == list(SEEDS)
    assert run["device"] == "cpu"
    assert run["started"] <= run["finished"]
    settings = VariantSettings.model_validate_json((unbroken / "configs" / "tiny.json").read_text())
    model = build(settings.model)
    weights = seeds.load_weights(directory, settings)
    model.load_state_dict({name: value[0] for name, value in weights.items()})  # ordinary weights of an ordinary module


@pytest.mark.slow
def test_killed_and_run_again_two_processes_give_the_same_bits_as_one(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """Two processes, killed with -9 and started again, against seeds that one process trained without a break."""
    directory = lay_out(tmp_path, arrays, study)
    process = start(directory, LAB_PROCESSES="2")
    assert process.stdout is not None
    for _ in range(4):
        assert process.stdout.readline()
    started = workers_of(process)
    assert started
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(map(is_worker, started)))  # no worker outlives its parent
    status, out, err = finish(start(directory, LAB_PROCESSES="2"))
    assert status == 0, err
    assert "goes on after epoch" in out
    assert "tiny  seed 2  epoch 6/6  train loss" in out
    assert_same(directory, unbroken)
    (first_id,) = (json.loads(path.read_text())["training_id"] for path in (directory / ".checkpoints" / "seeds").glob("*/tiny.*.json"))
    assert json.loads((directory / "runs" / "tiny" / "run.json").read_text())["training_id"] == first_id


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_the_stage_down_with_one_sentence(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path
) -> None:
    directory = lay_out(tmp_path, arrays, study)
    process = start(directory, LAB_PROCESSES="1")
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(workers_of(process)[0], signal.SIGKILL)
    status, _, err = finish(process)
    assert status == 1
    assert err.count("error:") == 1
    assert "status -9" in err
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert "goes on after epoch" in here(directory)
    assert_same(directory, unbroken)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # of MLflow, which keeps what failed
def test_a_loss_that_is_not_finite_names_seed_and_epoch_and_leaves_what_was_finished_before(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path
) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=3, seeds=(0, 1), learning_rate=1000.0, optimizer="sgd")
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "tiny")
    before = files(directory)
    with pytest.raises(UserError, match=r"^The loss of variant tiny was not finite: seed 0 in epoch \d; seed 1 in epoch \d\. ") as caught:
        here(directory)
    assert caught.value.status == 1
    assert files(directory) == before
    assert [path.name for path in (directory / "runs").iterdir()] == ["tiny"]


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, arrays: Path, study: Params) -> None:
    """So small a one that the first checkpoint does not fit."""
    directory = lay_out(tmp_path, arrays, study, epochs=2, seeds=(0,))
    finds_no_room(directory)
    assert not list((directory / ".checkpoints").rglob("*.tmp"))
    assert epochs_trained(here(directory)) == 2


def finds_no_room(directory: Path) -> None:
    """Has the stage refused files over 20 kB by the kernel."""
    command = f"ulimit -f 20; exec {sys.executable} -m pipeline.stages.train tiny"
    result = subprocess.run(
        ["bash", "-c", command], cwd=directory, env={**os.environ, "LAB_DEVICE": "cpu"}, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 2, result.stderr
    assert "error: A file cannot be written" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_an_edited_worker_would_train_is_refused(tmp_path: Path, arrays: Path, study: Params) -> None:
    """A worker that starts after an edit has other code than the record of its trainings would say."""
    directory = lay_out(tmp_path, arrays, study)
    settings = load_variant(directory / "configs" / "tiny.json")
    job = pool.Job(settings, arrays, tmp_path, "cpu", {"code_hash": "f" * 64})
    found: list[UserError] = []
    pool.run_all([pool.Assignment(job, pool.Task([0]))], handle=lambda *_: None, lost=lambda _, error: found.append(error), cards=[""])
    assert [error.status for error in found] == [2]
    assert not list(tmp_path.glob("seed-*"))


def test_a_second_trainer_is_refused(tmp_path: Path, arrays: Path, study: Params) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=2, seeds=(0,))
    second: list[tuple[int, str, str]] = []

    def try_again(message: pool.Message) -> None:
        if isinstance(message, pool.Epoch) and message.epoch == 1:
            second.append(finish(start(directory)))

    assert epochs_trained(here(directory, try_again)) == 2
    ((status, out, err),) = second
    assert status == 2
    assert epochs_trained(out) == 0
    assert "Another trainer is working on variant tiny" in err


def change(directory: Path, **train: Any) -> None:
    """Other options of the training in configs/tiny.json."""
    config = directory / "configs" / "tiny.json"
    settings = VariantSettings.model_validate_json(config.read_text())
    config.write_text(settings.model_copy(update={"train": settings.train.model_copy(update=train)}).to_json())


def epochs_trained(out: str) -> int:
    return out.count("  epoch ")


def files(directory: Path) -> dict[str, bytes]:
    """What has to be equal to the last byte: all but times and names."""
    run = directory / "runs" / "tiny"
    metrics = json.dumps(seeds.read_run(run)["metrics"]).encode()
    return {name: (run / name).read_bytes() for name in ("model.safetensors", "steps.npz")} | {"metrics": metrics}


def test_seeds_add_up(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """Three seeds, after one that was trained before, are bitwise those of one training; so is one after three; and back costs nothing."""
    directory = lay_out(tmp_path, arrays, study, seeds=(1,))
    out = here(directory)
    assert epochs_trained(out) == 6
    one = files(directory)
    change(directory, seeds=SEEDS)
    out = here(directory)
    assert epochs_trained(out) == 12
    assert "1 finished seed kept" in out
    assert_same(directory, unbroken)
    assert files(directory) == files(unbroken)
    run = seeds.read_run(directory / "runs" / "tiny")
    assert sorted(seed for training in run["trainings"] for seed in training["seeds"]) == [0, 1, 2]

    change(directory, seeds=(1,))
    assert epochs_trained(here(directory)) == 0
    assert files(directory) == one

    change(directory, seeds=SEEDS, epochs=2)  # other settings, and back to the first
    assert epochs_trained(here(directory)) == 6
    change(directory, epochs=6)
    assert epochs_trained(here(directory)) == 0
    assert files(directory) == files(unbroken)


@pytest.mark.parametrize("code", [None, "f" * 64], ids=["this code", "other code"])
def test_the_seeds_of_a_gpu_are_kept_on_the_cpu(tmp_path: Path, arrays: Path, study: Params, unbroken: Path, code: str | None) -> None:
    """Whatever stack trained them; those of other code after a replay that allows for rounding."""
    directory = continued(tmp_path, arrays, study, unbroken)
    gpu = {"device": "cuda", "device_name": "NVIDIA H200", "attention": "fused-cuda", "graphs": "captured", "stack": list(SEEDS)}
    trainer = Trainer(load_variant(directory / "configs" / "tiny.json"), load(directory / "data" / "arrays"), SEEDS, torch.device("cpu"))
    trainer.optimizer.coefficients = trainer.optimizer.coefficients.float()  # as a GPU has them
    tables = replay.tables(trainer)
    for path in (directory / ".checkpoints" / "seeds").glob("*/*.done"):
        part = seeds.read(path)
        path.unlink()
        own = {**gpu, "tables": tables[part.seed], **({"code_hash": code} if code else {})}
        seeds.write(path.parent, replace(part, origin={**part.origin, **own}))
    out = here(directory)
    assert epochs_trained(out) == 0
    assert f"3 finished seeds kept{', 3 of them after a replay' if code else ''}" in out
    assert_same(directory, unbroken)
    (training,) = seeds.read_run(directory / "runs" / "tiny")["trainings"]
    assert (training["device"], training["graphs"], training["seeds"]) == ("cuda", "captured", [0, 1, 2])
    assert [one["exact"] for one in training["replays"]] == ([False] if code else [])


def test_which_stack_of_a_gpu_is_replayed(study: Params) -> None:
    """Seeds of the fused engine need no neighbours; torch's engine needs the whole stack, because grouping decides rounding."""
    base = study.resolve("base")
    settings = base.model_copy(update={"train": base.train.model_copy(update={"seeds": (0, 1, 2, 3)})})
    for engine, expected in (
        ("fused", [pool.Task([0, 1], replay=True), pool.Task([2, 3])]),
        ("torch: dropout", [pool.Task([0, 1, 2, 3])]),
    ):
        origin = {"code_hash": "c" * 64, "engine": engine, "stack": [0, 1, 9], "replays": []}
        found = {seed: seeds.Finished(seed, {}, (), origin) for seed in (0, 1)}
        assert plan(settings, found, "d" * 64, "cuda") == expected


def test_what_lies_in_runs_is_found_under_any_name(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """A fresh clone has no finished seeds but those in runs/; a variant renamed there trains nothing."""
    directory = lay_out(tmp_path, arrays, study)
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "formerly")
    assert epochs_trained(here(directory)) == 0
    assert files(directory) == files(unbroken)


def test_damaged_results_of_a_variant_that_is_gone_stay(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seeds cannot be kept before its folder goes."""
    directory = lay_out(tmp_path, arrays, study)
    monkeypatch.chdir(directory)
    former = Path("runs", "formerly")
    shutil.copytree(unbroken / "runs" / "tiny", former)
    flip_bit(former / "model.safetensors")
    (said,) = prune(RUNS, study)
    assert former.is_dir()
    assert str(former) in said
    assert not list(FINISHED.glob("*/*.done"))
    shutil.copyfile(unbroken / "runs" / "tiny" / "model.safetensors", former / "model.safetensors")
    prune(RUNS, study)
    assert not former.exists()
    assert len(list(FINISHED.glob("*/*.done"))) == 3


def test_a_training_keeps_its_id_through_a_kill_and_beside_a_variant_with_its_settings(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the id MLflow knows a training. The kill comes when all seeds are kept; the variant is found when they are there already."""
    directory = lay_out(tmp_path, arrays, study)
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "tiny")
    run = seeds.read_run(directory / "runs" / "tiny")
    code = """
import os, signal
from pathlib import Path
from pipeline.runner import seeds
left, write = [1, 2, 3], seeds.write
def killed(*arguments):
    write(*arguments)
    left.pop()
    left or os.kill(os.getpid(), signal.SIGKILL)
seeds.write = killed
seeds.keep(Path("runs/tiny"), Path(".checkpoints/seeds"))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=directory).returncode == -signal.SIGKILL
    monkeypatch.chdir(directory)
    (place,) = Path(".checkpoints/seeds").iterdir()
    assert len(list(place.glob("*.done"))) == 3
    shutil.copytree("runs/tiny", "runs/twin")
    seeds.write_run(Path("runs/twin"), run | {"variant": "twin", "training_id": "f" * 32})
    for name, id in (("tiny", run["training_id"]), ("twin", "f" * 32)):
        seeds.keep(Path("runs", name), place.parent)
        assert seeds.training_id(place, name, SEEDS, run["code_hash"]) == id
    assert epochs_trained(here(directory)) == 0
    assert seeds.read_run(directory / "runs" / "tiny")["training_id"] == run["training_id"]


def test_a_clock_that_is_ahead_gives_a_training_no_second_id(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """One seed comes from another version of the code, on a machine whose clock is ahead; this code trains the other two."""
    directory = continued(tmp_path, arrays, study, unbroken)
    (place,) = (directory / ".checkpoints" / "seeds").iterdir()
    part = seeds.read(next(place.glob("seed-1.*.done")))
    for path in place.iterdir():
        path.unlink()
    seeds.write(place, replace(part, origin={**part.origin, "code_hash": "f" * 64, "finished": "2100-01-01T00:00:00+00:00"}))
    assert epochs_trained(here(directory)) == 12
    run = seeds.read_run(directory / "runs" / "tiny")
    assert [training["seeds"] for training in run["trainings"]] == [[1], [0, 2]]
    assert run["code_hash"] == run["trainings"][-1]["code_hash"] != "f" * 64
    assert len(list(place.glob("tiny.*.json"))) == 1
    assert epochs_trained(here(directory)) == 0  # as after `make train`, which leaves runs/ to a process that trains nothing
    assert seeds.read_run(directory / "runs" / "tiny") == run
    assert len(list(place.glob("tiny.*.json"))) == 1


def test_damaged_outputs_come_back_from_the_finished_seeds(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    directory = continued(tmp_path, arrays, study, unbroken)
    shutil.copytree(unbroken / "runs", directory / "runs")
    for name in (*seeds.OUTPUTS, seeds.RUN):
        path = directory / "runs" / "tiny" / name
        path.write_bytes(path.read_bytes()[:-20])
    assert epochs_trained(here(directory)) == 0
    assert files(directory) == files(unbroken)
    seeds.read_run(directory / "runs" / "tiny")


@pytest.mark.parametrize("name", ["run.json", "model.safetensors"])
def test_results_that_cannot_be_read_are_not_trained_over(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a clone whose weights are nowhere, or whose record was edited: a sentence, and nothing is lost. What it names trains."""
    directory = lay_out(tmp_path, arrays, study)
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "tiny")
    path = directory / "runs" / "tiny" / name
    path.unlink() if name == "model.safetensors" else path.write_bytes(path.read_bytes()[:-20])
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    messages: list[pool.Message] = []
    with pytest.raises(UserError, match=f"^runs/tiny/{name} .* or train anew with `REPLAY=0 dvc repro train@tiny`.$") as caught:
        here(directory, messages.append)
    assert caught.value.status == 2
    assert messages == []
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    monkeypatch.setenv("REPLAY", "0")
    assert epochs_trained(here(directory)) == 18
    assert files(directory) == files(unbroken)


@pytest.mark.parametrize("damage", ["finished", "part"])
def test_a_damaged_seed_trains_anew_with_one_line(tmp_path: Path, arrays: Path, study: Params, unbroken: Path, damage: str) -> None:
    directory = continued(tmp_path, arrays, study, unbroken)
    path = next((directory / ".checkpoints" / "seeds").glob("*/seed-0.*.done"))
    if damage == "part":
        path.unlink()
        path = path.with_suffix(".part")
        shutil.copy(unbroken / "first-epoch.part", path)
    flip_bit(path, 1 / 3)
    out = here(directory)
    assert len([line for line in out.splitlines() if "does not match its checksum" in line]) == 1
    assert "goes on" not in out
    assert epochs_trained(out) == 6
    assert_same(directory, unbroken)


def test_a_checkpoint_of_another_processor_is_not_gone_on_from(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """Else one record would name one processor for the bits of two."""
    directory = continued(tmp_path, arrays, study, unbroken)
    path = next((directory / ".checkpoints" / "seeds").glob("*/seed-0.*.done"))
    path.unlink()
    stored = read_sealed(unbroken / "first-epoch.part")
    content = seeds._metadata(stored) | {"device_name": "Another (2 cores)"}
    write_sealed(path.with_suffix(".part"), to_bytes(from_bytes(stored), {"content": json.dumps(content)}))
    out = here(directory)
    assert len([line for line in out.splitlines() if ".part is of " in line]) == 1
    assert epochs_trained(out) == 6
    assert_same(directory, unbroken)
    origin = {name: seeds._metadata(read_sealed(unbroken / "first-epoch.part"))[name] for name in ("device_name", "versions")}
    assert {name: seeds.read_run(directory / "runs" / "tiny")[name] for name in origin} == origin
