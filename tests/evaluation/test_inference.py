"""What is measured of a group's weights, by other ways of computing it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.layers import resample_abs_pos_embed
from torch.nn.functional import cross_entropy

from pipeline import params
from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.evaluation import attention, inference, recurrence, saturation
from pipeline.evaluation.classification import position_columns, scale, shift
from pipeline.evaluation.inference import Task, first_changes, measure
from pipeline.measures.positions import table_correlation
from pipeline.models import build
from pipeline.models.positions import sincos2d_table, sinusoidal_table
from pipeline.runner import seeds
from pipeline.runner.seeds import Finished
from pipeline.training.engine import Trainer, epoch_order
from pipeline.training.records import EpochRow
from pipeline.training.stack import Stack, initial_model
from tests.helpers import flip_bit

SEEDS = [4, 2, 7]
TRACES = {4: np.repeat([2.0, 0.0], [7, 53]), 2: np.full(60, 2.0), 7: np.where(np.arange(60) == 55, 9.0, 0.0)}
POSITIONS = ("learned", "sinusoidal", "sincos2d", "none")
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "moved": {},
    "net": {"architecture": "mlp", "widths": [8]},
    "rows": {"architecture": "lstm", "widths": [8]},
    **{position: {"patch": 4, "position": position} for position in POSITIONS},
}
MOVED = ("moved", "rows")


@pytest.fixture(scope="module")
def settings_of(raw_params: dict[str, Any]) -> dict[str, params.VariantSettings]:
    raw = raw_params | {
        "data": {"dataset": "digits"},
        "train": raw_params["train"] | {"seeds": SEEDS, "epochs": 1},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "memory": 2},
        "variants": MODELS,
        "experiments": {},
        "claims": {},
    }
    parsed = params.parse(raw)
    return {variant: parsed.resolve(variant) for variant in MODELS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, settings_of: dict[str, params.VariantSettings]) -> Path:
    """The initial weights of every seed, in MOVED half as large again, stored as those of a finished training are."""
    directory = tmp_path_factory.mktemp("runs")
    for variant, settings in settings_of.items():
        origin = dict.fromkeys(("code_hash", "git_commit", "git_dirty", "device", "device_name", "attention", "versions"))
        origin |= {"started": "", "finished": "", "stack": [], "tables": {}, "replays": [], "parameters": 1, "flops": 1}
        origin |= {"code_hash": "c" * 64, "config": settings.model_dump(mode="json")}
        parts = []
        for seed in SEEDS:
            state = Stack(settings.model, [seed], torch.device("cpu")).state()
            factor = 1.5 if variant in MOVED else 1
            tensors = {f"model.{name}": value[0].detach().numpy() * factor for name, value in state.items()}
            own = {**origin, "weights": seeds.digest(tensors)}
            loss = TRACES[seed].astype(np.float32)
            tensors |= {"trace.loss": loss, "trace.gradient_norm": loss, "trace.step": np.arange(1, 61)}
            parts.append(Finished(seed, tensors, (EpochRow(seed, 1, 2.0, 2.0, 0.1, 1.0, 1.0),), own))
            seeds.write(seeds.folder(directory / variant, settings, "d" * 64), parts[-1])
        record = {"seeds": SEEDS, "variant": variant, "config": origin["config"], "data_digest": "d" * 64}
        seeds.assemble(file_of(directory, variant), settings, parts, record)
    return directory


def file_of(runs: Path, variant: str) -> Path:
    return runs / f"{variant}.safetensors"


def weights_of(runs: Path, variant: str) -> Any:
    """Of all seeds, stacked."""
    return seeds.load_weights(file_of(runs, variant), SEEDS, runs / variant)


def moved(settings: params.VariantSettings, seed: int) -> Any:
    """What the runs of MOVED hold: the initial model with all parameters half as large again."""
    model = initial_model(settings.model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.5
    return model


def network(runs: Path, settings: params.VariantSettings, variant: str, place: int) -> Any:
    """A stored seed in a module of its own."""
    module = build(settings.model).eval()
    module.load_state_dict({name: value[place] for name, value in weights_of(runs, variant).items()})
    return module


@torch.no_grad()
def answers(module: Any, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and predictions of images (image, row, column), by torch's own cross-entropy."""
    logits = module(torch.from_numpy(images)[:, None].float() / 255)
    return float(cross_entropy(logits, torch.from_numpy(labels).long())), logits.argmax(1).numpy()


def make_task(
    settings: params.VariantSettings, run: Path, arrays: Path, *, seeds: tuple[int, ...] = (4,), probes: tuple[str, ...] = ()
) -> Task:
    return Task(run.stem, settings, seeds, probes, "cpu", run, arrays, run.with_suffix(""))


def test_losses_predictions_and_positions(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    """In the order in which the task names the seeds, which need not be that of the weights."""
    data = load(arrays)
    for variant, width in (("tiny", (5, 32)), ("net", (0, 0))):
        settings = settings_of[variant]
        found = measure(make_task(settings, file_of(runs, variant), arrays, seeds=(7, 4)))
        assert (list(found.columns), list(found.arrays), list(found.shared)) == ([], ["predictions", "positions"], ["labels"])
        positions, predictions = found.arrays["positions"], found.arrays["predictions"]
        assert (positions.dtype, positions.shape) == (np.float32, (2, *width))
        assert (predictions.dtype, predictions.shape) == (np.uint8, (2, found.num_tests))
        assert np.array_equal(found.accuracies, (predictions == data.test_labels).mean(1))
        for row, place in enumerate((2, 0)):
            loss, expected = answers(network(runs, settings, variant, place), data.test_images, data.test_labels)
            assert found.losses[row] == pytest.approx(loss, rel=1e-5)
            assert (predictions[row] == expected).mean() > 0.99


def test_held_out_images_are_the_last_training_images(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    settings, data = settings_of["net"], load(arrays)
    held_out = settings.model_copy(update={"train": settings.train.model_copy(update={"validation": 123})})
    found = measure(make_task(held_out, file_of(runs, "net"), arrays, seeds=(2, 7))).columns
    assert list(found) == ["validation_loss", "validation_accuracy"]
    images, labels = data.train_images[-123:], data.train_labels[-123:]
    for row, place in enumerate((1, 2)):
        loss, predictions = answers(network(runs, settings, "net", place), images, labels)
        assert found["validation_loss"][row] == pytest.approx(loss, rel=1e-5)
        assert found["validation_accuracy"][row] == pytest.approx((predictions == labels).mean(), abs=1.1 / 123)


def test_accuracy_under_shifts(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    settings, data = settings_of["net"], load(arrays)
    found = measure(make_task(settings, file_of(runs, "net"), arrays, probes=("shifts",))).columns
    assert list(found) == [f"shift_{distance}" for distance in (1, 2, 3, 4)]
    module, padded = network(runs, settings, "net", 0), np.pad(data.test_images, ((0, 0), (4, 4), (4, 4)))
    for distance in (1, 4):
        accuracies = []
        for down, right in ((-distance, 0), (distance, 0), (0, -distance), (0, distance)):
            images = padded[:, 4 - down : 32 - down, 4 - right : 32 - right]
            accuracies.append((answers(module, images, data.test_labels)[1] == data.test_labels).mean())
        assert found[f"shift_{distance}"] == pytest.approx(np.mean(accuracies), abs=1e-9)
    images = torch.tensor([[[1, 2], [3, 4]]])
    assert shift(images, 1, 0).tolist() == [[[0, 0], [1, 2]]]
    assert shift(images, 0, -1).tolist() == [[[2, 0], [4, 0]]]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "radam"])
def test_changes_of_weights_in_the_first_steps(
    runs: Path, arrays: Path, settings_of: dict[str, params.VariantSettings], optimizer: Any
) -> None:
    """Plain SGD's are the learning rate times the gradient, whose norm the trace of a training has; Adam's first is the learning rate
    for every weight with a gradient far above its epsilon; RAdam's first is the gradient's, as SGD's."""
    settings = settings_of["net"]
    rate = 1e-3 if optimizer == "adam" else 0.1
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"optimizer": optimizer, "learning_rate": rate})})
    found = first_changes(make_task(settings, file_of(runs, "net"), arrays, seeds=(4, 7)), load(arrays), torch.device("cpu"))
    assert list(found) == [f"change_{step}" for step in range(1, 11)]
    for i, seed in enumerate((4, 7)):
        trainer = Trainer(settings, load(arrays), [seed], torch.device("cpu"))
        trainer.run_steps(10)
        size = sum(value.numel() for value in trainer.stack.parameters)
        of_gradient = rate * trainer.trace.gradient_norm[0, :10].double().numpy() / np.sqrt(size)
        changes = [found[f"change_{step}"][i] for step in range(1, 11)]
        if optimizer == "adam":
            module, data = initial_model(settings.model, seed), load(arrays)
            first = epoch_order(seed, 1, len(data.train_labels))[: settings.train.batch_size].numpy()
            images, labels = torch.from_numpy(data.train_images[first])[:, None].float() / 255, torch.from_numpy(data.train_labels[first])
            gradients = torch.autograd.grad(cross_entropy(module(images), labels.long()), list(module.parameters()))
            large = sum(int((gradient.abs() > 1e-6).sum()) for gradient in gradients)
            assert changes[0] == pytest.approx(rate * np.sqrt(large / size), rel=0.02)
        else:
            same = 10 if optimizer == "sgd" else 1
            assert changes[:same] == pytest.approx(of_gradient[:same], rel=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_accuracy_at_other_sizes(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path, position: str) -> None:
    """By timm's interpolation and a forward pass that is put together from the parts of the trained network."""
    settings = settings_of[position]
    found = measure(make_task(settings, file_of(runs, position), arrays, seeds=(7, 4), probes=("sizes",))).columns
    assert list(found) == ["size_20", "size_24", "size_32", "size_36", "size_40", "rows_1", "rows_2", "rows_4", "rows_7"]
    data = load(arrays)
    for row, place in enumerate((2, 0)):
        module = network(runs, settings, position, place)
        own = torch.zeros(50, 32) if module.position is None else module.position  # of the class token and 49 patches
        continued = {
            "none": torch.zeros(99, 32),
            "sinusoidal": sinusoidal_table(99, 32),
            "sincos2d": torch.cat([torch.zeros(1, 32), sincos2d_table(14, 32).reshape(14, 14, 32)[:, :7].reshape(98, 32)]),
            "learned": torch.cat([own, *[own[-7:]] * 7]),  # type: ignore[index,list-item]
        }[position]
        cases = {
            f"size_{size}": (
                scale(torch.from_numpy(data.test_images), size),
                0,
                resample_abs_pos_embed(own[None], [grid, grid], interpolation="bilinear", antialias=False),  # type: ignore[index]
            )
            for size, grid in ((20, 5), (40, 10))
        }
        cases |= {f"rows_{rows}": (torch.from_numpy(data.test_images), rows, continued[: 50 + 7 * rows]) for rows in (1, 7)}
        for column, (images, rows, position_vectors) in cases.items():
            with torch.no_grad():
                patches = module.embedding(images[:, None] / 255)  # type: ignore[operator]
                empty = module.embedding(torch.zeros(1, 1, 28, 28))[:, :1]  # type: ignore[operator]
                parts = [module.cls_token.expand(len(patches), 1, -1), patches, empty.expand(len(patches), 7 * rows, -1)]  # type: ignore[operator]
                logits = module.head(module.blocks(torch.cat(parts, 1) + position_vectors)[:, 0])  # type: ignore[operator]
            assert found[column][row] == pytest.approx((logits.argmax(1).numpy() == data.test_labels).mean(), abs=2 / 360)


@pytest.mark.parametrize("size", [20, 28, 40])
def test_scaling_is_that_of_pillow(arrays: Path, size: int) -> None:
    images = load(arrays).test_images[:5]
    scaled = scale(torch.from_numpy(images), size)
    assert (scaled.shape, scaled.dtype) == ((5, size, size), torch.float32)
    assert torch.equal(scale(torch.from_numpy(images)[:, None], size)[:, 0], scaled)
    for image, ours in zip(images, scaled, strict=True):
        theirs = Image.fromarray(image.astype(np.float32)).resize((size, size), Image.Resampling.BILINEAR)
        assert ours.numpy() == pytest.approx(np.asarray(theirs), abs=1e-3)


def test_attention_of_each_seed(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    settings = settings_of["tiny"]
    model = settings.model
    assert isinstance(model, params.ModelSettings)
    found = measure(make_task(settings, file_of(runs, "tiny"), arrays, seeds=(4, 7), probes=("attention",)))
    data = load(arrays)
    digits = data.test_images[[list(data.test_labels).index(digit) for digit in range(10)]]
    weights = weights_of(runs, "tiny")
    for i, place in enumerate((0, 2)):
        stack = Stack(model, [SEEDS[place]], torch.device("cpu"))
        stack.load({name: value[[place]] for name, value in weights.items()})
        columns, maps, rollout = attention.probe(stack.module, model, data.test_images, data.test_labels, digits)
        assert {name: column[i] for name, column in found.columns.items()} == columns
        assert np.array_equal(found.arrays["rollout"][i], rollout)
        if i == 0:
            assert np.array_equal(found.shared["maps"], maps)
            assert np.array_equal(found.shared["filters"], weights["embedding.project.weight"][place].double())
    assert (found.shared["maps"].dtype, found.shared["maps"].shape) == (np.float16, (10, 1, 8, 5))
    assert (found.arrays["rollout"].dtype, found.arrays["rollout"].shape) == (np.float32, (2, 10, 5))


def test_saturation_of_each_seed_at_both_ends(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    settings, data = settings_of["moved"], load(arrays)
    model = settings.model
    assert isinstance(model, params.ModelSettings)
    found = measure(make_task(settings, file_of(runs, "moved"), arrays, seeds=(7, 4), probes=("saturation",))).columns
    for i, seed in enumerate((7, 4)):
        start, end = (
            saturation.measure(module, model, data.test_images[:256], data.test_labels[:256])
            for module in (initial_model(model, seed), moved(settings, seed))
        )
        assert start["score_gradient"] != end["score_gradient"]
        assert {name: column[i] for name, column in found.items()} == {f"{name}_start": value for name, value in start.items()} | end


def test_position_vectors_against_the_tables(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    """The weights of these runs are the initial ones: nothing was added to them. What is added by hand is found."""
    found = measure(make_task(settings_of["tiny"], file_of(runs, "tiny"), arrays, seeds=(7, 4), probes=("positions",)))
    grid = [sincos2d_table(2, 32).numpy(), sinusoidal_table(5, 32).numpy()[1:]]  # the second has a place for the class token
    for column, table in (("positions_2d", grid[0]), ("positions_1d", grid[1])):
        expected = [table_correlation(vectors[1:], table) for vectors in found.arrays["positions"].astype(np.float64)]
        assert found.columns[column] == pytest.approx(expected)
    assert found.columns["position_changes_1d"].tolist() == found.columns["position_changes_2d"].tolist() == [0.0, 0.0]

    model = settings_of["tiny"].model
    assert isinstance(model, params.ModelSettings)
    moved = found.arrays["positions"].astype(np.float64) + 0.1 * sinusoidal_table(5, 32).double().numpy()
    moved[1] = np.nan
    columns = position_columns(model, (7, 4), moved)
    assert columns["position_changes_1d"][0] == pytest.approx(1.0)
    assert np.isnan([column[1] for column in columns.values()]).all()
    fixed = model.model_copy(update={"position": "sinusoidal"})
    assert position_columns(fixed, (7,), sinusoidal_table(5, 32).double().numpy()[None])["positions_1d"] == pytest.approx([1.0])
    assert list(position_columns(fixed, (7,), moved[:1])) == ["positions_1d", "positions_2d"]


def test_gradients_of_a_recurrent_network_at_both_ends(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    data = load(arrays)
    for seed in (2, 4):
        found = measure(make_task(settings_of["rows"], file_of(runs, "rows"), arrays, seeds=(seed,), probes=("recurrence",))).columns
        start, end = (
            recurrence.log_ratio(recurrence.state_gradients(module, data.test_images[:256], data.test_labels[:256]))
            for module in (initial_model(settings_of["rows"].model, seed), moved(settings_of["rows"], seed))
        )
        assert start != end
        assert {name: column.tolist() for name, column in found.items()} == {"state_gradient_start": [start], "state_gradient": [end]}


def test_the_trace_of_each_seed_in_the_order_of_the_task(settings_of: dict[str, params.VariantSettings], runs: Path, arrays: Path) -> None:
    """Seven losses of 2 among twenty fall to five at step 22; one that never falls is censored after the 12 steps of the digits' epoch."""
    found = measure(make_task(settings_of["net"], file_of(runs, "net"), arrays, seeds=(7, 4, 2), probes=("trace",))).columns
    assert {name: column.tolist() for name, column in found.items()} == {"loss_spikes": [1, 0, 0], "steps_to_loss": [20, 22, 13]}
    damaged = file_of(runs.parent, "net")
    shutil.copyfile(file_of(runs, "net"), damaged)
    flip_bit(damaged, 0.99)
    with pytest.raises(UserError, match=r"net\.safetensors does not hold the weights and traces .*`dvc repro train@net`"):
        measure(make_task(settings_of["net"], damaged, arrays, probes=("trace",)))


def test_weights_that_are_not_here(settings_of: dict[str, params.VariantSettings], runs: Path, tmp_path: Path, arrays: Path) -> None:
    with pytest.raises(UserError, match="run `dvc repro train@net`"):
        measure(make_task(settings_of["net"], tmp_path / "net.safetensors", arrays))
    shutil.copyfile(file_of(runs, "net"), tmp_path / "net.safetensors")  # as in a clone, which has the first seed's
    alone = make_task(settings_of["net"], tmp_path / "net.safetensors", arrays)
    assert np.array_equal(measure(alone).losses, measure(make_task(settings_of["net"], file_of(runs, "net"), arrays)).losses)
    with pytest.raises(UserError, match="The weights of net's seed 2, 7 are not here"):
        measure(make_task(settings_of["net"], tmp_path / "net.safetensors", arrays, seeds=(2, 7)))


def test_without_shared_memory_one_process_finds_the_same(
    settings_of: dict[str, params.VariantSettings], runs: Path, tmp_path: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container whose /dev/shm is read-only or full there are no locks between processes."""
    here, gone = make_task(settings_of["tiny"], file_of(runs, "tiny"), arrays), make_task(settings_of["tiny"], tmp_path / "gone", arrays)
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", _refuse)
    found = dict(inference.run([here, gone], 2))
    assert isinstance(found[gone], UserError)
    assert isinstance(result := found[here], inference.Result)
    assert np.array_equal(result.arrays["predictions"], measure(here).arrays["predictions"])


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")
