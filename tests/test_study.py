"""The committed study as the golden master: what is in git has to come out of today's code again, to the byte.

A changed sentence or number of a report shows as a difference of `reports/` in the same commit, which is where it is read.
"""

import contextlib
import io
import re
from pathlib import Path

import pandas as pd
import pytest

from pipeline.commands.compare import main as compare
from pipeline.params import load as load_params
from pipeline.report import pages, reference
from pipeline.study import load, tables
from pipeline.study.results import load_current
from pipeline.system.provenance import git
from tests.helpers import ROOT, approve
from tests.made_up import write_odd_study

GOLDEN = ROOT / "tests/golden"


def describe_data(root: Path) -> None:
    (root / "data/arrays").mkdir(parents=True)
    (root / "data/arrays/dataset.json").symlink_to(ROOT / "reports/data/dataset.json")


def test_tables_are_read_and_written_with_the_same_cells() -> None:
    files = {name: (ROOT / "tables" / name).read_text() for name in tables.NAMES}
    written = tables.render(list(tables.parse({name: text.encode() for name, text in files.items()})))
    for name, text in files.items():  # columns may come in another order
        ours, theirs = (pd.read_csv(io.StringIO(one), dtype=str, keep_default_na=False) for one in (written[name], text))
        pd.testing.assert_frame_equal(ours, theirs, check_like=True)


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_once")
def test_pages_come_out_as_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was trained, which may be less than params.yaml names, in the folder of a clone, which of the data has their description."""
    for name in ("params.yaml", "claims.yaml", "tables", "timing", "store/predictions", "reports/data"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    describe_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    params, found = load_params(), load(".").trainings
    files = pages.render(params, {variant: found[variant] for variant in params.variants if variant in found})
    texts = {name: content.decode() for name, content in files.items() if not name.endswith(".png")}
    for name, text in texts.items():
        assert text == (ROOT / "reports" / name).read_text(), name
    written = {path.relative_to(ROOT / "reports").as_posix() for path in (ROOT / "reports").rglob("*") if path.is_file()}
    assert written - files.keys() == {"data/dataset.json", "data/samples.png"}


@pytest.mark.usefixtures("drawn_once")
def test_page_of_an_odd_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that diverge, one seed alone, a variant that was not run, captioners, markup in labels, timings that were not taken."""
    write_odd_study(tmp_path)
    describe_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    params = load_params()
    files = pages.render(params, load_current(params).trainings)
    names = [name for name in files if name.startswith("experiments/") and name.endswith(".md")]
    text = "\n".join(f"<!-- {name} -->\n\n{files[name].decode()}" for name in [*names, "claims.csv"])
    approve(GOLDEN / "odd_study.md", text)


def test_the_reference_page_is_that_of_the_code() -> None:
    approve(ROOT / "docs/reference.md", reference.render())


def test_the_example_of_a_comparison_is_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, page = (ROOT / "docs/compare-example.md").read_text(encoding="utf-8").partition("\n\n")
    revisions = re.findall(r"(?:BASE|HEAD)=(\w+)", first)
    if any(git("cat-file", "-e", f"{revision}^{{commit}}", cwd=ROOT).returncode for revision in revisions):
        pytest.skip("this copy has no history")
    with contextlib.chdir(ROOT):
        compare([*revisions, "--out", str(tmp_path / "page.md")])
    assert capsys.readouterr().out == page
