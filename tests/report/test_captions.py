"""The pages of captioning experiments, from captioners that were trained for two or three epochs."""

from __future__ import annotations

import io
import re
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
from pipeline.captioning.metrics import CiderD
from pipeline.data import datasets
from pipeline.errors import UserError
from pipeline.evaluation import inference
from pipeline.evaluation.evaluate import evaluate
from pipeline.evaluation.records import Records
from pipeline.report import captions, pages
from pipeline.runner import finished, results
from pipeline.study import load
from pipeline.study.results import load_current
from pipeline.training import tasks
from pipeline.training.engine import Trainer, set_reproducible
from tests.helpers import finish
from tests.made_up import check_tables, read, table

TINY = {
    "architecture": "captioner", "dim": 16, "heads": 2, "mlp_dim": 16, "encoder_blocks": 2, "decoder_blocks": 1, "norm": "pre",
    "position": "learned", "memory": 0, "meshed": False, "dropout": 0.0, "clip_norm": 1.0,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "plain": TINY,
    "longer": {"from": "plain", "epochs": 3},
    "meshed": {"from": "plain", "meshed": True},
    "critical": {"from": "longer", "self_critical_epochs": 1},
    "lstm": {"architecture": "cnn_lstm", "widths": [8, 16], "clip_norm": 1.0},
    "lstm-1": {"from": "lstm", "epochs": 1},
    "unborn": {"from": "plain", "memory": 2},
}
TRAINED = [name for name in VARIANTS if name not in ("lstm-1", "unborn")]
CAPTIONERS = TRAINED[1:]
WORDS = "experiments/words.md"
COMPARED = ["plain", "longer", "meshed", "critical", "lstm", "lstm-1", "unborn"]


def make_params(raw_params: dict[str, Any]) -> dict[str, Any]:
    experiment = {"title": "Words", "question": "Why?", "source": "a test", "baseline": "plain", "measure": "gain of beam search"}
    comparison = {"rule": "more", "measure": "scene accuracy", "variant": "plain", "reference": "lstm"}
    return raw_params | {
        "data": {"dataset": "digits"},
        "scenes": {"train": 256, "validation": 20, "test": 60},
        "images_shown": 256,
        "looks": [],
        "train": raw_params["train"] | {"seeds": [4, 2], "epochs": 2},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "dim": 8, "heads": 2, "mlp_dim": 8},
        "timing": {"rounds": 1, "steps": 1, "seconds": 1, "tokens": [4, 16], "subjects": {"base": {}}},
        "variants": VARIANTS,
        "experiments": {
            "words": experiment
            | {
                "variants": COMPARED, "labels": {"plain": "plain | 2", "longer": "plain | 2, longer"}, "claims": ["W1"],
                "figures": ["budget", "captions", "gaze", "measure", "curves"],
            },
            "later": experiment | {"baseline": "unborn", "variants": ["unborn", "lstm"]},
            "never": experiment | {"baseline": "unborn", "variants": ["unborn", "other"], "figures": ["captions", "gaze", "budget"]},
        },
        "claims": {
            "W1": {"source": "a test", "sentence": "It does.", "measured": "Scenes.", "margin": "None.", "comparisons": [comparison]},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def root(
    tmp_path_factory: pytest.TempPathFactory, arrays: Path, raw_params: dict[str, Any], drawn_once: dict[tuple[str, str, bool], bytes]
) -> Path:
    """A study of small captioners that were trained and evaluated, and its pages."""
    root = tmp_path_factory.mktemp("words")
    raw = make_params(raw_params)
    raw["variants"] = VARIANTS | {"other": {"from": "plain", "memory": 4}}
    (root / "params.yaml").write_text(yaml.safe_dump(raw))
    study = params.parse(raw)
    (root / "data").mkdir()
    (root / "data/arrays").symlink_to(arrays)
    scenes.write(scenes.draw(datasets.load(arrays), study.scenes), root / "data/scenes")
    threads = torch.get_num_threads()
    set_reproducible(torch.device("cpu"))
    for variant in TRAINED:
        train(root, variant, study.resolve(variant))
    records = Records(arrays=root / "data/arrays", runs=root / "runs", predictions=root / "predictions", tables=root / "tables")
    (root / "predictions").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DEVICE", "cpu")
        patch.setattr(inference, "run", lambda tasks, processes: ((task, inference.measure(task)) for task in tasks))
        wanted = records.wanted(study, lambda line: None)
        assert evaluate(study, records, wanted) == {}
    for variant in CAPTIONERS:
        spread(records, variant)
    records.write_tables(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        pages.write(study, load_current(study).trainings)
    torch.set_num_threads(threads)
    return root


def spread(records: Records, variant: str) -> None:
    """Replaces each column of a captioner's evaluation by random numbers: after so short a training all of them would be 0."""
    found = records.read(variant)
    assert found is not None
    rng = np.random.default_rng(list(variant.encode()))
    with np.load(records.predictions / f"{variant}.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if name != "evaluation"}
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
        parts += finished.of_trainer(trainer, origin, {seed: {}})
    record = {
        "variant": variant, "config": settings.model_dump(mode="json"), "seeds": list(settings.train.seeds), "dataset": "digits",
        "training_id": variant, "data_digest": tasks.data_digest(settings.task, root / "data/arrays"),
    }  # fmt: skip
    results.write(root / "runs" / variant, settings, parts, record)


def test_the_answer_stands_first_with_its_interval(root: Path) -> None:
    page, runs = read(root, WORDS), load(root).trainings
    top = page[: page.index("## What came out")]
    accuracy = {name: runs[name].evaluation["greedy_scene_accuracy"] for name in CAPTIONERS}
    low, high = stats.t.interval(0.95, 1, loc=accuracy["plain"].mean(), scale=stats.sem(accuracy["plain"]))
    headline = f"**plain | 2: {100 * accuracy['plain'].mean():.2f} % of 60 test scenes are described truly and completely**"
    assert f"{headline} [{100 * low:.2f} to {100 * high:.2f}], gain of beam search " in top
    assert ". Against it:\n\n- **plain | 2, longer**: " in top
    interval = stats.ttest_ind(accuracy["lstm"], accuracy["plain"], equal_var=False).confidence_interval(0.95)
    difference = (accuracy["lstm"] - accuracy["plain"]).mean()
    said = f"- **lstm**: {100 * accuracy['lstm'].mean():.2f} %, {100 * difference:+.2f} points"
    assert f"{said} [{100 * interval.low:+.2f} to {100 * interval.high:+.2f}]" in top
    assert "**Not run: lstm-1 and unborn.**" in top
    assert "![" not in top
    assert top.count("<picture>") == 1
    (row,) = (cells for first, cells in table(page, "| claim | verdict |").items() if first.startswith("[W1](#w1-"))
    assert row[1] == r"plain \| 2 - lstm, scene accuracy"
    assert page.index("<picture>") < page.index("| claim | verdict |") < page.index("## What came out")


def test_a_captioner_stands_beside_the_one_that_the_experiment_names(root: Path) -> None:
    study, runs = params.load(root / "params.yaml"), load(root).trainings
    words = study.experiments["words"].model_copy(update={"beside": {"lstm": "longer", "meshed": "unborn"}})
    found = {row.variant: row for row in captions.rows(study, words, runs)}
    said = {name: captions.answer(row, found["plain"], "scene accuracy") for name, row in found.items()}
    lstm, longer = (runs[name].evaluation["greedy_scene_accuracy"] for name in ("lstm", "longer"))
    assert f"**lstm**: {100 * lstm.mean():.2f} %, {100 * (lstm - longer).mean():+.2f} points against plain | 2, longer [" in said["lstm"]
    assert said["meshed"].endswith(" %, with nothing to compare it with, as unborn was not run")
    assert "against" not in said["critical"]


def test_tables_are_whole(root: Path) -> None:
    check_tables(root)


def test_minus_signs_are_true(root: Path) -> None:
    for path in (root / "reports").rglob("*.md"):
        assert not re.search(r"[\[ (]-\d", path.read_text()), path.name
    page = (root / "reports/experiments/words.md").read_text()
    assert re.search(r"\| \N{MINUS SIGN}\d+\.\d\d\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}\d", page)  # an interval of two seeds leaves [0, 1]


def test_numbers_are_those_of_the_evaluation(root: Path) -> None:
    page, runs = read(root, WORDS), load(root).trainings
    scores, beside, groups = table(page, "greedy (%)"), table(page, "| CIDEr-D ("), table(page, "4 digits")
    names = {"plain": r"plain \| 2 (baseline)", "longer": r"plain \| 2, longer", "meshed": "meshed", "lstm": "lstm"}
    references = scenes.load(root / "data/scenes").test.captions
    ceiling = CiderD(references).ceiling()
    for variant, name in names.items():
        found = runs[variant].evaluation
        assert scores[name][:2] == ["2", f"{100 * found['greedy_scene_accuracy'].mean():.2f}"]
        assert scores[name][3] == f"{100 * found['beam_scene_accuracy'].mean():.2f}"
        gain = found["beam_scene_accuracy"] - found["greedy_scene_accuracy"]
        assert float(scores[name][5]) == pytest.approx(100 * gain.mean(), abs=0.00501)
        assert beside[name] == [
            f"{100 * found['greedy_exact_match'].mean():.2f}", f"{100 * found['greedy_cell_accuracy'].mean():.2f}",
            f"{found['greedy_edit_distance'].mean():.3f}", f"{found['greedy_bleu_4'].mean():.4f}",
            f"{found['greedy_cider_d'].mean():.3f}",
        ]  # fmt: skip
        assert groups[name][0] == f"{100 * found['greedy_scene_accuracy_1_digit'].mean():.2f}"
        assert groups[name][-1] == f"{100 * found['greedy_scene_accuracy_repeats'].mean():.2f}"
    assert f"| CIDEr-D (right captions: {ceiling.mean():.3f}) |" in page
    assert f"{ceiling.min():.3f} to {ceiling.max():.3f}" in page
    assert scores["unborn"] == ["not run", *["-"] * 7]
    share, accuracy = (runs["lstm"].evaluation[f"greedy_{column}_rows_up"].mean() for column in ("share", "scene_accuracy"))
    assert table(page, "columns back")["lstm"][1] == f"{100 * share:.2f} ({100 * accuracy:.2f})"
    losses = table(page, "validation loss")
    assert losses["critical"][0] == "-"
    assert losses["lstm"][1:3] == [f"{runs['lstm'].test_loss[:, -1].mean():.4f}", f"{100 * runs['lstm'].accuracy.mean():.2f}"]
    changes = table(page, "| scenes shown |")
    assert changes["meshed"] == ["meshed: true", "512", "12,345", "67.9 k"]
    assert changes["lstm"][0] == "architecture: cnn_lstm, widths: [8, 16]"
    assert changes["lstm-1"][0] == "as lstm, but epochs: 1"


def test_curves_are_said_to_be_of_validation_scenes(root: Path) -> None:
    page = read(root, WORDS)
    assert "**After each epoch they are tested on 20 validation scenes**" in page
    assert "**Everything else is measured on the 60 test scenes**" in page
    assert "validation loss (solid), and scene error on validation scenes, after each epoch" in page
    assert "The self-critical epochs of critical have no train loss" in page
    assert "est accuracy" not in page


def test_figures_show_something(root: Path) -> None:
    page = read(root, WORDS)
    named = re.findall(r'src="figures/([^"]+)"', page)
    kinds = ["budget", "captions", "gaze-plain", "gaze-meshed", "measure", "curves"]
    assert [name.removeprefix("words-").removesuffix(".png") for name in named] == kinds
    for name in named:
        for path in (name, name.replace(".png", "-dark.png")):
            picture = np.asarray(Image.open(io.BytesIO((root / "reports/experiments/figures" / path).read_bytes())).convert("L"))
            assert len(np.unique(picture)) > 8
            assert (picture != np.median(picture)).mean() > 0.01
    assert page.index("words-budget") < page.index("## What came out") < page.index("words-captions") < page.index("words-gaze")


def test_without_trained_captioners_nothing_was_run(root: Path) -> None:
    page = read(root, "experiments/never.md")
    assert "None of its variants was run yet." in page
    assert "<picture>" not in page
    assert table(page, "greedy (%)")["unborn (baseline)"][0] == "not run"
    page = read(root, "experiments/later.md")
    assert "**unborn was not run**, so the others have nothing to be compared with." in page
    assert "- **lstm**: " in page


def test_other_pages_know_captioners(root: Path) -> None:
    page, runs = read(root, "README.md"), load(root).trainings
    assert "These are not the data" not in page
    listed = table(page, "| place |", key=1)
    accuracy = {name: runs[name].evaluation["greedy_scene_accuracy"].mean() for name in CAPTIONERS}
    for name, mean in accuracy.items():
        assert listed[name][3] == f"{100 * mean:.2f}"
    assert listed["base"][0] == "1"
    assert {listed[name][0] for name in accuracy} == {"1", "2", "3", "4", "5"}
    assert "among all 1 classifiers that were trained, and among all 5 captioners" in page
    assert "256 train and 20 validation scenes" in page
    assert "lstm" in read(root, "hardware.md")
    assert (root / "reports/curves.csv").read_text().count("\nlstm,") == 2
    assert "**scene accuracy**" in read(root, "glossary.md")


def test_scenes_that_were_drawn_anew_are_told(root: Path, tmp_path: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = params.load(root / "params.yaml")
    for name in ("runs", "predictions", "tables"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/arrays").symlink_to(arrays)
    monkeypatch.chdir(tmp_path)
    told = {}
    for seen in (study.scenes, study.scenes.model_copy(update={"test": 61})):
        scenes.write(scenes.draw(datasets.load(arrays), seen), tmp_path / "data/scenes")
        page = pages.render(study, load_current(study).trainings)["README.md"].decode()
        told[seen.test] = re.findall(r"These are not the data of the trainings of (.*?)\*\*", page)
    assert told == {60: [], 61: ["critical, longer, lstm, meshed and plain"]}


def test_captioners_and_classifiers_are_not_compared(raw_params: dict[str, Any]) -> None:
    raw = make_params(raw_params)
    raw["experiments"] = {"both": raw["experiments"]["later"] | {"baseline": "plain", "variants": ["plain", "base"]}}
    with pytest.raises(UserError, match=r"experiments\.both\.variants are captioners and classifiers"):
        params.parse(raw)
