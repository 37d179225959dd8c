"""README.md says what the repository holds."""

from __future__ import annotations

import re

from pipeline.params import Params
from pipeline.study.proposals import STATUS
from tests.helpers import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_counts_the_catalogue(study: Params) -> None:
    counts = f"{len(study.variants)} variants, {len(study.experiments)} experiments, {len(study.claims)} claims"
    assert counts in TEXT


def test_the_effects_that_it_names_stand_on_the_pages_that_it_names() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| ([^|]+) \|$", TEXT, flags=re.MULTILINE)
    assert rows
    assert [effect for page, effect in rows if f"| {effect} |" not in (ROOT / page).read_text(encoding="utf-8")] == []


def test_its_count_of_claims_fixed_before_is_the_first_pages() -> None:
    said = [
        re.findall(r"Of (\d+ verdicts on trainings \d+ rest only on seeds)", (ROOT / page).read_text(encoding="utf-8"))
        for page in ("README.md", "reports/README.md")
    ]
    assert len(said[0]) == 1
    assert said[0] == said[1]


def test_what_the_best_of_six_seeds_would_report_is_the_pages() -> None:
    (said,) = re.findall(r"Of (\d+) networks here, the best epoch of the best of 6 seeds has \[(\d+\.\d %)", TEXT)
    page = (ROOT / "reports/one-run.md").read_text(encoding="utf-8")
    assert re.findall(r"by the best epoch of the best seed (\d+\.\d %) \(medians of (\d+) networks\)", page) == [(said[1], said[0])]


def test_a_variant_is_added_to_lines_that_are_there() -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
    kept = [line[1:] for line in diff.splitlines() if not line.startswith("+")]
    assert len(kept) > 1
    assert set(kept) <= set((ROOT / "params.yaml").read_text(encoding="utf-8").splitlines())


def test_its_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", TEXT)
    local = [link or source for link, source in targets if "://" not in (link or source)]
    assert local
    for target in local:
        assert (ROOT / target).exists(), target


def test_an_agents_table_of_exit_statuses_is_the_judges() -> None:
    rows = re.findall(
        r"^   \| (\d) \| ([^|(]+?)(?: \([^)]*\))? \|", (ROOT / "docs/agents.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    said = {answer: int(status) for status, answer in rows}
    assert {answer: said.get(answer) for answer in STATUS if answer not in ("larger", "smaller")}.items() <= STATUS.items()
    assert (said["bad input"], said["a fault of the machine"]) == (2, 1)
