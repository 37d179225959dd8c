"""Which evaluations hold, and what is left of those that do not; on files that were made up."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import params
from pipeline.evaluation.records import Evaluation, Records
from pipeline.runner import seeds
from pipeline.system.errors import UserError
from pipeline.training.records import EpochRow
from pipeline.training.tasks import data_digest
from tests.helpers import flip_bit, stored

SEEDS = [4, 2]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "mean": {"pool": "mean", "cls_insert": "none"},
    "net": {"architecture": "mlp", "widths": [8]},
}
LABELS = np.array([0, 3, 3], np.uint8)
METRICS = {"ensemble_accuracy": 0.6, "per_class_accuracy": {"0": 1.0}}
PREDICTIONS = np.array([[0, 3, 5], [0, 5, 5]], np.uint8)  # (seed, image)


class Study:
    """Evaluated variants below a folder."""

    def __init__(self, root: Path, arrays: Path, raw: dict[str, Any]) -> None:
        self.root, self.raw = root, raw
        self.records = Records(root)
        self.records.arrays = arrays
        for variant in raw["variants"]:
            self.train(variant, variant)
            self.evaluate(variant)

    @property
    def params(self) -> params.Params:
        return params.parse(self.raw)

    def train(self, variant: str, weights: str, data: str = "") -> None:
        """What is looked at of a training; the digests of its weights are any text."""
        rows = [EpochRow(seed, 1, 0.5, 0.4, accuracy, math.nan, 1.5) for seed, accuracy in zip(SEEDS, (2 / 3, 1 / 3), strict=True)]
        record = {"variant": variant, "config": self.params.resolve(variant).model_dump(mode="json"), "seeds": SEEDS, "epochs": rows}
        outputs = {"weights": {str(seed): f"{weights} {seed}" for seed in SEEDS}}
        record |= {"metrics": {"n": 2, "parameters": 7, "flops": 8}, "outputs": outputs}
        record["data_digest"] = data or data_digest("classification", self.records.arrays)
        seeds.write_record(stored(self.root, variant), record, {})

    def evaluate(self, variant: str) -> None:
        inputs = self.records.wanted(self.params)[variant]
        arrays = {"labels": LABELS, "predictions": PREDICTIONS}
        self.records.predictions.mkdir(exist_ok=True)
        self.records.write(variant, arrays, Evaluation(inputs, {"shift_1": [0.25, math.nan]}, METRICS, ["predictions"]))

    def record(self, variant: str, **changes: Any) -> None:
        """Another machine's or an older run's word of what an evaluation was made from."""
        found, arrays = self.records.stored(variant) or pytest.fail("not read")
        self.records.write(variant, arrays, found._replace(inputs=found.inputs | changes))

    def look(self) -> tuple[list[str], list[str]]:
        """What is up to date and what is not; removes the evaluations of other variants."""
        wanted = self.records.wanted(self.params)
        found = self.records.split_stale(wanted)
        self.records.prune(self.params)
        return found

    def there(self) -> list[str]:
        """The variants of which there is an evaluation."""
        return sorted(path.stem for path in self.records.predictions.iterdir())


@pytest.fixture
def evaluated(tmp_path: Path, arrays: Path, raw_params: dict[str, Any]) -> Study:
    raw = raw_params | {"train": raw_params["train"] | {"seeds": SEEDS}, "experiments": {}, "claims": {}}
    return Study(tmp_path, arrays, raw | {"variants": {variant: dict(difference) for variant, difference in VARIANTS.items()}})


def test_what_is_written_is_read_and_makes_the_tables(evaluated: Study) -> None:
    found, arrays = evaluated.records.stored("tiny") or pytest.fail("not read")
    assert found.inputs.keys() == {"weights", "config", "probes", "data", "code", "torch"}
    np.testing.assert_equal(found.columns, {"shift_1": [0.25, math.nan]})
    assert found.metrics == METRICS
    assert np.array_equal(arrays["predictions"], PREDICTIONS)

    (evaluated.root / "store/predictions/mean.npz").unlink()
    evaluated.train("net", "other")  # its evaluation is of other weights
    evaluated.records.write_tables(evaluated.records.wanted(evaluated.params))
    tables = {path.name: path.read_text().splitlines() for path in (evaluated.root / "tables").iterdir()}
    assert tables["epochs.csv"] == [
        "variant,seed,epoch,train_loss,test_loss,test_accuracy,gradient_norm,seconds",
        *(f"{name},{seed},1,0.5,0.4,{value!r},nan,1.5" for name in VARIANTS for seed, value in zip(SEEDS, (2 / 3, 1 / 3), strict=True)),
    ]
    assert tables["seeds.csv"] == [
        "variant,seed,test_accuracy,test_loss,shift_1", f"tiny,4,{2 / 3!r},0.4,0.25", f"tiny,2,{1 / 3!r},0.4,nan",
    ]  # fmt: skip
    assert [line.split(",")[:3] for line in tables["variants.csv"][1:]] == [[name, "7", "8"] for name in VARIANTS]
    own = {"n": 2, "parameters": 7, "flops": 8}
    assert json.loads("".join(tables["metrics.json"])) == {"tiny": own | METRICS, "mean": own, "net": own}


@pytest.mark.parametrize(
    "change", [{"weights": {"4": "other 4", "2": "mean 2"}}, {"torch": "1.0"}, {"data": "0" * 64}, {"probes": ["shifts"]}]
)
def test_what_changed_is_stale_until_it_is_replaced(evaluated: Study, change: dict[str, Any]) -> None:
    evaluated.record("mean", **change)
    assert evaluated.look() == (["tiny", "net"], ["mean"])
    evaluated.evaluate("mean")
    evaluated.record("mean", device="A processor", earlier={"2": "e" * 64})  # which decides nothing
    assert evaluated.look() == (["tiny", "mean", "net"], [])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_bit_that_flips_in_the_predictions_is_told_or_changes_nothing(evaluated: Study, data: st.DataObject) -> None:
    """A zip file has bits that say nothing of its content, such as its members' dates."""
    path = evaluated.root / "store/predictions/mean.npz"
    whole, sound = path.read_bytes(), evaluated.records.stored("mean")
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    told, found = evaluated.records.read("mean") is None, evaluated.records.stored("mean")
    path.write_bytes(whole)
    assert told or repr(found) == repr(sound)


def test_variants_that_are_gone_renamed_or_not_trained(evaluated: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """What a renamed variant may need is kept until it is assembled: in a clone nothing else can say what its other seeds gave."""
    evaluated.raw["variants"]["average"] = evaluated.raw["variants"].pop("mean")
    (evaluated.root / "store/predictions/.net.npz.1.tmp").touch()  # what a kill left
    assert evaluated.look() == (["tiny", "net"], [])
    assert evaluated.there() == ["mean", "net", "tiny"]
    evaluated.train("average", "mean")  # the seeds of what was called mean
    stored(evaluated.root, "tiny").unlink()
    evaluated.raw["variants"]["net"]["learning_rate"] = 0.001
    capsys.readouterr()
    assert evaluated.look() == (["average"], [])
    assert capsys.readouterr().out.splitlines() == [
        f"left out, without a finished training in {evaluated.root}/store/trainings/: tiny",
        "net: left out, params.yaml has other settings than its training had; `dvc repro train@net` mends it",
    ]
    assert evaluated.there() == ["average", "net", "tiny"]


def test_what_was_trained_on_other_data_is_left_out(evaluated: Study, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated.train("net", "net", "0" * 64)
    assert evaluated.look() == (["tiny", "mean"], [])
    assert capsys.readouterr().out.startswith("net: left out, it was trained on other data than are here")


def test_a_damaged_record_of_a_training_is_named_and_costs_nothing(evaluated: Study) -> None:
    flip_bit(stored(evaluated.root, "tiny"), 0.5)
    with pytest.raises(UserError, match=r"store/trainings/tiny\.safetensors .*`git checkout .*`dvc repro train@tiny`"):
        evaluated.look()
    assert evaluated.there() == ["mean", "net", "tiny"]
