"""The page: its length, its tables, and text from a repository that is not to become markup."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pipeline.compare.changes import compare
from pipeline.compare.page import LIMIT, code, render
from pipeline.compare.sides import read_revision
from pipeline.study.git import Repository

if TYPE_CHECKING:
    from tests.compare.conftest import Study


def page_of(study: Study, first: str, second: str = "HEAD") -> str:
    repository = Repository(study.root)
    return render(compare(read_revision(repository, first), read_revision(repository, second)))


def tables(page: str) -> list[list[list[str]]]:
    """Rows of cells of every table, split as GitHub splits them."""
    found: list[list[list[str]]] = []
    before = ""
    for line in page.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        before = line
    return found


def check_form(page: str) -> None:
    """Tables are whole, and so is the folding."""
    assert len(page) <= LIMIT
    for table in tables(page):
        assert len({len(row) for row in table}) == 1, table
        assert all(re.fullmatch(r":?-{3,}:?", cell) for cell in table[1]), table[1]
    lines = page.splitlines()
    assert lines.count("<details>") == lines.count("</details>") == sum(line.startswith("<summary>") for line in lines)
    assert "\n\n\n" not in page
    # A table or a list that follows text without an empty line is none.
    for before, line in pairwise(lines):
        assert not (line.startswith(("|", "- ", "<details>", "</details>")) and before and before[:1] != line[:1]), (before, line)


def test_the_whole_page_of_a_study_that_changed(study: Study) -> None:
    (study.root / "params.yaml").write_text("variants: {base: {}, other: {}, same: {}, old: {}}\n")
    (study.root / "reports").mkdir()
    (study.root / "reports" / "README.md").write_text("# Results\n\n> Only a test.\n")
    for variant, values in {
        "base": [0.90, 0.91, 0.92],
        "other": [0.8, 0.8, 0.8],
        "same": [0.7, 0.71, 0.72],
        "gone": [0.5, 0.6, 0.7],
    }.items():
        study.train(variant, values)
    first = study.commit("the first")
    study.train("base", [0.93, 0.93, 0.94], change={"model.dim": 64}, run={"code_hash": "e" * 64}, parameters=40_000)
    study.train("other", [0.81, 0.80, 0.82], run={"code_hash": "e" * 64})
    study.remove("gone")
    study.train("new", [0.4, 0.5, 0.6])
    second = study.commit("the second")
    page = page_of(study, "main~1")
    check_form(page)
    # The first line under the title says whether it matters.
    title, verdict, note = page.split("\n\n")[:3]
    assert title == f"# What changed in `tables` from `main~1` ({first[:10]}) to `HEAD` ({second[:10]})"
    assert verdict.startswith("**No variant differs at adjusted p < 0.05")
    assert note == "> Only a test."
    rows = {row[0]: row[1:] for table in tables(page) for row in table}
    nbsp = "\N{NO-BREAK SPACE}"
    assert rows["`base`"] == ["12.8", "12.8", "1.00", "10,666 → 40,000", "1,738,558 → 6,520,000"]
    accuracy = {row[0]: row[1:] for row in tables(page)[0]}
    assert accuracy["`base`"][:2] == [f"91.00{nbsp}±{nbsp}1.00", f"93.33{nbsp}±{nbsp}0.58"]
    assert accuracy["`base`"][2].startswith(f"+2.33 [+0.90{nbsp}to{nbsp}+3.77]")
    assert accuracy["`base`"][3:] == ["0.500", "settings, code"]
    assert accuracy["`other`"][3:] == ["0.500", "code"]
    assert list(accuracy)[2:] == ["`base`", "`other`"]
    assert rows["subject"] == ["`the first`", "`the second`"]
    assert rows["commit"][0] == f"{first[:10]}, 2026-01-02 01:04 UTC"
    assert rows["`gone`"][0] == "removed"
    assert rows["`same`"] == ["12.8", "12.8", "-", "10,666", "1,738,558"]


def test_verdicts_that_changed_are_told(study: Study) -> None:
    path = study.root / "reports" / "claims.csv"
    path.parent.mkdir()
    header = "claim,verdict,comparison,n,effect,low,high,level,shown\n"
    study.train("base", [0.9, 0.8])
    study.commit("without a table of claims")
    path.write_text(f"{header}T1,not run,a / b,,,,,,\nT2,supported,a / b,6,1,0.9,1.1,0.95,1.00 times [0.9 to 1.1]\nT3,not run,c,,,,,,\n")
    study.commit("first")
    path.write_text(
        f"{header}T1,contradicted,a / b,6,2,1.9,2.1,0.95,2.00 times [1.9 to 2.1]\n"
        "T2,supported,a / b,6,1.05,0.9,1.1,0.95,1.05 times [0.9 to 1.1]\nN1,not run,<b>|@x,,,,,,\n"
    )
    study.commit("second")
    page = page_of(study, "main~1")
    check_form(page)
    assert (
        "**The one variant of both sides is identical, every loss and accuracy to the last bit; 3 verdicts changed.**" in page.splitlines()
    )
    (line,) = (line for line in page.splitlines() if line.startswith("- Verdicts changed"))
    assert line == "- Verdicts changed: 3 of 4; not run → contradicted (1), no claim → not run (1), not run → no claim (1)."
    rows = {row[0]: row[1:] for row in next(table for table in tables(page) if table[0][0] == "claim")[2:]}
    assert rows == {
        "`T1`": ["**not run**", r"**contradicted**, 2.00 times \[1.9 to 2.1\]", "a / b"],
        "`N1`": ["**no claim**", "**not run**", "\\<b\\>\\|@\N{ZERO WIDTH SPACE}x"],
        "`T3`": ["**not run**", "**no claim**", "c"],
    }
    assert "- Verdicts changed: none of 3." in page_of(study, "main", "main")
    assert "Verdicts" not in page_of(study, "main~2")


@pytest.mark.parametrize("count", [1, 61, 200])
def test_any_number_of_variants_fits_into_a_comment(study: Study, count: int) -> None:
    def name(kind: str, index: int) -> str:
        return f"{kind}-variant-with-a-rather-long-name-{index:05d}"

    with study.at_once():
        for index in range(count):
            study.train(name("common", index), [0.9, 0.8, 0.7])
            study.train(name("removed", index), [0.9])
    first = study.commit()
    with study.at_once():
        for index in range(count):
            change = {"model.dim": 32 + index, "model.patch": index}
            study.train(name("common", index), [0.9, 0.7 + index / 2000, 0.8], change=change, run={"code_hash": f"{index:064d}"})
            study.remove(name("removed", index))
            study.train(name("added", index), [0.9])
    study.commit()
    page = page_of(study, first)
    check_form(page)
    assert (page.count("left out") > 0) == (count == 200)
    if count == 61:
        assert all(f"`{name('common', index)}`" in page for index in range(count))


@pytest.mark.parametrize("text", ["a|b", "`tick`", "<b>x</b>", "</details>", "@somebody #1", "line\nbreak", "[x](y)", "", "x" * 300])
def test_text_of_a_repository_stays_text(study: Study, text: str) -> None:
    assert re.fullmatch(r"`[^`\n]{1,80}`", code(text))
    study.train("base", [0.9], run={"device_name": text}, change={"model.dim": text})
    (study.root / "reports").mkdir()
    (study.root / "reports" / "README.md").write_text(f"# Results\n\n> {text}\n")
    first = study.commit(text)
    study.train("base", [0.8], change={"model.dim": 3})
    study.commit(text)
    page = page_of(study, first)
    check_form(page)
    outside = re.sub(r"`[^`\n]*`", "", page)
    assert "<b>" not in outside.replace("\\<b\\>", "")
    assert "@somebody" not in outside


def test_names_of_folders_stay_names(study: Study) -> None:
    name = "a|b `c` <i> @x"
    study.train(name, [0.9, 0.8])
    first = study.commit()
    study.train(name, [0.8, 0.6])
    study.commit()
    page = page_of(study, first)
    check_form(page)
    assert "`a\\|b 'c' <i> @x`" in page
