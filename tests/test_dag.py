"""The DAG on a small study: each change costs what it should, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.runner import seeds
from tests.helpers import stored

if TYPE_CHECKING:
    from tests.conftest import Repository

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def repository(trained: Repository, tmp_path: Path) -> Repository:
    return trained.copy(tmp_path / "study")


def epochs_trained(repository: Repository) -> int:
    return repository.output.count("  epoch ")


def weights_of_base(repository: Repository) -> dict[str, str]:
    """The digests of all seeds' weights."""
    weights: dict[str, str] = seeds.read_record(stored(repository.path, "base"))["outputs"]["weights"]
    return weights


def append(repository: Repository, file: str, line: str) -> None:
    path = repository.path / file
    path.write_text(path.read_text() + line)


def replace(repository: Repository, file: str, old: str, new: str) -> None:
    path = repository.path / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_each_change_costs_what_it_should(trained: Repository, repository: Repository) -> None:
    """One story, because every step starts from the state that the step before it left.

    Where only trainings are in question, what follows them does not run: each start of a stage costs seconds.
    """
    stages = "code evaluate fetch prepare report resolve scenes timing train@base train@caption train@critical train@wide"
    assert sorted(trained.stages_run(trained.output)) == stages.split()
    assert epochs_trained(trained) == 2 * (1 + 1 + 2 + 2)
    path = repository.path
    assert not list((path / ".checkpoints").rglob("*.part"))
    # As in a fresh clone, which has the store and no seeds beside it. A variant added: it alone trains.
    checkpoints = path / ".checkpoints"
    checkpoints.rename(path / "elsewhere")
    weights = weights_of_base(repository)
    repository.edit(variants={"deep": {"blocks": 2}})
    evaluations = [path / "store/predictions" / f"{name}.npz" for name in ("base", "wide")]
    evaluated = [file.stat().st_mtime_ns for file in evaluations]
    assert sorted(repository.repro("evaluate")) == ["evaluate", "resolve", "train@deep"]
    assert epochs_trained(repository) == repository.output.count("deep  seed ") == 2
    assert evaluated == [file.stat().st_mtime_ns for file in evaluations]

    # A variant edited: it, and not those beside it; the base edited: what inherits the field, and not `wide`, which pins its old value.
    repository.edit(base={"blocks": 3}, variants={"deep": {"blocks": 2, "optimizer": "radam"}, "wide": {"mlp_dim": 12, "blocks": 1}})
    assert sorted(repository.repro("train")) == ["resolve", "train@base", "train@deep"]
    assert epochs_trained(repository) == 4

    # Removed, and base as it was. Its second seed's weights were in .checkpoints alone; the stage finds them there again.
    shutil.copytree(path / "elsewhere", checkpoints, dirs_exist_ok=True)
    repository.edit(base={"blocks": 1}, variants={"wide": {"mlp_dim": 12}, "deep": None})
    assert not {"train@wide", "train@deep"} & set(repository.repro("evaluate"))
    assert epochs_trained(repository) == 0
    assert weights_of_base(repository) == weights
    assert sorted(entry.stem for entry in (path / "store/trainings").iterdir()) == ["base", "caption", "critical", "wide"]

    claims = repository.params()["claims"]
    claims["W1"]["comparisons"][0]["bound"] = 1e-6  # a claim's bound: judged anew, nothing trained
    repository.edit(claims=claims)
    assert repository.repro() == ["evaluate", "report"]
    page = (path / "reports" / "README.md").read_text()
    assert "base" in page
    assert "deep" not in page


def test_a_change_of_code_costs_what_it_changes(repository: Repository) -> None:
    """One more story: comments run nothing, what computes the same is replayed, and the rest is trained anew, with its reason."""
    path = repository.path
    weights = weights_of_base(repository)

    append(repository, "pipeline/tracking/store.py", "NOTHING = None\n")  # tracking decides no result
    replace(repository, "pipeline/training/step.py", '"""A step with static', '"""What a step is; it has static')
    append(repository, "pipeline/training/step.py", "# a comment\n")
    assert repository.repro() == ["code"]

    template = next((path / "pipeline" / "report" / "templates").iterdir())
    append(repository, str(template.relative_to(path)), "\n")  # a template: pages only
    assert repository.repro("code") == ["code"]
    assert repository.repro("--dry") == ["report"]  # DVC decides as it does without the option, and does not start the stage

    replace(repository, "pipeline/training/classification.py", "_cross_entropy", "_losses_of_images")  # another name: replayed, kept
    assert "train@base" in repository.repro("train@base")
    assert epochs_trained(repository) == 0
    assert "base  2 finished seeds kept, 2 of them after a replay" in repository.output
    assert weights_of_base(repository) == weights
    for training in seeds.read_record(stored(path, "base"))["trainings"]:  # several where the replays' seconds differ
        (replay,) = training["replays"]
        assert replay["code_hash"] != training["code_hash"]

    # The last tenth of a schedule, long after the steps that a replay takes: trained anew, with the sentence.
    line = "rates = settings.learning_rate * torch.tensor(shares, dtype=torch.float64)"
    replace(repository, "pipeline/training/schedules.py", line, line + "\n    rates[-len(rates) // 10 :] *= 0.5")
    assert "train@base" in repository.repro("train@base")
    assert "base  trained anew, because the code computes something else: the learning rates are others" in repository.output
    assert epochs_trained(repository) == 2
    assert weights_of_base(repository) != weights
