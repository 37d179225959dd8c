"""Which evaluations hold, and what is left of those that do not; on files that were made up."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import params
from pipeline.errors import UserError
from pipeline.evaluation.records import Records
from pipeline.files import sha256
from pipeline.runner import results

SEEDS = [4, 2]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "mean": {"pool": "mean", "cls_insert": "none"},
    "net": {"architecture": "mlp", "widths": [8]},
}
LABELS = np.array([0, 3, 3], np.uint8)
PREDICTIONS = np.array([[0, 3, 5], [0, 5, 5]], np.uint8)  # (seed, image)


class Study:
    """Evaluated variants below a folder. `said` are the lines of the last look at them."""

    def __init__(self, root: Path, arrays: Path, raw: dict[str, Any]) -> None:
        self.root = root
        self.raw = raw
        self.said: list[str] = []
        self.records = Records(
            arrays=arrays,
            runs=root / "runs",
            evaluations=root / "evaluations",
            predictions=root / "predictions",
        )
        for variant in raw["variants"]:
            self.train(variant, variant)
        wanted = self.records.wanted(self.params, self.said.append)
        self.records.prune(wanted, *self.records.sort_out(wanted, self.said.append))
        for variant in wanted:
            self.evaluate(variant)

    @property
    def params(self) -> params.Params:
        return params.parse(self.raw)

    def train(self, variant: str, weights: str) -> None:
        """What is looked at of a training; its weights are only a text."""
        directory = self.root / "runs" / variant
        directory.mkdir(parents=True, exist_ok=True)
        (directory / results.WEIGHTS).write_text(weights)
        (directory / results.EPOCHS).touch()
        (directory / results.METRICS).touch()
        results.write_run(directory, {"config": self.params.resolve(variant).model_dump(mode="json")})

    def evaluate(self, variant: str) -> None:
        inputs = self.records.wanted(self.params, self.said.append)[variant]
        arrays = {"labels": LABELS, "predictions": PREDICTIONS}
        self.records.write(variant, SEEDS, {"test_accuracy": [2 / 3, 1 / 3]}, arrays, {"test_accuracy": 0.5}, inputs, 10)

    def look(self) -> tuple[list[str], list[str]]:
        """What is up to date and what is not; removes the evaluations that mislead."""
        self.said.clear()
        wanted = self.records.wanted(self.params, self.said.append)
        kept, stale = self.records.sort_out(wanted, self.said.append)
        self.records.prune(wanted, kept, stale)
        return kept, stale

    def there(self) -> list[str]:
        """The variants of which there is an evaluation, the text files and the predictions."""
        texts = sorted(path.name for path in (self.root / "evaluations").iterdir())
        assert sorted(path.name for path in (self.root / "predictions").iterdir()) == [f"{variant}.npz" for variant in texts]
        return texts


@pytest.fixture
def evaluated(tmp_path: Path, arrays: Path, raw_params: dict[str, Any]) -> Study:
    raw = raw_params | {
        "train": raw_params["train"] | {"seeds": SEEDS},
        "variants": {variant: dict(difference) for variant, difference in VARIANTS.items()},
        "experiments": {},
        "claims": {},
    }
    return Study(tmp_path, arrays, raw)


def test_what_is_written(evaluated: Study) -> None:
    directory = evaluated.root / "evaluations" / "tiny"
    assert sorted(path.name for path in directory.iterdir()) == ["confusion.csv", "inputs.json", "metrics.json", "seeds.csv"]
    assert (directory / "seeds.csv").read_text() == f"seed,test_accuracy\n4,{2 / 3}\n2,{1 / 3}\n"
    assert json.loads((directory / "metrics.json").read_text()) == {"test_accuracy": 0.5}
    with (directory / "confusion.csv").open(newline="") as file:
        counts = {(int(row["actual"]), int(row["predicted"])): int(row["count"]) for row in csv.DictReader(file)}
    assert len(counts) == 100
    assert {pair: count for pair, count in counts.items() if count} == {(0, 0): 2, (3, 3): 1, (3, 5): 3}
    inputs = json.loads((directory / "inputs.json").read_text())
    assert inputs.keys() == {"weights", "config", "probes", "data", "code", "torch", "outputs"}
    assert inputs["outputs"]["predictions"] == sha256(evaluated.root / "predictions" / "tiny.npz")


def recorded(**changes: Any) -> Callable[[Study], None]:
    """Another machine's or an older run's word in inputs.json."""

    def change(study: Study) -> None:
        path = study.root / "evaluations" / "mean" / "inputs.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda study: (study.root / "evaluations" / "mean" / "seeds.csv").write_text("seed\n"),
        lambda study: (study.root / "evaluations" / "mean" / "confusion.csv").unlink(),
        lambda study: (study.root / "predictions" / "mean.npz").unlink(),
        recorded(code="0" * 64),
        recorded(torch="1.0"),
        recorded(data="0" * 64),
        recorded(probes=["shifts"]),
    ],
)
def test_what_changed_is_stale_and_stays_until_it_is_replaced(evaluated: Study, change: Callable[[Study], None]) -> None:
    change(evaluated)
    assert evaluated.look() == (["tiny", "net"], ["mean"])
    assert (evaluated.root / "evaluations" / "mean").exists()
    evaluated.evaluate("mean")
    assert evaluated.look() == (["tiny", "mean", "net"], [])


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"outputs": 1}'])
def test_a_damaged_record_vouches_for_nothing(evaluated: Study, content: str) -> None:
    (evaluated.root / "evaluations" / "mean" / "inputs.json").write_text(content)
    assert evaluated.look() == (["tiny", "net"], ["mean"])
    assert evaluated.there() == ["net", "tiny"]


def test_an_evaluation_does_not_outlive_its_weights(evaluated: Study) -> None:
    evaluated.train("mean", "other weights")
    assert evaluated.look() == (["tiny", "net"], ["mean"])
    assert evaluated.there() == ["net", "tiny"]


def test_a_flipped_bit_in_the_weights_is_looked_into(evaluated: Study) -> None:
    (evaluated.root / "runs" / "mean" / results.WEIGHTS).write_text("damaged")
    assert evaluated.look() == (["tiny", "net"], ["mean"])


def test_variants_that_are_gone(evaluated: Study) -> None:
    """A claim that still names one asks for the probes of the others, and what a kill left goes with it."""
    comparison = {"rule": "less", "measure": "accuracy lost to shifts", "variant": "tiny", "reference": "net"}
    claim = {"source": "a test", "sentence": "So.", "measured": "It.", "margin": "None.", "comparisons": [comparison]}
    del evaluated.raw["variants"]["net"]
    evaluated.raw["claims"] = {"T1": claim}
    (evaluated.root / "predictions" / ".net.npz.1.tmp").touch()
    assert evaluated.look() == (["mean"], ["tiny"])
    assert evaluated.there() == ["mean", "tiny"]


def test_variants_without_a_finished_training_are_left_out(evaluated: Study) -> None:
    (evaluated.root / "runs" / "mean" / "run.json").unlink()
    evaluated.raw["variants"]["net"]["learning_rate"] = 0.001
    assert evaluated.look() == (["tiny"], [])
    assert evaluated.said == [
        f"mean: left out, it has no finished training in {evaluated.root / 'runs'}/",
        "net: left out, params.yaml has other settings than its training had; `dvc repro train@net` mends it",
    ]
    assert evaluated.there() == ["tiny"]


@pytest.mark.parametrize("name", ["run.json", "epochs.csv", "metrics.json"])
def test_a_damaged_file_of_a_training_is_named_and_costs_nothing_good(evaluated: Study, name: str) -> None:
    path = evaluated.root / "runs" / "tiny" / name
    path.write_text(path.read_text()[:-2] + "x")
    with pytest.raises(UserError, match=rf"runs/tiny/{name} .*`dvc repro train@tiny`.*`git checkout`"):
        evaluated.look()
    assert evaluated.there() == ["mean", "net", "tiny"]


def test_a_clone_without_the_cache_keeps_the_text_files(evaluated: Study) -> None:
    for variant in VARIANTS:
        (evaluated.root / "runs" / variant / results.WEIGHTS).unlink()
    shutil.rmtree(evaluated.root / "predictions")
    before = {path: path.read_bytes() for path in (evaluated.root / "evaluations").rglob("*.*")}
    assert evaluated.look() == (["tiny", "mean", "net"], [])
    weights = evaluated.root / "runs" / "tiny" / results.WEIGHTS
    assert f"tiny: left out, {weights} is not here; `dvc checkout` or `dvc pull` restores it" in evaluated.said
    assert {path: path.read_bytes() for path in (evaluated.root / "evaluations").rglob("*.*")} == before
    assert len(before) == 12
    # Text files of other weights are of no use, and without the weights there is nothing to make them anew from.
    recorded(weights="0" * 64)(evaluated)
    assert evaluated.look() == (["tiny", "net"], [])
    assert not (evaluated.root / "evaluations" / "mean").exists()
