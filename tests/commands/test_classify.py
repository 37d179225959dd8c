"""`make classify` says of a test image what the evaluation stored, and draws where attention goes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline import params
from pipeline.commands import classify
from pipeline.data.datasets import load
from pipeline.models import build
from pipeline.runner import seeds
from tests.conftest import Repository
from tests.helpers import stored

pytestmark = pytest.mark.slow


def test_a_picture_is_answered_as_the_image_dark_on_light_too(
    trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained.path)
    monkeypatch.setattr(classify, "PICTURE", tmp_path / "attention.png")
    image, weights = load(Path("data/arrays")).test_images[7], seeds.load_weights(stored(Path(), "base"), (0, 1))
    model, rows = build(params.load().resolve("base").model).eval(), []
    for place in range(2):
        model.load_state_dict({name: value[place] for name, value in weights.items()})
        rows.append(model(torch.from_numpy(image)[None, None] / 255).softmax(-1)[0].detach())
    mean = torch.stack(rows).mean(0)
    with np.load("store/predictions/base.npz") as file:
        expected = [("0", str(file["predictions"][0, 7])), ("1", str(file["predictions"][1, 7])), ("mean", str(int(mean.argmax())))]
    for picture in (image, 255 - image):
        Image.fromarray(picture).save(tmp_path / "digit.png")
        classify.main([f"--image={tmp_path / 'digit.png'}"])
        said = capsys.readouterr().out
        assert re.findall(r"^  (?:seed )?(\w+) +(\d)  \(probability", said, flags=re.M) == expected
        shown = [float(one) for one in re.findall(r"probability ([\d.]+)", said)]
        assert shown == pytest.approx([*(float(row.max()) for row in rows), float(mean.max())], abs=6e-4)
        assert ("inverted" in said) == (picture is not image)
    with Image.open(tmp_path / "attention.png") as drawn:
        assert np.ptp(np.asarray(drawn.convert("L"))) > 100


def test_attention_is_that_of_each_seed(trained: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.path)
    settings, image = params.load().resolve("base"), load(Path("data/arrays")).test_images[7]
    chosen, _, maps = classify.answers(settings, stored(Path(), "base"), [], image)
    alone, _, own = classify.answers(settings, stored(Path(), "base"), [1], image)
    assert (chosen, alone) == ([0, 1], [1])
    assert maps is not None
    assert own is not None
    assert maps.shape == (2, 2, 2)  # 28 pixels in patches of 14
    assert np.array_equal(maps[1], own[0])
    assert (maps > 0).all()
    assert (maps.sum((1, 2)) < 1).all()  # the class token keeps the rest
