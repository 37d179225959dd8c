"""The page of a captioning experiment, from captioners that were trained for two or three epochs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from scipy import stats

from pipeline import params
from pipeline.captioning import scenes
from pipeline.data import datasets
from pipeline.errors import UserError
from pipeline.evaluation import inference
from pipeline.evaluation.evaluate import evaluate
from pipeline.evaluation.records import Records
from pipeline.report import pages
from pipeline.runner import seeds
from pipeline.study import load
from pipeline.study.files import FINISHED
from pipeline.study.results import load_current
from pipeline.training import tasks
from pipeline.training.engine import Trainer, set_reproducible
from tests.helpers import finish, stored
from tests.made_up import check_tables, read, table

TINY = {
    "architecture": "captioner", "dim": 16, "heads": 2, "mlp_dim": 16, "encoder_blocks": 2, "decoder_blocks": 1, "norm": "pre",
    "position": "learned", "memory": 0, "meshed": False, "dropout": 0.0, "clip_norm": 1.0,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": TINY,
    "longer": {"from": "plain", "epochs": 3},
    "meshed": {"from": "plain", "meshed": True},
    "critical": {"from": "longer", "self_critical_epochs": 1},
    "lstm": {"architecture": "cnn_lstm", "widths": [8, 16], "clip_norm": 1.0},
    "unborn": {"from": "plain", "memory": 2},
}
TRAINED = [name for name in VARIANTS if name != "unborn"]


def make_params(raw_params: dict[str, Any]) -> dict[str, Any]:
    experiment = {
        "title": "Words", "question": "Why?", "source": "a test", "baseline": "plain", "measure": "gain of beam search",
        "variants": [*VARIANTS], "labels": {"plain": "plain | 2", "longer": "plain | 2, longer"},
        "figures": ["budget", "captions", "gaze", "measure", "curves"],
    }  # fmt: skip
    return raw_params | {
        "data": {"dataset": "digits"},
        "scenes": {"train": 256, "validation": 20, "test": 60},
        "images_shown": 256,
        "looks": [],
        "train": raw_params["train"] | {"seeds": [4, 2], "epochs": 2},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "dim": 8, "heads": 2, "mlp_dim": 8},
        "timing": {"rounds": 1, "steps": 1, "seconds": 1, "tokens": [4, 16], "subjects": {"base": {}}},
        "variants": {"base": {}} | VARIANTS,
        "experiments": {"words": experiment},
        "claims": {},
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, arrays: Path, raw_params: dict[str, Any], drawn_once: Callable[..., bytes]) -> Path:
    """A study of small captioners that were trained and evaluated, and its pages."""
    root = tmp_path_factory.mktemp("words")
    raw = make_params(raw_params)
    (root / "params.yaml").write_text(yaml.safe_dump(raw))
    study, threads = params.parse(raw), torch.get_num_threads()
    (root / "data").mkdir()
    (root / "data/arrays").symlink_to(arrays)
    scenes.write(scenes.draw(datasets.load(arrays), study.scenes), root / "data/scenes")
    set_reproducible(torch.device("cpu"))
    for variant in TRAINED:
        train(root, variant, study.resolve(variant))
    (root / "store/predictions").mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DEVICE", "cpu")
        patch.setattr(inference, "run", lambda tasks, processes: ((task, inference.measure(task)) for task in tasks))
        patch.chdir(root)
        records = Records(root)
        wanted = records.wanted(study, lambda line: None)
        assert evaluate(study, records, wanted) == {}
        for variant in TRAINED:
            spread(records, variant)
        records.write_tables(wanted)
        pages.write(study, load_current(study).trainings)
    torch.set_num_threads(threads)
    return root


def spread(records: Records, variant: str) -> None:
    """Replaces each column of a captioner's evaluation by random numbers: after so short a training all of them would be 0."""
    found = records.read(variant)
    assert found is not None
    rng = np.random.default_rng(list(variant.encode()))
    with np.load(records.predictions / f"{variant}.npz") as file:
        arrays = {name: file[name] for name in file.files if name != "evaluation"}
    records.write(
        variant, arrays, found._replace(columns={name: rng.random(len(column)).tolist() for name, column in found.columns.items()})
    )


def train(root: Path, variant: str, settings: params.VariantSettings) -> None:
    data, device = tasks.load(settings.task, root / "data/arrays"), torch.device("cpu")
    origin = {
        "code_hash": "c" * 64, "git_commit": "0" * 40, "git_dirty": False, "device": "cpu", "device_name": "Some Processor",
        "attention": "none", "versions": {}, "started": "", "finished": "", "parameters": 12_345, "flops": 67_890,
    }  # fmt: skip
    parts = []
    for seed in settings.train.seeds:
        trainer = Trainer(settings, data, [seed], device)
        finish(trainer)
        parts += seeds.of_trainer(trainer, origin, {seed: {}})
    record: dict[str, Any] = {
        "variant": variant, "config": settings.model_dump(mode="json"), "seeds": list(settings.train.seeds), "dataset": "digits",
        "training_id": variant, "data_digest": tasks.data_digest(settings.task, root / "data/arrays"),
    }  # fmt: skip
    for part in parts:
        seeds.write(seeds.folder(root / FINISHED, settings, record["data_digest"]), part)
    seeds.assemble(stored(root, variant), settings, parts, record)


def test_numbers_are_those_of_the_evaluation(root: Path) -> None:
    page, runs = read(root, "experiments/words.md"), load(root).trainings
    scores, beside, groups, gains = (table(page, head) for head in ("greedy (%)", "| CIDEr-D |", "4 digits", "| gain of beam search"))
    names = {"plain": r"plain (plain \| 2), baseline", "longer": r"longer (plain \| 2, longer)", "meshed": "meshed", "lstm": "lstm"}
    plain = runs["plain"].evaluation["greedy_scene_accuracy"]
    listed = table(read(root, "README.md"), "| variant | differs from the base")
    for variant, name in names.items():
        found = runs[variant].evaluation
        greedy, beam = found["greedy_scene_accuracy"], found["beam_scene_accuracy"]
        low, high = np.clip(stats.t.interval(0.95, 1, loc=greedy.mean(), scale=stats.sem(greedy)), 0, 1)  # of a share
        assert scores[name][1] == listed[variant][2] == f"{100 * greedy.mean():.2f} [{100 * low:.2f} to {100 * high:.2f}]"
        assert scores[name][3].startswith(f"{100 * beam.mean():.2f} [")
        if variant != "plain":
            low, high = np.clip(stats.ttest_ind(greedy, plain, equal_var=False).confidence_interval(0.95), -1, 1)
            assert scores[name][2] == f"{100 * (greedy.mean() - plain.mean()):+.2f} [{100 * low:+.2f} to {100 * high:+.2f}]"
        assert float(gains[name][1]) == pytest.approx(100 * (beam - greedy).mean(), abs=0.00501)
        assert beside[name] == [
            f"{100 * found['greedy_exact_match'].mean():.2f}", f"{100 * found['greedy_cell_accuracy'].mean():.2f}",
            f"{found['greedy_edit_distance'].mean():.3f}", f"{found['greedy_bleu_4'].mean():.4f}",
            f"{found['greedy_cider_d'].mean():.3f}",
        ]  # fmt: skip
        for place, column in ((0, "1_digit"), (-1, "repeats")):
            assert groups[name][place] == f"{100 * found[f'greedy_scene_accuracy_{column}'].mean():.2f}"
    assert scores["unborn"] == ["not run", "-", "-", "-"]
    assert table(page, "columns back")["lstm"][1] == f"{100 * runs['lstm'].evaluation['greedy_share_rows_up'].mean():.2f}"
    losses = table(page, "validation loss")
    assert losses["critical"][0] == "-"  # self-critical epochs minimise no cross-entropy
    assert losses["lstm"][1:3] == [f"{runs['lstm'].test_loss[:, -1].mean():.4f}", f"{100 * runs['lstm'].accuracy.mean():.2f}"]
    changes = table(page, "| images shown |")
    assert changes["meshed"][1:] == ["512", "-", "12,345", "67.9 k"]
    assert changes["lstm"][0] == "architecture: cnn_lstm, widths: [8, 16], clip_norm: 1.0"
    check_tables(root)


def test_figures_and_captions_show_something(root: Path) -> None:
    page = read(root, "experiments/words.md")
    named = re.findall(r"\]\(figures/words-([^)]+)\.png\)", page)
    assert named == ["budget", "captions", "gaze-plain", "gaze-meshed", "measure", "curves"]
    for name in named:
        picture = np.asarray(Image.open(root / f"reports/experiments/figures/words-{name}.png").convert("L"))
        assert (picture != np.median(picture)).mean() > 0.01
    assert len(re.findall(r"^\| \d \| lstm \| (?:right|wrong) \| ", page, flags=re.MULTILINE)) == 6


def test_captioners_and_classifiers_are_not_compared(raw_params: dict[str, Any]) -> None:
    raw = make_params(raw_params)
    raw["experiments"]["words"]["variants"].append("base")
    with pytest.raises(UserError, match=r"experiments\.words\.variants: captioners and classifiers"):
        params.parse(raw)
