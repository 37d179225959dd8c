"""A study that travels by git alone: trained in one repository, cloned, and verified there."""

from __future__ import annotations

import io
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
from pipeline.errors import UserError
from pipeline.runner import seeds
from pipeline.runner.seeds import Finished
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
def changed(path: Path, content: bytes | None = None, place: float | None = 0.5) -> Iterator[None]:
    """The file with another content while the block lasts; without one, with a flipped bit at that share of it."""
    before, times = path.read_bytes(), path.stat()
    path.chmod(0o644)
    if content is not None:
        path.write_bytes(content)
    elif place is not None:
        flip_bit(path, place)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def travelled(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], trained: Repository) -> Path:
    """Two repositories. `origin` has two trained variants, its results committed; in `clone`, its clone, verify has run once.

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
    assert lines[-2].endswith("files of reports/  same bits")
    assert lines[-1] == "Verified: the first seed of 2 variants, the tables and the pages."
    return path


@pytest.fixture(scope="module")
def origin(travelled: Path) -> Path:
    return travelled / "origin"


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

    def test_runs_nothing_that_the_lock_has(self, clone: Repository) -> None:
        assert set(clone.repro()) <= {"code", "resolve"}  # git holds neither code-hashes/ nor configs/
        assert git(clone.path, "status", "--porcelain") == ""

    def test_another_seed_needs_its_weights(self, origin: Path, clone: Repository) -> None:
        status, said = verify(clone.path, "--variant=base", "--seed=1")
        assert status == 1
        assert "base  not verified: The weights of base's seed 1 are not here" in said
        status, said = verify(origin, "--variant=base", "--seed=1")
        assert (status, said) == (0, "base  seed 1  same bits\nVerified: seed 1 of base.\n")

    def test_a_flipped_bit_is_told(self, clone: Repository) -> None:
        for place, said_of in ((0.02, "does not match its checksum"), (0.999, "does not hold the weights and traces")):
            with changed(stored(clone.path, "base"), place=place):
                status, said = verify(clone.path, "--variant=base")
            assert status == 1
            assert f"base  not verified: store/trainings/base.safetensors {said_of}" in said
            assert said.endswith("Not verified: base.\n")

    def test_a_changed_row_is_told_though_its_digests_fit(self, clone: Repository) -> None:
        path = stored(clone.path, "base")
        epochs, loss = seeds.read_record(path)["epochs"], EpochRow._fields.index("test_loss")
        epochs[0][loss] = float(np.nextafter(epochs[0][loss], 1e9))  # the last bit of seed 0's test loss
        with changed(path, place=None):
            rewrite(path, epochs=epochs)
            status, said = verify(clone.path, "--variant=base", "--seed=0")
        assert status == 1
        assert "base  not verified: the test of seed 0: loss " in said

    def test_a_changed_table_is_told(self, clone: Repository) -> None:
        path = clone.path / "tables" / "epochs.csv"
        head, first, *others = path.read_text().splitlines(keepends=True)
        cells = first.split(",")
        cells[3] = repr(float(np.nextafter(float(cells[3]), 1e9)))
        with changed(path, "".join([head, ",".join(cells), *others]).encode()):
            status, said = verify(clone.path)
        assert status == 1
        assert "tables  differ: epochs.csv of tables/; `dvc repro evaluate` writes them anew" in said
        assert said.endswith("Not verified: the tables.\n")

    def test_pages_of_other_params_are_told(self, clone: Repository) -> None:
        params = clone.path / "params.yaml"
        with changed(params, params.read_bytes().replace(b"variants:\n  base: {}", b"variants:\n  base: {}\n  deep: {blocks: 2}")):
            status, said = verify(clone.path)
        assert status == 1
        assert "wide  seed 0  same bits\nnot trained yet: deep\n" in said
        assert "pages  differ: reports/README.md; " in said
        assert said.endswith("Not verified: the pages.\n")

    def test_a_page_that_the_code_does_not_make_is_told(self, clone: Repository) -> None:
        page = clone.path / "reports" / "experiments" / "stale.md"
        page.write_text("# Of an experiment that is gone\n")
        try:
            status, said = verify(clone.path)
        finally:
            page.unlink()
        assert status == 1
        assert "pages  differ: reports/experiments/stale.md, which this code does not make; " in said
        assert said.endswith("Not verified: the pages.\n")

    def test_one_seed_trained_again_has_the_same_bits(self, clone: Repository) -> None:
        status, said = verify(clone.path, "--variant=base", "--seed=1", "--train=1")
        assert status == 0, said
        assert "base  seed 1  epoch 1/1  train loss " in said
        assert "base  seed 1, trained again  same bits" in said
        assert not (clone.path / ".checkpoints" / "seeds").exists()


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
    assert difference((new.rows[0]._replace(gradient_norm=float(np.nextafter(0.75, 1))),)).startswith("gradient norm of epoch 1: ")
    new.origin["weights"] = "b"
    assert difference() == "the weights have the digest b, it was a"
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
    whole = png(colours[:20, :20])
    for place in range(8 * len(whole)):  # whatever is damaged, it is another picture at most
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        same_picture(bytes(flipped), whole)
