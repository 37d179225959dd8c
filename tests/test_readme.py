"""README.md says what the repository holds."""

import re

from pipeline.params import Params
from pipeline.study.proposals import STATUS
from tests.helpers import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_numbers_are_the_catalogues_and_the_pages(study: Params) -> None:
    assert f"{len(study.variants)} variants, {len(study.experiments)} experiments, {len(study.claims)} claims" in TEXT
    first, one_run = ((ROOT / "reports" / page).read_text(encoding="utf-8") for page in ("README.md", "one-run.md"))
    (fixed,) = re.findall(r"Of \d+ verdicts on trainings \d+ rest only on seeds", TEXT)
    assert fixed in first
    ((networks, best),) = re.findall(r"Of (\d+) networks here, the best epoch of the best of 6 seeds has \[(\d+\.\d %)", TEXT)
    assert f"by the best epoch of the best seed {best} (medians of {networks} networks)" in one_run


def test_the_effects_that_it_names_stand_on_the_pages_that_it_names() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| ([^|]+) \|$", TEXT, flags=re.MULTILINE)
    assert rows
    assert [effect for page, effect in rows if f"| {effect} |" not in (ROOT / page).read_text(encoding="utf-8")] == []


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
    rows = re.findall(r"^   \| (\d) \| ([^|]+) \|", (ROOT / "docs/agents.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    said = {answer: int(status) for status, answer in rows}
    assert said.items() >= STATUS.items()
    assert (said["bad input"], said["a fault of the machine"]) == (2, 1)
