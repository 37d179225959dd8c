"""A data set of another shape is one entry in the table: no stage knows what the images look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from pipeline.data import datasets
from pipeline.params import DATASETS, DataSettings, DataSource, Shape, load_variant
from pipeline.stages import evaluate, fetch, prepare, report, resolve, train

RANDOM = DataSource("Random colours", Shape(32, 3, 7), reader="pipeline.data.datasets:read_random")


def read_random(raw: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, np.ndarray]:
    """Noise, in each class brighter in one channel."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", 96), ("test", 40)):
        labels = (np.arange(count) % 7).astype(np.uint8)
        images = rng.integers(0, 128, (count, 3, 32, 32), dtype=np.uint8)
        images[np.arange(count), labels % 3] += 100
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    return arrays


@pytest.fixture
def raw(tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study of the data set; the test runs in its folder."""
    monkeypatch.setitem(DATASETS, "random", RANDOM)
    monkeypatch.setattr(datasets, "read_random", read_random, raising=False)
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    monkeypatch.setenv("LAB_PROCESSES", "1")
    monkeypatch.chdir(tmp_path)
    question = {"title": "Colours", "question": "Which?", "source": "a test", "baseline": "base", "variants": ["base", "net"]}
    raw = {
        "preview": "A test.",
        "images_shown": 96,
        "looks": [],
        "data": {"dataset": "random"},
        "scenes": raw_params["scenes"],
        "train": raw_params["train"] | {"seeds": 1, "epochs": 1, "batch_size": 32, "augment": "affine"},
        "base": raw_params["base"] | {"patch": 16, "blocks": 1, "dim": 8, "heads": 2, "mlp_dim": 8},
        "variants": {"base": {}, "net": {"architecture": "cnn", "widths": [2, 3]}},
        "experiments": {"colours": question | {"measure": "test loss", "figures": ["curves", "attention_maps", "shifts"]}},
        "claims": {},
        "timing": {"rounds": 1, "steps": 1, "seconds": 1, "tokens": [1, 4], "subjects": {"base": {}}},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return raw


@pytest.mark.long
def test_a_data_set_of_colour_images_trains_is_evaluated_and_reported(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "track", lambda *_: None)
    for stage in (fetch, prepare, resolve):
        stage.main([])
    with Image.open("reports/data/samples.png") as samples:
        assert (samples.mode, samples.height) == ("RGBA", 7 * 35 - 3)
    assert load_variant("configs/base.json").model.shape == Shape(32, 3, 7)
    for variant in raw["variants"]:
        train.main([variant])
    for stage in (evaluate, report):  # timing measures in processes that know no data set of a test
        stage.main([])
    metrics = json.loads(Path("tables/metrics.json").read_text())["base"]
    # Embedding of 3 x 16 x 16 values, class token, positions; a block; the head of seven classes.
    block = 2 * 16 + 2 * 3 * (16 + 4) + 2 * (64 + 8)
    assert metrics["parameters"] == (768 * 8 + 8) + 8 + 5 * 8 + block + (8 * 7 + 7)
    assert set(metrics["per_class_accuracy"]) == set("0123456")
    assert "Random colours" in Path("reports/README.md").read_text()
    assert "mnist" not in Path("reports/experiments/colours.md").read_text().lower()
