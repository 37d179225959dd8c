"""params.yaml: what it accepts, and what it says of everything else."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import params
from pipeline.errors import UserError

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", ["params.yaml", "profiles/demo/params.yaml", "profiles/preview/params.yaml"])
def test_shipped_files_are_valid(path: str) -> None:
    loaded = params.load(ROOT / path)
    assert len(loaded.variants) == 13


def test_profiles_change_the_study_only_in_scale(study: params.Params) -> None:
    for name in ("demo", "preview"):
        profile = params.load(ROOT / "profiles" / name / "params.yaml")
        assert profile.base == study.base
        assert profile.variants == study.variants
        assert profile.experiments == study.experiments
        assert profile.preview
    assert study.preview is None


def test_full_study_is_the_published_configuration(study: params.Params) -> None:
    assert (study.train.epochs, study.train.batch_size, study.train.learning_rate, len(study.train.seeds)) == (30, 128, 0.005, 10)
    base = study.base
    assert (base.patch, base.dim, base.heads, base.blocks, base.mlp_dim) == (4, 32, 8, 3, 32)
    assert base.num_tokens == 50


def test_variant_is_base_plus_its_difference(study: params.Params) -> None:
    first = study.resolve("first").model
    assert first.pool == "first"
    assert first.num_tokens == 49
    assert first.model_dump() == study.base.model_dump() | {"pool": "first", "cls_insert": "none"}


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            raw = raw[parent]
        raw[last] = value

    return change


FAULTS = [
    ("base/patch", 5, "base.patch: 5 does not divide the image's side of 28 pixels; the nearest that does is 4."),
    ("base/heads", 5, "base.heads: 5 heads do not divide dim, which is 32; the nearest number that does is 4."),
    ("base/pach", 4, "base.pach is not a key of params.yaml; the nearest is 'patch'."),
    ("base/dropout", 1.0, "base.dropout is 1.0, but has to be less than 1.0."),
    ("base/final_norm", 1, "base.final_norm is 1, but has to be true or false."),
    ("base/dim", True, "base.dim is True, but has to be a whole number."),
    ("base/dim", 32.0, "base.dim is 32.0, but has to be a whole number."),
    ("variants/x", {"pool": "clss"}, "variants.x.pool is 'clss', which is not a choice; the nearest is 'cls'."),
    ("variants/x", {"pool": 7}, "variants.x.pool is 7, which is not a choice; the choices are cls, first, mean, max, attention."),
    ("variants/x", {"pol": "cls"}, "variants.x.pol is not a key of params.yaml; the nearest is 'pool'."),
    (
        "variants/x",
        {"cls_insert": "none"},
        "variants.x.pool: cls needs a class token, but cls_insert is none; set cls_insert to expand, or pool to first.",
    ),
    (
        "variants/x",
        {"position": "sincos2d", "dim": 6, "heads": 2},
        "variants.x.position: sincos2d needs a dim divisible by 4, and 6 is not; the nearest is 8.",
    ),
    ("variants/x", {"position": "sinusoidal", "dim": 7, "heads": 7}, "variants.x.position: sinusoidal needs a dim divisible by 2"),
    ("variants/a b", {}, "variants.a b: a name may hold letters, digits, '-' and '_' only; a-b would do."),
    ("variants/BASE", {}, "variants.BASE and variants.base differ in case only, which some file systems cannot tell apart."),
    ("variants", {}, "variants is empty in params.yaml; name at least one, for example `base: {}`."),
    ("variants", ["base"], "variants is ['base'], but has to be a mapping."),
    ("variants/x", 3, "variants.x is 3, but has to be a mapping."),
    ("train/seeds", [1, 2, 1], "train.seeds names seed 1 more than once; every seed is one run, so list each once."),
    ("train/seeds", [], "train.seeds has too few entries; it needs at least 1."),
    ("train/seeds", [-1], "train.seeds.0 is -1, but has to be at least 0; the nearest valid value is 0."),
    ("train/epochs", 0, "train.epochs is 0, but has to be at least 1; the nearest valid value is 1."),
    ("train/epochs", "thirty", "train.epochs is 'thirty', but has to be a whole number."),
    ("train/learning_rate", float("nan"), "train.learning_rate is nan, but has to be"),
    ("data/dataset", "mnst", "data.dataset is 'mnst', which is not a choice; the nearest is 'mnist'."),
    (
        "experiments/positions/baseline",
        "bse",
        "experiments.positions names the variant 'bse', which variants does not have; the nearest is 'base'.",
    ),
    ("experiments/positions/baseline", "first", "experiments.positions.baseline is 'first', which is not among its variants"),
    ("experiments/positions/variants", ["base", "base"], "experiments.positions.variants names 'base' more than once"),
    ("experiments/positions/labels", {"bas": "x"}, "experiments.positions.labels names 'bas', which is not among its variants"),
    (
        "experiments/positions/figures",
        ["curve"],
        "experiments.positions.figures.0 is 'curve', which is not a choice; the nearest is 'curves'.",
    ),
    ("timing/rounds", 0, "timing.rounds is 0, but has to be at least 1; the nearest valid value is 1."),
    ("timing/seconds", 0, "timing.seconds is 0, but has to be more than 0.0."),
    ("timing/tokens", [4, 50], "timing.tokens holds 50, but square patches cut an image into 1, 4, 16, 49, 196, 784 tokens."),
    ("timing/tokens", [16, 4], "timing.tokens has to be in rising order, each count once."),
    ("timing/tokens", [4], "timing.tokens has too few entries; it needs at least 2."),
    ("timing/round", 3, "timing.round is not a key of params.yaml; the nearest is 'rounds'."),
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


def test_missing_keys_are_named(raw_params: dict[str, Any]) -> None:
    for key in ("data", "train", "base", "variants", "experiments"):
        raw = {name: value for name, value in raw_params.items() if name != key}
        with pytest.raises(UserError, match=f"^{key} is missing from params.yaml"):
            params.parse(raw)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has to be a mapping with the keys"),
        ("- 1", "has to be a mapping with the keys"),
        ("base: {a: [}", "params.yaml line 1 is not valid YAML"),
        ("base: {}\nbase: {}", "line 2: the key 'base' is given twice"),
        ("base:\n\tpatch: 4", "params.yaml line 2 is not valid YAML"),
    ],
)
def test_what_is_not_such_a_file(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        params.load(tmp_path / "params.yaml")
    assert sentence in str(caught.value)


def test_a_file_that_is_missing_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no params.yaml in .*: run the command from the repository's root"):
        params.load(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"params.yaml cannot be read"):
        params.load(tmp_path / "params.yaml")


def test_yaml_numbers_are_those_of_yaml_1_2(tmp_path: Path, raw_params: dict[str, Any]) -> None:
    """DVC reads YAML 1.2, where 5e-3 is a number; in YAML 1.1 it would be text."""
    text = yaml.safe_dump(raw_params).replace("learning_rate: 0.005", "learning_rate: 5e-3")
    (tmp_path / "params.yaml").write_text(text)
    assert params.load(tmp_path / "params.yaml").train.learning_rate == 0.005


def test_a_variant_with_nothing_behind_its_name_is_the_base(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"]["again"] = None
    assert params.parse(raw).resolve("again").model == params.parse(raw).base


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


def test_damaged_config_says_how_to_write_it_again(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    with pytest.raises(UserError, match="is missing: run `dvc repro resolve` first"):
        params.load_variant(path)
    for text in ("{", json.dumps({"data": {}}), "\x00"):
        path.write_text(text)
        with pytest.raises(UserError, match="`dvc repro --force resolve`"):
            params.load_variant(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(list(params.ModelSettings.model_fields)),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-3, 40),
            st.floats(allow_nan=True),
            st.text(max_size=6),
            st.lists(st.integers(), max_size=2),
        ),
        max_size=4,
    )
)
def test_any_difference_is_accepted_or_refused_in_one_sentence(change: dict[str, Any]) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["variants"]["x"] = change
    message = ""
    try:
        model = params.parse(raw).resolve("x").model
    except UserError as error:
        message = str(error)
    if message:
        assert message.startswith("variants.x.")
        assert "\n" not in message
    else:
        assert 28 % model.patch == 0
        assert model.dim % model.heads == 0
