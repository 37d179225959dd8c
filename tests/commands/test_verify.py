"""A study that travels by git alone: trained in one repository, cloned, and verified there."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from pipeline import params
from pipeline.commands.verify import first_difference, main, same_picture
from pipeline.runner import seeds
from pipeline.runner.seeds import Finished
from pipeline.system.errors import UserError
from pipeline.training.records import EpochRow
from tests.helpers import ROOT, commit_all, flip_bit, git, rewrite, stored

if TYPE_CHECKING:
    from tests.conftest import Repository


def verify(path: Path, *arguments: str) -> tuple[int, str]:
    """Exit status, and all that was said; in this process, because each start of torch costs seconds."""
    said = io.StringIO()
    with chdir(path), redirect_stdout(said):
        try:
            return main(list(arguments)), said.getvalue()
        except UserError as error:
            return error.status, f"{said.getvalue()}error: {error}\n"


@contextmanager
def restored(*paths: Path) -> Iterator[None]:
    """Files that have their content and times again when the block ends."""
    before = [(path, path.read_bytes(), path.stat()) for path in paths]
    for path in paths:
        path.chmod(0o644)
    try:
        yield
    finally:
        for path, content, times in before:
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def travelled(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], trained: Repository) -> Path:
    """Two repositories. `origin` has four trained variants, its results committed; in `clone`, its clone, verify has run once.

    To be copied, not to be changed.
    """

    def make(path: Path) -> str:
        origin, clone = trained.copy(path / "origin"), type(trained)(path / "clone")
        for name in (".dvc/config", ".dvc/.gitignore", ".gitignore"):
            shutil.copyfile(ROOT / name, origin.path / name)
        git(origin.path, "init", "--quiet", "--initial-branch=main")
        commit_all(origin.path, "Trained.")
        git(path, "clone", "--quiet", "origin", "clone")
        return clone.succeed(sys.executable, "-m", "pipeline.commands.verify")

    path, said = once("travelled", make)
    lines = said.splitlines()
    assert "base  seed 0  same bits" in lines
    assert "wide  seed 0  same bits" in lines
    assert lines[-2].startswith("pages  ")
    assert lines[-2].endswith("files  same bits")
    assert lines[-1] == "Verified: the first seed of 4 variants, the tables and the pages."
    return path


@pytest.fixture(scope="module")
def clone(travelled: Path, trained: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return type(trained)(travelled / "clone").copy(tmp_path_factory.mktemp("clone") / "clone")


@pytest.mark.long
@pytest.mark.timeout(900)
class TestClone:
    @pytest.fixture(autouse=True)
    def as_its_stages(self, clone: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        """What verify computes in this process, it computes as the clone's stages do."""
        for name in ("PATH", "LAB_DEVICE", "LAB_PROCESSES", "LAB_ATTENTION"):
            monkeypatch.setenv(name, clone.environment[name])

    def test_another_seed_needs_its_weights_or_is_trained_again_to_the_same_bits(self, travelled: Path, clone: Repository) -> None:
        status, said = verify(clone.path, "--variant=base", "--seed=1")
        assert status == 1
        assert "base  not verified: The weights of base's seed 1 are not here" in said
        there = verify(travelled / "origin", "--variant=base", "--seed=1")
        assert there == (0, "base  seed 1  same bits\nVerified: seed 1 of base.\n")
        status, said = verify(clone.path, "--variant=base", "--seed=1", "--train=1")
        assert status == 0, said
        assert "base  seed 1, trained again  same bits" in said
        assert not (clone.path / ".checkpoints" / "seeds").exists()

    def test_what_is_changed_in_the_store_is_told(self, clone: Repository) -> None:
        path = stored(clone.path, "base")
        epochs, loss = seeds.read_record(path)["epochs"], EpochRow._fields.index("test_loss")
        epochs[0][loss] = float(np.nextafter(epochs[0][loss], 1e9))  # the last bit of seed 0's test loss, under a digest that fits
        predictions = clone.path / "store/predictions/base.npz"
        with np.load(predictions) as file:
            arrays = dict(file)
        evaluation = json.loads(str(arrays["evaluation"]))
        evaluation["inputs"]["code"] = "0" * 64
        of_other_code = arrays | {"evaluation": np.array(json.dumps(evaluation))}
        exchanged = arrays | {"predictions": np.roll(arrays["predictions"], 1, axis=1)}
        unknown = "store/predictions/base.npz is missing, damaged or of other code"
        changes: list[tuple[Callable[[], object], str]] = [
            (lambda: np.savez_compressed(predictions, **of_other_code), unknown),
            (lambda: predictions.write_bytes(b"junk"), unknown),
            (lambda: np.savez_compressed(predictions, **exchanged), "store/predictions/base.npz has other predictions"),
            (lambda: flip_bit(path, 0.999), "store/trainings/base.safetensors does not hold the weights and traces"),
            (lambda: rewrite(path, epochs=epochs), "the test of seed 0: loss "),
        ]
        for change, told in changes:
            with restored(path, predictions):
                change()
                status, said = verify(clone.path, "--variant=base")
            assert status == 1
            assert f"base  not verified: {told}" in said
            assert said.endswith("Not verified: base.\n")

    def test_tables_and_pages_that_the_code_does_not_make_are_told(self, clone: Repository) -> None:
        table, settings, page = (clone.path / name for name in ("tables/epochs.csv", "params.yaml", "reports/experiments/stale.md"))
        head, first, *others = table.read_text().splitlines(keepends=True)
        cells = first.split(",")
        cells[3] = repr(float(np.nextafter(float(cells[3]), 1e9)))
        with restored(table, settings):
            table.write_text("".join([head, ",".join(cells), *others]))
            settings.write_text(settings.read_text().replace("variants:\n  base: {}", "variants:\n  base: {}\n  deep: {blocks: 2}"))
            page.write_text("# Of an experiment that is gone\n")
            status, said = verify(clone.path)
            page.unlink()
        assert status == 1
        assert "tables  differ: tables/epochs.csv; `dvc repro --force --single-item evaluate` writes them anew" in said
        assert "critical  seed 0  same bits\nnot trained yet: deep\n" in said
        assert "pages  differ: reports/README.md" in said
        assert "reports/experiments/stale.md, which this code does not make" in said
        assert said.endswith("Not verified: the tables, the pages.\n")


def a_seed(**origin: Any) -> Finished:
    """A finished seed by hand: 60 steps, one epoch, one weight."""
    losses = np.linspace(2, 1, 60, dtype=np.float32)
    tensors = {"model.head.weight": np.ones((2, 3), np.float32), "trace.step": np.arange(1, 61)}
    tensors |= {"trace.loss": losses, "trace.gradient_norm": losses / 2}
    tables = {"weights": "a", "order": "b", "augmentation": "c", "rates": "d"}
    return Finished(0, tensors, (EpochRow(0, 1, 1.5, 1.25, 0.5, 0.75, 3.0),), {"tables": tables, "weights": "a", **origin})


def test_every_bit_of_a_training_counts_but_its_seconds(study: params.Params) -> None:
    base, old, new = study.resolve("base"), a_seed(), a_seed()

    def difference(rows: tuple[EpochRow, ...] = new.rows) -> str:
        return str(first_difference(base, Finished(0, new.tensors, rows, new.origin), old, exact=True))

    assert difference((new.rows[0]._replace(seconds=9.0),)) == "None"
    assert difference((new.rows[0]._replace(gradient_norm=float(np.nextafter(0.75, 1))),)) == "not the same epochs"
    new.origin["weights"] = "b"
    assert difference() == "not the same weights"
    new.tensors["trace.loss"][40] = np.nextafter(new.tensors["trace.loss"][40], np.float32(9))
    assert difference().startswith("loss of step 41: ")


def test_on_another_processor_the_beginning_has_to_agree(study: params.Params) -> None:
    from pipeline.runner.replay import TOLERANCES  # imports torch

    base, old, new = study.resolve("base"), a_seed(), a_seed()
    new.tensors["trace.loss"] *= 1 + TOLERANCES["loss"] / 2
    new.tensors["trace.loss"][55] = 9  # after the steps in which rounding stays small
    assert first_difference(base, new, old, exact=False) is None
    new.tensors["trace.loss"][7] *= 1 + 2 * TOLERANCES["loss"]
    assert str(first_difference(base, new, old, exact=False)).startswith("loss of step 8: ")
    others = {**old.origin["tables"], "order": "x", "rates": "y"}
    assert first_difference(base, a_seed(tables=others), old, exact=False) == "not the same order, rates"


def test_a_figure_may_differ_by_rounding_alone() -> None:
    def png(colours: np.ndarray) -> bytes:
        file = io.BytesIO()
        Image.fromarray(colours).save(file, format="PNG")
        return file.getvalue()

    colours = np.zeros((100, 100, 3), np.uint8)
    moved = colours.copy()
    moved[3, :5] = 40
    assert same_picture(png(colours), png(moved))
    moved[4:6] = 40
    assert not same_picture(png(colours), png(moved))
    assert not same_picture(png(colours), png(colours[:50]))
    assert not same_picture(b"", png(colours))
    assert not same_picture(png(colours)[:-40], png(colours))
