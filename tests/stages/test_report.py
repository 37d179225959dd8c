"""The report stage on files as the earlier stages leave them: every number on a page against the files themselves."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from scipy import stats

from pipeline.errors import UserError
from pipeline.evaluation.evaluate import summarize, summarize_votes
from pipeline.evaluation.records import Evaluation, Records
from pipeline.measures.definitions import SHIFTS, SIZES
from pipeline.params import ModelSettings, Params, load, parse
from pipeline.report import pages
from pipeline.runner import results
from pipeline.stages import report
from pipeline.study.claims import PRECEDENCE
from pipeline.study.results import load_current
from pipeline.study.statistics import hierarchical_bootstrap

pytestmark = pytest.mark.usefixtures("drawn_once")

REPOSITORY = Path(__file__).parents[2]
IMAGES = 500  # test images of a made-up study


def _positions(model: ModelSettings, rng: np.random.Generator) -> np.ndarray:
    """(tokens, dim): what the model adds; a learned table is drawn at random and smoothed a little over the grid."""
    grid, dim = model.grid, model.dim
    if model.position == "none":
        return np.zeros((0, 0))
    if model.position == "sinusoidal":
        angle = np.arange(model.num_tokens)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
        return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(model.num_tokens, dim)
    if model.position == "sincos2d":
        angle = np.arange(grid)[:, None] / 10000 ** (np.arange(dim // 4) / (dim // 4))
        half = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
        table = np.concatenate([np.repeat(half, grid, axis=0), np.tile(half, (grid, 1))], axis=1)
    else:
        noise = rng.normal(size=(grid + 2, grid + 2, dim))
        table = (noise[1:-1, 1:-1] + 0.5 * (noise[:-2, 1:-1] + noise[2:, 1:-1] + noise[1:-1, :-2] + noise[1:-1, 2:])).reshape(-1, dim)
    return np.concatenate([np.zeros((int(model.has_cls), dim)), table])


def _digits() -> np.ndarray:
    """(10, 28, 28) uint8: scikit-learn's first image of each digit, enlarged."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = [bunch.images[bunch.target == digit][0] * (255 / 16) for digit in range(10)]
    return np.stack([np.asarray(Image.fromarray(image.astype(np.uint8)).resize((28, 28), Image.Resampling.BICUBIC)) for image in small])


def _attention(model: ModelSettings, seeds: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Made-up attention that follows the ink, as the evaluate stage stores it."""
    images = _digits()
    tokens, patch = model.num_tokens, model.patch
    ink = images.reshape(10, model.grid, patch, model.grid, patch).mean((2, 4)).reshape(10, -1) / 255
    scores = np.concatenate([np.zeros((10, int(model.has_cls))), 2 * ink], axis=1)[:, None, None, None, :]
    scores = scores + rng.normal(0, 1, (10, model.blocks, model.heads, tokens, tokens))
    weights = np.exp(scores)
    rollout = np.exp(scores.mean(axis=(1, 2, 3)))[None] * np.exp(rng.normal(0, 0.2, (seeds, 10, tokens)))
    return {
        "images": images, "image_labels": np.arange(10, dtype=np.uint8),
        "maps": (weights / weights.sum(-1, keepdims=True))[:, :, :, 0].astype(np.float16),
        "rollout": (rollout / rollout.sum(-1, keepdims=True)).astype(np.float32), "has_cls": np.array(int(model.has_cls)),
    }  # fmt: skip


def _floor(params: Params, variant: str) -> float:
    """The share of wrong answers that a made-up training ends near."""
    settings = params.resolve(variant)
    if settings.train.train_images is not None:
        return 1.2 / math.sqrt(settings.train.train_images) + (0.0 if settings.model.architecture == "cnn" else 0.02)
    floors = {
        "patch-14": 0.06, "no-position": 0.045, "no-residual": 0.15, "no-norm": 0.5, "mlp": 0.06, "rnn": 0.05, "best": 0.008, "cnn": 0.012,
    }  # fmt: skip
    return floors.get(variant, 0.03)


def write_run(root: Path, params: Params, variant: str, *, diverged: int = 0) -> None:
    """What train and evaluate leave of one variant, made up and drawn from its name; the first `diverged` seeds' losses end as NaN."""
    settings = params.resolve(variant)
    rng = np.random.default_rng(list(hashlib.sha256(variant.encode()).digest()))
    seeds, epochs, model = settings.train.seeds, settings.train.epochs, settings.model
    directory = root / "runs" / variant
    directory.mkdir(parents=True)
    floor = _floor(params, variant)
    pace = {"patch-14": 2.0, "patch-7": 3.0, "patch-2": 21.0, "cls-loop": 8.0}.get(variant, 6.5)
    rows, right = [], []
    for i, seed in enumerate(seeds):
        luck = rng.normal(0, 0.003)
        for epoch in range(1, epochs + 1):
            lost = i < diverged and epoch > epochs // 3
            error = min(0.9, 0.9 if lost else floor + luck + 0.09 / epoch**1.3 + abs(rng.normal(0, 0.0025)))
            correct = round((1 - error) * IMAGES)
            train_loss = math.nan if lost else 3.2 * (floor * 0.9 / epoch**0.35 + 0.12 / epoch)
            test_loss = math.nan if lost else 3.3 * error * rng.uniform(0.95, 1.05)
            norm = math.inf if lost else rng.uniform(0.5, 0.7) + 1 / epoch
            rows.append((seed, epoch, train_loss, test_loss, correct / IMAGES, norm, pace * rng.uniform(0.97, 1.06)))
        right.append(correct)
    tokens = model.num_tokens if isinstance(model, ModelSettings) else 20
    results.write_run(
        directory,
        {
            "training_id": "0" * 32, "variant": variant, "stage": f"train@{variant}", "config": settings.model_dump(mode="json"),
            "config_hash": settings.config_hash, "code_hash": "c" * 64, "data_digest": "d" * 64, "dataset": settings.data.dataset,
            "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False, "device": "cpu",
            "device_name": "Some Processor (2 cores)", "attention": "fused-cpu" if isinstance(model, ModelSettings) else "none",
            "versions": {"python": "3.11.2", "torch": "2.15.0", "numpy": "2.4.0", "numba": "0.61"}, "seeds": list(seeds),
            "started": "2026-01-02T03:04:05Z", "finished": "2026-01-02T03:09:05Z", "epochs": rows,
            "metrics": {"n": len(seeds), "diverged": diverged, "parameters": 20000 + 50 * tokens, "flops": 9000 * tokens},
        },
    )  # fmt: skip
    _write_evaluation(root, params, variant, np.array(right), rng)


def _write_evaluation(root: Path, params: Params, variant: str, right: np.ndarray, rng: np.random.Generator) -> None:
    settings = params.resolve(variant)
    seeds, model = settings.train.seeds, settings.model
    labels = (np.arange(IMAGES) % 10).astype(np.uint8)
    hard = np.random.default_rng(7).permutation(IMAGES)  # the same images are hard for all
    predictions = np.tile(labels, (len(seeds), 1))
    for row, correct in zip(predictions, right, strict=True):
        order = hard[np.argsort(np.arange(IMAGES) + rng.normal(0, 15, IMAGES))]
        wrong = order[: IMAGES - correct]
        row[wrong] = (labels[wrong] + 1) % 10
    columns: dict[str, np.ndarray] = {}
    arrays: dict[str, Any] = {
        "labels": labels,
        "predictions": predictions,
        "seeds": np.array(seeds),
        "positions": np.zeros((len(seeds), 0, 0), np.float32),
    }
    if isinstance(model, ModelSettings):
        arrays["positions"] = np.stack([_positions(model, rng) for _ in seeds]).astype(np.float32)
    if variant in params.probed("shifts"):
        fall = 0.02 if model.architecture == "cnn" else 0.05
        for pixels in SHIFTS:
            columns[f"shift_{pixels}"] = np.clip(right / IMAGES - fall * pixels**1.5 + rng.normal(0, 0.005, len(seeds)), 0, 1)
    if variant in params.probed("sizes"):
        for size in SIZES:
            columns[f"size_{size}"] = np.clip(right / IMAGES - 0.01 * abs(size - 28) + rng.normal(0, 0.005, len(seeds)), 0, 1)
    if variant in params.probed("attention"):
        assert isinstance(model, ModelSettings)
        columns["attention_entropy"] = rng.normal(2.5, 0.1, len(seeds))
        columns["ink_correlation"] = rng.normal(0.3, 0.1, len(seeds))
        arrays |= _attention(model, len(seeds), rng)
    metrics = summarize(np.full(len(seeds), 0.1), right / IMAGES) | summarize_votes(predictions, labels)
    evaluation = Evaluation(INPUTS, {name: column.tolist() for name, column in columns.items()}, metrics)
    _records(root).write(variant, arrays, evaluation)


def _records(root: Path) -> Records:
    return Records(arrays=root / "data/arrays", runs=root / "runs", predictions=root / "predictions", tables=root / "tables")


def write_tables(root: Path) -> None:
    """The tables of all trainings, as the evaluate stage writes them."""
    _records(root).write_tables({path.name: INPUTS for path in sorted((root / "runs").iterdir())})


def rows_of(root: Path, table: str, variant: str) -> list[dict[str, str]]:
    """Read anew with the csv module, apart from the code under test."""
    with (root / "tables" / table).open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["variant"] == variant]


def write_study(root: Path, seeds: int, epochs: int, *, left_out: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """The real params.yaml with other seeds, epochs and `changes`, and runs of all variants but those left out. Returns it raw."""
    raw: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    raw["train"] |= {"seeds": list(range(seeds)), "epochs": epochs}
    raw |= changes
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    params = parse(raw)
    for variant in params.variants:
        if variant not in left_out:
            write_run(root, params, variant, diverged={"no-norm": 3, "sgd": seeds}.get(variant, 0))
    write_tables(root)
    return raw


def write_dataset(root: Path) -> None:
    (root / "data/arrays").mkdir(parents=True)
    shape = {"shape": [60000, 28, 28]}
    (root / "data/arrays/dataset.json").write_text(
        json.dumps({
            "name": "mnist", "arrays": {"train_images": shape, "test_images": {"shape": [10000, 28, 28]}},
            "class_counts": {"train": [6000 + i for i in range(10)], "test": [1000 + i for i in range(10)]},
            "pixel_mean": 0.13066, "pixel_std": 0.30811, "digest": "d" * 64,
        })
    )  # fmt: skip
    (root / "reports/data").mkdir(parents=True)
    Image.new("L", (8, 8)).save(root / "reports/data/samples.png")
    (root / "reports/scenes").mkdir()
    (root / "reports/scenes/README.md").write_text("[All results](../README.md)\n")  # the scenes stage writes it


SMALL: dict[str, Any] = {
    "variants": {"base": {}, "sinusoidal": {"position": "sinusoidal"}, "patch-7": {"patch": 7}},
    "experiments": {
        "one": {
            "title": "One", "question": "Is it?", "source": "thesis, 4.2", "baseline": "base", "variants": ["base", "sinusoidal"],
            "labels": {"sinusoidal": "a | b"}, "figures": ["position_similarity"], "claims": ["T1", "T2"],
        },
        "two": {"title": "Two", "question": "Is it?", "source": "code", "baseline": "base",
                "variants": ["patch-7", "base"], "figures": []},
    },
}  # fmt: skip

SMALL_OTHER: dict[str, Any] = {"variants": {"other": {}, "another": {"dropout": 0.1}}, "experiments": {}, "claims": {}}
INPUTS = {"weights": ""}  # none were made

# Every kind of figure; variants with epochs and networks of their own, seeds that diverge, one that was not trained.
_FIGURES = {
    "positions": ["epoch_time", "position_similarity"], "stability": ["curves"], "schedules": ["measure"], "networks": ["shifts"],
    "lengths": ["sizes"], "data-size": ["data_size"], "attention-maps": ["attention_maps"], "best": ["curves"],
}  # fmt: skip


def _chosen(raw: dict[str, Any]) -> dict[str, Any]:
    experiments = {name: raw["experiments"][name] | {"figures": figures} for name, figures in _FIGURES.items()}
    experiments["attention-maps"] |= {"variants": ["base", "heads-1"], "labels": {"heads-1": "1 head"}}
    named = {variant for experiment in experiments.values() for variant in experiment["variants"]}
    variants = {name: change for name, change in raw["variants"].items() if name in named}
    variants["best"] = variants["best"] | {"epochs": 24}
    return {"experiments": experiments, "variants": {**variants, "nowhere": {"blocks": 2}}}


@pytest.fixture(scope="module")
def full_study(tmp_path_factory: pytest.TempPathFactory, drawn_once: dict[tuple[str, str, bool], bytes]) -> Path:
    """Half of the real experiments, ten seeds and twelve epochs of their variants but one, and their report."""
    root = tmp_path_factory.mktemp("full")
    raw = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    for difference in raw["variants"].values():
        difference.pop("seeds", None)
    chosen = _chosen(raw)
    write_study(root, seeds=10, epochs=12, left_out=("rnn",), images_shown=12 * 60_000, **chosen)
    write_dataset(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write_pages()
    return root


@pytest.fixture
def small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_study(tmp_path, seeds=3, epochs=4, **SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pages() -> None:
    """What the stage does before it completes MLflow, which would take most of the time."""
    params = load()
    pages.write(params, load_current(params).trainings)


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / "reports").rglob("*")) if path.is_file()}


def edit(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))


def column(root: Path, variant: str, name: str, epoch: int | None = None) -> np.ndarray:
    """(seeds,) of an epoch, the last if none is given."""
    rows = rows_of(root, "epochs.csv", variant)
    wanted = epoch or max(int(row["epoch"]) for row in rows)
    return np.array([float(row[name]) for row in rows if int(row["epoch"]) == wanted])


def read(root: Path, page: str) -> str:
    """A page with ASCII minus signs and plain spaces."""
    return (root / "reports" / page).read_text().replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")


def table(page: str, header: str, key: int = 0) -> dict[str, list[str]]:
    """The rows of the tables whose header line holds `header`, by one of their cells, that one left out."""
    lines = page.replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ").splitlines()
    rows = {}
    for start in [i for i, line in enumerate(lines) if line.startswith("|") and header in line]:
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows[cells.pop(key)] = cells
    assert rows
    return rows


def ends(cell: str) -> list[float]:
    return [float(end) for end in cell.split(" to ")]


# --- experiments ---


def test_numbers_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    page = read(full_study, "experiments/positions.md")
    means, paired = table(page, "min to max"), table(page, "| difference |")
    labels = {
        "base": "learned (baseline)", "position-std": "learned, started small", "sinusoidal": "sinusoidal", "sincos2d": "2-D sinusoidal",
        "no-position": "none",
    }  # fmt: skip
    baseline = column(full_study, "base", "test_accuracy")
    raw = {}
    for variant, label in labels.items():
        accuracy = column(full_study, variant, "test_accuracy")
        low, high = stats.t.interval(0.95, 9, loc=accuracy.mean(), scale=stats.sem(accuracy))
        assert means[label] == [
            "10", "0", f"{100 * accuracy.mean():.2f}", f"{100 * accuracy.std(ddof=1):.2f}",
            f"{100 * accuracy.min():.2f} to {100 * accuracy.max():.2f}", f"{100 * low:.2f} to {100 * high:.2f}",
        ]  # fmt: skip
        if variant == "base":
            assert label not in paired
            continue
        interval = stats.ttest_rel(accuracy, baseline).confidence_interval(0.95)
        assert float(paired[label][0]) == pytest.approx(100 * (accuracy - baseline).mean(), abs=0.00501)
        assert ends(paired[label][1]) == pytest.approx([100 * interval.low, 100 * interval.high], abs=0.00501)
        raw[label] = stats.permutation_test(
            (accuracy, baseline),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            n_resamples=np.inf,
            vectorized=True,
        ).pvalue
    running = 0.0
    for rank, label in enumerate(sorted(raw, key=lambda name: raw[name])):
        running = max(running, min(1.0, (len(raw) - rank) * raw[label]))
        assert float(paired[label][3]) == pytest.approx(running, abs=0.000501)


def test_the_interval_over_seeds_and_images_is_of_the_predictions(full_study: Path) -> None:
    paired = table(read(full_study, "experiments/positions.md"), "| difference |")["none"]
    right = []
    for variant in ("no-position", "base"):
        with np.load(full_study / f"predictions/{variant}.npz") as arrays:
            right.append(arrays["predictions"] == arrays["labels"])
    interval = hierarchical_bootstrap(*right)
    assert interval is not None
    assert ends(paired[2]) == pytest.approx([100 * interval.low, 100 * interval.high], abs=0.00501)
    narrow, wide = ends(paired[1]), ends(paired[2])
    assert wide[1] - wide[0] > narrow[1] - narrow[0]  # other images add to the spread


def test_losses_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/positions.md"), "train loss")
    train, test, base = (
        column(full_study, v, c) for v, c in (("no-position", "train_loss"), ("no-position", "test_loss"), ("base", "test_loss"))
    )
    low, high = stats.ttest_rel(test, base).confidence_interval(0.95)
    assert [float(cell) for cell in rows["none"][:5]] == pytest.approx(
        [train.mean(), train.std(ddof=1), test.mean(), test.std(ddof=1), (test - base).mean()], abs=5.1e-5
    )
    assert ends(rows["none"][5]) == pytest.approx([low, high], abs=5.1e-5)


def test_an_experiments_own_measure_has_a_table_with_paired_differences(full_study: Path) -> None:
    page = read(full_study, "experiments/schedules.md")
    rows = table(page, "| unsteadiness |")
    values, epochs = {}, np.arange(10)
    for variant in ("base", "linear"):
        accuracy = np.array([float(row["test_accuracy"]) for row in rows_of(full_study, "epochs.csv", variant)]).reshape(10, 12)
        squares = [np.polyfit(epochs, row[-10:], 1, full=True)[1][0] for row in accuracy]  # of the residuals
        values[variant] = np.sqrt(np.array(squares) / 8)
    difference = values["linear"] - values["base"]
    low, high = stats.ttest_rel(values["linear"], values["base"]).confidence_interval(0.95)
    shown = rows["pre, linear"]
    assert shown[0] == "10"
    assert float(shown[1]) == pytest.approx(100 * values["linear"].mean(), abs=5.1e-4)
    assert float(shown[4]) == pytest.approx(100 * difference.mean(), abs=5.1e-4)
    assert ends(shown[5]) == pytest.approx([100 * low, 100 * high], abs=5.1e-4)
    assert 0 < float(shown[6]) <= 1
    assert rows["pre, constant (baseline)"][4] == "baseline"
    assert "its last 10 epochs" in page


def test_seeds_that_diverged_are_counted_and_left_out_where_they_have_no_number(full_study: Path) -> None:
    page = read(full_study, "experiments/stability.md")
    assert table(page, "min to max")["no norm"][:2] == ["10", "3"]
    assert table(page, "min to max")["base (baseline)"][:2] == ["10", "0"]
    assert "3 of its 10 seeds diverged" in page
    loss = table(page, "train loss")["no norm"]
    finite = column(full_study, "no-norm", "test_loss")
    assert np.isnan(finite).sum() == 3
    assert float(loss[2]) == pytest.approx(np.nanmean(finite), abs=5.1e-5)
    assert loss[4:] == ["-", "-"]
    assert "The loss of some seeds of no norm is not finite" in page
    assert "Losses that are not finite are left out (no norm, 3 of 10 seeds)" in page
    rows = table(read(full_study, "README.md"), "| place |", key=1)
    assert (rows["no-norm"][2], rows["base"][2]) == ("10, 3 diverged", "10")


def test_what_was_not_run_is_said_and_stops_nothing(full_study: Path) -> None:
    page = read(full_study, "experiments/networks.md")
    assert "**Not run: rnn.**" in page
    assert table(page, "min to max")["RNN"][0] == "not run"
    assert "RNN" not in table(page, "| difference |")
    assert "How RNN does: it was not run." in page
    verdicts = {first[1:3]: cells for first, cells in table(read(full_study, "README.md"), "what would decide it").items()}
    assert verdicts["K5"][1] == "**not run**"
    assert "rnn" in verdicts["K5"][3]
    assert verdicts["T3"][1] == "**not run**"  # of no variant of this study
    readme = read(full_study, "README.md")
    assert re.search(r"^\d+ claims: .*\d+ not run", readme, flags=re.MULTILINE)
    variants = len(yaml.safe_load((full_study / "params.yaml").read_text())["variants"])
    assert f"Of {variants} variants {variants - 1} were trained" in readme
    rows = table(readme, "| place |", key=1)
    assert rows["rnn"][0] == "-"
    assert rows["rnn"][2] == "not run"


def test_without_its_baseline_an_experiment_shows_what_there_is(small_study: Path) -> None:
    shutil.rmtree(small_study / "runs/base")
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Not run: base.**" in page
    assert "has nothing to be compared with, as base was not run" in page
    assert "| difference |" not in page
    assert "one-position-similarity.png" in page
    assert "### T1: not run" in page
    shutil.rmtree(small_study / "runs/sinusoidal")
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "None of its variants was run yet." in page
    assert "<picture>" not in page


def test_without_predictions_intervals_over_images_and_position_figures_are_missing_and_told(small_study: Path) -> None:
    shutil.rmtree(small_study / "predictions")
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "seeds and images" not in page
    assert "Without `predictions/` there is no interval over test images" in page
    assert "one-position-similarity" not in page
    assert "### T2: not run" in page


def test_settings_tell_what_differs_and_no_more(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/networks.md"), "differs from the base by")
    assert rows["CNN"][0] == "architecture: cnn, widths: [12, 26]"
    assert rows["CNN"][1:3] == ["720,000", "-"]  # no tokens
    assert rows["ViT (baseline)"][:3] == ["the base itself", "720,000", "50"]
    best = table(read(full_study, "experiments/best.md"), "differs from the base by")["best"][0]
    assert {"epochs: 24", "schedule: cosine", "augment: affine", "dim: 64"} <= set(best.split(", "))
    assert "heads: 8" not in best  # the base has as many
    assert "for 12 epochs unless Table 1 says otherwise" in read(full_study, "experiments/best.md")
    assert "for 12 epochs. A seed" in read(full_study, "experiments/stability.md")


def test_a_shorter_difference_to_the_baseline_is_the_one_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    lab = raw["experiments"]["lab"]
    write_study(tmp_path, seeds=2, epochs=4, experiments={"lab": lab}, variants={name: raw["variants"][name] for name in lab["variants"]})
    monkeypatch.chdir(tmp_path)
    write_pages()
    rows = table(read(tmp_path, "experiments/lab.md"), "differs from the base by")
    assert rows["16 patches"][0] == "as lab, but patch: 7"
    assert rows["base, ReLU"][0] == "activation: relu"
    assert "patch: 14" in rows["4 patches (baseline)"][0]


def test_a_difference_is_denied_with_its_bound_only(full_study: Path) -> None:
    seen = 0
    for page in (full_study / "reports/experiments").glob("*.md"):
        text = read(full_study, f"experiments/{page.name}")
        assert text.count("no detectable difference") == len(re.findall(r"no detectable difference of \d+\.\d\d points or more", text))
        for bound, low, high in re.findall(
            r"no detectable difference of ([\d.]+) points or more from .+? \([^,]+ points, 95 % interval (\S+) to (\S+)\)", text
        ):
            assert float(low) < 0 < float(high)
            assert float(bound) == pytest.approx(max(abs(float(low)), float(high)), abs=0.0101)
            assert float(bound) >= max(abs(float(low)), float(high)) - 1e-9
            seen += 1
    assert seen > 3


def test_claims_show_every_comparison_its_rule_and_what_would_decide_it(full_study: Path) -> None:
    page = read(full_study, "experiments/schedules.md")
    claims = yaml.safe_load((full_study / "params.yaml").read_text())["claims"]
    section = page.split("### K1: ")[1].split("\n### ")[0].split("\n## ")[0]
    rows = table(section, "effect [95 % interval]")
    assert len(rows) == len(claims["K1"]["comparisons"])
    assert next(iter(rows)) == "pre, warm-up and linear - pre, linear, accuracy"
    effect, n, rule, p, verdict, because = rows["pre, linear - pre, constant, accuracy"]
    difference = stats.ttest_rel(column(full_study, "linear", "test_accuracy"), column(full_study, "base", "test_accuracy"))
    low, high = (100 * end for end in difference.confidence_interval(0.95))
    assert f"[{low:+.2f} to {high:+.2f}]" in effect
    assert (n, rule) == ("10", "b")
    assert 0 < float(p) <= 1
    assert verdict in ("supported", "contradicted", "not decided", "not settled")
    assert ("seeds" in because) == (verdict == "not decided")
    assert re.search(r"^- rule a: .*within ±0\.5 points", section, flags=re.MULTILINE)
    assert re.search(r"^- rule b: .*above 0", section, flags=re.MULTILINE)
    assert claims["K1"]["measured"] in section
    assert claims["K1"]["margin"] in section


# --- the first page ---


def test_every_variant_stands_once_with_its_place_by_mean(full_study: Path) -> None:
    raw = yaml.safe_load((full_study / "params.yaml").read_text())
    readme = read(full_study, "README.md")
    lines = re.findall(r"^\| (\d+|-) \| ([\w-]+) \|", readme, flags=re.MULTILINE)
    assert sorted(variant for _, variant in lines) == sorted(raw["variants"])
    means = {variant: column(full_study, variant, "test_accuracy").mean() for place, variant in lines if place != "-"}
    order = [variant for _, variant in sorted((int(place), variant) for place, variant in lines if place != "-")]
    assert order == sorted(order, key=lambda variant: -means[variant])
    rows = table(readme, "| place |", key=1)
    assert {v: float(cells[3]) for v, cells in rows.items() if v != "rnn"} == pytest.approx(
        {v: 100 * m for v, m in means.items()}, abs=0.00501
    )
    assert rows["base"][6:] == ["22,500", "450 k"]
    assert readme.index("### Experiment 1") < readme.index("| sincos2d |") < readme.index("### What keeps training stable")
    assert "### In no experiment" in readme
    assert readme.index("### In no experiment") < readme.index("| nowhere |")


def test_claims_come_first_with_verdict_interval_and_link(full_study: Path) -> None:
    readme = read(full_study, "README.md")
    assert readme.index("## The claims") < readme.index("## The variants") < readme.index("## The data") < readme.index("## Provenance")
    raw = yaml.safe_load((full_study / "params.yaml").read_text())
    rows = table(readme, "what would decide it")
    assert [re.match(r"\[([\w-]+)\]", first).group(1) for first in rows] == list(raw["claims"])  # type: ignore[union-attr]
    for first, (sentence, verdict, effect, decided) in rows.items():
        id = first[1 : first.index("]")]
        assert raw["claims"][id]["sentence"] in sentence
        assert verdict in {f"**{one}**" for one in PRECEDENCE}
        if verdict in ("**short run**", "**not settled**"):
            assert effect.startswith("observed: ")
            assert "[" in effect
            assert decided in ("a longer training", "trainings that are shown 3,600,000 images")
        if verdict == "**not decided**":
            assert re.search(r"^about [\d,]+ seeds$|too near|not known|more seeds", decided), decided
        elif verdict in ("**supported**", "**contradicted**"):
            assert decided == "decided"
            assert "[" in effect
    assert "experiments/networks.md#what-it-means" in next(first for first in rows if "K4" in first)


def test_a_claim_follows_the_files(full_study: Path) -> None:
    """T10 by hand: a gain of less than half a point, from the interval."""
    difference = stats.ttest_rel(column(full_study, "sincos2d", "test_accuracy"), column(full_study, "sinusoidal", "test_accuracy"))
    low, high = difference.confidence_interval(0.95)
    expected = "supported" if high < 0.005 else "contradicted" if low > 0.005 else "not decided"
    assert f"### T10: {expected}" in read(full_study, "experiments/positions.md")
    (cells,) = (cells for first, cells in table(read(full_study, "README.md"), "what would decide it").items() if "T10" in first)
    assert cells[1] == f"**{expected}**"
    assert f"[{100 * low:+.2f} to {100 * high:+.2f}]" in cells[2]


def test_a_new_bound_is_judged_without_a_training(small_study: Path) -> None:
    before = {path: path.read_bytes() for path in (small_study / "runs").rglob("*") if path.is_file()}
    difference = abs(column(small_study, "sinusoidal", "test_accuracy") - column(small_study, "base", "test_accuracy")).max()
    edit(small_study, lambda raw: raw.update(images_shown=1))
    for bound, verdict in ((50 * difference + 1, "supported"), (1e-9, "not settled")):
        edit(small_study, lambda raw, bound=bound: raw["claims"]["T3"]["comparisons"][0].update(variant="sinusoidal", bound=float(bound)))
        write_pages()
        page = read(small_study, "README.md")
        assert f"### T3: {verdict}" in page  # no experiment of this study has it
        assert "[T3](#claims-of-no-experiment)" in page
    assert before == {path: path.read_bytes() for path in (small_study / "runs").rglob("*") if path.is_file()}


def test_a_short_run_is_observed_and_not_judged(small_study: Path) -> None:
    """Four epochs of 60,000 images, where the claims speak of 1,800,000."""
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Short runs.** base and a | b were shown fewer than the 1,800,000 training images" in page
    assert re.search(
        r'^- T1, "[^"]+": \*\*short run\*\*, observed: a \| b - base, accuracy: \S+ points \[.+\]; .*interval.*\.$', page, re.MULTILINE
    )
    rows = table(page.split("### T1: short run")[1].split("\n### ")[0], "effect [95 % interval]")
    (accuracy, unsteady) = rows.values()  # four epochs are too few for the second
    for cells, end in ((accuracy, "observed: "), (unsteady, "base: it was trained for fewer than the 12 epochs that unsteadiness takes")):
        assert cells[3] == "short run"
        assert f"shown 240,000 training images, and the claim speaks of 1,800,000; {end}" in cells[4]
    assert "at least 1,800,000 training images each, once their effect has settled; on the first n seeds that all sides have" in page
    assert "that all sides have, with looks at 6, 10 and 20 seeds." in page
    readme = read(small_study, "README.md")
    number = len(load().claims)
    assert f"\n{number} claims: 1 observed on short runs, {number - 1} not run.\n" in readme
    (cells,) = (cells for first, cells in table(readme, "what would decide it").items() if "[T1]" in first)
    assert cells[1] == "**short run**"
    assert cells[2].startswith("observed: sinusoidal - base, accuracy: ")
    assert cells[3] == "trainings that are shown 1,800,000 images"
    for written in (small_study / "reports").rglob("*.md"):
        assert not re.search(
            r"^### \S+: (supported|contradicted|not decided)|\*\*(supported|contradicted|not decided)\*\* \|",
            written.read_text(),
            re.MULTILINE,
        )
    _check_tables(small_study)
    _check_text(small_study)

    edit(small_study, lambda raw: raw.update(images_shown=240_000, looks=[2]))
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "hort run" not in page
    assert table(page.split("### T1: ")[1], "effect [95 % interval]")["a \\| b - base, accuracy"][1] == "2"  # three seeds, a look at two


# --- all pages ---


def _check_links(root: Path) -> None:
    written = list((root / "reports").rglob("*.md"))
    for page in written:
        text = page.read_text()
        targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
        assert targets
        for target in targets:
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page.resolve()
            assert other.is_file(), target
            assert other.is_relative_to((root / "reports").resolve())
            if anchor:
                headings = re.findall(r"^#+ (.+)$", other.read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target
    used = {Path(name).name for page in written for name in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text())}
    assert used == {path.name for path in (root / "reports/experiments/figures").iterdir()}


def _check_tables(root: Path) -> None:
    for page in (root / "reports").rglob("*.md"):
        for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE):
            widths = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
            assert re.fullmatch(r"(\|:?-+:?)+\|", block.splitlines()[1]), block
            assert len(block.splitlines()) > 2, block


def _check_text(root: Path) -> None:
    for page in (root / "reports").rglob("*.md"):
        text = page.read_text()
        for wrong in (
            r"\bnan\b",
            r"\binf\b",
            r"\bNone\b(?! of)",
            "Undefined",
            r" \.\s",
            r"\.\.(?!/)",
            r"\n\n\n\n",
            r"\b1 seeds",
            r"\( ",
            r"\[\]",
        ):
            found = re.search(r".*" + wrong + ".*", text)
            assert not found, f"{page.name}: {found}"
        numbers = [int(number) for number in re.findall(r"^\*Table (\d+)\.", text, flags=re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), page.name
        numbers = [int(number) for number in re.findall(r"^\*Figure (\d+)\.", text, flags=re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), page.name


def test_links_and_pictures_point_to_files_and_headings(full_study: Path) -> None:
    _check_links(full_study)


def test_tables_have_as_many_cells_as_their_header(full_study: Path) -> None:
    _check_tables(full_study)


def test_pages_hold_no_leftovers_and_number_their_tables(full_study: Path) -> None:
    _check_text(full_study)


def test_every_kind_of_figure_is_there_in_both_themes(full_study: Path) -> None:
    folder = full_study / "reports/experiments/figures"
    for name in (
        "stability-curves", "best-curves", "positions-position-similarity", "positions-epoch-time", "schedules-measure",
        "networks-shifts", "lengths-sizes",
        "data-size-data-size", "attention-maps-attention-maps", "attention-maps-attention-maps-heads-base",
        "attention-maps-attention-maps-heads-heads-1",
    ):  # fmt: skip
        light, dark = (np.asarray(Image.open(folder / f"{name}{theme}.png").convert("RGB")) for theme in ("", "-dark"))
        assert light.shape == dark.shape
        assert light.shape[1] > 1000  # some 1.7 times the width of the page
        assert tuple(light[1, 1]) == (255, 255, 255)
        assert tuple(dark[1, 1]) == (13, 17, 23)
        assert light.std() > 5
        assert dark.std() > 5


def test_captions_say_n_and_alternatives_say_numbers(full_study: Path) -> None:
    for page in (full_study / "reports/experiments").glob("*.md"):
        text = page.read_text()
        captions = re.findall(r"^\*Figure \d+\. (.+)\*$", text, flags=re.MULTILINE)
        alternatives = re.findall(r'alt="([^"]+)"', text)
        assert len(captions) == len(alternatives)
        for caption, alternative in zip(captions, alternatives, strict=True):
            assert re.search(r"n = 10|seed 0|mean over 10|Learned vectors", caption), caption
            assert "." in alternative
            assert len(alternative) > 40
    page = read(full_study, "experiments/data-size.md")
    accuracy = 100 * column(full_study, "vit-100", "test_accuracy").mean()
    assert f"ViT from {accuracy:.2f} % with 100 images" in page
    assert "with 60,000 images" in page
    shifts = read(full_study, "experiments/networks.md")
    shifted = 100 * np.mean([float(row["shift_4"]) for row in rows_of(full_study, "seeds.csv", "cnn")])
    assert f"CNN from {100 * column(full_study, 'cnn', 'test_accuracy').mean():.2f} to {shifted:.2f} %" in shifts


def test_provenance_and_hardware_name_commit_digest_device_kernel_and_command(full_study: Path) -> None:
    readme, hardware = read(full_study, "README.md"), read(full_study, "hardware.md")
    for text in ("0123456789abcdef0123456789abcdef01234567", "d" * 64, "dvc repro"):
        assert text in readme
    for text in ("c" * 64, "Some Processor (2 cores)", "torch 2.15.0", "2026-01-02T03:04:05Z"):
        assert text in hardware
        assert text not in readme
    trainings = table(hardware, "started (UTC)")
    assert (trainings["base"][2], trainings["cnn"][2]) == ("fused-cpu", "none")
    assert "rnn" not in trainings
    recorded = [float(row["seconds"]) for row in rows_of(full_study, "epochs.csv", "base")]
    assert float(trainings["base"][5]) == pytest.approx(np.median(recorded), rel=0.005)
    assert float(trainings["base"][6].replace(",", "")) == pytest.approx(sum(recorded), rel=0.005)
    assert "60,000 train and 10,000 test images" in readme
    assert "These are not the data" not in readme
    assert "data/samples.png" in readme


def test_the_glossary_has_the_words_that_the_pages_use(full_study: Path) -> None:
    glossary = read(full_study, "glossary.md").lower()
    used = " ".join(read(full_study, f"experiments/{page.name}") for page in (full_study / "reports/experiments").glob("*.md"))
    for word in (
        "hierarchical bootstrap", "Holm", "short run", "looks",
        "sign-flip", "unsteadiness", "rollout", "nats", "points", "diverged", "ink correlation",
    ):  # fmt: skip
        assert word in used, word
        assert word.lower().replace("-", " ") in glossary.replace("-", " "), word
    for section in ("## Runs", "## Measures", "## Statistics", "## Claims"):
        assert section.lower() in glossary
    terms = re.findall(r"^- \*\*([^*]+)\*\*", glossary, flags=re.MULTILINE)
    assert len(terms) == len(set(terms)) > 25


def test_same_inputs_give_equal_bytes(small_study: Path, drawn_once: dict[tuple[str, str, bool], bytes]) -> None:
    drawn_once.clear()
    write_pages()
    first = contents(small_study)
    assert {name for name in first if name.endswith(".md")} == {
        f"reports/{page}.md" for page in ("README", "hardware", "glossary", "experiments/one", "experiments/two")
    }
    shutil.rmtree(small_study / "reports")
    drawn_once.clear()
    write_pages()
    assert contents(small_study) == first


def test_removed_experiment_and_variant_vanish(small_study: Path) -> None:
    write_pages()
    (small_study / "reports/experiments/kept.txt").write_text("not ours")

    def remove(raw: dict[str, Any]) -> None:
        del raw["experiments"]["two"], raw["variants"]["patch-7"]

    edit(small_study, remove)  # runs/patch-7 is still there: the report reads what params.yaml names
    write_pages()
    after = contents(small_study)
    assert {name for name in after if not name.endswith(".png")} == {
        f"reports/{page}"
        for page in ("README.md", "hardware.md", "glossary.md", "curves.csv", "experiments/one.md", "experiments/kept.txt")
    }
    assert all("/one-" in name for name in after if name.endswith(".png"))
    assert not re.search(rb"^\| \d+ \| patch-7 \|", after["reports/README.md"], flags=re.MULTILINE)


def test_preview_stands_at_the_top_of_every_page(small_study: Path) -> None:
    write_pages()
    assert not any(line.startswith(">") for page in small_study.rglob("*.md") for line in page.read_text().splitlines())
    edit(small_study, lambda raw: raw.update(preview="PREVIEW. Few seeds.\nToo little to settle a claim."))
    write_pages()
    written = list((small_study / "reports").rglob("*.md"))
    assert len(written) == 5
    for page in written:
        lines = page.read_text().splitlines()
        assert lines[0].startswith("# ")
        assert lines[2:4] == ["> PREVIEW. Few seeds.", "> Too little to settle a claim."]


def test_a_profile_is_reproduced_by_its_own_command(small_study: Path) -> None:
    write_pages()
    assert "\ndvc repro\n" in read(small_study, "README.md")
    edit(small_study, lambda raw: raw.update(profile="preview"))
    write_pages()
    for page in ("README.md", "experiments/one.md"):
        text = read(small_study, page)
        assert "\nmake preview\n```" in text
        assert "\ndvc repro\n" not in text


def test_few_seeds_get_no_p_but_are_told_why(small_study: Path) -> None:
    write_pages()
    page = (small_study / "reports/experiments/two.md").read_text()
    assert "cannot fall below 0.25" in page
    assert not re.search(r"\| p \|", page)


def test_one_seed_and_one_epoch_have_neither_interval_nor_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path, seeds=1, epochs=1, images_shown=60_000, **SMALL)
    monkeypatch.chdir(tmp_path)
    write_pages()
    page = (tmp_path / "reports/experiments/one.md").read_text()
    assert table(page, "min to max")["base (baseline)"][5] == "-"
    assert "T1: not decided" in page
    assert "One seed has neither interval nor test" in page
    _check_tables(tmp_path)
    _check_text(tmp_path)


def test_equal_runs_are_called_equal(small_study: Path) -> None:
    epochs = results.read_run(small_study / "runs/base")["epochs"]
    results.write_run(small_study / "runs/patch-7", results.read_run(small_study / "runs/patch-7") | {"epochs": epochs})
    (small_study / "predictions/patch-7.npz").unlink()
    write_tables(small_study)
    write_pages()
    assert "**patch-7**: every seed ends at the same accuracy as base." in (small_study / "reports/experiments/two.md").read_text()


def test_bars_in_labels_do_not_break_tables(small_study: Path) -> None:
    write_pages()
    assert "a \\| b" in table((small_study / "reports/experiments/one.md").read_text(), "min to max")


def test_runs_with_uncommitted_changes_or_several_commits_are_told(small_study: Path) -> None:
    directory = small_study / "runs/sinusoidal"
    results.write_run(directory, results.read_run(directory) | {"git_commit": "f" * 40, "git_dirty": True})
    write_tables(small_study)
    write_pages()
    readme = (small_study / "reports/README.md").read_text()
    assert f"`{'f' * 40}` (sinusoidal)" in readme
    assert "**yes**: the commit alone does not say what ran (sinusoidal)" in readme
    assert "one of several commits" in readme
    assert "no commit holds" in readme
    assert "no commit holds" not in (small_study / "reports/experiments/two.md").read_text()


def test_where_seeds_were_trained_and_replayed_is_told(small_study: Path) -> None:
    directory = small_study / "runs/sinusoidal"
    replay = {"git_commit": "b" * 40, "date": "2026-03-04T05:06:07+00:00", "exact": True}
    trainings = [
        {"seeds": [0, 1], "git_commit": "a" * 40, "replays": [replay]},
        {"seeds": [2], "git_commit": "b" * 40, "replays": []},
    ]
    results.write_run(directory, results.read_run(directory) | {"trainings": trainings})
    write_tables(small_study)
    write_pages()
    told = f"seeds 0, 1 trained at `{'a' * 40}`, replayed at `{'b' * 40}` on 2026-03-04; seeds 2 trained at `{'b' * 40}` (sinusoidal)"
    assert told in (small_study / "reports/README.md").read_text()


# --- faults ---


def _table(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """Another text of a table."""

    def damage(root: Path) -> None:
        path = root / "tables" / name
        path.write_text(change(path.read_text()))

    return damage


def _flip(root: Path) -> None:
    """One bit in the middle of the predictions."""
    path = root / "predictions/sinusoidal.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def _without_last_line(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def _arrays(**changes: Any) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "predictions/sinusoidal.npz"
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        arrays |= changes
        np.savez(path, **{name: value for name, value in arrays.items() if value is not None})

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: shutil.rmtree(root / "tables"), "`dvc repro evaluate` writes tables/ of what is trained."),
        (lambda root: edit(root, lambda raw: raw.update(SMALL_OTHER)), "tables/ has no results of any variant that params.yaml names"),
        (lambda root: (root / "tables/epochs.csv").unlink(), "tables/ is damaged, epochs.csv is missing: run `dvc repro --force"),
        (_flip, "sinusoidal.npz is damaged: run `dvc repro --force --single-item evaluate`."),
        (_table("epochs.csv", lambda text: "no table"), "epochs.csv is not a table with a row per variant"),
        (_table("epochs.csv", _without_last_line), "it has not one row for every seed and epoch"),
        (_table("epochs.csv", lambda text: re.sub(r"(?m)^(base,0,1,[^,]+,[^,]+,)[^,]+", r"\1nan", text)), "not between 0 and 1"),
        (_table("seeds.csv", _without_last_line), "the rows of the variant sinusoidal do not fit together"),
        (_table("seeds.csv", lambda text: text.replace("base,0,", "base,one,")), "the rows of the variant base do not fit together"),
        (_table("variants.csv", lambda text: "variant\nbase\n"), "the rows of the variant base do not fit together"),
        (_table("variants.csv", lambda text: text.replace("flops", "flips")), "base lacks `parameters` or `flops`"),
        (_arrays(predictions=None), "it lacks predictions: run `dvc repro --force --single-item evaluate`"),
        (_arrays(positions=np.zeros((3, 7, 5), np.float32)), "`positions` has the shape (3, 7, 5)"),
        (_arrays(seeds=np.array([4, 5, 6])), "do not fit the seeds of the training"),
        (_arrays(labels=np.full(IMAGES, 9, np.uint8)), "is of another training than runs/sinusoidal: run `dvc repro evaluate`."),
        (
            lambda root: edit(root, lambda raw: raw["train"].update(epochs=9)),
            "runs/base was trained with other settings than params.yaml now has: run `dvc repro`.",
        ),
        (lambda root: edit(root, lambda raw: raw["experiments"]["one"].update(claims=["T99"])), "names 'T99', which claims does not have"),
    ],
)
def test_stale_or_damaged_inputs_are_one_sentence_and_lose_nothing(
    small_study: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    for page in ("README.md", "experiments/one.md", "experiments/gone.md"):
        (small_study / "reports" / page).parent.mkdir(parents=True, exist_ok=True)
        (small_study / "reports" / page).write_text("the last good report")
    before = contents(small_study)
    damage(small_study)
    with pytest.raises(UserError, match=re.escape(sentence)):
        write_pages()
    assert contents(small_study) == before


def test_pictures_for_tracking_are_of_the_variants_that_ran(small_study: Path) -> None:
    shutil.rmtree(small_study / "runs/patch-7")
    write_tables(small_study)
    report.main([])
    assert (small_study / "reports/README.md").exists()
    pictures = small_study / ".checkpoints/figures"
    assert {path.stem for path in pictures.iterdir()} == {"base", "sinusoidal"}
    assert Image.open(io.BytesIO((pictures / "base.png").read_bytes())).size[0] > 800


@pytest.mark.slow
def test_the_whole_catalogue_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_study(tmp_path, seeds=6, epochs=5)
    write_dataset(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_pages()
    assert {path.stem for path in (tmp_path / "reports/experiments").glob("*.md")} == set(raw["experiments"])
    _check_links(tmp_path)
    _check_tables(tmp_path)
    _check_text(tmp_path)
