"""The train stage as its own process: killed anywhere, run with any number of processes, it ends with the same bits."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.files import sha256
from pipeline.models import build
from pipeline.params import DataSettings, ModelSettings, Params, VariantSettings
from pipeline.training import results

SEEDS = (0, 1, 2)


def lay_out(
    directory: Path,
    arrays: Path,
    study: Params,
    *,
    epochs: int = 6,
    seeds: tuple[int, ...] = SEEDS,
    learning_rate: float = 0.005,
    **model: Any,
) -> Path:
    """A working directory in which the stage `train tiny` can run."""
    settings = VariantSettings(
        data=DataSettings(dataset="digits"),
        train=study.train.model_copy(update={"seeds": seeds, "epochs": epochs, "batch_size": 64, "learning_rate": learning_rate}),
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


def outcome(directory: Path) -> tuple[list[list[str]], dict[str, torch.Tensor]]:
    """Everything that has to be equal: the table without its seconds, the weights."""
    with (directory / "runs" / "tiny" / "epochs.csv").open() as file:
        table = [row[:5] for row in csv.reader(file)]
    return table, load_file(directory / "runs" / "tiny" / "model.safetensors")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, arrays: Path, study: Params) -> Path:
    directory = lay_out(tmp_path_factory.mktemp("unbroken"), arrays, study)
    status, out, err = finish(start(directory, LAB_PROCESSES="1"))
    assert status == 0, err
    assert "tiny  seed 2  epoch 6/6  train loss" in out
    return directory


def assert_same(directory: Path, unbroken: Path) -> None:
    table, weights = outcome(directory)
    expected_table, expected_weights = outcome(unbroken)
    assert table == expected_table
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.slow
def test_files_of_a_run(unbroken: Path, study: Params) -> None:
    directory = unbroken / "runs" / "tiny"
    assert sorted(path.name for path in directory.iterdir()) == [
        "epochs.csv",
        "metrics.json",
        "model.safetensors",
        "run.json",
        "steps.npz",
    ]
    metrics = json.loads((directory / "metrics.json").read_text())
    with (directory / "epochs.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["epoch"] == "6"]
    accuracies = [float(row["test_accuracy"]) for row in last]
    assert [int(row["seed"]) for row in last] == list(SEEDS)
    assert metrics["test_accuracy_mean"] == pytest.approx(np.mean(accuracies))
    assert metrics["test_accuracy_sd"] == pytest.approx(np.std(accuracies, ddof=1))
    assert metrics["n"] == 3
    assert all(isinstance(value, int | float) for value in metrics.values())
    run = results.read_run(directory)
    assert run["outputs"] == {name: sha256(directory / name) for name in results.OUTPUTS}
    assert run["seeds"] == list(SEEDS)
    assert run["device"] == "cpu"
    assert run["started"] <= run["finished"]
    settings = VariantSettings.model_validate_json((unbroken / "configs" / "tiny.json").read_text())
    model = build(settings.model)
    weights = results.load_weights(directory, settings)
    model.load_state_dict({name: value[0] for name, value in weights.items()})  # ordinary weights of an ordinary module


@pytest.mark.slow
def test_two_processes_give_the_same_bits_as_one(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    directory = lay_out(tmp_path, arrays, study)
    status, _, err = finish(start(directory, LAB_PROCESSES="2"))
    assert status == 0, err
    assert_same(directory, unbroken)


@pytest.mark.slow
def test_killed_and_run_again_gives_the_same_bits(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """Killed with -9 three times: after the first epoch, later, and while the results are being put together."""
    directory = lay_out(tmp_path, arrays, study)
    for lines in (1, 4, 9):
        process = start(directory, LAB_PROCESSES="2")
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        deadline = time.monotonic() + 10
        while any(alive(int(child)) for child in children):  # no worker outlives its parent
            assert time.monotonic() < deadline
            time.sleep(0.05)
    status, out, err = finish(start(directory, LAB_PROCESSES="2"))
    assert status == 0, err
    assert "goes on after epoch" in out
    assert_same(directory, unbroken)
    (first_id,) = (json.loads(path.read_text())["training_id"] for path in (directory / ".checkpoints" / "seeds").glob("*/tiny.*.json"))
    assert json.loads((directory / "runs" / "tiny" / "run.json").read_text())["training_id"] == first_id


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_the_stage_down_with_one_sentence(
    tmp_path: Path, arrays: Path, study: Params, unbroken: Path
) -> None:
    directory = lay_out(tmp_path, arrays, study)
    process = start(directory, LAB_PROCESSES="1")
    assert process.stdout is not None
    process.stdout.readline()
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    worker = next(pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(worker, signal.SIGKILL)
    status, _, err = finish(process)
    assert status == 1
    assert err.count("error:") == 1
    assert "status -9" in err
    assert "run the same command again" in err
    assert "Traceback" not in err
    status, _, err = finish(start(directory))
    assert status == 0, err
    assert_same(directory, unbroken)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_seed_and_epoch(tmp_path: Path, arrays: Path, study: Params) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=3, seeds=(0, 1), learning_rate=1e30)
    status, _, err = finish(start(directory))
    assert status == 1
    assert "The loss of variant tiny was not finite: seed " in err
    assert "in epoch" in err
    assert "Traceback" not in err
    assert not (directory / "runs").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, arrays: Path, study: Params) -> None:
    """The kernel refuses files over 20 kB, so the first checkpoint does not fit."""
    directory = lay_out(tmp_path, arrays, study, epochs=2, seeds=(0,))
    command = f"ulimit -f 20; exec {sys.executable} -m pipeline.stages.train tiny"
    result = subprocess.run(
        ["bash", "-c", command], cwd=directory, env={**os.environ, "LAB_DEVICE": "cpu"}, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 2, result.stderr
    assert "error: A file cannot be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((directory / ".checkpoints").rglob("*.tmp"))
    status, _, err = finish(start(directory))
    assert status == 0, err


def test_bad_calls_end_with_a_sentence(tmp_path: Path) -> None:
    for arguments, sentence in ([], "Usage"), (["nothing"], "configs/nothing.json is missing"):
        result = subprocess.run(
            [sys.executable, "-m", "pipeline.stages.train", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "LAB_DEVICE": "cpu"},
        )
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: {sentence}")
        assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_second_trainer_is_refused(tmp_path: Path, arrays: Path, study: Params) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=200)
    first = start(directory)
    assert first.stdout is not None
    first.stdout.readline()
    status, _, err = finish(start(directory))
    first.kill()
    first.communicate()
    assert status == 2
    assert f"Another trainer (process {first.pid}) is working on variant tiny" in err


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
    return {name: (run / name).read_bytes() for name in ("model.safetensors", "steps.npz", "metrics.json")}


@pytest.mark.slow
def test_seeds_add_up(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """Three seeds, after one that was trained before, are bitwise those of one training; so is one after three; and back costs nothing."""
    directory = lay_out(tmp_path, arrays, study, seeds=(1,))
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 6
    one = files(directory)
    change(directory, seeds=SEEDS)
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 12
    assert "1 finished seed kept" in out
    assert_same(directory, unbroken)
    assert files(directory) == files(unbroken)
    run = results.read_run(directory / "runs" / "tiny")
    assert sorted(seed for training in run["trainings"] for seed in training["seeds"]) == [0, 1, 2]

    change(directory, seeds=(1,))
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 0
    assert files(directory) == one

    change(directory, seeds=SEEDS, epochs=2)  # other settings, and back to the first
    status, out, err = finish(start(directory))
    assert epochs_trained(out) == 6
    change(directory, epochs=6)
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 0
    assert files(directory) == files(unbroken)


@pytest.mark.slow
def test_what_lies_in_runs_is_found_under_any_name(tmp_path: Path, arrays: Path, study: Params, unbroken: Path) -> None:
    """A fresh clone has no finished seeds but those in runs/; a variant renamed there trains nothing."""
    directory = lay_out(tmp_path, arrays, study)
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "formerly")
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 0
    assert files(directory) == files(unbroken)


@pytest.mark.slow
def test_damaged_outputs_come_back_from_the_finished_seeds(tmp_path: Path, arrays: Path, study: Params) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=2, seeds=(0, 1))
    status, _, err = finish(start(directory))
    assert status == 0, err
    expected = files(directory)
    for name in (*results.OUTPUTS, results.RUN):
        path = directory / "runs" / "tiny" / name
        path.write_bytes(path.read_bytes()[:-20])
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert epochs_trained(out) == 0
    assert files(directory) == expected
    results.read_run(directory / "runs" / "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "epochs.csv", "model.safetensors"])
def test_results_that_cannot_be_read_are_not_trained_over(tmp_path: Path, arrays: Path, study: Params, unbroken: Path, name: str) -> None:
    """As in a clone whose weights were not pulled, or whose text files were edited: a sentence, and nothing is lost."""
    directory = lay_out(tmp_path, arrays, study)
    shutil.copytree(unbroken / "runs" / "tiny", directory / "runs" / "tiny")
    path = directory / "runs" / "tiny" / name
    path.unlink() if name == "model.safetensors" else path.write_bytes(path.read_bytes()[:-20])
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    status, out, err = finish(start(directory))
    assert status == 2
    assert epochs_trained(out) == 0
    assert err.startswith(f"error: runs/tiny/{name} ")
    assert err.rstrip().endswith("or remove runs/tiny to train anew.")
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["finished", "part"])
def test_a_damaged_seed_trains_anew_with_one_line(tmp_path: Path, arrays: Path, study: Params, damage: str) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=3, seeds=(0, 1))
    if damage == "finished":
        finish(start(directory))
        shutil.rmtree(directory / "runs")
        path = next((directory / ".checkpoints" / "seeds").glob("*/seed-1.*.done"))
    else:
        process = start(directory, LAB_PROCESSES="1")
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.communicate()
        path = next((directory / ".checkpoints" / "seeds").glob("*/seed-0.*.part"))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    status, out, err = finish(start(directory))
    assert status == 0, err
    assert len([line for line in out.splitlines() if "does not match its checksum" in line]) == 1
    assert epochs_trained(out) == (3 if damage == "finished" else 6)


@pytest.mark.slow
def test_a_failed_training_leaves_what_was_finished_before(tmp_path: Path, arrays: Path, study: Params) -> None:
    directory = lay_out(tmp_path, arrays, study, epochs=2, seeds=(0,))
    finish(start(directory))
    before = files(directory)
    change(directory, learning_rate=1e30)
    status, _, err = finish(start(directory))
    assert status == 1, err
    assert files(directory) == before
