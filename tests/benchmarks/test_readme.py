"""README.md's table of speed, and the page behind it, are those of the benchmark that README names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import page, readme, results
from benchmarks.runner import ROOT
from pipeline.errors import UserError

(NAME,) = re.findall(r"<!-- speed of (\S+) -->", (ROOT / "README.md").read_text(encoding="utf-8"))
README = f"# A\n\n<!-- speed of {NAME} -->\nold\n<!-- end of speed -->\n\nB\n"


def test_the_committed_readme_says_what_its_benchmark_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.updated(text) == text


def test_the_committed_page_says_what_was_measured() -> None:
    base = ROOT / NAME
    facts = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
    assert page.render(base.name, results.read(base.with_suffix(".csv")), facts) == base.with_suffix(".md").read_text(encoding="utf-8")


def test_only_what_stands_between_the_marks_changes() -> None:
    text = readme.updated(README)
    assert text.startswith(f"# A\n\n<!-- speed of {NAME} -->\nMeasured at commit `")
    assert text.endswith("\n<!-- end of speed -->\n\nB\n")
    assert "old" not in text
    assert readme.updated(text) == text


def test_a_row_states_the_ratio_to_ten_seeds_of_a_network_of_its_size(tmp_path: Path) -> None:
    _copy(tmp_path)
    rows = [row for row in results.read((tmp_path / NAME).with_suffix(".csv")) if row.round <= 3 and row.kept]
    seconds = {"ours-10": 5.0, "ours-full-10": 8.0, "ours-threads": 7.0, "timm-loader": 20.0}
    fixed = [results.Row(**{**vars(row), "epoch_seconds": seconds.get(row.implementation, 40.0)}) for row in rows]
    results.write((tmp_path / NAME).with_suffix(".csv"), fixed)
    text = readme.updated(README, tmp_path)
    assert "| timm with a DataLoader | 21,962 | 20.0 s | 8.0 s | 2.5 times [2.5 to 2.5] |" in text
    assert "no class token | 10,602 | 40.0 s | 5.0 s | 8.0 times [8.0 to 8.0] |" in text
    assert " 7.0 s here, on both cores." in text


@pytest.mark.parametrize(("fused", "says"), [((0.95, 0.96), "as it is (2 seeds of 3 epochs)"), ((0.95, 0.9587), "by 0.13 points at most")])
def test_the_largest_change_of_an_accuracy_is_named(tmp_path: Path, fused: tuple[float, ...], says: str) -> None:
    facts = _copy(tmp_path)
    facts["accuracy"] |= {"seeds": 2, "epochs": 3, "accuracy": {"fused": fused, "sdpa": [0.95, 0.96]}}
    (tmp_path / NAME).with_suffix(".json").write_text(json.dumps(facts))
    assert says in readme.updated(README, tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{NAME}.json is missing"):
        readme.updated(README, tmp_path)
    with pytest.raises(UserError, match="has no lines `<!-- speed of BENCHMARK -->`"):
        readme.updated("# A\n", tmp_path)
    facts = _copy(tmp_path)
    path = (tmp_path / NAME).with_suffix(".json")
    path.write_text(path.read_text().replace(' epochs"', ' epochs (so short that MLflow was left to `sync`)"'))
    with pytest.raises(UserError, match="MLflow's cost was not measured"):
        readme.updated(README, tmp_path)
    del facts["overheads"]
    (tmp_path / NAME).with_suffix(".json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="does not have overheads, which"):
        readme.updated(README, tmp_path)
    (tmp_path / NAME).with_suffix(".json").write_text("{")
    with pytest.raises(UserError, match=f"{NAME}.json is damaged"):
        readme.updated(README, tmp_path)


def _copy(root: Path) -> dict[str, object]:
    """The committed benchmark's files under another root."""
    target = root / NAME
    target.parent.mkdir(parents=True)
    for ending in (".json", ".csv"):
        shutil.copy((ROOT / NAME).with_suffix(ending), target.with_suffix(ending))
    facts: dict[str, object] = json.loads(target.with_suffix(".json").read_text())
    return facts
