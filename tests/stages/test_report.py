"""The report stage on files as the earlier stages leave them: what is missing, changed or damaged."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.params import load
from pipeline.report import pages
from pipeline.report.figures import base
from pipeline.stages import settled
from pipeline.study.results import load_current
from pipeline.system.errors import UserError
from tests.helpers import edit, flip_bit, stored
from tests.made_up import check_tables, read, table, write_study, write_tables

pytestmark = pytest.mark.usefixtures("drawn_once")

SMALL: dict[str, Any] = {
    "variants": {"base": {}, "sinusoidal": {"position": "sinusoidal"}, "patch-7": {"patch": 7}},
    "experiments": {
        "one": {
            "title": "One", "question": "Is it?", "source": "thesis, 4.2", "baseline": "base", "variants": ["base", "sinusoidal"],
            "labels": {"sinusoidal": "a | b"}, "figures": ["position_similarity"], "claims": ["T1a", "T1b", "T2a"],
        },
        "two": {"title": "Two", "question": "Is it?", "source": "code", "baseline": "base",
                "variants": ["patch-7", "base"], "figures": []},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def written_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds and four epochs of three variants, without a report. To be copied, not to be changed."""
    root = tmp_path_factory.mktemp("small")
    write_study(root, seeds=3, epochs=4, **SMALL)
    return root


@pytest.fixture
def small_study(written_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(written_study, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pages() -> None:
    """What the stage does before it completes MLflow, which would take most of the time."""
    params = load()
    pages.write(params, load_current(params).trainings)


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / "reports").rglob("*")) if path.is_file()}


def test_without_its_baseline_an_experiment_shows_what_there_is(small_study: Path) -> None:
    stored(small_study, "base").unlink()
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Not run: base.**" in page
    assert table(page, "| accuracy (%) | sd |")["sinusoidal (a \\| b)"][3:] == ["-", "-"]  # nothing to compare it with
    assert "one-position-similarity.png" in page
    assert "### T1a: not run" in page
    check_tables(small_study)
    stored(small_study, "sinusoidal").unlink()
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "None of its variants was run yet." in page
    assert "![" not in page


def test_a_second_report_draws_and_writes_nothing_anew(
    small_study: Path, monkeypatch: pytest.MonkeyPatch, drawn_once: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(base, "png", drawn_once)
    write_pages()
    first = contents(small_study)
    times = {path: path.stat().st_mtime_ns for path in (small_study / "reports").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(base, "png", lambda draw, digest: pytest.fail("drawn anew"))
        write_pages()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    shutil.rmtree(small_study / "reports")
    write_pages()
    assert contents(small_study) == first


def test_removed_experiment_and_variant_vanish_and_a_preview_is_told_on_every_page(small_study: Path) -> None:
    write_pages()
    (small_study / "reports/experiments/kept.txt").write_text("not ours")

    def remove(raw: dict[str, Any]) -> None:
        del raw["experiments"]["two"], raw["variants"]["patch-7"]
        raw["preview"] = "PREVIEW. Few seeds.\nToo little to settle a claim."

    edit(small_study, remove)  # its training is still there: the report reads what params.yaml names
    write_pages()
    after = contents(small_study)
    assert {name for name in after if "/experiments/" in name and "/figures/" not in name} == {
        f"reports/experiments/{name}" for name in ("one.md", "kept.txt")
    }
    assert not [name for name in after if "two-" in name]
    assert b"\n| patch-7 |" not in after["reports/README.md"]
    tops = [page.read_text().splitlines()[2:4] for page in (small_study / "reports").rglob("*.md")]
    assert tops == [["> PREVIEW. Few seeds.", "> Too little to settle a claim."]] * 4


def test_settings_that_change_while_a_stage_runs_fail_it(small_study: Path) -> None:
    settled(lambda _: None)([])
    with pytest.raises(UserError, match="changed while this stage ran"):
        settled(lambda _: edit(small_study, lambda raw: raw.update(title="Another")))([])


def _other_seeds(root: Path) -> None:
    path = root / "store/predictions/sinusoidal.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **arrays | {"seeds": np.array([4, 5, 6])})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: flip_bit(root / "store/predictions/sinusoidal.npz"),
         "sinusoidal.npz is damaged: run `dvc repro --force --single-item evaluate`."),
        (_other_seeds, "is of another training than the record: run `dvc repro evaluate`."),
        (lambda root: edit(root, lambda raw: raw["train"].update(epochs=9)),
         "base was trained with other settings than params.yaml now has: run `dvc repro`."),
    ],
)  # fmt: skip
def test_stale_or_damaged_inputs_are_one_sentence_and_lose_nothing(
    small_study: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    for page in ("README.md", "experiments/one.md", "experiments/gone.md"):
        (small_study / "reports" / page).parent.mkdir(parents=True, exist_ok=True)
        (small_study / "reports" / page).write_text("the last good report")
    before = contents(small_study)
    damage(small_study)
    with pytest.raises(UserError, match=re.escape(sentence)):
        write_pages()
    assert contents(small_study) == before
