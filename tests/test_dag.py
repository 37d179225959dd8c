"""The DAG on a small study: each change costs what it should, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Repository:
    """A DVC repository of its own: the real dvc.yaml and code, a small params.yaml."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def repro(self) -> list[str]:
        """`dvc repro`; the stages that ran, in order."""
        result = subprocess.run(
            [sys.executable, "-m", "dvc", "repro"],
            cwd=self.path,
            # The copy's code, not the installed project's; and the environment's python first, as `make` sets it.
            env={**os.environ, "LAB_DEVICE": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return re.findall(r"^Running stage '([^']+)':", result.stdout, flags=re.M)

    def params(self) -> dict[str, Any]:
        return yaml.safe_load((self.path / "params.yaml").read_text())

    def edit(self, **changes: Any) -> None:
        """Merges changes into the sections of params.yaml; None removes a key."""
        raw = self.params()
        for section, change in changes.items():
            for key, value in change.items():
                if value is None:
                    del raw[section][key]
                else:
                    raw[section][key] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    def append(self, file: str, line: str) -> None:
        path = self.path / file
        path.write_text(path.read_text() + line)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, raw_params: dict[str, Any]) -> Repository:
    path = tmp_path_factory.mktemp("dag")
    shutil.copytree(ROOT / "pipeline", path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copyfile(ROOT / name, path / name)
    raw = {
        "preview": "A test.",
        "images_shown": 1437,
        "looks": [],
        "data": {"dataset": "digits"},
        "train": raw_params["train"] | {"seeds": [0, 1], "epochs": 1},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1},
        "timing": {"rounds": 1, "steps": 1, "seconds": 1, "tokens": [4, 16]},
        "variants": {"base": {}, "wide": {"mlp_dim": 48}},
        "experiments": {
            "width": {
                "title": "Width",
                "question": "Does width help?",
                "source": "a test",
                "baseline": "base",
                "variants": ["base", "wide"],
                "claims": ["W1"],
            },
        },
        "claims": {
            "W1": {
                "source": "a test",
                "sentence": "Width does not matter.",
                "measured": "Test accuracy.",
                "margin": "A guess.",
                "comparisons": [{"rule": "equivalent", "measure": "accuracy", "variant": "wide", "reference": "base", "bound": 0.9}],
            },
        },
    }
    (path / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    for arguments in (["init", "--no-scm"], ["config", "core.analytics", "false"], ["config", "core.check_update", "false"]):
        subprocess.run([sys.executable, "-m", "dvc", *arguments, "--quiet"], cwd=path, check=True)
    return Repository(path)


def test_each_change_costs_what_it_should(repository: Repository) -> None:
    """One story, because every step starts from the state that the step before it left."""
    path = repository.path
    first = repository.repro()
    assert sorted(first) == [
        "evaluate",
        "fetch",
        "prepare",
        "report",
        "resolve",
        "timing",
        "train@base",
        "train@wide",
    ]
    assert not list((path / ".checkpoints").glob("*/*/*.safetensors"))

    assert repository.repro() == []  # nothing changed, nothing runs
    report = (path / "reports" / "README.md").read_bytes()

    evaluated = {name: (path / "evaluations" / name / "seeds.csv").stat().st_mtime_ns for name in ("base", "wide")}
    repository.edit(variants={"deep": {"blocks": 2}})  # a variant added: it alone
    assert sorted(repository.repro()) == ["evaluate", "report", "resolve", "train@deep"]
    assert evaluated == {name: (path / "evaluations" / name / "seeds.csv").stat().st_mtime_ns for name in evaluated}

    repository.edit(variants={"deep": {"blocks": 2, "optimizer": "radam"}})  # edited: it alone
    assert sorted(repository.repro()) == ["evaluate", "report", "resolve", "train@deep"]

    claims = repository.params()["claims"]
    claims["W1"]["comparisons"][0]["bound"] = 1e-6  # a claim's bound: judged anew, nothing trained
    repository.edit(claims=claims)
    assert sorted(repository.repro()) == ["evaluate", "report"]
    assert evaluated == {name: (path / "evaluations" / name / "seeds.csv").stat().st_mtime_ns for name in evaluated}

    repository.edit(base={"blocks": 3}, variants={"wide": {"mlp_dim": 48, "blocks": 1}})  # `wide` pins the base's old value
    changed = repository.repro()
    assert "train@base" in changed
    assert not {"train@wide", "train@deep"} & set(changed)

    repository.edit(base={"blocks": 1}, variants={"wide": {"mlp_dim": 48}, "deep": None})  # removed, and base as it was: from the cache
    assert not {"train@wide", "train@deep"} & set(repository.repro())
    assert sorted(entry.name for entry in (path / "runs").iterdir()) == ["base", "wide"]
    assert "deep" not in (path / "reports" / "README.md").read_text()

    template = next((path / "pipeline" / "report" / "templates").iterdir())
    repository.append(str(template.relative_to(path)), "\n")  # a template: pages only
    assert repository.repro() == ["report"]

    repository.append("pipeline/tracking/store.py", "# a comment\n")  # tracking decides no result
    assert repository.repro() == []

    repository.append("pipeline/models/encoder.py", "# a comment\n")  # code that decides the result: everything anew
    assert {"train@base", "train@wide"} <= set(repository.repro())
    assert (path / "reports" / "README.md").read_bytes() != report  # it names the code's digest or the new commit's times
    assert json.loads((path / "runs" / "wide" / "metrics.json").read_text())["n"] == 2
