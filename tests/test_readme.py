"""README.md says what the repository holds."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.params import Params
from pipeline.report import readme

ROOT = Path(__file__).parent.parent


def test_its_claims_are_those_of_the_committed_report() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "reports/experiments/positions.md" in text
    assert readme.updated(text, ROOT) == text


def test_it_counts_the_catalogue(study: Params) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    counts = f"{len(study.variants)} variants, {len(study.experiments)} experiments, {len(study.claims)} claims"
    assert counts in text


def test_its_links_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    local = [link or source for link, source in targets if "://" not in (link or source)]
    assert local
    for target in local:
        assert (ROOT / target).exists(), target
