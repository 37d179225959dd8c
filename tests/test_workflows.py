"""The workflows on GitHub: what runs a pull request's code can write nothing, and an action is one commit of it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).parent.parent / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_may_write_runs_nothing_of_a_pull_request_and_actions_are_named_by_their_commits(path: Path) -> None:
    """A tag can be moved to other code."""
    workflow = yaml.safe_load(text := path.read_text(encoding="utf-8"))
    assert (used := re.findall(r"uses: (.+)", text))
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    assert "write" not in workflow["permissions"].values()
    for name, job in workflow["jobs"].items():
        steps: list[dict[str, Any]] = job["steps"]
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts), name
        if "write" in job.get("permissions", {}).values():
            assert not checkouts, name
            assert not [step for step in steps if re.search(r"\bmake\b|python|\.ci/", step.get("run", ""))], name
        # What a pull request names reaches a shell through the environment.
        assert not [step for step in steps if "${{" in step.get("run", "")], name
