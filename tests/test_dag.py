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
        self.output = ""

    @property
    def epochs_trained(self) -> int:
        return self.output.count("  epoch ")

    def weights(self, variant: str) -> bytes:
        return (self.path / "runs" / variant / "model.safetensors").read_bytes()

    def repro(self, *targets: str) -> list[str]:
        """`dvc repro`, of some stages and what they need or of all; the stages that ran, in order. What they printed is in `output`."""
        result = subprocess.run(
            [sys.executable, "-m", "dvc", "repro", *targets],
            cwd=self.path,
            # The copy's code, not the installed project's; and the environment's python first, as `make` sets it.
            env={**os.environ, "LAB_DEVICE": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        self.output = result.stdout
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

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.path / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


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
        "code",
        "evaluate",
        "fetch",
        "prepare",
        "report",
        "resolve",
        "timing",
        "train@base",
        "train@wide",
    ]
    assert not list((path / ".checkpoints").rglob("*.part"))

    assert repository.repro() == []  # nothing changed, nothing runs

    shutil.rmtree(path / ".checkpoints")  # as in a fresh clone; then what is damaged comes from DVC's cache
    weights = repository.weights("base")
    (path / "runs" / "base" / "model.safetensors").write_bytes(weights[:-9] + b"damaged!" + weights[-1:])
    (path / "runs" / "base" / "steps.npz").unlink()
    assert "train@base" in repository.repro()
    assert repository.epochs_trained == 0
    assert repository.weights("base") == weights

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
    assert repository.epochs_trained == 0
    assert sorted(entry.name for entry in (path / "runs").iterdir()) == ["base", "wide"]
    assert "deep" not in (path / "reports" / "README.md").read_text()

    repository.edit(train={"seeds": 3})  # a seed more: it alone, of each variant
    before = repository.weights("wide")
    assert "train@wide" in repository.repro("train@wide")
    assert repository.epochs_trained == 1
    assert "2 finished seeds kept" in repository.output
    assert json.loads((path / "runs" / "wide" / "metrics.json").read_text())["n"] == 3
    repository.edit(train={"seeds": 2})  # and away again: nothing, and the same bits
    repository.repro("train@wide")
    assert repository.epochs_trained == 0
    assert repository.weights("wide") == before

    repository.edit(variants={"wide": None, "broad": {"mlp_dim": 48}}, experiments={"width": None}, claims={"W1": None})  # renamed
    repository.repro("train@broad")
    assert repository.epochs_trained == 0
    assert repository.weights("broad") == before


def test_a_change_of_code_costs_what_it_changes(repository: Repository) -> None:
    """One more story: comments run nothing, what computes the same is replayed, and the rest is trained anew, with its reason."""
    path = repository.path
    repository.repro()
    weights = repository.weights("base")

    template = next((path / "pipeline" / "report" / "templates").iterdir())
    repository.append(str(template.relative_to(path)), "\n")  # a template: pages only
    assert repository.repro() == ["code", "report"]

    repository.append("pipeline/tracking/store.py", "NOTHING = None\n")  # tracking decides no result
    assert repository.repro() == ["code"]

    repository.replace("pipeline/training/step.py", '"""A step with static', '"""What a step is; it has static')
    repository.append("pipeline/training/step.py", "# a comment\n")
    assert repository.repro() == ["code"]

    repository.replace("pipeline/training/step.py", "_cross_entropy", "_losses_of_images")  # another name: replayed, kept
    assert "train@base" in repository.repro("train@base")
    assert repository.epochs_trained == 0
    assert "base  2 finished seeds kept, 2 of them after a replay" in repository.output
    assert repository.weights("base") == weights
    (training,) = json.loads((path / "runs" / "base" / "run.json").read_text())["trainings"]
    assert len(training["replays"]) == 1
    assert training["replays"][0]["code_hash"] != training["code_hash"]

    # The last tenth of a schedule, long after the steps that a replay takes: trained anew, with the sentence.
    line = "return settings.learning_rate * torch.tensor(shares, dtype=torch.float64)"
    change = line.replace("return", "rates =") + "\n    rates[-len(rates) // 10 :] *= 0.5\n    return rates"
    repository.replace("pipeline/training/schedules.py", line, change)
    assert "train@base" in repository.repro("train@base")
    assert "base  trained anew, because the code computes something else: the learning rates are others" in repository.output
    assert repository.epochs_trained == 2
    assert repository.weights("base") != weights

    repository.replace("pipeline/training/schedules.py", change, line)  # and back: nothing trains
    repository.repro("train@base")
    assert repository.epochs_trained == 0
    assert repository.weights("base") == weights
