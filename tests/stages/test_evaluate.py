"""The evaluate stage: it trusts weights only after it has checked them, and does again only what has changed."""

import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pipeline import params
from pipeline.data.datasets import load
from pipeline.evaluation import inference
from pipeline.evaluation.evaluate import summarize_votes
from pipeline.evaluation.records import Records
from pipeline.measures import SHIFTS
from pipeline.runner import replay, seeds
from pipeline.stages import evaluate as stage
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from pipeline.training.engine import Trainer
from pipeline.training.records import EpochRow
from tests.helpers import ROOT, edit, finish, flip_bit, is_worker, rewrite, stored, wait_until, workers_of

SEEDS = [4, 2, 7]
ORIGIN = {
    "code_hash": "c" * 64, "git_commit": None, "git_dirty": None, "device": "cpu", "device_name": "A processor (2 cores)",
    "attention": "fused-cpu", "versions": {}, "started": "2026-01-02T03:04:05+00:00", "finished": "2026-01-02T03:09:05+00:00",
    "parameters": 1, "flops": 1,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "mean": {"pool": "mean", "cls_insert": "none", "position": "none", "epochs": 1},
    "net": {"architecture": "mlp", "widths": [8], "epochs": 1},
}


def make_params(raw_params: dict[str, Any]) -> dict[str, Any]:
    """A study of three small networks, of which two are probed."""
    experiment = {"title": "A title", "question": "Why?", "source": "a test", "baseline": "tiny"}
    return raw_params | {
        "data": {"dataset": "digits"},
        "train": raw_params["train"] | {"seeds": SEEDS, "epochs": 2},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "memory": 2},
        "variants": VARIANTS,
        "experiments": {"looks": experiment | {"variants": ["tiny", "net"], "figures": ["attention_maps", "shifts"]}},
        "claims": {},
    }


def train(path: Path, settings: params.VariantSettings, arrays: Path) -> None:
    """The variant's file, as the train stage leaves it in a clone, with the first seed's weights; the others' beside it."""
    parts, data = [], load(arrays)
    for seed in settings.train.seeds:
        trainer = Trainer(settings, data, [seed], torch.device("cpu"))
        tables = replay.tables(trainer)
        finish(trainer)
        parts += seeds.of_trainer(trainer, ORIGIN, tables)
    config = settings.model_dump(mode="json")
    record = {"variant": path.stem, "config": config, "seeds": list(settings.train.seeds), "data_digest": data.digest}
    seeds.assemble(path, settings, parts, record)
    for part in parts:
        seeds.write(seeds.folder(path.parents[2] / FINISHED, settings, data.digest), part)


@pytest.fixture(scope="module")
def trained(once: Any, arrays: Path, raw_params: dict[str, Any]) -> Path:
    """A working directory with every variant trained on the digits and none evaluated."""

    def make(directory: Path) -> str:
        raw = make_params(raw_params)
        (directory / "data").mkdir(parents=True)
        (directory / "data" / "arrays").symlink_to(arrays)
        (directory / "params.yaml").write_text(yaml.safe_dump(raw))
        for variant in VARIANTS:
            train(stored(directory, variant), params.parse(raw).resolve(variant), arrays)
        return ""

    return once("three trained networks", make)[0]


@pytest.fixture(scope="module")
def evaluated(once: Any, trained: Path) -> Path:
    """The same after one run of the stage with two processes."""

    def make(directory: Path) -> str:
        shutil.copytree(trained, directory, symlinks=True)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
            patch.chdir(directory)
            patch.setenv("LAB_DEVICE", "cpu")
            patch.setenv("LAB_PROCESSES", "2")
            stage.main([])
        return said.getvalue()

    directory, output = once("three evaluated networks", make)
    assert [line.rpartition(" (")[2] for line in output.splitlines()] == ["1 of 3)", "2 of 3)", "3 of 3)"]
    return directory


@contextmanager
def started(directory: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The stage in a process of its own, which does not outlive the test."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LAB_DEVICE": "cpu"} | environment
    command = [sys.executable, "-m", "pipeline.stages.evaluate"]
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def project(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path / "project", trained, monkeypatch)


@pytest.fixture
def done(tmp_path: Path, evaluated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path / "project", evaluated, monkeypatch)


def enter(directory: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(source, directory, symlinks=True)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    monkeypatch.setenv("LAB_PROCESSES", "1")
    return directory


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Works in this process instead of starting others, which takes seconds; counts the seeds evaluated."""
    counted: Counter[str] = Counter()

    def run(tasks: Any, processes: int) -> Any:
        for task in tasks:
            counted[task.variant] += len(task.seeds)
            try:
                yield task, inference.measure(task)
            except UserError as error:
                yield task, error

    monkeypatch.setattr(inference, "run", run)
    inference._data.cache_clear()
    return counted


def table(root: Path, name: str, variant: str) -> list[dict[str, str]]:
    """A variant's rows of a table, without what it has no value for."""
    with (root / "tables" / name).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == variant]
    return [{name: value for name, value in row.items() if value} for row in rows]


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for folder in ("tables", "store/predictions")
        for path in sorted((directory / folder).rglob("*"))
        if path.is_file()
    }


def test_what_it_writes_follows_from_the_predictions(evaluated: Path) -> None:
    for variant in ("tiny", "mean", "net"):
        with np.load(evaluated / "store/predictions" / f"{variant}.npz") as file:
            labels, predictions, seeds = (file[name] for name in ("labels", "predictions", "seeds"))
        assert (predictions.dtype, predictions.shape) == (np.uint8, (3, 360))
        assert np.array_equal(labels, load(evaluated / "data" / "arrays").test_labels)
        rows = table(evaluated, "seeds.csv", variant)
        assert [row["seed"] for row in rows] == [str(seed) for seed in seeds] == ["4", "2", "7"]
        last = [row for row in table(evaluated, "epochs.csv", variant) if row["epoch"] == ("2" if variant == "tiny" else "1")]
        for listed in (rows, last):
            assert [float(row["test_accuracy"]) for row in listed] == (predictions == labels).mean(axis=1).tolist()
        metrics = json.loads((evaluated / "tables" / "metrics.json").read_text())[variant]
        assert metrics["test_accuracy_mean"] == pytest.approx((predictions == labels).mean())
        assert metrics["test_loss_mean"] == pytest.approx(np.mean([float(row["test_loss"]) for row in rows]))
        voted = [max(image, key=lambda digit, image=image: (image.count(digit), -image.index(digit))) for image in predictions.T.tolist()]
        assert metrics["ensemble_accuracy"] == pytest.approx(np.mean(np.array(voted) == labels))
        assert metrics["per_class_accuracy"]["3"] == pytest.approx((predictions[:, labels == 3] == 3).mean())
    plain, shifts = ["variant", "seed", "test_accuracy", "test_loss"], ["shift_1", "shift_2", "shift_3", "shift_4"]
    attention = ["attention_entropy", "ink_correlation", "own_ink_correlation", "deletion", "own_deletion", "attention_distance_1"]
    columns = {variant: list(table(evaluated, "seeds.csv", variant)[0]) for variant in VARIANTS}
    assert columns == {"tiny": [*plain, *shifts, *attention], "mean": plain, "net": [*plain, *shifts]}


def test_one_process_and_two_write_the_same_bytes(project: Path, evaluated: Path, in_process: Counter[str]) -> None:
    stage.main([])
    assert in_process == {"tiny": 3, "mean": 3, "net": 3}
    assert files(project) == files(evaluated)


def test_nothing_is_done_twice_and_finding_that_imports_no_torch(done: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*") if path.is_file()}
    code = "import sys; from pipeline.stages import evaluate; evaluate.main([]); print({'torch', 'mlflow'} & sys.modules.keys())"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    output = subprocess.run([sys.executable, "-c", code], cwd=done, env=environment, capture_output=True, text=True, check=True).stdout
    assert output == "The evaluation of 3 variants is up to date.\nset()\n"
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_what_is_new_or_changed_is_evaluated_alone(done: Path, in_process: Counter[str]) -> None:
    before = files(done)
    (done / "tables" / "seeds.csv").write_text("seed\n")
    (done / "store/predictions" / "net.npz").unlink()
    (done / "store/predictions" / "mean.npz").write_bytes(b"x")
    (done / "store/predictions" / "stray.txt").write_text("x")
    stage.main([])
    assert in_process == {"net": 3, "mean": 3}
    assert files(done) == before
    # Another claim or figure asks for less of one variant: that one.
    edit(done, lambda raw: raw["experiments"]["looks"].update(figures=["shifts"]))
    in_process.clear()
    stage.main([])
    assert in_process == {"tiny": 3}
    assert "attention_entropy" not in table(done, "seeds.csv", "tiny")[0]
    with np.load(done / "store/predictions" / "tiny.npz") as file:
        assert "maps" not in file
    # What is left out, because its training is of other seeds, keeps what was found of these.
    edit(done, lambda raw: raw["variants"]["net"].update(seeds=4))
    stage.main([])
    assert (done / "store/predictions" / "net.npz").read_bytes() == before["store/predictions/net.npz"]


def test_what_was_found_of_each_seed_is_in_the_order_of_the_seeds(evaluated: Path, arrays: Path) -> None:
    settings, place = params.load(evaluated / "params.yaml").resolve("tiny"), stored(evaluated, "tiny")
    task = inference.Task("tiny", settings, tuple(SEEDS), ("shifts", "attention"), "cpu", place, arrays, evaluated / FINISHED)
    found = inference.measure(task)  # as one stack, where the stage tested seed by seed
    rows = table(evaluated, "seeds.csv", "tiny")
    for name in ("attention_entropy", "ink_correlation", "own_ink_correlation", "deletion", "own_deletion"):
        assert [float(row[name]) for row in rows] == found.columns[name].tolist()
    for i, row in enumerate(rows):
        shifted = [found.columns[f"shift_{distance}"][i] for distance in SHIFTS]
        assert [float(row[f"shift_{distance}"]) for distance in SHIFTS] == pytest.approx(shifted, abs=2 / 360)
    with np.load(evaluated / "store/predictions" / "tiny.npz") as file:
        content, data = dict(file), load(arrays)
    assert content["image_labels"].tolist() == list(range(10))
    assert np.array_equal(content["images"], data.test_images[[list(data.test_labels).index(digit) for digit in range(10)]])
    assert (content["maps"].shape, content["rollout"].shape) == ((10, 1, 8, 5), (3, 10, 5))
    assert np.array_equal(content["maps"], found.shared["maps"])
    assert np.array_equal(content["rollout"], found.arrays["rollout"])


def test_weights_that_are_damaged_or_of_another_training(
    project: Path, in_process: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(project, "mean")
    whole = path.read_bytes()
    flip_bit(path, 0.99)
    with pytest.raises(UserError, match=r"mean\.safetensors does not hold the weights and traces that its record has .*train@mean"):
        stage.main([])
    assert capsys.readouterr().out.count("mean: not evaluated.") == 1
    # The others were evaluated all the same, and are not again.
    assert sorted(path.stem for path in (project / "store/predictions").iterdir()) == ["net", "tiny"]
    in_process.clear()
    with pytest.raises(UserError, match="mean"):
        stage.main([])
    assert not in_process

    path.write_bytes(whole)
    epochs = seeds.read_record(path)["epochs"]
    epochs[1][EpochRow._fields.index("test_loss")] *= 1.01
    rewrite(path, epochs=epochs)
    with pytest.raises(UserError, match=r"variant mean, seed 2, are not what its training tested: loss .* persistent=False"):
        stage.main([])
    assert not table(project, "seeds.csv", "mean")
    assert not (project / "store/predictions/mean.npz").exists()


def evaluation(project: Path, variant: str) -> Any:
    return Records(project).stored(variant)


def by_other_code(project: Path, variant: str, **changes: Any) -> None:
    """Has a variant's evaluation be of an earlier version of the code."""
    found, arrays = evaluation(project, variant)
    Records(project).write(variant, arrays, found._replace(inputs=found.inputs | {"code": "e" * 64} | changes))


def test_a_further_seed_is_evaluated_alone(done: Path, in_process: Counter[str], arrays: Path, capsys: Any) -> None:
    """In a clone without the other seeds' weights: what it has of them stays, and the vote is of all."""
    shutil.rmtree(done / FINISHED)
    by_other_code(done, "tiny")
    stage.main([])  # of which some seeds keep what they have
    in_process.clear()
    before, arrays_before = evaluation(done, "tiny")
    edit(done, lambda raw: raw["variants"].update(tiny={"seeds": [4, 2, 7, 9]}))
    train(stored(done, "tiny"), params.load().resolve("tiny"), arrays)
    stage.main([])
    assert in_process == {"tiny": 1}
    after, arrays_after = evaluation(done, "tiny")
    assert arrays_after["seeds"].tolist() == [4, 2, 7, 9]
    for name in before.by_seed:
        assert np.array_equal(arrays_after[name][:3], arrays_before[name])
    assert {name: column[:3] for name, column in after.columns.items()} == before.columns
    assert np.array_equal(arrays_after["maps"], arrays_before["maps"])
    labels, predictions = arrays_after["labels"], arrays_after["predictions"]
    assert after.metrics == summarize_votes(predictions, labels)

    # All in another order, and without some, of which the first one is tested for the maps; one seed has no vote.
    for places in ([2, 1, 0, 3], [3, 0], [3]):
        edit(done, lambda raw, places=places: raw["variants"].update(tiny={"seeds": [[4, 2, 7, 9][place] for place in places]}))
        train(stored(done, "tiny"), params.load().resolve("tiny"), arrays)
        in_process.clear()
        capsys.readouterr()
        stage.main([])
        assert in_process == ({} if len(places) == 1 else {"tiny": 1})
        assert np.array_equal((now := evaluation(done, "tiny")[1])["predictions"], predictions[places])
        assert [float(row["shift_1"]) for row in table(done, "seeds.csv", "tiny")] == [after.columns["shift_1"][place] for place in places]
        assert not np.array_equal(now["maps"], arrays_before["maps"])
        assert (f"of the vote of {len(places)} seeds" in (said := capsys.readouterr().out)) == ("vote" in said) == (len(places) > 1)


def test_what_was_found_of_a_seed_outlives_another_first_seed_and_serves_another_variant(done: Path, arrays: Path) -> None:
    shutil.rmtree(done / FINISHED)
    by_other_code(done, "tiny")
    stage.main([])
    edit(done, lambda raw: raw["variants"].update(tiny={"seeds": [9, 4, 2, 7]}, twin={"seeds": [4, 2, 5]}))
    for variant in ("tiny", "twin"):
        train(stored(done, variant), params.load().resolve(variant), arrays)
    for path in (done / FINISHED).rglob("seed-2.*"):
        path.unlink()
    stage.main([])
    (_, tiny), (_, twin) = (evaluation(done, name) for name in ("tiny", "twin"))
    assert np.array_equal(twin["predictions"][[0, 1]], tiny["predictions"][[1, 2]])
    assert evaluation(done, "tiny")[0].inputs["earlier"] == {"2": "e" * 64, "7": "e" * 64}


def test_other_code_tests_what_is_here_and_keeps_the_rest_if_the_first_seed_agrees(
    done: Path, in_process: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(done)
    by_other_code(done, "tiny")
    stage.main([])
    assert in_process == {"tiny": 3}  # all weights are here
    assert files(done) == before

    shutil.rmtree(done / FINISHED)
    by_other_code(done, "tiny")
    in_process.clear()
    capsys.readouterr()
    stage.main([])
    assert in_process == {"tiny": 1}
    assert "tiny: accuracy" in (said := capsys.readouterr().out)
    assert "seed 2, 7 kept, whose weights are not here: seed 4 gives what it gave before" in said
    found, _ = evaluation(done, "tiny")
    assert found.inputs["earlier"] == {"2": "e" * 64, "7": "e" * 64}
    assert {name: text for name, text in files(done).items() if name.startswith("tables")} == {
        name: text for name, text in before.items() if name.startswith("tables")
    }

    old = found._replace(columns=found.columns | {"shift_1": [found.columns["shift_1"][0] + 1e-9, *found.columns["shift_1"][1:]]})
    Records(done).write("tiny", evaluation(done, "tiny")[1], old)
    by_other_code(done, "tiny")
    with pytest.raises(UserError, match=r"seed 4 has another `shift_1` .* weights of seed 2, 7 are not here: `REPLAY=0 dvc repro"):
        stage.main([])
    by_other_code(done, "tiny", device="Another (2 cores)")  # where that is rounding
    stage.main([])

    by_other_code(done, "tiny", probes=[])  # what was not measured of them cannot be kept
    with pytest.raises(UserError, match=r"The weights of seed 2, 7 are not here"):
        stage.main([])


@pytest.mark.usefixtures("in_process")
def test_a_diverged_variant(done: Path, arrays: Path) -> None:
    """One seed's weights are NaN: it predicts class 0, its loss is no number, and so there is no mean."""
    edit(done, lambda raw: raw["variants"].update(wild=VARIANTS["mean"] | {"divergence": "record"}))
    settings = params.load().resolve("wild")
    train(stored(done, "wild"), settings, arrays)
    zeros = float((load(arrays).test_labels == 0).mean())
    parts = seeds.load(stored(done, "wild"), done / FINISHED)
    assert parts[1].seed == 2
    tensors = {name: value * (np.nan if name.startswith("model.") else 1) for name, value in parts[1].tensors.items()}
    rows = tuple(row._replace(test_loss=math.nan, test_accuracy=zeros) for row in parts[1].rows)
    weights = seeds.digest({name: value for name, value in tensors.items() if name.startswith("model.")})
    parts[1] = seeds.Finished(2, tensors, rows, parts[1].origin | {"weights": weights})
    seeds.write(seeds.folder(done / FINISHED, settings, load(done / "data/arrays").digest), parts[1])
    seeds.assemble(stored(done, "wild"), settings, parts, seeds.read_record(stored(done, "wild")))
    stage.main([])
    found = table(done, "seeds.csv", "wild")
    assert found[1]["test_loss"] == "nan"
    assert float(found[1]["test_accuracy"]) == zeros
    with np.load(done / "store/predictions/wild.npz") as file:
        assert not file["predictions"][1].any()
        assert file["predictions"][0].any()
    metrics = json.loads((done / "tables" / "metrics.json").read_text())["wild"]
    assert metrics["test_loss_mean"] is None  # of those that survived it would be the smaller, the more do not


def test_a_process_that_is_killed(project: Path) -> None:
    """As the kernel does when memory runs out: one sentence, and the same command goes on. A killed stage leaves no process."""
    with started(project) as child:
        wait_until(lambda: workers_of(child))
        os.kill(workers_of(child)[0], signal.SIGKILL)
        output, _ = child.communicate()
    assert child.returncode == 1
    assert output.splitlines()[-1].startswith("error: A process of the evaluation ended early (out of memory?); run the same command again")
    with started(project, LAB_PROCESSES="2") as child:
        wait_until(lambda: len(workers_of(child)) >= 2)
        workers = workers_of(child)
    wait_until(lambda: not any(map(is_worker, workers)))
