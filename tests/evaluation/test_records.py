"""Which evaluations hold, and what is left of those that do not; on files that were made up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import params
from pipeline.errors import UserError
from pipeline.evaluation.records import Evaluation, Records
from pipeline.runner import seeds
from pipeline.training.records import EpochRow

SEEDS = [4, 2]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "mean": {"pool": "mean", "cls_insert": "none"},
    "net": {"architecture": "mlp", "widths": [8]},
}
LABELS = np.array([0, 3, 3], np.uint8)
METRICS = {"test_accuracy": 0.5, "test_loss": 0.4, "ensemble_accuracy": 0.6, "per_class_accuracy": {"0": 1.0}}
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
            predictions=root / "predictions",
            tables=root / "tables",
        )
        for variant in raw["variants"]:
            self.train(variant, variant)
        wanted = self.records.wanted(self.params, self.said.append)
        self.records.prune(wanted, *self.records.split_stale(wanted, self.said.append))
        for variant in wanted:
            self.evaluate(variant)

    @property
    def params(self) -> params.Params:
        return params.parse(self.raw)

    def train(self, variant: str, weights: str) -> None:
        """What is looked at of a training; its weights are only a text."""
        directory = self.root / "runs" / variant
        directory.mkdir(parents=True, exist_ok=True)
        (directory / seeds.WEIGHTS).write_text(weights)
        rows = [EpochRow(seed, 1, 0.5, 0.4, accuracy, math.nan, 1.5) for seed, accuracy in zip(SEEDS, (2 / 3, 1 / 3), strict=True)]
        metrics = {"n": 2, "parameters": 7, "flops": 8}
        config = self.params.resolve(variant).model_dump(mode="json")
        seeds.write_run(directory, {"variant": variant, "config": config, "seeds": SEEDS, "epochs": rows, "metrics": metrics})

    def evaluate(self, variant: str) -> None:
        inputs = self.records.wanted(self.params, self.said.append)[variant]
        arrays = {"labels": LABELS, "predictions": PREDICTIONS}
        self.records.write(variant, arrays, Evaluation(inputs, {"shift_1": [0.25, math.nan]}, METRICS))

    def look(self) -> tuple[list[str], list[str]]:
        """What is up to date and what is not; removes the evaluations that mislead."""
        self.said.clear()
        wanted = self.records.wanted(self.params, self.said.append)
        kept, stale = self.records.split_stale(wanted, self.said.append)
        self.records.prune(wanted, kept, stale)
        return kept, stale

    def there(self) -> list[str]:
        """The variants of which there is an evaluation."""
        return sorted(path.stem for path in (self.root / "predictions").iterdir())


@pytest.fixture
def evaluated(tmp_path: Path, arrays: Path, raw_params: dict[str, Any]) -> Study:
    raw = raw_params | {
        "train": raw_params["train"] | {"seeds": SEEDS},
        "variants": {variant: dict(difference) for variant, difference in VARIANTS.items()},
        "experiments": {},
        "claims": {},
    }
    return Study(tmp_path, arrays, raw)


def test_what_is_written_is_read(evaluated: Study) -> None:
    found = evaluated.records.read("tiny")
    assert found is not None
    assert found.inputs.keys() == {"weights", "config", "probes", "data", "code", "torch"}
    np.testing.assert_equal(found.columns, {"shift_1": [0.25, math.nan]})
    assert found.metrics == METRICS
    with np.load(evaluated.root / "predictions" / "tiny.npz") as stored:
        assert np.array_equal(stored["predictions"], PREDICTIONS)


def test_the_tables_hold_every_training_and_what_is_evaluated_of_it(evaluated: Study) -> None:
    (evaluated.root / "predictions" / "mean.npz").unlink()
    evaluated.train("net", "other weights")
    evaluated.records.write_tables(evaluated.records.wanted(evaluated.params, evaluated.said.append))
    tables = {path.name: path.read_text().splitlines() for path in (evaluated.root / "tables").iterdir()}
    assert tables["epochs.csv"] == [
        "variant,seed,epoch,train_loss,test_loss,test_accuracy,gradient_norm,seconds",
        *(f"{name},{seed},1,0.5,0.4,{value!r},nan,1.5" for name in VARIANTS for seed, value in zip(SEEDS, (2 / 3, 1 / 3), strict=True)),
    ]
    assert tables["seeds.csv"] == [
        "variant,seed,test_accuracy,test_loss,shift_1",
        f"tiny,4,{2 / 3!r},0.4,0.25",
        f"tiny,2,{1 / 3!r},0.4,nan",
    ]
    assert [line.split(",")[:3] for line in tables["variants.csv"][1:]] == [[name, "7", "8"] for name in VARIANTS]
    metrics = json.loads("".join(tables["metrics.json"]))
    own = {"n": 2, "parameters": 7, "flops": 8}
    assert metrics == {
        "tiny": own | {"ensemble_accuracy": 0.6, "per_class_accuracy": {"0": 1.0}}, "mean": own, "net": own,
    }  # fmt: skip


def recorded(**changes: Any) -> Callable[[Study], None]:
    """Another machine's or an older run's word of what an evaluation was made from."""

    def change(study: Study) -> None:
        found = study.records.read("mean")
        assert found is not None
        study.records.write("mean", {"labels": LABELS, "predictions": PREDICTIONS}, found._replace(inputs=found.inputs | changes))

    return change


@pytest.mark.parametrize(
    "change",
    [
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
    evaluated.evaluate("mean")
    assert evaluated.look() == (["tiny", "mean", "net"], [])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_bit_that_flips_in_the_predictions_is_told_or_changes_nothing(evaluated: Study, data: st.DataObject) -> None:
    """A zip file has bits that say nothing of its content, such as its members' dates."""
    path = evaluated.root / "predictions" / "mean.npz"
    whole, sound = path.read_bytes(), evaluated.records.read("mean")
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    found = evaluated.records.read("mean")
    path.write_bytes(whole)
    assert found is None or repr(found) == repr(sound)


def test_an_evaluation_does_not_outlive_its_weights(evaluated: Study) -> None:
    evaluated.train("mean", "other weights")
    assert evaluated.look() == (["tiny", "net"], ["mean"])
    assert evaluated.there() == ["net", "tiny"]


def test_a_flipped_bit_in_the_weights_is_looked_into(evaluated: Study) -> None:
    (evaluated.root / "runs" / "mean" / seeds.WEIGHTS).write_text("damaged")
    assert evaluated.look() == (["tiny", "net"], ["mean"])


def test_a_measure_that_is_asked_for_later_makes_stale_what_lacks_it(evaluated: Study) -> None:
    experiment = {"title": "A title", "question": "Why?", "source": "a test", "baseline": "tiny", "variants": ["tiny", "net"]}
    evaluated.raw["experiments"] = {"steady": experiment | {"measure": "unstable"}}
    assert evaluated.look() == (["mean"], ["tiny", "net"])
    evaluated.evaluate("tiny")
    assert evaluated.look() == (["tiny", "mean"], ["net"])


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
        f"left out, without a finished training in {evaluated.root / 'runs'}/: mean",
        "net: left out, params.yaml has other settings than its training had; `dvc repro train@net` mends it",
    ]
    assert evaluated.there() == ["tiny"]


def test_a_damaged_record_of_a_training_is_named_and_costs_nothing_good(evaluated: Study) -> None:
    path = evaluated.root / "runs" / "tiny" / "run.json"
    path.write_text(path.read_text()[:-2] + "x")
    with pytest.raises(UserError, match=r"runs/tiny/run.json .*`dvc repro train@tiny`.*`git checkout`"):
        evaluated.look()
    assert evaluated.there() == ["mean", "net", "tiny"]


def test_without_the_weights_an_evaluation_of_them_stays(evaluated: Study) -> None:
    for variant in VARIANTS:
        (evaluated.root / "runs" / variant / seeds.WEIGHTS).unlink()
    assert evaluated.look() == (["tiny", "mean", "net"], [])
    weights = evaluated.root / "runs" / "tiny" / seeds.WEIGHTS
    assert f"tiny: left out, {weights} is not here; `dvc checkout` or `dvc pull` restores it" in evaluated.said
    # One of other weights is of no use, and there is nothing to make it anew from.
    recorded(weights="0" * 64)(evaluated)
    assert evaluated.look() == (["tiny", "net"], [])
    assert evaluated.there() == ["net", "tiny"]
