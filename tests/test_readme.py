"""README.md says what the repository holds."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.params import Params

ROOT = Path(__file__).parent.parent
_ROW = re.compile(r"^\| \[([\w-]+)\]\([^)]+\) \| (.+?) \| (\*\*[a-z ]+\*\*) \| ([^|]+?) \|", flags=re.MULTILINE)


def _claims(page: str, *, without: str = "") -> list[tuple[str, ...]]:
    return [(id, re.sub(without, "", sentence) if without else sentence, *rest) for id, sentence, *rest in _ROW.findall(page)]


def test_its_claims_have_the_verdicts_and_effects_of_the_committed_report() -> None:
    readme, report = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "reports/preview/README.md").read_text(encoding="utf-8")
    expected = _claims(report, without=r" \*\([^)]*\)\*$")
    assert expected
    assert _claims(readme) == expected


def test_it_counts_the_catalogue(study: Params) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    counts = f"{len(study.variants)} variants, {len(study.experiments)} experiments, {len(study.claims)} claims"
    assert counts in readme


def test_its_links_lead_to_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", readme)
    local = [link or source for link, source in targets if "://" not in (link or source)]
    assert local
    for target in local:
        assert (ROOT / target).exists(), target
