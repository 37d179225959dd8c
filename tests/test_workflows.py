"""The workflows on GitHub: what runs a pull request's code can write nothing, and an action is one commit of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).parent.parent / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_its_commit(path: Path) -> None:
    """A tag can be moved to other code; the comment says which version the commit is."""
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_may_write_runs_nothing_of_a_pull_request(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
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


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_page_takes_the_place_of_its_own_comment_alone(is_there: bool, tmp_path: Path) -> None:
    """GitHub's program is not here: in its place one that finds these comments, and writes down what it was asked for."""
    (path,) = [path for path in WORKFLOWS if path.stem == "compare"]
    step = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]["comment"]["steps"][-1]
    (marker,) = re.findall("<!-- .+ -->", step["run"])
    bot, somebody = {"login": "github-actions[bot]"}, {"login": "somebody"}
    comments = [{"id": 1, "user": somebody, "body": marker}, {"id": 2, "user": bot, "body": "Coverage fell."}]
    comments += [{"id": 34, "user": bot, "body": f"{marker}\n\n# What changed before"}] * is_there + [
        {"id": 5, "user": bot, "body": "Another."}
    ]
    (tmp_path / "comments.json").write_text(json.dumps(comments))
    (tmp_path / "compare.md").write_text("# What changed\n")
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\nfor last; do :; done\ncase "$*" in *--jq*) jq "$last" comments.json;; *) echo "$*" >> asked;; esac\n')
    gh.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GH_REPO": "a/b", "PR": "7"}
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    edited = "api --silent --method PATCH repos/a/b/issues/comments/34 --field body=@comment.md"
    assert (tmp_path / "asked").read_text() == (f"{edited}\n" if is_there else "pr comment 7 --body-file comment.md\n")
    assert (tmp_path / "comment.md").read_text() == f"{marker}\n\n# What changed\n"
