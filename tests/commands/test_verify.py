"""A study that travels by git alone: trained in one repository, cloned, brought by DVC from results/, and verified there."""

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
import yaml
from PIL import Image

from pipeline import params
from pipeline.commands.verify import LIMIT, check_store, compare_tables, first_difference, main, same_picture
from pipeline.errors import UserError
from pipeline.files import sealed_json, sha256
from pipeline.runner.seeds import Finished
from pipeline.training.records import EpochRow
from tests.conftest import small_study
from tests.helpers import ROOT, commit_all, flip_bit, git

if TYPE_CHECKING:
    from tests.conftest import Repository

DVC = (sys.executable, "-m", "dvc")


def verify(path: Path, *arguments: str) -> tuple[int, str]:
    """Exit status, and all that was said; in this process, because each start of torch costs seconds."""
    said = io.StringIO()
    with chdir(path), redirect_stdout(said):
        try:
            return main(list(arguments)), said.getvalue()
        except UserError as error:
            return error.status, f"{said.getvalue()}error: {error}\n"


@contextmanager
def changed(path: Path, content: bytes | None = None) -> Iterator[None]:
    """The file with another content while the block lasts; without one, with a flipped bit."""
    before, times = path.read_bytes(), path.stat()
    path.chmod(0o644)
    if content is None:
        flip_bit(path)
    else:
        path.write_bytes(content)
    yield
    path.write_bytes(before)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def travelled(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], trained: Repository) -> Path:
    """Two repositories. `origin` has two trained variants, its results pushed and committed; in `clone`, its clone, verify has run once.

    To be copied, not to be changed.
    """

    def make(path: Path) -> str:
        origin, clone = trained.copy(path / "origin"), type(trained)(path / "clone")
        for name in (".dvc/config", ".dvc/.gitignore"):
            shutil.copyfile(ROOT / name, origin.path / name)
        # In a repository with git, `dvc repro` has git ignore what DVC holds.
        (origin.path / ".gitignore").write_text((ROOT / ".gitignore").read_text() + "model.safetensors\nsteps.npz\n")
        git(origin.path, "init", "--quiet", "--initial-branch=main")
        origin.succeed(*DVC, "push")
        commit_all(origin.path, "Trained.")
        git(path, "clone", "--quiet", "origin", "clone")
        assert not (clone.path / "runs" / "base" / "model.safetensors").exists()
        return clone.succeed(sys.executable, "-m", "pipeline.commands.verify")

    path, said = once("travelled", make)
    lines = said.splitlines()
    assert lines[0].startswith("results/ holds 0.")
    assert "base  2 seeds  same bits" in lines
    assert "wide  2 seeds  same bits" in lines
    assert lines[-2].startswith("pages  ")
    assert lines[-2].endswith("files of reports/  same bits")
    assert lines[-1] == "Verified: 2 variants, the tables and the pages."
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

    def test_has_the_same_bits_and_trains_nothing(self, origin: Path, clone: Repository) -> None:
        clone.succeed(*DVC, "pull", "--allow-missing")
        assert clone.repro() == ["resolve"]  # git holds no configs/
        assert git(clone.path, "status", "--porcelain") == ""
        for name in ("runs/base/model.safetensors", "runs/base/steps.npz", "runs/base/run.json", "predictions/base.npz"):
            assert sha256(clone.path / name) == sha256(origin / name)
        stored = {path.parent.name + path.stem for path in (clone.path / "results" / "files" / "md5").glob("*/*")}
        lock = yaml.safe_load((clone.path / "dvc.lock").read_text())["stages"]
        assert not stored & {out["md5"].removesuffix(".dir") for name in ("fetch", "prepare") for out in lock[name]["outs"]}

    def test_one_seed_of_every_variant(self, clone: Repository) -> None:
        status, said = verify(clone.path, "--seed=1")
        assert status == 0, said
        assert "base  seed 1  same bits\nwide  seed 1  same bits\n" in said
        assert said.endswith("Verified: seed 1 of 2 variants, the tables and the pages.\n")

    def test_a_flipped_bit_in_results_is_told(self, clone: Repository) -> None:
        stored = next(path for path in sorted((clone.path / "results" / "files" / "md5").glob("*/*")) if not path.suffix)
        with changed(stored):
            status, said = verify(clone.path)
        assert status == 1
        name = stored.relative_to(clone.path)
        assert said == f"error: {name} is damaged, its name is not its md5: restore it with `git checkout results`.\n"

    def test_a_flipped_bit_in_a_weight_is_told(self, clone: Repository) -> None:
        weights = clone.path / "runs" / "base" / "model.safetensors"
        with changed(weights):
            status, said = verify(clone.path, "--variant=base")
        assert status == 1
        assert "base  not verified: runs/base/model.safetensors does not have the sha256 that run.json recorded, so it is damaged: " in said
        assert said.endswith("Not verified: base.\n")

    def test_a_changed_row_is_told_though_its_digests_fit(self, clone: Repository) -> None:
        path = clone.path / "runs" / "base" / "run.json"
        run = json.loads(path.read_text())
        loss = EpochRow._fields.index("test_loss")
        run["epochs"][1][loss] = float(np.nextafter(run["epochs"][1][loss], 1e9))  # the last bit of seed 1's test loss
        with changed(path, json.dumps(sealed_json(run)).encode()):
            status, said = verify(clone.path, "--variant=base", "--seed=1")
        assert status == 1
        assert "base  not verified: the test of seed 1: loss " in said

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
        assert "wide  2 seeds  same bits\nnot trained yet: deep\n" in said
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


def test_results_may_grow_to_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LIMIT)  # nothing but a hole
    check_store(tmp_path)
    (tmp_path / "more").write_text(".")
    with pytest.raises(UserError) as caught:
        check_store(tmp_path)
    assert caught.value.status == 1


def a_seed(**origin: Any) -> Finished:
    """A finished seed by hand: 60 steps, one epoch, one weight."""
    losses = np.linspace(2, 1, 60, dtype=np.float32)
    tensors = {"model.head.weight": np.ones((2, 3), np.float32), "trace.step": np.arange(1, 61)}
    tensors |= {"trace.loss": losses, "trace.gradient_norm": losses / 2}
    tables = {"weights": "a", "order": "b", "augmentation": "c", "rates": "d"}
    return Finished(0, tensors, (EpochRow(0, 1, 1.5, 1.25, 0.5, 0.75, 3.0),), {"tables": tables, **origin})


def test_every_bit_of_a_training_counts_but_its_seconds(study: params.Params) -> None:
    base, old, new = study.resolve("base"), a_seed(), a_seed()

    def difference(rows: tuple[EpochRow, ...] = new.rows) -> str:
        return str(first_difference(base, Finished(0, new.tensors, rows, new.origin), old, exact=True))

    assert difference((new.rows[0]._replace(seconds=9.0),)) == "None"
    assert difference((new.rows[0]._replace(gradient_norm=float(np.nextafter(0.75, 1))),)).startswith("gradient norm of epoch 1: ")
    new.tensors["model.head.weight"][1, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert difference() == "the weights head.weight"
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


def test_a_damaged_record_leaves_the_tables_unverified(
    tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where DVC's stores do not have it either. The command goes on to the pages."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "base"
    run.mkdir(parents=True)
    (run / "model.safetensors").touch()
    (run / "run.json").write_text('{"epochs": [')
    study = params.parse(small_study(raw_params) | {"variants": {"base": {}}, "experiments": {}, "claims": {}})
    assert not compare_tables(study)
    assert capsys.readouterr().out.startswith("tables  not written: runs/base/run.json is no JSON: ")


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
