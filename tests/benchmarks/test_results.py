"""Statistics of the rounds against plain arithmetic and simulated truth; the page and README's table from the committed files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import page, readme, results
from benchmarks.readme import ROOT
from pipeline.errors import UserError

(NAME,) = re.findall(r"<!-- speed of (\S+) -->", (ROOT / "README.md").read_text(encoding="utf-8"))
README = f"# A\n\n<!-- speed of {NAME} -->\nold\n<!-- end of speed -->\n\nB\n"


def _table(*rows: tuple[int, str, float, bool]) -> pd.DataFrame:
    fixed = {"position": 1, "parameters": 10_666, "seeds": 1, "steps": 60, "checkpoint_seconds": 0.01, "foreign": 0.0}
    named = [fixed | dict(zip(("round", "implementation", "epoch_seconds", "kept"), row, strict=True)) for row in rows]
    return pd.DataFrame(named)[list(results.COLUMNS)]


def test_other_files_are_refused_by_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    with pytest.raises(UserError, match="missing"):
        results.read(path)
    _table((1, "ours-10", 6.0, True)).to_csv(path, index=False)
    assert results.read(path).epoch_seconds.tolist() == [6.0]
    for content in ("round\n1\n", "", path.read_text().replace("6.0", "six")):
        path.write_text(content)
        with pytest.raises(UserError, match="damaged"):
            results.read(path)


def test_summary_leaves_out_what_does_not_count() -> None:
    table = _table((1, "a", 5.0, True), (2, "a", 9.0, False), (2, "a", 7.0, True), (3, "a", 6.0, True), (1, "b", 1.0, False))
    summaries = results.summarize(table)
    assert list(summaries) == ["a"]
    assert (summaries["a"].median, summaries["a"].low, summaries["a"].high) == (6.0, 5.0, 7.0)
    assert results.by_round(table, "a") == {1: 5.0, 2: 7.0, 3: 6.0}


def test_ratio_uses_shared_rounds_only() -> None:
    ratio = results.ratio({1: 8.0, 2: 12.0, 9: 1e6}, {1: 4.0, 2: 4.0, 7: 1e-6})
    assert ratio is not None
    assert ratio[0] == 2.5
    assert 2.0 <= ratio[1] <= ratio[2] <= 3.0
    assert results.ratio({1: 1.0}, {2: 1.0}) is None
    # A round that is slow for both does not widen the interval.
    assert results.ratio({1: 5.0, 2: 6.5, 3: 4.0}, {1: 1.0, 2: 1.3, 3: 0.8}) == pytest.approx((5, 5, 5))


def test_interval_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(60):
        slow, fast = (scale * np.exp(generator.normal(0, 0.05, 15)) for scale in (4.0, 1.0))
        ratio = results.ratio(dict(enumerate(slow)), dict(enumerate(fast)))
        assert ratio is not None
        covered += ratio[1] <= 4.0 <= ratio[2]
    assert covered >= 50  # 57 expected of 60; fewer than 50 has a probability below 0.001 at 95 %


def test_the_committed_readme_and_page_say_what_was_measured() -> None:
    text, base = (ROOT / "README.md").read_text(encoding="utf-8"), ROOT / NAME
    assert readme.updated(text) == text
    table, facts = results.read(base.with_suffix(".csv")), results.read_facts(base.with_suffix(".json"))
    assert page.render(base.name, table, facts) == base.with_suffix(".md").read_text(encoding="utf-8")


def test_the_page_marks_what_is_not_to_be_quoted_and_what_was_never_undisturbed() -> None:
    table = _table((1, "ours-10", 5.0, True), (1, "thesis", 24.0, True), (1, "timm-loader", 9.0, False))
    facts = results.read_facts((ROOT / NAME).with_suffix(".json")) | {"quick": True, "overheads": []}
    text = page.render("some-cpu", table, facts)
    assert "Its numbers are not to be quoted" in text
    assert "| 24.0 [24.0 .. 24.0] | 2,500 | 4.80 [4.80, 4.80] |  |" in text
    assert "1 of 3 timings do not count" in text
    assert "- Without an undisturbed timing: timm, DataLoader." in text


def test_a_row_of_readme_states_the_ratio_to_ten_seeds_of_a_network_of_its_size(tmp_path: Path) -> None:
    base = _copy(tmp_path)
    table = results.read(base.with_suffix(".csv"))
    seconds = {"ours-10": 5.0, "ours-full-10": 8.0, "ours-threads": 7.0, "timm-loader": 20.0}
    table["epoch_seconds"] = table.implementation.map(seconds).fillna(40.0)
    table.to_csv(base.with_suffix(".csv"), index=False)
    text = readme.updated(README, tmp_path)
    assert text.startswith(f"# A\n\n<!-- speed of {NAME} -->\nMeasured at commit `")
    assert text.endswith("\n<!-- end of speed -->\n\nB\n")
    assert "| timm with a DataLoader | 21,962 | 20.0 s | 8.0 s | 2.5 times [2.5 to 2.5] |" in text
    assert "no class token | 10,602 | 40.0 s | 5.0 s | 8.0 times [8.0 to 8.0] |" in text
    assert " 7.0 s here, on both cores." in text


def test_what_readme_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"csv is missing"):
        readme.updated(README, tmp_path)
    with pytest.raises(UserError, match="has no lines `<!-- speed of BENCHMARK -->`"):
        readme.updated("# A\n", tmp_path)
    path = _copy(tmp_path).with_suffix(".json")
    path.write_text(path.read_text().replace('"overheads"', '"others"'))
    with pytest.raises(UserError, match="does not have overheads, which"):
        readme.updated(README, tmp_path)


def _copy(root: Path) -> Path:
    """The committed benchmark's files under another root."""
    target = root / NAME
    target.parent.mkdir(parents=True)
    for ending in (".json", ".csv"):
        shutil.copy((ROOT / NAME).with_suffix(ending), target.with_suffix(ending))
    return target
