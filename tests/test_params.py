"""params.yaml: what it accepts, and what it says of everything else."""

from __future__ import annotations

import copy
import difflib
import hashlib
import io
import json
import math
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline import params
from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.measures import PROBES, TIMING_RULES
from pipeline.models import build
from pipeline.params import data
from pipeline.params.reading import Loader
from pipeline.params.study import ComparisonSettings
from tests.helpers import ROOT


def test_the_study_is_valid_and_in_use(study: params.Params, raw_params: dict[str, Any]) -> None:
    assert study.preview is None
    used = {variant for experiment in study.experiments.values() for variant in experiment.variants}
    assert used == set(study.variants) == set(raw_params["variants"])
    # A claim belongs to an experiment, unless the timing page judges it.
    told = {claim for experiment in study.experiments.values() for claim in experiment.claims}
    timed = {name for name, claim in study.claims.items() if all(part.rule in TIMING_RULES for part in claim.comparisons)}
    assert told | timed == set(study.claims)


def test_every_training_of_the_study_is_as_long_as_its_claims_speak_of(study: params.Params) -> None:
    assert study.images_shown == 30 * 60_000  # thesis, 4.1.1
    assert study.claims["B1"].images_shown == study.resolve("best").images_shown == 60 * 60_000
    for name, claim in study.claims.items():
        for part in claim.comparisons:
            for variant in {part.variant, part.reference, *(part.minus or ())} & study.variants.keys():
                assert study.resolve(str(variant)).images_shown >= (claim.images_shown or study.images_shown), name


def test_images_shown_are_those_of_all_epochs(study: params.Params) -> None:
    settings = study.resolve("vit-100")  # a subset is shown again and again
    assert settings.images_shown == 1_800_000
    shorter = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 4, "epoch_images": 12_000})})
    assert shorter.images_shown == 48_000


def test_full_study_is_the_published_configuration(study: params.Params) -> None:
    assert (study.train.epochs, study.train.batch_size, study.train.learning_rate, study.train.seeds) == (30, 128, 0.005, tuple(range(6)))
    base = study.base
    assert (base.patch, base.dim, base.heads, base.blocks, base.mlp_dim) == (4, 32, 8, 3, 32)
    assert base.num_tokens == 50


def test_a_study_of_before_the_scenes_is_read(study: params.Params, raw_params: dict[str, Any]) -> None:
    older = params.parse({key: value for key, value in raw_params.items() if key != "scenes"})
    assert older == study
    assert older.scenes == params.ScenesSettings(train=30_000, validation=2_000, test=5_000, repeat=0.25)


def test_variant_is_base_plus_its_difference(study: params.Params) -> None:
    first = study.resolve("first").model
    assert isinstance(first, params.ModelSettings)
    assert first.pool == "first"
    assert first.num_tokens == 49
    assert first.model_dump() == study.base.model_dump() | {"pool": "first", "cls_insert": "none"}


def test_a_variant_trains_its_own_way(study: params.Params) -> None:
    """Its difference may change how it is trained."""
    best = study.resolve("best").train
    changed = {name: value for name, value in study.variants["best"].items() if name in params.TrainSettings.model_fields}
    assert {"epochs", "schedule", "warmup", "augment"} <= changed.keys()
    changed["seeds"] = tuple(range(changed.get("seeds", 6)))
    assert best.model_dump() == study.train.model_dump() | changed
    assert study.train.seeds == tuple(range(6))


def test_batch_norm_keeps_seeds_from_training_as_one_stack(study: params.Params) -> None:
    assert [study.resolve(name).stackable for name in ("base", "batch-norm", "cnn")] == [True, False, False]


ONE_TOKEN: dict[str, Any] = {"patch": 28, "cls_insert": "none", "pool": "first", "norm_kind": "batch", "batch_size": 30, "epoch_images": 31}


@pytest.mark.parametrize(
    "change",
    [{}, {"patch": 14}, {"batch_size": 31}, {"epoch_images": 32}, {"norm_kind": "layer"}, {"norm": "none"}, {"final_norm": True}],
    ids=str,
)
def test_batch_norm_is_refused_where_torch_would_refuse_its_last_batch(raw_params: dict[str, Any], change: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    option = ONE_TOKEN | change
    raw["variants"]["x"] = option | {"batch_size": 64, "epoch_images": 64}
    model = build(params.parse(raw).resolve("x").model)
    raw["variants"]["x"] = option
    images = torch.zeros(option["epoch_images"] % option["batch_size"] or option["batch_size"], 1, 28, 28)
    if change in ({}, {"final_norm": True}):
        with pytest.raises(ValueError, match="more than 1 value"):
            model(images)
        with pytest.raises(UserError, match=r"^variants\.x\.norm_kind: batch needs two tokens"):
            params.parse(raw)
    else:
        assert model(images).isfinite().all()
        params.parse(raw)


def test_a_variant_may_have_its_own_number_of_seeds(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"]["first"]["seeds"] = 10
    raw["variants"]["mean"].pop("seeds", None)
    changed = params.parse(raw)
    assert changed.resolve("first").train.seeds == tuple(range(10))
    assert changed.resolve("mean").train.seeds == tuple(range(6))


def test_another_network_takes_nothing_of_the_transformer(study: params.Params) -> None:
    model = study.resolve("cnn-1000").model
    assert model == params.BaselineSettings(architecture="cnn", widths=(12, 26))
    assert not study.resolve("cnn-1000").stackable
    assert study.resolve("mlp").stackable
    assert study.resolve("cnn-1000").train.train_images == 1000


CAPTIONER: dict[str, Any] = {
    "architecture": "captioner", "dim": 48, "heads": 6, "mlp_dim": 96, "encoder_blocks": 3, "decoder_blocks": 2, "norm": "pre",
    "position": "learned", "memory": 0, "meshed": False, "dropout": 0.0,
}  # fmt: skip


def test_captioners_have_options_of_their_own(raw_params: dict[str, Any]) -> None:
    variants = {
        "plain": CAPTIONER,
        "m2": {"from": "plain", "memory": 8, "meshed": True},
        "static": {"architecture": "cnn_lstm", "widths": [64, 112]},
    }
    study = params.parse(raw_params | {"variants": variants, "experiments": {}, "claims": {}})
    assert study.resolve("m2").model == params.CaptionerSettings(**CAPTIONER | {"memory": 8, "meshed": True})
    assert study.resolve("static").model == params.BaselineSettings(architecture="cnn_lstm", widths=(64, 112))
    for name in variants:
        settings = study.resolve(name)
        assert not settings.stackable
        assert params.ARCHITECTURES[settings.model.architecture].task == "captioning"
        assert params.VariantSettings.model_validate_json(settings.to_json()) == settings


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            raw = raw[int(parent) if isinstance(raw, list) else parent]
        raw[last] = value

    return change


FAULTS = [
    ("looks", [6, 6, 10], "looks has to be in rising order, each number once, for example [6, 10]."),
    ("looks", [10, 6], "looks has to be in rising order, each number once, for example [6, 10]."),
    ("looks", [1, 6], "looks.0 is 1, but has to be at least 2; the nearest valid value is 2."),
    ("looks", 6, "looks is 6, but has to be a list."),
    ("images_shown", 0, "images_shown is 0, but has to be at least 1; the nearest valid value is 1."),
    ("images_shown", 1.8e6, "images_shown is 1800000.0, but has to be a whole number."),
    ("claims/B1/images_shown", 0, "claims.B1.images_shown is 0, but has to be at least 1; the nearest valid value is 1."),
    ("base/patch", 5, "base.patch: 5 does not divide the image's side of 28 pixels; the nearest that does is 4."),
    ("base/heads", 5, "base.heads: 5 heads do not divide dim, which is 32; the nearest number that does is 4."),
    ("base/pach", 4, "base.pach is not a key of params.yaml; the nearest is 'patch'."),
    ("base/dropout", 1.0, "base.dropout is 1.0, but has to be less than 1.0."),
    ("base/final_norm", 1, "base.final_norm is 1, but has to be true or false."),
    ("base/dim", True, "base.dim is true, but has to be a whole number."),
    ("base/dim", 32.0, "base.dim is 32.0, but has to be a whole number."),
    ("variants/x", {"pool": "clss"}, "variants.x.pool is 'clss', which is not a choice; the nearest is 'cls'."),
    ("variants/x", {"pool": 7}, "variants.x.pool is 7, which is not a choice; the choices are cls, first, mean, max, attention, concat."),
    ("variants/x", {"pol": "cls"}, "variants.x.pol is not an option of a variant; the nearest is 'pool'."),
    ("variants/x", {"epoch": 3}, "variants.x.epoch is not an option of a variant; the nearest is 'epochs'."),
    ("variants/x", {"memory": -1}, "variants.x.memory is -1, but has to be at least 0; the nearest valid value is 0."),
    ("variants/x", {"norm_eps": 1}, "variants.x.norm_eps is 1, but has to be less than 1.0."),
    (
        "variants/x",
        {"seeds": 0},
        "variants.x.seeds is 0, but has to be a number of seeds from 1 to 1,000, or a list of seeds.",
    ),
    ("variants/x", {"momentum": 0.9}, "variants.x.momentum: 0.9 is for sgd, not for adam; set it to 0.0, or optimizer to sgd."),
    (
        "variants/x",
        {"schedule": "warmup_linear"},
        "variants.x.warmup: warmup_linear needs a share of the steps to warm up in, for example 0.1.",
    ),
    ("variants/x", {"warmup": 0.1}, "variants.x.warmup: constant has none; set it to 0.0, or schedule to warmup_linear."),
    (
        "variants/x",
        {"residual": "normalized", "norm": "none"},
        "variants.x.residual: normalized starts from the norm before the MLP, but norm is none; set norm to pre.",
    ),
    (
        "variants/x",
        {"architecture": "lstn", "widths": [3]},
        "variants.x.architecture is 'lstn', which is not a choice; the nearest is 'lstm'.",
    ),
    ("variants/x", {"architecture": "vitt", "patch": 7}, "variants.x.architecture is 'vitt', which is not a choice; the nearest is 'vit'."),
    ("variants/x", {"architecture": ["cnn"]}, "variants.x.architecture is ['cnn'], which is not a choice"),
    ("variants/x", {"architecture": "mlp"}, "variants.x.widths is missing from params.yaml; give it a value."),
    ("variants/x", {"architecture": "mlp", "widths": []}, "variants.x.widths has too few entries; it needs at least 1."),
    (
        "variants/x",
        {"architecture": "mlp", "widths": [0]},
        "variants.x.widths.0 is 0, but has to be at least 1; the nearest valid value is 1.",
    ),
    ("variants/x", {"architecture": "mlp", "widths": 13}, "variants.x.widths is 13, but has to be a list."),
    ("variants/x", {"architecture": "cnn", "widths": [12]}, "variants.x.widths: cnn has 2 of them, not 1."),
    ("variants/x", {"architecture": "lstm", "widths": [38, 38]}, "variants.x.widths: lstm has 1 of them, not 2."),
    (
        "variants/x",
        {"architecture": "mlp", "widths": [13], "patch": 7},
        "variants.x.patch is an option of the vision transformer, which mlp does not have; remove it.",
    ),
    ("variants/x", {"widths": [13]}, "variants.x.widths is not an option of the vision transformer; remove it, or set architecture."),
    ("variants/x", {"meshed": True}, "variants.x.meshed is not an option of the vision transformer; remove it, or set architecture."),
    ("variants/x", CAPTIONER | {"widths": [1]}, "variants.x.widths is not an option of captioner; remove it, or set architecture."),
    (
        "variants/x",
        {"architecture": "cnn_lstm", "widths": [64, 112], "meshed": True},
        "variants.x.meshed is not an option of cnn_lstm; remove it, or set architecture.",
    ),
    (
        "variants/x",
        CAPTIONER | {"patch": 7},
        "variants.x.patch is an option of the vision transformer, which captioner does not have; remove it.",
    ),
    ("variants/x", CAPTIONER | {"norm": "none"}, "variants.x.norm is 'none', which is not a choice; the choices are pre, post."),
    (
        "variants/x",
        CAPTIONER | {"heads": 5},
        "variants.x.heads: 5 heads do not divide dim, which is 48; the nearest number that does is 4.",
    ),
    (
        "variants/x",
        CAPTIONER | {"position": "sinusoidal", "dim": 9, "heads": 3},
        "variants.x.position: sinusoidal needs a dim divisible by 2, and 9 is not; the nearest is 8.",
    ),
    ("variants/x", {"architecture": "captioner", "dim": 48}, "variants.x.heads is missing from params.yaml; give it a value."),
    (
        "variants/x",
        {"architecture": "mlp", "widths": [13], "wdth": 7},
        "variants.x.wdth is not an option of a variant; the nearest is 'widths'.",
    ),
    (
        "variants/x",
        {"cls_insert": "none"},
        "variants.x.pool: cls needs a class token, but cls_insert is none; set cls_insert to expand, or pool to first.",
    ),
    (
        "variants/x",
        {"norm_kind": "batch", "patch": 28, "cls_insert": "none", "pool": "first", "batch_size": 59_999},
        "variants.x.norm_kind: batch needs two tokens or more, but an epoch's last batch has one image, which is one token; "
        "set norm_kind to layer, or change batch_size or patch.",
    ),
    (
        "variants/x",
        {"position": "sincos2d", "dim": 6, "heads": 2},
        "variants.x.position: sincos2d needs a dim divisible by 4, and 6 is not; the nearest is 8.",
    ),
    (
        "variants/x",
        {"attention": "uniform", "memory": 4},
        "variants.x.memory: 4 changes nothing where attention is uniform; set it to 0.",
    ),
    (
        "variants/x",
        {"attention": "none", "score_scale": False},
        "variants.x.score_scale: false changes nothing where attention is none; set it to true.",
    ),
    (
        "variants/x",
        {"attention": "none", "attention_dropout": 0.1},
        "variants.x.attention_dropout: 0.1 changes nothing where attention is none; set it to 0.0.",
    ),
    ("variants/x", {"mlp": "none", "mlp_dropout": 0.1}, "variants.x.mlp_dropout: 0.1 changes nothing where mlp is none; set it to 0.0."),
    (
        "variants/x",
        {"mlp": "none", "residual": "normalized"},
        "variants.x.residual: normalized starts from the norm before the MLP, but mlp is none; set residual to input.",
    ),
    (
        "variants/x",
        {"position": "none", "position_std": 0.02},
        "variants.x.position_std: 0.02 is for learned vectors only, but position is none; set it to 1.0, or position to learned.",
    ),
    ("variants/x", {"position": "sinusoidal", "dim": 7, "heads": 7}, "variants.x.position: sinusoidal needs a dim divisible by 2"),
    ("variants/a b", {}, "variants.a b: a name may hold letters, digits, '-' and '_' only; a-b would do."),
    ("variants/BASE", {}, "variants.BASE and variants.base differ in case only, which some file systems cannot tell apart."),
    ("variants/-x", {}, "variants.-x: a name cannot start with '-'; x would do."),
    ("variants/" + 300 * "a", {}, f"variants.{100 * 'a'}...: a name may have at most 100 characters, and this one has 300."),
    ("variants/x", {"from": "labb"}, "variants.x.from is 'labb', which variants does not have; the nearest is 'lab'."),
    ("variants/x", {"from": ["lab"]}, "variants.x.from is ['lab'], which variants does not have"),
    ("variants/x", {"from": "x"}, "variants.x.from makes a circle (x from x); let one of them start from the base."),
    (
        "variants/lab",
        {"from": "lab-16"},
        "variants.lab-16.from makes a circle (lab from lab-16 from lab); let one of them start from the base.",
    ),
    ("variants/x", {"from": "lab", "pach": 7}, "variants.x.pach is not an option of a variant; the nearest is 'patch'."),
    ("variants/x", {"fro": "lab"}, "variants.x.fro is not an option of a variant; the nearest is 'from'."),
    ("variants/lab", {"epochs": 0}, "variants.lab.epochs is 0, but has to be at least 1; the nearest valid value is 1."),
    ("variants/lab", {"train_images": 60_001}, "variants.lab.train_images is 60,001, but mnist has 60,000 training images"),
    (
        "variants/x",
        {"from": "lab", "heads": 3},
        "variants.x.heads: 3 heads do not divide dim, which is 128; the nearest number that does is 2.",
    ),
    (
        "variants/x",
        {"from": "lab", "architecture": "mlp", "widths": [13]},
        "variants.x.patch (from lab) is an option of the vision transformer, which mlp does not have; remove it.",
    ),
    (
        "variants/x",
        {"from": "cnn", "architecture": "vit"},
        "variants.x.widths (from cnn) is not an option of the vision transformer; remove it, or set architecture.",
    ),
    ("variants", {}, "variants is empty in params.yaml; name at least one, for example `base: {}`."),
    ("variants", ["base"], "variants is ['base'], but has to be a mapping."),
    ("variants/x", 3, "variants.x is 3, but has to be a mapping."),
    ("train/seeds", [1, 2, 1], "train.seeds names seed 1 more than once; every seed is one run, so list each once."),
    ("train/seeds", 5000, "train.seeds is 5000, but has to be a number of seeds from 1 to 1,000, or a list of seeds."),
    ("train/seeds", True, "train.seeds is true, but has to be a number of seeds from 1 to 1,000, or a list of seeds."),
    ("train/seeds", "x", "train.seeds is 'x', but has to be a number of seeds from 1 to 1,000, or a list of seeds."),
    ("train/seeds", 1.5, "train.seeds is 1.5, but has to be a number of seeds from 1 to 1,000, or a list of seeds."),
    ("experiments/positions/figures", ["curves", "curves"], "experiments.positions.figures names 'curves' more than once; list each once."),
    ("train/seeds", [], "train.seeds has too few entries; it needs at least 1."),
    ("train/seeds", [-1], "train.seeds.0 is -1, but has to be at least 0; the nearest valid value is 0."),
    ("train/epochs", 0, "train.epochs is 0, but has to be at least 1; the nearest valid value is 1."),
    ("train/epochs", "thirty", "train.epochs is 'thirty', but has to be a whole number."),
    ("train/learning_rate", float("nan"), "train.learning_rate is nan, but has to be"),
    (
        "train/learning_rate",
        1e308,
        "train.learning_rate is 1e+308, but has to be at most 1000.0; the nearest valid value is 1000.0.",
    ),
    ("train/weight_decay", 1e308, "train.weight_decay is 1e+308, but has to be at most 1000.0; the nearest valid value is 1000.0."),
    ("train/clip_norm", 1e308, "train.clip_norm is 1e+308, but has to be at most 1000000.0; the nearest valid value is 1000000.0."),
    ("train/train_images", 10**400, "train.train_images is 1000000000"),
    ("train/epoch_images", 10**4000, "train.epoch_images is 1000000000"),
    ("train/schedule", "noam", "train.warmup: noam needs a share of the steps to warm up in, for example 0.1."),
    ("train/schedule", "cosin", "train.schedule is 'cosin', which is not a choice; the nearest is 'cosine'."),
    ("train/warmup", 1.0, "train.warmup is 1.0, but has to be less than 1.0."),
    ("train/clip_norm", 0.0, "train.clip_norm is 0.0, but has to be more than 0.0."),
    ("train/clip_norm", math.inf, "train.clip_norm is inf, but has to be a finite number."),
    ("train/weight_decay", -0.1, "train.weight_decay is -0.1, but has to be at least 0.0; the nearest valid value is 0.0."),
    ("train/train_images", 0, "train.train_images is 0, but has to be at least 1; the nearest valid value is 1."),
    ("train/epoch_images", "all", "train.epoch_images is 'all', but has to be a whole number."),
    ("train/augment", "affin", "train.augment is 'affin', which is not a choice; the nearest is 'affine'."),
    ("train/divergence", "go on", "train.divergence is 'go on', which is not a choice; the choices are stop, record."),
    ("base/architecture", "cnn", "base.architecture is 'cnn', which is not a choice; the choices are vit."),
    ("data/dataset", "mnst", "data.dataset is 'mnst', which is not a choice; the nearest is 'mnist'."),
    (
        "experiments/positions/baseline",
        "bse",
        "experiments.positions names the variant 'bse', which variants does not have; the nearest is 'base'.",
    ),
    ("experiments/positions/baseline", 3000 * "x", "experiments.positions names the variant 'xxxxxx"),
    ("experiments/positions/claims", [3000 * "x"], "experiments.positions.claims names 'xxxxxx"),
    ("timing/subjects/new", {"loops": 3000 * "x"}, "timing.subjects holds 'new' with loops: 'xxxxxx"),
    ("experiments/positions/baseline", "first", "experiments.positions.baseline is 'first', which is not among its variants"),
    ("experiments/positions/variants", ["base", "base"], "experiments.positions.variants names 'base' more than once"),
    ("experiments/positions/beside", {"sincos2d": "lstm"}, "experiments.positions.beside names 'lstm', which is not among its variants"),
    ("experiments/positions/beside", {"sincos": "base"}, "experiments.positions.beside names 'sincos', which is not among its variants"),
    (
        "experiments/positions/beside",
        {"sincos2d": "sincos2d"},
        "experiments.positions.beside sets sincos2d beside itself; remove that line.",
    ),
    (
        "experiments/positions/beside",
        {"base": "sincos2d"},
        "experiments.positions.beside sets base beside another variant, but it is the baseline",
    ),
    ("experiments/positions/labels", {"bas": "x"}, "experiments.positions.labels names 'bas', which is not among its variants"),
    (
        "experiments/positions/figures",
        ["curve"],
        "experiments.positions.figures.0 is 'curve', which is not a choice; the nearest is 'curves'.",
    ),
    (
        "experiments/positions/claims",
        ["T1a", "T99"],
        "experiments.positions.claims names 'T99', which claims does not have; the nearest is 'T9'.",
    ),
    (
        "experiments/positions/measure",
        "acuracy",
        "experiments.positions.measure is 'acuracy', which is not a choice; the nearest is 'accuracy'.",
    ),
    (
        "experiments/positions/measure",
        "step time",
        "experiments.positions.measure is step time, which is no measure of each seed",
    ),
    ("claims/T1a/margin", "", "claims.T1a.margin is '', but has to be text that is not empty."),
    ("claims/T1a/bound", 0.1, "claims.T1a.bound is not a key of params.yaml"),
    (
        "claims/B1/translation",
        "so it is",
        "claims.B1.translation: there is no quote that it translates; give the quote, or remove it.",
    ),
    ("claims/T1a/comparisons", [], "claims.T1a.comparisons has too few entries; it needs at least 1."),
    ("scenes/train", 0, "scenes.train is 0, but has to be at least 1; the nearest valid value is 1."),
    ("scenes/test", 5e3, "scenes.test is 5000.0, but has to be a whole number."),
    ("scenes/repeat", 1.5, "scenes.repeat is 1.5, but has to be at most 1.0; the nearest valid value is 1.0."),
    ("scenes/repeats", 0.5, "scenes.repeats is not a key of params.yaml; the nearest is 'repeat'."),
    ("scenes", None, "scenes is null, but has to be a mapping."),
    ("timing/rounds", 0, "timing.rounds is 0, but has to be at least 1; the nearest valid value is 1."),
    ("timing/seconds", 0, "timing.seconds is 0, but has to be more than 0.0."),
    ("timing/tokens", [4, 50], "timing.tokens holds 50, but square patches cut an image into 1, 4, 16, 49, 196, 784 tokens."),
    ("timing/tokens", [16, 4], "timing.tokens has to be in rising order, each count once."),
    ("timing/tokens", [4], "timing.tokens has too few entries; it needs at least 2."),
    ("timing/subjects", {}, "timing.subjects has too few entries; it needs at least 1."),
    ("timing/subjects/new", {"pach": 7}, "timing.subjects.new.pach is not a key of params.yaml; the nearest is 'patch'."),
    ("timing/subjects/new", {"patch": 5}, "timing.subjects.new.patch: 5 does not divide the image's side"),
    ("timing/subjects/new", {"loops": "flat"}, "timing.subjects holds 'new' with loops: 'flat', which is not a choice"),
    ("timing/subjects/new", {"attention": "none"}, "timing.subjects.new: only networks with full or sliced attention and an MLP"),
    ("timing/subjects", {"a/b": {}}, "timing.subjects holds 'a/b', but a name may hold no '/'."),
    ("timing/labels/frist", "x", "timing.labels: names 'frist', which is not among the subjects; the nearest is 'first'."),
    ("timing/round", 3, "timing.round is not a key of params.yaml; the nearest is 'rounds'."),
    (
        "claims/K3/comparisons/0/variant",
        "lab",
        "claims.K3.comparisons.0 speaks of the step time of 'lab', which is not among timing.subjects and so is not timed; add it there.",
    ),
    ("trian", {}, "trian is not a key of params.yaml; the nearest is 'train'."),
]


@pytest.mark.parametrize(("path", "value", "sentence"), FAULTS)
def test_a_fault_is_one_sentence_with_its_key(raw_params: dict[str, Any], path: str, value: Any, sentence: str) -> None:
    raw = copy.deepcopy(raw_params)
    edit(path, value)(raw)
    with pytest.raises(UserError) as caught:
        params.parse(raw)
    message = str(caught.value)
    assert message.startswith(sentence)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 500


PAIR = {"rule": "less", "measure": "accuracy", "variant": "first", "reference": "base"}
WRONG_COMPARISONS = [
    ({"rule": "equivalent"}, "bound: equivalent needs one."),
    ({"rule": "equivalent", "bound": 0.0}, "bound: equivalent needs one above 0."),
    ({"rule": "equivalent", "bound": math.nan}, "bound is nan, but has to be a finite number."),
    ({"reference": None}, "reference: less needs one."),
    ({"reference": "first"}, "reference: first cannot be compared with itself."),
    ({"rule": "at least", "bound": 0.9}, "reference: at least compares with its bound alone."),
    ({"rule": "at least", "reference": None}, "bound: at least needs one."),
    ({"rule": "at least", "reference": None, "bound": 99.5}, "bound: 99.5 is no share; 99.5 % is 0.995."),
    ({"rule": "lesss"}, "rule is 'lesss', which is not a choice; the nearest is 'less'."),
    ({"measure": "loss"}, "measure is 'loss', which is not a choice; the nearest is 'test loss'."),
    ({"between": [0.0, 1.0]}, "between: less has none; give a bound instead."),
    ({"rule": "ratio", "measure": "step time"}, "between: ratio needs two ends in rising order, for example [1.0, .inf]."),
    (
        {"rule": "ratio", "measure": "step time", "between": [2.0, 1.0]},
        "between: ratio needs two ends in rising order, for example [1.0, .inf].",
    ),
    ({"rule": "ratio", "measure": "step time", "between": [-1.0, 2.0]}, "between: a ratio of times is above 0; begin with 0 or more."),
    ({"rule": "ratio", "measure": "step time", "between": [1.0]}, "between.1 is missing from params.yaml; give it a value."),
    ({"rule": "ratio", "measure": "step time", "between": [1.0, 2.0, 3.0]}, "between has too many entries; it takes at most 2."),
    (
        {"rule": "ratio", "measure": "step time", "between": [1.0, 2.0], "bound": 0.1},
        "bound: ratio has none; give the two ends between which it has to lie.",
    ),
    ({"rule": "ratio", "between": [1.0, 2.0]}, "measure: ratio judges step time, not accuracy."),
    ({"rule": "exponent", "between": [1.0, 2.0]}, "measure: exponent judges attention time or saved bytes, not accuracy."),
    ({"measure": "step time"}, "rule: less is not for step time; use ratio."),
    ({"measure": "saved bytes"}, "rule: less is not for saved bytes; use exponent."),
    ({"measure": "data for equal accuracy"}, "rule: less is not for data for equal accuracy; use at least."),
    ({"measure": "late test error", "bound": 0.0}, "bound: effects on the late test error are ratios, so it has to be above 0."),
    ({"rule": "equivalent", "measure": "late test error", "bound": 0.9}, "bound: equivalent needs one above 1."),
    ({"rule": "at least", "measure": "data for equal accuracy", "bound": 1.25}, "pairs: ends with variant and reference."),
    ({"pairs": [["base", "first"]]}, "pairs: accuracy has none."),
    ({"measure": "ensemble accuracy"}, "rule: less is not for ensemble accuracy; use at least."),
    (
        {"rule": "ratio", "measure": "step time", "between": [1.0, 2.0], "minus": ["cnn", "base"]},
        "minus: ratio compares one pair only.",
    ),
    ({"minus": ["cnn", "base"]}, "minus: name four different variants, because unpaired ones count as independent."),
    ({"minus": ["cnn"]}, "minus.1 is missing from params.yaml; give it a value."),
    ({"bond": 0.1}, "bond is not a key of params.yaml; the nearest is 'bound'."),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG_COMPARISONS)
def test_a_comparison_that_cannot_be_judged_is_refused(raw_params: dict[str, Any], change: dict[str, Any], sentence: str) -> None:
    raw = copy.deepcopy(raw_params)
    raw["claims"]["T3"]["comparisons"].append(PAIR | change)
    with pytest.raises(UserError) as caught:
        params.parse(raw)
    assert str(caught.value) == f"claims.T3.comparisons.1.{sentence}"


def test_paired_pairs_may_share_a_variant() -> None:
    """Their difference is taken seed by seed."""
    pairs = PAIR | {"minus": ["cnn", "base"], "paired": True}
    assert ComparisonSettings.model_validate(pairs).variants == ("first", "base", "cnn", "base")


def test_a_claims_name_is_one_that_a_page_can_link_to(raw_params: dict[str, Any]) -> None:
    raw = raw_params | {"claims": raw_params["claims"] | {"T 1": raw_params["claims"]["T1a"]}}
    with pytest.raises(UserError, match=r"^claims\.T 1: a name may hold letters, digits, '-' and '_' only; T-1 would do\.$"):
        params.parse(raw)


def test_a_claim_may_speak_of_what_is_not_there(raw_params: dict[str, Any]) -> None:
    """It is "not run", so that a part of the study can be kept without its claims being rewritten."""
    raw = copy.deepcopy(raw_params)
    raw["claims"]["T3"]["comparisons"].append(PAIR | {"variant": "gone"})
    assert params.parse(raw).claims["T3"].comparisons[1].variant == "gone"


@pytest.mark.parametrize(
    ("dataset", "train", "variant", "sentence"),
    [
        ("mnist", 60_000, 60_000, None),
        (
            "mnist",
            None,
            60_001,
            "variants.one.train_images is 60,001, but mnist has 60,000 training images; the nearest valid value is 60000.",
        ),
        ("digits", 1_437, None, None),  # whose images are not counted here, so that the trainer looks
    ],
)
def test_a_subset_is_no_larger_than_the_training_set(
    raw_params: dict[str, Any], dataset: str, train: int | None, variant: int | None, sentence: str | None
) -> None:
    raw = raw_params | {"data": {"dataset": dataset}, "experiments": {}, "claims": {}}
    raw |= {"variants": {"base": {}, "one": {"train_images": variant}}, "train": raw_params["train"] | {"train_images": train}}
    if sentence is None:
        params.parse(raw)
        return
    with pytest.raises(UserError) as caught:
        params.parse(raw)
    assert str(caught.value) == sentence


def test_images_are_counted_in_the_arrays(study: params.Params, arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "COUNTED", data.COUNTED[:3])  # without those of the fixture
    (tmp_path / "data").mkdir()
    settings = study.resolve("base").model_copy(update={"data": params.DataSettings(dataset="digits")})
    with pytest.raises(UserError, match="dvc repro prepare"):
        _ = settings.images_shown
    (tmp_path / "data" / "arrays").symlink_to(arrays)
    loaded = load(arrays)
    assert (settings.training_images, settings.num_tests) == (len(loaded.train_labels), len(loaded.test_labels))
    assert settings.images_shown == settings.train.epochs * len(loaded.train_labels)
    assert study.resolve("base").images_shown == settings.train.epochs * 60_000  # as git keeps it


def test_missing_keys_are_named(raw_params: dict[str, Any]) -> None:
    for key in ("data", "train", "base", "variants", "experiments", "claims", "timing", "images_shown"):
        raw = {name: value for name, value in raw_params.items() if name != key}
        with pytest.raises(UserError, match=f"^{key} is missing from params.yaml"):
            params.parse(raw)


def test_what_dvc_follows_has_to_be_written(raw_params: dict[str, Any], tmp_path: Path) -> None:
    """DVC refuses a stage whose parameter is missing, after all trainings; `make list` says so before."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    named = {name for stage in stages.values() for name in stage.get("params", [])}
    assert {"looks", "preview", "scenes", "train.beta2", "data.dataset"} <= named
    for name in sorted(named):
        raw = copy.deepcopy(raw_params)
        *sections, key = name.split(".")
        within = raw
        for section in sections:
            within = within[section]
        del within[key]
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump(raw))
        with pytest.raises(UserError, match=rf"lacks {name}, which DVC follows|^{name} is missing from params.yaml"):
            params.load(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "params.yaml has to be a mapping of settings: `git checkout"),
        (b"- 1", "params.yaml has to be a mapping of settings: `git checkout"),
        (b"\xef\xbb\xbf", "params.yaml has to be a mapping"),
        (b"# all of it a comment\n", "params.yaml has to be a mapping"),
        (b"<<<<<<< HEAD\n", "params.yaml has to be a mapping"),
        (b"base: {a: [}", "params.yaml line 1 is not valid YAML"),
        (b"train:\n\tepochs: 3\n", "params.yaml line 2 is not valid YAML: "),
        (b"a: 1\n---\nb: 2\n", "params.yaml line 2 is not valid YAML: "),
        (b"data: \x00", "params.yaml is not valid YAML: "),
        (b"data: {}\ndata: {}\n", "params.yaml line 2 cannot be used: the key 'data' is given twice; keep one of them."),
        ("data: {}\n".encode("utf-16"), "params.yaml cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_what_is_not_such_a_file(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        params.load(tmp_path / "params.yaml")
    assert caught.value.status == 2
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def in_the_study(old: str, new: str) -> str:
    """The study's params.yaml with one text in the place of another."""
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    assert old in text
    return text.replace(old, new, 1)


WRONG_YAML = {
    "a list as key": ("\ntrain: ", "\n? [a]\n: 1\ntrain: ", "a key has to be text, not a list or a mapping."),
    "a mapping as key": ("\ntrain: ", "\n? {a: 1}\n: 1\ntrain: ", "a key has to be text, not a list or a mapping."),
    "a number as name": ("variants:\n  base: {", "variants:\n  3: {", "the key '3' is not text; put it in quotes."),
    "a truth value as name": ("variants:\n  base: {", "variants:\n  true: {", "the key 'true' is not text; put it in quotes."),
    "null as name": ("variants:\n  base: {", "variants:\n  null: {", "the key 'null' is not text; put it in quotes."),
    "no date": ("epochs: 30", "epochs: 2020-99-99", "'2020-99-99' is a date; put it in quotes to have it as text."),
    "a date": ("preview: ", "preview: 2020-01-01 ", "'2020-01-01' is a date; put it in quotes to have it as text."),
    "no !!int": ("epochs: 30", "epochs: !!int thirty", "'thirty' cannot be read as int."),
    "no !!float": ("0.005", "!!float little", "'little' cannot be read as float."),
    "no !!bool": ("final_norm: false", "final_norm: !!bool perhaps", "'perhaps' cannot be read as bool."),
    "no !!binary": ("preview: ", "preview: !!binary é ", "failed to convert base64 data into ascii"),
    "no !!map": ("epochs: 30", "epochs: !!map 3", "'3' cannot be read as map."),
    "an object": ("epochs: 30", "epochs: !!python/name:os.system", "could not determine a constructor for the tag"),
    "5,000 digits": ("epochs: 30", f"epochs: {5000 * '1'}", "'1111"),
    "itself": ("seeds: 6", "seeds: &a [*a]", "found unconstructable recursive node."),
    "no merge": ("epochs: 30", "<<: 3", "expected a mapping or list of mappings for merging"),
}


@pytest.mark.parametrize("name", WRONG_YAML)
def test_yaml_that_means_nothing_here_is_one_sentence(tmp_path: Path, name: str) -> None:
    old, new, sentence = WRONG_YAML[name]
    (tmp_path / "params.yaml").write_text(in_the_study(old, new))
    with pytest.raises(UserError, match=r"^params\.yaml line \d+ cannot be used: ") as caught:
        params.load(tmp_path / "params.yaml")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert caught.value.status == 2


@pytest.mark.parametrize("levels", [101, 3_000, 100_000])
@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_one_sentence(tmp_path: Path, levels: int, opening: str) -> None:
    """libyaml's own reader ends the process at 100,000 levels."""
    (tmp_path / "params.yaml").write_text(in_the_study("train: ", f"x: {levels * opening}\ntrain: "))
    with pytest.raises(UserError, match=r"^params\.yaml is nested more than 100 levels deep; it needs a few only\.$"):
        params.load(tmp_path / "params.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1:30", "1:30"), ("010", 10), ("1_000", 1000), ("yes", "yes"), ("no", "no"), ("0x10", "0x10"), ("5e-3", 0.005), ("true", True)],
)
def test_values_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    """YAML 1.1 reads 1:30 as 90, 010 as 8, yes as true and 5e-3 as text; DVC does not."""
    path = tmp_path / "some.yaml"
    path.write_text(f"a: {text}")
    assert params.read(path) == {"a": value}


@given(st.text(string.printable) | st.from_regex(r"[-+0-9.:_eExXtTnNyY~]{1,6}", fullmatch=True))
@example("1e3")
@example("1:30")
@example("2020-01-01")
@example("null")
def test_text_that_is_written_is_read_as_text(text: str) -> None:
    written = yaml.dump({text: [text, 1e-5, None, True, 12]}, Dumper=params.Dumper, allow_unicode=True)
    assert yaml.load(written, Loader=Loader) == {text: [text, 1e-5, None, True, 12]}


@pytest.mark.parametrize("name", ["NA", "None", "nan", "NULL"])
def test_a_name_is_no_word_that_pandas_takes_for_a_missing_value(raw_params: dict[str, Any], name: str) -> None:
    assert pd.read_csv(io.StringIO(f"variant\n{name}\n"), skip_blank_lines=False).isna().all().all()
    with pytest.raises(UserError, match=rf"^variants\.{name}: pandas"):
        params.parse(raw_params | {"variants": {name: {}} | raw_params["variants"]})


@pytest.mark.parametrize("section", ["variants", "experiments", "claims"])
@pytest.mark.parametrize("name", ["no", "Off"])
def test_a_name_is_no_word_for_true_or_false(raw_params: dict[str, Any], section: str, name: str) -> None:
    raw = raw_params | {section: {name: next(iter(raw_params[section].values()))} | raw_params[section]}
    with pytest.raises(
        UserError, match=rf"^{section}\.{name}: YAML 1\.1 reads this word as true or false; {section[:-1]}-{name} would do\.$"
    ):
        params.parse(raw)


def test_no_figure_gets_a_formula(raw_params: dict[str, Any]) -> None:
    """matplotlib takes what stands between two dollars for mathematics, and ends where it is none."""
    for section, name, key, text in (
        ("experiments", "positions", "labels", {"base": r"$\bm{W}$"}),
        ("claims", "T1a", "sentence", "$1 is $2."),
    ):
        raw = copy.deepcopy(raw_params)
        raw[section][name][key] = text
        with pytest.raises(UserError, match=rf"^{section}\.{name}\.{key}.*: figures read what stands between two \$ as a formula"):
            params.parse(raw)
    raw = copy.deepcopy(raw_params)
    raw["timing"]["subjects"]["$x$"] = {}
    with pytest.raises(UserError, match=r"^timing\.subjects\.\$x\$: figures read"):
        params.parse(raw)
    raw["timing"]["labels"]["$x$"] = "x"
    params.parse(raw)
    raw = copy.deepcopy(raw_params)
    raw["experiments"]["positions"]["labels"]["base"] = "costs US$ 1"
    assert params.parse(raw).experiments["positions"].label("base") == "costs US$ 1"


@pytest.mark.parametrize("section", ["variants", "experiments", "claims"])
@pytest.mark.parametrize("name", [3, True, None, ("a",)])
def test_a_name_is_text(raw_params: dict[str, Any], section: str, name: Any) -> None:
    raw = raw_params | {section: {name: next(iter(raw_params[section].values()))} | raw_params[section]}
    with pytest.raises(UserError, match=rf"^{section}\..*, but has to be text\.$"):
        params.parse(raw)


def test_a_variant_starts_from_the_one_that_it_names(raw_params: dict[str, Any], study: params.Params) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"] |= {"c": {"from": "b", "heads": 2, "seeds": 3}, "b": {"from": "lab", "patch": 7, "seeds": 2}}
    parsed = params.parse(raw)
    assert parsed.ancestry("c") == ["c", "b", "lab"]
    assert parsed.difference("c") == study.variants["lab"] | {"patch": 7, "heads": 2, "seeds": 3}
    assert parsed.resolve("b").model == study.resolve("lab-16").model
    assert (parsed.resolve("b").train.seeds, parsed.resolve("c").train.seeds) == ((0, 1), (0, 1, 2))
    raw["variants"]["c"].pop("seeds")
    assert params.parse(raw).resolve("c").train.seeds == (0, 1)


def test_merge_keys_are_read(tmp_path: Path, study: params.Params) -> None:
    text = in_the_study("  lab:\n    patch", "  lab: &lab\n    patch").replace("lab-16: {from: lab, ", "lab-16: {<<: *lab, ")
    assert "<<: *lab" in text
    (tmp_path / "params.yaml").write_text(text)
    merged = params.load(tmp_path / "params.yaml")
    assert "from" not in merged.variants["lab-16"]
    assert all(merged.resolve(variant) == study.resolve(variant) for variant in study.variants)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no params.yaml in .*: run the command from the repository's root"):
        params.load(tmp_path / "params.yaml")


def test_a_variant_with_nothing_behind_its_name_is_the_base(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"]["again"] = None
    parsed = params.parse(raw)
    assert parsed.resolve("again").model == parsed.base


def test_config_round_trip_and_hash(tmp_path: Path, study: params.Params) -> None:
    hashes = set()
    for variant in study.variants:
        settings = study.resolve(variant)
        path = tmp_path / f"{variant}.json"
        path.write_text(settings.to_json())
        assert params.load_variant(path) == settings
        assert settings.config_hash == hashlib.sha256(path.read_bytes()).hexdigest()
        hashes.add(settings.config_hash)
    assert len(hashes) == len(study.variants)


def changed_hashes(raw: dict[str, Any], path: str, value: Any) -> set[str]:
    """The variants whose settings are others after one key of params.yaml changed: those that DVC trains again."""
    before = params.parse(raw)
    raw = copy.deepcopy(raw)
    edit(path, value)(raw)
    after = params.parse(raw)
    return {variant for variant in raw["variants"] if before.resolve(variant).config_hash != after.resolve(variant).config_hash}


def test_a_change_reaches_the_variants_that_it_decides(raw_params: dict[str, Any]) -> None:
    """... and no others."""
    whole = params.parse(raw_params)
    variants = {name: whole.difference(name) for name in whole.variants}
    networks = {name for name, change in variants.items() if "architecture" in change}
    assert {"cnn", "mlp", "lstm", "cnn-300"} <= networks

    def without(key: str) -> set[str]:
        return {name for name, change in variants.items() if key not in change}

    assert changed_hashes(raw_params, "base/activation", "relu") == without("activation") - networks
    assert changed_hashes(raw_params, "base/blocks", 4) == without("blocks") - networks
    assert changed_hashes(raw_params, "train/learning_rate", 0.004) == without("learning_rate")
    assert changed_hashes(raw_params, "train/epochs", 31) == without("epochs")
    assert changed_hashes(raw_params, "train/seeds", [0, 1]) == without("seeds")
    assert changed_hashes(raw_params, "variants/mlp/widths", [14]) == {"mlp"}
    for path, value in (
        ("claims/T3/comparisons", [PAIR]),
        ("experiments/positions/title", "Another"),
        ("timing/rounds", 2),
        ("preview", "A part."),
    ):
        assert changed_hashes(raw_params, path, value) == set()


def test_probed_are_the_variants_that_a_figure_or_claim_asks_about(raw_params: dict[str, Any], study: params.Params) -> None:
    networks = study.experiments["networks"]
    assert set(study.probed("shifts")) == set(networks.variants)
    # Maps of an experiment, entropy of another, and only of transformers.
    looked_at = {*study.experiments["attention-maps"].variants, *study.experiments["score-scale"].variants}
    assert looked_at == set(study.probed("attention"))
    assert set(study.probed("sizes")) == set(study.experiments["lengths"].variants)
    raw = copy.deepcopy(raw_params)
    raw["experiments"]["lengths"]["variants"] += ["concat", "patch-7", "cnn"]  # whose weights read images of one size, or not of all
    assert params.parse(raw).probed("sizes") == study.probed("sizes")
    raw["experiments"] = {"networks": raw["experiments"]["networks"] | {"figures": ["curves"], "measure": "accuracy", "claims": []}}
    raw["claims"] = {}
    assert params.parse(raw).probed("shifts") == params.parse(raw).probed("attention") == ()
    raw["experiments"]["networks"]["measure"] = "attention entropy"
    transformers = {name for name in networks.variants if "architecture" not in study.difference(name)}
    assert set(params.parse(raw).probed("attention")) == transformers
    raw["experiments"]["networks"]["measure"] = "accuracy"
    shifted = PAIR | {"measure": "accuracy lost to shifts", "variant": "gone", "reference": "relu", "minus": ["cnn", "mean"]}
    raw["claims"] = {"X": raw_params["claims"]["T3"] | {"comparisons": [shifted]}}
    assert params.parse(raw).probed("shifts") == ("mean", "relu", "cnn")  # in the order of params.yaml


def test_only_what_has_it_is_probed(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    networks = raw["experiments"]["networks"] | {"figures": ["curves"], "claims": []}
    chosen = ["base", "sinusoidal", "no-position", "cnn", "rnn", "lstm"]
    expected = {
        "saturated attention at the start": ("saturation", ["base", "sinusoidal", "no-position"]),
        "learned similarity to the 1-D table": ("positions", ["base", "sinusoidal"]),
        "gradient at the first row": ("recurrence", ["rnn", "lstm"]),
        "unstable": ("trace", chosen),
    }
    raw["claims"] = {}
    for measure, (probe, variants) in expected.items():
        raw["experiments"] = {"networks": networks | {"variants": chosen, "baseline": "base", "labels": {}, "measure": measure}}
        probed = {probe: list(params.parse(raw).probed(probe)) for probe in PROBES}
        assert {name: found for name, found in probed.items() if found} == {probe: variants}
    chosen = ["base", "unprojected-attention", "uniform-attention", "no-attention", "no-mlp"]
    mapped = {"variants": chosen, "baseline": "base", "labels": {}, "figures": ["attention_maps"], "measure": "accuracy"}
    raw["experiments"] = {"networks": networks | mapped}
    assert set(params.parse(raw).probed("attention")) == {"base", "unprojected-attention", "no-mlp"}
    compared = {"rule": "less", "measure": "accuracy lost to shifts", "variant": "caption", "reference": "caption-6"}
    raw["claims"] = {"C1": raw_params["claims"]["C1"] | {"comparisons": [compared]}}
    assert params.parse(raw).probed("shifts") == ()  # a captioner has no shifted images


def test_damaged_config_says_how_to_write_it_again(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    with pytest.raises(UserError, match="is missing: run `dvc repro resolve` first"):
        params.load_variant(path)
    for text in ("{", json.dumps({"data": {}}), "\x00"):
        path.write_text(text)
        with pytest.raises(UserError, match="`dvc repro --force resolve`"):
            params.load_variant(path)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(allow_nan=True),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["cnn", "lstm", "mlp", "captioner", "sgd", "noam", "post", "none", "normalized", 0.1, [12, 26]]),
)
OPTIONS = sorted(
    {
        *params.ModelSettings.model_fields, *params.CaptionerSettings.model_fields, *params.BaselineSettings.model_fields,
        *params.TrainSettings.model_fields,
    }
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(change=st.dictionaries(st.sampled_from(OPTIONS), ANYTHING, max_size=4))
def test_any_difference_is_accepted_or_refused_in_one_sentence(raw_params: dict[str, Any], change: dict[str, Any]) -> None:
    raw = raw_params | {"variants": {"x": change}, "experiments": {}, "claims": {}}
    message = ""
    try:
        parsed = params.parse(raw)
        settings = parsed.resolve("x")
    except UserError as error:
        message = str(error)
    if message:
        assert message.startswith("variants.x.")
        assert message.endswith(".")
        assert "\n" not in message
        return
    taken = settings.model.model_dump(mode="json") | settings.train.model_dump(mode="json")
    written = change
    if isinstance(count := change.get("seeds"), int):  # a number of seeds stands for as many, from 0 on
        written = change | {"seeds": list(range(count))}
    assert {name: taken[name] for name in change} == written
    if isinstance(settings.model, params.ModelSettings):
        assert 28 % settings.model.patch == 0
        assert settings.model.dim % settings.model.heads == 0
    assert params.VariantSettings.model_validate_json(settings.to_json()) == settings


def test_flat_keys_are_dotted() -> None:
    nested = {"train": {"epochs": 3, "more": {"a": None}}, "model": {}, "x": [1, {"y": 2}]}
    assert dict(params.flatten(nested)) == {"train.epochs": 3, "train.more.a": None, "x": [1, {"y": 2}]}


def test_dvc_changes_the_lines_of_params_yaml_that_it_is_asked_to_change(tmp_path: Path) -> None:
    """The file is kept in the form that DVC's own writer leaves, for `dvc exp run -S`."""
    from dvc.utils.serialize import modify_yaml

    path = Path(shutil.copy(ROOT / "params.yaml", tmp_path))
    before = path.read_text(encoding="utf-8").splitlines()
    with modify_yaml(path) as values:
        values["train"]["epochs"] = 2
    after = path.read_text(encoding="utf-8").splitlines()
    changed = [line for line in difflib.unified_diff(before, after, n=0) if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-" + next(line for line in before if line.startswith("  epochs: 30")), *changed[1:]]
    assert len(changed) == 2, "write the file once more as `dvc exp run -S` leaves it; long texts are folded (`>-`)"


def test_quotations_in_other_languages_have_one_translation_each(study: params.Params) -> None:
    """Without it a reader of English could not see whether a claim fits its source."""
    found: dict[str, set[str | None]] = {}
    for claim in study.claims.values():
        if claim.quote:
            found.setdefault(claim.quote, set()).add(claim.translation)
    assert all(len(translations) == 1 for translations in found.values())
    english = {quote for quote, translations in found.items() if translations == {None}}
    assert {quote.split()[0] for quote in english} == {"In", "The", "Due"}
    assert len(english) == 3
