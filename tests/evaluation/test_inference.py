"""What is measured of a group's weights, by other ways of computing it."""

import errno
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
from pipeline.evaluation import attention, inference, recurrence, saturation
from pipeline.evaluation.classification import position_columns, scale, shift
from pipeline.evaluation.group import Task
from pipeline.evaluation.inference import first_changes, measure
from pipeline.measures.positions import table_correlation
from pipeline.models.positions import sincos2d_table, sinusoidal_table
from pipeline.runner import seeds
from pipeline.runner.seeds import Finished
from pipeline.system.errors import UserError
from pipeline.training.engine import Trainer
from pipeline.training.records import EpochRow
from pipeline.training.stack import initial_model

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
CPU = torch.device("cpu")


class Lab:
    """The initial weights of every seed, but for `tiny` 2.5 times as large, stored as those of a finished training are; and the digits.

    The bias of their logits is such that images are not all taken for one class, whatever is done to them.
    """

    def __init__(self, root: Path, arrays: Path, parsed: params.Params) -> None:
        self.root, self.arrays, self.data = root, arrays, load(arrays)
        self.settings = {variant: parsed.resolve(variant) for variant in MODELS}
        for variant, settings in self.settings.items():
            origin = dict.fromkeys(("code_hash", "git_commit", "git_dirty", "device", "device_name", "attention", "versions"))
            origin |= {"started": "", "finished": "", "stack": [], "tables": {}, "replays": [], "parameters": 1, "flops": 1}
            origin |= {"code_hash": "c" * 64, "config": settings.model_dump(mode="json")}
            parts = []
            for seed in SEEDS:
                tensors = {f"model.{name}": value.numpy() for name, value in self.initial(variant, seed, moved=True).state_dict().items()}
                own = {**origin, "weights": seeds.digest(tensors)}
                loss = TRACES[seed].astype(np.float32)
                tensors |= {"trace.loss": loss, "trace.gradient_norm": loss, "trace.step": np.arange(1, 61)}
                parts.append(Finished(seed, tensors, (EpochRow(seed, 1, 2.0, 2.0, 0.1, 1.0, 1.0),), own))
                seeds.write(seeds.folder(root / variant, settings, "d" * 64), parts[-1])
            record = {"seeds": SEEDS, "variant": variant, "config": origin["config"], "data_digest": "d" * 64}
            seeds.assemble(self.file(variant), settings, parts, record)

    def file(self, variant: str) -> Path:
        return self.root / f"{variant}.safetensors"

    @torch.no_grad()
    def initial(self, variant: str, seed: int, *, moved: bool = False) -> Any:
        model = initial_model(self.settings[variant].model, seed)
        for parameter in model.parameters():
            parameter *= 2.5 if moved and variant != "tiny" else 1
        if moved:
            parameter -= model.eval()(torch.from_numpy(self.data.test_images[:100])[:, None].float() / 255).mean(0)
        return model

    def stored(self, variant: str, seed: int) -> Any:
        """A module with the weights that were stored."""
        return self.initial(variant, seed, moved=True).eval()

    def task(self, variant: str, *of: int, probes: tuple[str, ...] = (), file: Path | None = None, **train: Any) -> Task:
        """Keywords change how it was trained."""
        file, settings = file or self.file(variant), self.settings[variant]
        settings = settings.model_copy(update={"train": settings.train.model_copy(update=train)})
        return Task(variant, settings, of, probes, "cpu", file, self.arrays, file.with_suffix(""))

    def measure(self, variant: str, *of: int, **options: Any) -> Any:
        return measure(self.task(variant, *of, **options))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, arrays: Path, raw_params: dict[str, Any]) -> Lab:
    raw = raw_params | {
        "data": {"dataset": "digits"}, "train": raw_params["train"] | {"seeds": SEEDS, "epochs": 1},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "memory": 2}, "variants": MODELS, "experiments": {}, "claims": {},
    }  # fmt: skip
    return Lab(tmp_path_factory.mktemp("runs"), arrays, params.parse(raw))


@torch.no_grad()
def answers(module: Any, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and predictions of images (image, row, column), by torch's own cross-entropy."""
    logits = module(torch.from_numpy(images)[:, None].float() / 255)
    return float(cross_entropy(logits, torch.from_numpy(labels).long())), logits.argmax(1).numpy()


def test_losses_and_predictions(lab: Lab) -> None:
    """In the order in which the task names the seeds, which need not be that of the weights."""
    for variant in ("tiny", "net"):
        found = lab.measure(variant, 7, 4)
        assert (list(found.columns), list(found.arrays), list(found.shared)) == ([], ["predictions"], ["labels"])
        predictions = found.arrays["predictions"]
        assert (predictions.dtype, predictions.shape) == (np.uint8, (2, found.num_tests))
        assert np.array_equal(found.accuracies, (predictions == lab.data.test_labels).mean(1))
        for row, seed in enumerate((7, 4)):
            loss, expected = answers(lab.stored(variant, seed), lab.data.test_images, lab.data.test_labels)
            assert found.losses[row] == pytest.approx(loss, rel=1e-5)
            assert (predictions[row] == expected).mean() > 0.99


def test_held_out_images_are_the_last_training_images(lab: Lab) -> None:
    found = lab.measure("net", 2, 7, validation=123).columns
    assert list(found) == ["validation_loss", "validation_accuracy"]
    images, labels = lab.data.train_images[-123:], lab.data.train_labels[-123:]
    for row, seed in enumerate((2, 7)):
        loss, predictions = answers(lab.stored("net", seed), images, labels)
        assert found["validation_loss"][row] == pytest.approx(loss, rel=1e-5)
        assert found["validation_accuracy"][row] == pytest.approx((predictions == labels).mean(), abs=1.1 / 123)


def test_accuracy_under_shifts(lab: Lab) -> None:
    found, labels = lab.measure("net", 4, probes=("shifts",)).columns, lab.data.test_labels
    assert list(found) == [f"shift_{distance}" for distance in (1, 2, 3, 4)]
    module, padded = lab.stored("net", 4), np.pad(lab.data.test_images, ((0, 0), (4, 4), (4, 4)))
    for distance in (1, 4):
        accuracies = []
        for down, right in ((-distance, 0), (distance, 0), (0, -distance), (0, distance)):
            images = padded[:, 4 - down : 32 - down, 4 - right : 32 - right]
            accuracies.append((answers(module, images, labels)[1] == labels).mean())
        assert found[f"shift_{distance}"] == pytest.approx(np.mean(accuracies), abs=1e-9)
    images = torch.tensor([[[1, 2], [3, 4]]])
    assert shift(images, 1, 0).tolist() == [[[0, 0], [1, 2]]]
    assert shift(images, 0, -1).tolist() == [[[2, 0], [4, 0]]]


@pytest.mark.parametrize(("optimizer", "steps"), [("sgd", 10), ("radam", 1)])
def test_changes_of_weights_in_the_first_steps(lab: Lab, optimizer: Any, steps: int) -> None:
    """Plain SGD's, and RAdam's first, are the learning rate times the gradient, whose norm the trace of a training has."""
    task = lab.task("net", 4, 7, optimizer=optimizer, learning_rate=0.1)
    found = first_changes(task, lab.data, CPU)
    for i, seed in enumerate((4, 7)):
        trainer = Trainer(task.settings, lab.data, [seed], CPU)
        trainer.run_steps(steps)
        size = sum(value.numel() for value in trainer.stack.parameters)
        expected = 0.1 * trainer.trace.gradient_norm[0, :steps].double().numpy() / np.sqrt(size)
        assert [found[f"change_{step}"][i] for step in range(1, steps + 1)] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_accuracy_at_other_sizes(lab: Lab, position: str) -> None:
    """By timm's interpolation and a forward pass that is put together from the parts of the trained network."""
    found, images = lab.measure(position, 7, probes=("sizes",)).columns, torch.from_numpy(lab.data.test_images)
    assert list(found) == ["size_20", "size_24", "size_32", "size_36", "size_40", "rows_1", "rows_2", "rows_4", "rows_7"]
    module = lab.stored(position, 7)
    own = torch.zeros(50, 32) if module.position is None else module.position  # of the class token and 49 patches
    continued = {
        "none": torch.zeros(99, 32),
        "sinusoidal": sinusoidal_table(99, 32),
        "sincos2d": torch.cat([torch.zeros(1, 32), sincos2d_table(14, 32).reshape(14, 14, 32)[:, :7].reshape(98, 32)]),
        "learned": torch.cat([own, *[own[-7:]] * 7]),
    }[position]
    cases = {f"rows_{rows}": (images, rows, continued[: 50 + 7 * rows]) for rows in (1, 7)}
    for size, grid in ((20, 5), (40, 10)):
        scaled = resample_abs_pos_embed(own[None], [grid, grid], interpolation="bilinear", antialias=False)
        cases[f"size_{size}"] = (scale(images, size), 0, scaled)
    for column, (pictures, rows, vectors) in cases.items():
        with torch.no_grad():
            patches = module.embedding(pictures[:, None] / 255)
            empty = module.embedding(torch.zeros(1, 1, 28, 28))[:, :1].expand(len(patches), 7 * rows, -1)
            parts = [module.cls_token.expand(len(patches), 1, -1), patches, empty]
            logits = module.head(module.blocks(torch.cat(parts, 1) + vectors)[:, 0])
        assert found[column][0] == pytest.approx((logits.argmax(1).numpy() == lab.data.test_labels).mean(), abs=2 / 360)


@pytest.mark.parametrize("size", [20, 40])
def test_scaling_is_that_of_pillow(lab: Lab, size: int) -> None:
    images = lab.data.test_images[:5]
    scaled = scale(torch.from_numpy(images), size)
    assert (scaled.shape, scaled.dtype) == ((5, size, size), torch.float32)
    assert torch.equal(scale(torch.from_numpy(images)[:, None], size)[:, 0], scaled)
    for image, ours in zip(images, scaled, strict=True):
        theirs = Image.fromarray(image.astype(np.float32)).resize((size, size), Image.Resampling.BILINEAR)
        assert ours.numpy() == pytest.approx(np.asarray(theirs), abs=1e-3)


def test_attention_of_each_seed(lab: Lab) -> None:
    found, data, model = lab.measure("tiny", 4, 7, probes=("attention",)), lab.data, lab.settings["tiny"].model
    digits = data.test_images[[list(data.test_labels).index(digit) for digit in range(10)]]
    for i, seed in enumerate((4, 7)):
        module = lab.stored("tiny", seed)
        columns, maps, rollout = attention.probe(module, model, data.test_images, data.test_labels, digits)
        assert {name: column[i] for name, column in found.columns.items()} == columns
        assert np.array_equal(found.arrays["rollout"][i], rollout)
        if i == 0:
            assert np.array_equal(found.shared["maps"], maps)
            assert np.array_equal(found.shared["filters"], module.embedding.project.weight.detach().double())


@pytest.mark.parametrize("variant", ["moved", "rows"])
def test_gradients_of_each_seed_at_both_ends(lab: Lab, variant: str) -> None:
    images, labels = lab.data.test_images[:256], lab.data.test_labels[:256]

    def probed(module: Any) -> dict[str, float]:
        if variant == "rows":
            return {"state_gradient": recurrence.log_ratio(recurrence.state_gradients(module, images, labels))}
        return saturation.measure(module, lab.settings[variant].model, images, labels)

    for seed in (7, 4):
        found = lab.measure(variant, seed, probes=("recurrence" if variant == "rows" else "saturation",)).columns
        start, end = probed(lab.initial(variant, seed)), probed(lab.initial(variant, seed, moved=True))
        assert start != end
        assert {name: column[0] for name, column in found.items()} == {f"{name}_start": value for name, value in start.items()} | end


def test_position_vectors_against_the_tables(lab: Lab) -> None:
    """The weights of these runs are the initial ones: nothing was added to them. What is added by hand is found."""
    found, model = lab.measure("tiny", 7, 4, probes=("positions",)), lab.settings["tiny"].model
    assert (found.arrays["positions"].dtype, found.arrays["positions"].shape) == (np.float32, (2, 5, 32))
    grid = [sincos2d_table(2, 32).numpy(), sinusoidal_table(5, 32).numpy()[1:]]  # the second has a place for the class token
    for column, table in (("positions_2d", grid[0]), ("positions_1d", grid[1])):
        expected = [table_correlation(vectors[1:], table) for vectors in found.arrays["positions"].astype(np.float64)]
        assert found.columns[column] == pytest.approx(expected)
    assert found.columns["position_changes_1d"].tolist() == found.columns["position_changes_2d"].tolist() == [0.0, 0.0]
    moved = found.arrays["positions"].astype(np.float64) + 0.1 * sinusoidal_table(5, 32).double().numpy()
    moved[1] = np.nan
    columns = position_columns(model, (7, 4), moved)
    assert columns["position_changes_1d"][0] == pytest.approx(1.0)
    assert np.isnan([column[1] for column in columns.values()]).all()
    fixed = model.model_copy(update={"position": "sinusoidal"})
    assert position_columns(fixed, (7,), sinusoidal_table(5, 32).double().numpy()[None])["positions_1d"] == pytest.approx([1.0])
    assert list(position_columns(fixed, (7,), moved[:1])) == ["positions_1d", "positions_2d"]


def test_the_trace_of_each_seed_in_the_order_of_the_task(lab: Lab) -> None:
    """Seven losses of 2 among twenty fall to five at step 22; one that never falls is censored after the 12 steps of the digits' epoch."""
    found = lab.measure("net", 7, 4, 2, probes=("trace",)).columns
    assert {name: column.tolist() for name, column in found.items()} == {"loss_spikes": [1, 0, 0], "steps_to_loss": [20, 22, 13]}
    task = lab.task("net", 4, 2, self_critical_epochs=1)  # whose steps' loss is none of these
    assert inference.trace_columns(task)["steps_to_loss"].tolist() == [13, 13]


def test_without_shared_memory_one_process_finds_the_same(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose /dev/shm is read-only or full there are no locks between processes."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    here, gone, broken = lab.task("tiny", 4), lab.task("tiny", 4, file=tmp_path / "gone"), lab.task("tiny", 4, probes=("trace",))
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    monkeypatch.setattr(inference, "trace_columns", refuse)  # as a full memory would
    found = dict(inference.run([broken, here, gone], 2))
    assert isinstance(found[gone], UserError)
    assert "Read-only file system" in str(found[broken])
    assert np.array_equal(found[here].arrays["predictions"], measure(here).arrays["predictions"])
