"""README.md's table of claims is that of a report's first page."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.report import readme

PAGE = """# Results

## The claims

2 claims: 1 supported (timing), 1 observed on short runs. Of 1 that was judged [some](method.md).

| id | claim | verdict | effect | what would decide or undo it |
|:---|:---|:---|:---|:---|
| [A1](timing.md#claims) | It is \\| fast. *(thesis, 4.2)* | **supported** | a / b, step time: 2.00 times [1.90 to 2.10] | decided |
| [A-2](#claims-of-no-experiment) | Good. *(lab)* | **short run** | observed: a \N{MINUS SIGN} b, loss: 1 nats | longer trainings |

<details>

| [C](c.md) | Not yet. *(lab)* | **not run** | c, loss | there are no results of c |

</details>

A verdict comes from an interval.

## The variants

| [no](claim.md) | x | y | z | w |
"""
ROWS = """2 claims: 1 supported (timing), 1 observed on short runs.

| id | claim | verdict | deciding comparison |
|:---|:---|:---|:---|
| [A1](reports/small/timing.md#claims) | It is \\| fast. | **supported** | a / b, step time: 2.00 times [1.90 to 2.10] |
| [A-2](reports/small/README.md#claims-of-no-experiment) | Good. | **short run** | observed: a \N{MINUS SIGN} b, loss: 1 nats |"""
BEFORE = "Text.\n\n<!-- claims of reports/small -->\nold\n<!-- end of claims -->\n\nMore.\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reports/small").mkdir(parents=True)
    (tmp_path / "reports/small/README.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "README.md").write_text(BEFORE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_the_reports_claims_between_the_marks(root: Path) -> None:
    for _ in range(2):  # the second time nothing changes
        readme.main([])
        text = (root / "README.md").read_text(encoding="utf-8")
        assert text == BEFORE.replace("old", ROWS)


def test_what_is_missing_is_one_sentence_and_nothing_is_lost(root: Path) -> None:
    report = root / "reports/small/README.md"
    report.write_text(PAGE.replace("## The claims", "## Claims"), encoding="utf-8")
    with pytest.raises(UserError, match=r"^reports/small/README.md has no table of claims: make the report again\.$"):
        readme.main([])
    report.unlink()
    with pytest.raises(UserError, match=r"^reports/small/README.md is missing: "):
        readme.main([])
    assert (root / "README.md").read_text(encoding="utf-8") == BEFORE
    (root / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"^README\.md is not UTF-8: save it as that\.$"):
        readme.main([])
    (root / "README.md").write_text("Text.", encoding="utf-8")
    with pytest.raises(UserError, match=r"^README.md has no lines `<!-- claims of FOLDER -->`"):
        readme.main([])
    (root / "README.md").unlink()
    with pytest.raises(UserError, match=r"^There is no README.md here"):
        readme.main([])
