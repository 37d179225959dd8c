"""Values that no command can use, in a folder that holds params.yaml alone: one sentence, status 2, nothing run, nothing written.

What params.yaml may hold is told in tests/test_params.py, what `make compare` takes in test_compare.py.
"""

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.commands import caption, classify, export, pretrained, verify
from pipeline.commands import train as train_all
from pipeline.runner import pool
from pipeline.stages import train
from pipeline.system.errors import UserError
from tests.helpers import STUDY

NO_PICTURE = "is not a picture that can be read"

VALUES = [
    (verify.main, ["--variant=bse"], "There is no variant 'bse'; the nearest is 'base'."),
    (verify.main, ["--seed=77"], "The study has no seed '77'"),
    (verify.main, ["--seed=0", "--train=1"], "TRAIN=1 trains one seed"),
    (verify.main, ["--variant=base", "--seed=1"], "There is nothing to verify"),
    (caption.main, ["--scene=1", "--image=a.png"], "Give a picture or the number of a test scene"),
    (caption.main, ["--scene=1", "--seed=1e0"], "There is no SEED='1e0'"),
    (caption.main, ["--scene=1", "--variant=captoin"], "'captoin' is no captioner of params.yaml; the nearest is 'caption'."),
    (caption.main, ["--scene=1"], "data/arrays/dataset.json is missing"),
    (caption.main, ["--image=none.png"], f"none.png {NO_PICTURE}"),
    (caption.main, ["--image=huge.png"], f"huge.png {NO_PICTURE}"),
    (caption.main, ["--image=wide.png"], "wide.png has 112 x 56 pixels"),
    (caption.main, ["--image=deep.png"], "deep.png has 16 or 32 bits"),
    (classify.main, [], "Give a picture of a digit"),
    (pretrained.main, ["--variant=bse"], "There is no variant 'bse'; the nearest is 'base'."),
    (pretrained.main, [], "No weights of base are here"),
    (classify.main, ["--image=a.png", "--variant=caption"], "'caption' is no classifier of params.yaml"),
    (classify.main, ["--image=white.png"], "white.png holds no digit that is dark on light."),
    (train_all.main, ["--on=cluster"], "ON is 'cluster'; the choices are here and ray."),
    (export.main, ["--experiment=position"], "There is no experiment 'position'; the nearest is 'positions'"),
    (train.main, [], "Usage: python -m pipeline.stages.train VARIANT"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "claims.yaml"):
        shutil.copyfile(STUDY / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(call: Callable[[], object], folder: Path) -> str:
    """The sentence with which a call is refused."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        call()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert caught.value.status == 2
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.parametrize(
    ("main", "argv", "sentence"), VALUES, ids=lambda value: value[-1][:30] if value and isinstance(value, list) else ""
)
def test_a_value_that_cannot_be_used(folder: Path, main: Callable[[list[str]], object], argv: list[str], sentence: str) -> None:
    Image.new("L", (112, 56)).save(folder / "wide.png")
    Image.new("I;16", (56, 56)).save(folder / "deep.png")
    Image.new("L", (28, 28), 255).save(folder / "white.png")
    header = b"IHDR" + struct.pack(">IIBBBBB", 200_000, 200_000, 8, 0, 0, 0, 0)  # 4e10 pixels, none of which follows
    (folder / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))
    assert refusal(lambda: main(argv), folder).startswith(sentence)


def test_a_digit_is_read_from_light_or_dark_ink_on_nothing_and_in_any_size(tmp_path: Path) -> None:
    digit = np.zeros((28, 28), np.uint8)
    digit[4:24, 12:16] = 255
    for name, grey in (("light", 255), ("dark", 0)):
        pixels = np.dstack([np.full((28, 28, 3), grey, np.uint8), digit]).repeat(3, 0).repeat(3, 1)
        Image.fromarray(pixels, "RGBA").save(tmp_path / f"{name}.png")
    assert np.array_equal(caption.read(tmp_path / "light.png", 28, 1), digit)
    assert np.array_equal(caption.read(tmp_path / "dark.png", 28, 1), 255 - digit)  # which is then turned


def test_an_environment_that_says_nothing_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", "two", " 2", "10000"):
        monkeypatch.setenv("LAB_PROCESSES", value)
        assert refusal(pool.choose_processes, folder).startswith("JOBS (or LAB_PROCESSES) is ")
    assert refusal(lambda: train_all.main(["--jobs=0"]), folder).startswith("JOBS (or LAB_PROCESSES) is ")
    monkeypatch.delenv("LAB_PROCESSES")
    for name, value in {"LAB_DEVICE": "gpu", "LAB_ATTENTION": "no", "LAB_GRAPHS": "no", "REPLAY": "no"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert refusal(pool.choose_device, folder).startswith(f"{name} is {value!r}")
