from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml
from PIL import Image

from pipeline import params
from pipeline.captioning.scenes import load
from pipeline.commands import profiles
from pipeline.data import datasets
from pipeline.errors import UserError
from pipeline.params import DATASETS
from pipeline.report.figures.style import DPI, INK, PAGE, Theme
from pipeline.report.scenes import draw_samples
from pipeline.stages import scenes

if TYPE_CHECKING:
    from tests.conftest import Repository


@pytest.fixture
def study(tmp_path: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's params.yaml and the digits' arrays, in the working directory."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo")))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/arrays").symlink_to(arrays)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scenes_and_their_page(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes.main([])
    drawn = load()
    assert (drawn.dataset, drawn.data_digest) == ("digits", datasets.data_digest())
    sizes = params.load().scenes
    train, validation, test = sizes.train, sizes.validation, sizes.test
    assert [len(split) for split in (drawn.train, drawn.validation, drawn.test)] == [train, validation, test]
    assert capsys.readouterr().out == f"{train:,} train, {validation:,} validation, {test:,} test scenes, digest {drawn.digest[:12]}\n"

    files = {path.name: path.read_bytes() for path in (study / "reports/scenes").iterdir()}
    assert sorted(files) == ["README.md", "samples-dark.png", "samples.png"]
    page = files["README.md"].decode()
    assert page.startswith("# Scenes to describe\n\n> DEMO on scikit-learn's 1,797 digits")
    assert "one to four images of scikit-learn's digits in four cells" in page
    occupied = (drawn.test.cells >= 0).sum(1)
    counts = " | ".join(str((occupied == count).sum()) for count in (1, 2, 3, 4))
    repeated = sum(len(set(row[row >= 0])) < (row >= 0).sum() for row in drawn.test.labels)
    images = len(set(drawn.test.cells.ravel().tolist()) - {-1})
    assert f"| test | {counts} | {test:,} | {repeated} ({100 * repeated / test:.1f} %) | {images} test images |\n" in page
    assert "has 35 words, `<pad>`, `<bos>` and `<eos>` included; the longest reference\nhas 17. " in page
    assert drawn.digest in page
    assert "None" not in page

    scenes.main([])
    assert {path.name: path.read_bytes() for path in (study / "reports/scenes").iterdir()} == files
    # PNG chunks that hold words or a time would differ between machines.
    assert not any(chunk in content for content in files.values() for chunk in (b"tEXt", b"iTXt", b"zTXt", b"tIME"))
    assert max(map(len, files.values())) < 150_000


def test_before_the_arrays(study: Path) -> None:
    (study / "data/arrays").unlink()
    with pytest.raises(UserError, match=r"dataset\.json is missing: run `dvc repro --force prepare`"):
        scenes.main([])


def test_a_data_set_without_nouns_stops_no_study(study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], nouns=()))
    scenes.main([])
    assert capsys.readouterr().out == "scikit-learn's digits has no captions: its classes have no nouns\n"
    assert list((study / "data/scenes").iterdir()) == []  # the folder is there, because dvc.yaml names it
    (page,) = (study / "reports/scenes").iterdir()
    assert page.read_text().endswith(
        "scikit-learn's digits has no captions, because its classes have no nouns in `pipeline/params/data.py`.\n"
    )


@pytest.mark.parametrize(("theme", "channels"), [("light", ()), ("dark", ()), ("light", (3,))])
def test_a_picture_shows_each_scene(theme: Theme, channels: tuple[int, ...]) -> None:
    """The cells' pixels, four of them bright, on the theme's own page."""
    pictures = np.zeros((2, *channels, 8, 8), np.uint8)
    pictures[0, ..., :4, :4] = pictures[1, ..., 4:, 4:] = 255
    content = draw_samples(pictures, [[("a", "seven", "top", "left")] * 5, [("a", "one", "bottom", "right")] * 5], theme)
    with Image.open(io.BytesIO(content)) as opened:
        shown = np.asarray(opened.convert("RGB")).astype(int)
    page, ink = (np.array([int(colours[theme][place : place + 2], 16) for place in (1, 3, 5)]) for colours in (PAGE, INK))
    full, empty = (np.full(3, 255), np.zeros(3)) if channels else (ink, page)
    side, top, step = (round(inches * DPI) for inches in (1.05, 0.06, 1.25))
    for row, bright in enumerate(((0, 0), (1, 1))):
        for down, across in np.ndindex(2, 2):
            pixel = shown[top + row * step + side * (1 + 2 * down) // 4, 3 + side * (1 + 2 * across) // 4]
            assert np.abs(pixel - (full if (down, across) == bright else empty)).max() < 12
    assert (np.abs(shown[:, 230:1000] - ink).max(-1) < 40).sum() > 500  # the captions
    assert (shown[:, -20:] == page).all()


@pytest.mark.slow
def test_dvc_draws_what_is_missing_and_what_params_change(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = trained.copy(tmp_path / "study")
    monkeypatch.chdir(study.path)
    digest = load().digest
    (study.path / "data/scenes/scenes.json").unlink()
    with pytest.raises(UserError, match=r"scenes\.json is missing: run `dvc repro --force scenes`"):
        load()
    scenes.main([])  # which is what DVC runs then
    assert load().digest == digest
    study.edit(scenes={"test": 12})
    assert study.repro("scenes") == ["scenes"]
    assert len(load().test) == 12
