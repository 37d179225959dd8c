"""Statistics of the rounds against plain arithmetic and simulated truth; the page and README's table from the committed files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

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


def test_ratio_uses_shared_rounds_only() -> None:
    ratio = results.ratio({1: 8.0, 2: 12.0, 9: 1e6}, {1: 4.0, 2: 4.0, 7: 1e-6})
    assert ratio is not None
    assert ratio[0] == 2.5
    assert 2.0 <= ratio[1] <= ratio[2] <= 3.0
    assert results.ratio({1: 1.0}, {2: 1.0}) is None
    # A round that is slow for both does not widen the interval.
    assert results.ratio({1: 5.0, 2: 6.5, 3: 4.0}, {1: 1.0, 2: 1.3, 3: 0.8}) == pytest.approx((5, 5, 5))


def test_the_committed_readme_and_page_say_what_was_measured() -> None:
    text, base = (ROOT / "README.md").read_text(encoding="utf-8"), ROOT / NAME
    assert readme.updated(text) == text
    table, facts = results.read(base.with_suffix(".csv")), results.read_facts(base.with_suffix(".json"))
    assert page.render(base.name, table, facts) == base.with_suffix(".md").read_text(encoding="utf-8")


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


def _copy(root: Path) -> Path:
    """The committed benchmark's files under another root."""
    target = root / NAME
    target.parent.mkdir(parents=True)
    for ending in (".json", ".csv"):
        shutil.copy((ROOT / NAME).with_suffix(ending), target.with_suffix(ending))
    return target
