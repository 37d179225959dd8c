"""A new user's walk, docs/walk.md: each of its commands in a clone, with real git, DVC and MLflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.walk.__main__ import DEMO, PAGE, STEPS, Step, checkout, take


def test_the_page_shows_the_commands_that_are_tested() -> None:
    shown = re.findall(r"^\$ (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert shown == [command for step in (DEMO, *STEPS) for command in step.commands]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_step_does_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_PROCESSES", "1")  # each start of torch costs seconds
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    folder = tmp_path / "lab"
    folder.mkdir()
    checkout(folder)
    said = {step.title: dict(take(step, folder)) for step in STEPS}
    trained = set(re.findall(r"^(\S+) +seed \d  epoch", said["A variant"]["make repro"], flags=re.MULTILINE))
    assert trained == {"wide"}
    assert "- Added: `wide`." in said["A variant"]["make compare BASE=HEAD"]
    assert "- Added: `wide`." in said["Two commits"]["make compare BASE=HEAD~1 HEAD=HEAD"]
    assert re.search(r"^wide: in commit [0-9a-f]{10} by now$", said["In MLflow"]["make sync"], flags=re.MULTILINE)
    assert "viewStateShareKey=study" in said["In MLflow"]["make ui"]
    experiments = said["Three experiments"]
    assert {"slow", "fast", "longer"} <= set(re.findall(r"\w+", experiments[STEPS[4].commands[4]]))
    assert "- Settings changed: `base`, `no-position`, `wide`." in experiments["make compare BASE=HEAD HEAD=fast"]
    kept = said["One is kept"]
    assert " epoch " not in kept["make repro"]
    assert "- Settings changed: `base`, `no-position`, `wide`." in kept["make compare BASE=HEAD~1 HEAD=HEAD"]
    assert yaml.safe_load((folder / "params.yaml").read_text())["train"]["learning_rate"] == 0.02

    # DVC's own comparisons, an experiment as a branch, and one that goes to another clone.
    commands = (
        "dvc metrics diff HEAD~1",
        "dvc params diff HEAD~1",
        "dvc plots diff HEAD~1",
        "dvc exp branch slow kept && git branch --list kept",
        "git init --quiet --bare ../there && git remote add origin ../there && git push --quiet origin main kept",
        "dvc exp push --no-cache origin slow && dvc exp remove slow && dvc exp pull --no-cache origin slow",
        "dvc exp list --all-commits",
    )
    metrics, settings, plots, branch, _, _, listed = (output for _, output in take(Step("", "", commands), folder))
    assert "base.test_accuracy_mean" in metrics
    assert re.search(r"train\.learning_rate +0\.005 +0\.02", settings)
    assert "index.html" in plots
    assert branch.split()[-1] == "kept"
    assert "slow" in listed
