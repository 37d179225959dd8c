"""The evaluate stage: it trusts weights only after it has checked them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.params import DataSettings, ModelSettings, Params, TrainSettings, VariantSettings
from pipeline.stages import evaluate as stage
from pipeline.training import results
from pipeline.training.engine import Trainer, set_reproducible

SEEDS = (4, 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, arrays: Path, study: Params) -> Path:
    """A working directory with a small variant, trained on the digits, as the train stage leaves it."""
    import torch

    directory = tmp_path_factory.mktemp("trained")
    settings = VariantSettings(
        data=DataSettings(dataset="digits"),
        train=TrainSettings(seeds=SEEDS, epochs=2, batch_size=128, learning_rate=0.005),
        model=ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1}),
    )
    (directory / "configs").mkdir()
    (directory / "configs" / "tiny.json").write_text(settings.to_json())
    (directory / "data").mkdir()
    (directory / "data" / "arrays").symlink_to(arrays)
    weights, rows = {}, []
    set_reproducible(torch.device("cpu"))
    for seed in SEEDS:
        trainer = Trainer(settings, load(arrays), [seed], torch.device("cpu"))
        while not trainer.done:
            trainer.run_epoch()
        weights[seed] = {name: value[0].numpy() for name, value in trainer.stack.state().items()}
        rows += trainer.rows
    results.write(directory / "runs" / "tiny", settings, weights, rows, parameters=1, flops=1)
    (directory / ".checkpoints" / "tiny").mkdir(parents=True)
    return directory


@pytest.fixture
def project(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    return tmp_path


def test_what_it_writes_follows_from_the_predictions(project: Path) -> None:
    stage.main(["tiny"])
    directory = project / "runs" / "tiny"
    with np.load(directory / "predictions.npz") as file:
        labels, predictions, seeds, positions = (file[name] for name in ("labels", "predictions", "seeds", "positions"))
    assert predictions.dtype == np.uint8
    assert predictions.shape == (2, 360)
    assert tuple(seeds) == SEEDS
    assert positions.shape == (2, 5, 32)
    assert np.array_equal(labels, load(project / "data" / "arrays").test_labels)
    with (directory / "epochs.csv").open() as file:
        last = [float(row["test_accuracy"]) for row in csv.DictReader(file) if row["epoch"] == "2"]
    assert list((predictions == labels).mean(1)) == pytest.approx(last, abs=1e-12)
    evaluation = json.loads((directory / "evaluation.json").read_text())
    assert evaluation["test_accuracy"] == pytest.approx(np.mean(last))
    three = labels == 3
    assert evaluation["per_class_accuracy"]["3"] == pytest.approx((predictions[:, three] == 3).mean())
    with (directory / "confusion.csv").open() as file:
        counts = {(int(row["actual"]), int(row["predicted"])): int(row["count"]) for row in csv.DictReader(file)}
    assert len(counts) == 100
    assert sum(counts.values()) == 720
    assert counts[3, 5] == (predictions[:, three] == 5).sum()
    assert not (project / ".checkpoints" / "tiny").exists()


def test_a_flipped_bit_in_the_weights(project: Path) -> None:
    path = project / "runs" / "tiny" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model.safetensors does not have the sha256 recorded in model.sha256.*train@tiny"):
        stage.main(["tiny"])
    assert (project / ".checkpoints" / "tiny").exists()


def test_weights_of_another_training(project: Path) -> None:
    path = project / "runs" / "tiny" / "epochs.csv"
    lines = path.read_text().splitlines()
    fields = lines[2].split(",")
    fields[3] = str(float(fields[3]) * 1.001)
    path.write_text("\n".join([*lines[:2], ",".join(fields), *lines[3:], ""]))
    with pytest.raises(UserError, match=r"variant tiny, seed 4, test at loss .* but its training ended at"):
        stage.main(["tiny"])


def test_missing_files(project: Path) -> None:
    (project / "runs" / "tiny" / "model.sha256").unlink()
    with pytest.raises(UserError, match=r"is missing: run `dvc repro train@tiny`"):
        stage.main(["tiny"])
    with pytest.raises(UserError, match="Usage"):
        stage.main([])


def test_seeds_that_params_no_longer_names(project: Path) -> None:
    path = project / "configs" / "tiny.json"
    content = json.loads(path.read_text())
    content["train"]["seeds"] = [5, 2]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"holds seeds \[4, 2\], but params.yaml asks for \[5, 2\]"):
        stage.main(["tiny"])
