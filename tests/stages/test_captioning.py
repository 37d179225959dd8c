"""Captioners in a study from params.yaml to its tables, by DVC; and what `make caption` says of them."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline import params
from pipeline.captioning import data, metrics
from pipeline.captioning.decoding import beam
from pipeline.captioning.grammar import PHRASINGS, grammar_of
from pipeline.captioning.scenes import compose
from pipeline.commands import caption, plan, verify
from pipeline.models import build
from pipeline.runner import seeds
from pipeline.study import load
from pipeline.system.errors import UserError
from tests.conftest import Repository
from tests.helpers import stored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _inside(trained: Repository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests run their commands in a copy of the study, in this process, because each start of torch costs seconds."""
    study = trained.copy(tmp_path_factory.mktemp("captioned") / "study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study.path)
        for name in ("PATH", "LAB_DEVICE", "LAB_PROCESSES", "LAB_ATTENTION"):
            patch.setenv(name, study.environment[name])
        yield


def test_tables_hold_what_the_captions_are_worth() -> None:
    """The columns again, from the captions that were stored."""
    found = data.load(Path("data/arrays"))
    test, grammar = found.scenes.test, grammar_of("digits")
    with Path("tables/seeds.csv").open() as file:
        rows = {(row["variant"], int(row["seed"])): row for row in csv.DictReader(file)}
    for variant in ("caption", "critical"):
        with np.load(f"store/predictions/{variant}.npz") as stored:
            arrays = dict(stored)
        assert ("attention" in arrays) == (variant == "caption")
        if variant == "caption":
            assert arrays["attention"].shape == (1, 2, 8, 18, 16)
            assert np.allclose(arrays["attention"].astype(float).sum(-1), 1, atol=0.01)
        for place, seed in enumerate((0, 1)):
            for search in ("greedy", "beam"):
                summary = metrics.summarise(metrics.measure(arrays[search][place], test.captions, test.labels, grammar))
                row = rows[variant, seed]
                for name in ("scene_accuracy", "cell_accuracy", "exact_match", "edit_distance", "bleu_4", "cider_d"):
                    assert float(row[f"{search}_{name}"]) == summary["all"][name]
                assert float(row[f"{search}_scene_accuracy_repeats"]) == summary["repeats"]["scene_accuracy"]
                shares = [float(row[f"{search}_share_{name.replace(' ', '_')}"]) for name in (*PHRASINGS, "no phrasing")]
                assert sum(shares) == pytest.approx(1)
    assert rows["base", 0]["greedy_scene_accuracy"] == ""


def test_the_beam_keeps_five_captions_and_compares_their_probabilities() -> None:
    found = data.load(Path("data/arrays"))
    images = compose(torch.from_numpy(found.dataset.test_images), torch.from_numpy(found.scenes.test.cells).long())[:, None] / 255
    model = build(params.load().resolve("caption").model)
    model.load_state_dict({name: value[0] for name, value in seeds.load_weights(stored(Path(), "caption"), [0]).items()})
    with np.load("store/predictions/caption.npz") as file:
        assert np.array_equal(file["beam"][0], beam(model, images, 5)[0])


def test_a_captioner_is_a_training_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    run = seeds.read_record(stored(Path(), "caption"))
    scenes = json.loads(Path("data/scenes/scenes.json").read_text())
    assert run["data_digest"] == scenes["digest"]
    assert run["config"]["scenes"] == {"train": 128, "validation": 20, "test": 20, "repeat": 0.25}
    trained, critical = (load(".").trainings[variant] for variant in ("caption", "critical"))
    assert trained.settings.images_shown == 256
    assert trained.captions is not None
    assert trained.captions.greedy.shape == (2, 20, 18)
    assert np.isnan(critical.train_loss[:, 1]).all()
    metrics = json.loads(Path("tables/metrics.json").read_text())["critical"]
    assert metrics["train_loss_mean"] == pytest.approx(critical.curves["train_loss"][:, 0].mean())
    assert critical.diverged == metrics["diverged"]
    assert verify.main(["--variant=critical", "--seed=1", "--train=1"]) == 0
    assert "same bits" in capsys.readouterr().out
    plan.main([])
    assert "4 kept" in capsys.readouterr().out


def test_make_caption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same scene by its number and as a picture gets the captions that the evaluation stored."""
    grammar = grammar_of("digits")
    captions = load(".").trainings["caption"].captions
    assert captions is not None
    with np.load("store/predictions/caption.npz") as stored:
        found = dict(stored)
    caption.main(["--seed=1", "--scene=5"])
    said = capsys.readouterr().out
    for search in ("greedy", "beam"):
        words = " ".join(grammar.decode(found[search][1, 5].tolist()))
        assert any(
            line.split() == f"{search} {words}".split() or line.startswith(f"  {search:<10} {words}  (") for line in said.splitlines()
        )
    assert said.count("reference") == 1
    Image.fromarray((captions.scenes[5] * 255).round().astype(np.uint8)).save(tmp_path / "scene.png")
    caption.main(["--seed=1", f"--image={tmp_path / 'scene.png'}"])
    assert capsys.readouterr().out.strip() in said


def test_weights_of_another_training_are_refused() -> None:
    one = load().trainings["caption"]
    with pytest.raises(UserError, match=r"caption\.npz is of another training than the record"):
        replace(one, evaluation=None).captions  # noqa: B018  # evaluated with weights that are gone
    settings, picture = params.load().resolve("caption"), np.full((56, 56), 255, np.uint8)
    with pytest.raises(UserError, match="trained with other settings"):
        caption.describe(settings, stored(Path(), "critical"), 0, picture)


def test_a_wrong_request_gets_one_sentence() -> None:
    Image.new("L", (56, 56)).save("empty.png")
    for option, sentence in (("--scene=20", "There is no SCENE='20'"), ("--image=empty.png", "empty.png holds no digit")):
        with pytest.raises(UserError, match=f"^{sentence}") as caught:
            caption.main([option])
        assert caught.value.status == 2
