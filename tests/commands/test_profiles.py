"""Profiles: overlays on the study's params.yaml, and a nested repository that leaves the root alone."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import params
from pipeline.commands import profiles
from pipeline.errors import UserError
from tests.helpers import ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of its own: the repository's params.yaml, profiles and dvc.yaml, and a build/ and reports/ that may be written to."""
    (tmp_path / "profiles").mkdir()
    for name in ("demo", "preview"):
        shutil.copytree(ROOT / "profiles" / name, tmp_path / "profiles" / name)
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    for name in ("dvc.yaml", ".dvcignore", "pipeline"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".dvc").mkdir()
    if (ROOT / ".dvc" / "plots").is_dir():
        (tmp_path / ".dvc" / "plots").symlink_to(ROOT / ".dvc" / "plots")
    monkeypatch.setattr(profiles, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["dmo", "", ".", "..", "../profiles/demo", "demo/", "a\nb", 5000 * "a"])
def test_an_unknown_profile_is_answered_with_the_known_ones(root: Path, name: str) -> None:
    """Whatever its name is: the root's own params.yaml lies in `profiles/..`."""
    shutil.copytree(root / "profiles" / "demo", root / "profiles" / "mine")
    with pytest.raises(UserError, match=r"^There is no profile '.*'; the choices are demo, mine, preview\.$") as caught:
        profiles.lay_out(name)
    assert len(str(caught.value)) < 250
    assert not (root / "build").exists()


@pytest.mark.parametrize("name", ["demo", "preview"])
@pytest.mark.usefixtures("arrays")  # whose images are counted
def test_shipped_profiles_change_the_study_only_in_scale(name: str, study: params.Params) -> None:
    profile = params.parse(profiles.read(name))
    assert profile.preview
    assert profile.base == study.base
    assert profile.claims == study.claims
    assert (profile.images_shown, profile.looks) == (study.images_shown, study.looks)
    assert all(profile.resolve(variant).images_shown < profile.images_shown for variant in profile.variants)  # observations only
    assert [variant for variant in study.variants if variant in profile.variants] == list(profile.variants)
    scale = {"seeds", "epochs", "batch_size", "epoch_images"}
    for variant in profile.variants:
        ours, theirs = profile.resolve(variant), study.resolve(variant)
        assert ours.model == theirs.model
        assert ours.train.model_dump(exclude=scale) == theirs.train.model_dump(exclude=scale)
        length = {"epochs", "epoch_images"}
        assert ours.train.model_dump(include=scale - length) == profile.train.model_dump(include=scale - length)
        if theirs.train.epochs != study.train.epochs:  # a length of its own
            assert ours.images_shown < theirs.images_shown
        else:
            assert ours.train.model_dump(include=length) == profile.train.model_dump(include=length)
    for experiment, told in profile.experiments.items():
        assert set(told.variants) == set(study.experiments[experiment].variants) & set(profile.variants)


def test_a_merge_replaces_lists_and_keeps_what_is_not_named(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    for own in raw["variants"].values():  # of the study's later looks
        own.pop("seeds", None)
    raw["variants"] |= {"base": {"seeds": 10}, "max": raw["variants"]["max"] | {"seeds": 7}}
    before = copy.deepcopy(raw)
    change = {
        "train": {"seeds": [3], "epochs": 2},
        "variants": {"relu": {"epochs": 3}, "base": {"memory": 4}, "max": {"seeds": 5}},
        "claims": {"T3": {"margin": "None."}},
    }
    merged = profiles.overlay(raw, change)
    assert raw == before
    assert merged["train"] == before["train"] | {"seeds": [3], "epochs": 2}
    whole = params.parse(before)
    variants = {name: whole.difference(name) for name in whole.variants}  # written out, as the one it starts from may go
    # The change's number of seeds holds for all, but for those that it names itself.
    changed = {"relu": variants["relu"] | {"epochs": 3}, "base": {"memory": 4}, "max": variants["max"] | {"seeds": 5}}
    assert merged["variants"] == variants | changed
    assert merged["claims"] == before["claims"] | {"T3": before["claims"]["T3"] | {"margin": "None."}}
    assert {key: merged[key] for key in ("base", "experiments", "timing")} == {
        key: before[key] for key in ("base", "experiments", "timing")
    }
    assert profiles.overlay(raw, {}) == before | {"variants": variants}


STUDY = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
NAMES = sorted(STUDY["variants"])


def test_a_variant_outlives_the_one_that_it_starts_from(raw_params: dict[str, Any], study: params.Params) -> None:
    raw = raw_params | {"experiments": {}}
    kept = {"lab-16", "cnn-100"}
    merged = profiles.overlay(raw, {"variants_left_out": [name for name in NAMES if name not in kept]})
    assert merged["variants"].keys() == kept
    assert all(params.parse(merged).resolve(name) == study.resolve(name) for name in merged["variants"])
    # What a profile changes in one reaches those that start from it.
    merged = profiles.overlay(raw, {"variants": {"lab": {"epochs": 3}}, "variants_left_out": ["lab"]})
    assert params.parse(merged).resolve("lab-gelu").train.epochs == 3


def test_a_base_without_a_difference_can_be_changed(raw_params: dict[str, Any]) -> None:
    raw = raw_params | {"variants": raw_params["variants"] | {"base": None}, "train": raw_params["train"] | {"seeds": 3}}
    assert profiles.overlay(raw, {"variants": {"base": {"memory": 4}}, "train": {"seeds": 2}})["variants"]["base"] == {"memory": 4}
    with pytest.raises(UserError, match=r"^variants\.base is 5, but params\.yaml has a mapping there; name the keys of it that change\."):
        profiles.overlay(raw, {"variants": {"base": 5}, "train": {"seeds": 2}})


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kept=st.sets(st.sampled_from(NAMES), min_size=1))
def test_whatever_variants_are_kept_the_study_still_makes_sense(kept: set[str]) -> None:
    overlaid = profiles.overlay(STUDY, {"variants_left_out": sorted(set(NAMES) - kept)})
    assert set(overlaid["variants"]) == kept
    checked = params.parse(overlaid)
    for name, experiment in STUDY["experiments"].items():
        left = [variant for variant in experiment["variants"] if variant in kept]
        assert (name in checked.experiments) == (len(left) >= 2 and experiment["baseline"] in kept)
        if name in checked.experiments:
            assert checked.experiments[name].variants == tuple(left)
            assert checked.experiments[name].labels.items() <= experiment.get("labels", {}).items()
    assert set(checked.claims) == set(STUDY["claims"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (None, "a profile has to be a mapping of what it changes, for example `train: {epochs: 3}`."),
        (["train"], "a profile has to be a mapping of what it changes, for example `train: {epochs: 3}`."),
        ({"trian": {"epochs": 3}}, "trian is not a key of params.yaml; the nearest is 'train'."),
        ({"train": {"epoch": 3}}, "train.epoch is not a key of params.yaml; the nearest is 'epochs'."),
        ({"train": {"epochs": 0}}, "train.epochs is 0, but has to be at least 1; the nearest valid value is 1."),
        ({"train": None}, "train is None, but params.yaml has a mapping there; name the keys of it that change."),
        ({"variants": {"best": None}}, "variants.best is None, but params.yaml has a mapping there; name the keys of it that change."),
        (
            {"variants": {"bset": {"epochs": 3}}},
            "variants.bset is not in the root's params.yaml, where it would have to be added; the nearest is 'best'.",
        ),
        ({"variants": {"best": {"epoch": 3}}}, "variants.best.epoch is not an option of a variant; the nearest is 'epochs'."),
        (
            {"experiments": {"position": {"title": "x"}}},
            "experiments.position is not in the root's params.yaml, where it would have to be added; the nearest is 'positions'.",
        ),
        ({"experiments": {"positions": {"variants": 3}}}, "experiments.positions.variants is 3, but has to be a list."),
        ({"claims": {"T99": {}}}, "claims.T99 is not in the root's params.yaml, where it would have to be added; the nearest is 'T9'."),
        ({"variants_left_out": ["base", 3]}, "variants_left_out is ['base', 3], but has to be a list of variants' names."),
        ({"variants_left_out": "base"}, "variants_left_out is 'base', but has to be a list of variants' names."),
        ({"variants_left_out": NAMES}, "variants_left_out leaves no variant; keep at least one."),
    ],
)
def test_a_wrong_overlay_is_one_sentence(raw_params: dict[str, Any], change: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        profiles.overlay(raw_params, change)
    assert str(caught.value) == sentence


def test_a_variant_that_is_gone_is_left_out_already(root: Path, raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    raw = copy.deepcopy(raw_params)
    del raw["variants"]["dropout"], raw["experiments"]["lab"]
    (root / "params.yaml").write_text(yaml.safe_dump(raw))
    assert "dropout" not in profiles.read("demo")["variants"]
    assert capsys.readouterr().err == "note: profiles/demo/params.yaml names dropout, which params.yaml does not have.\n"


@pytest.mark.parametrize("name", ["demo", "preview"])
def test_a_profile_lies_over_a_study_that_took_the_place_of_the_repositorys_own(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (Path(__file__).parents[2] / "docs" / "walk" / "params.yaml").read_text()
    (root / "params.yaml").write_text(own)
    overlay = yaml.safe_load((root / "profiles" / name / "params.yaml").read_text())
    whole = profiles.read(name)
    assert set(whole["variants"]) == {"base", "no-position"} - set(overlay["variants_left_out"])
    assert whole["train"]["seeds"] == overlay["train"]["seeds"]
    note = rf"note: profiles/{name}/params\.yaml names \d+ variants, which params\.yaml does not have\.\n"
    assert re.fullmatch(note, capsys.readouterr().err)
    (root / "params.yaml").write_text(own.replace("no-position", "capiton"))
    with pytest.raises(UserError, match=r"variants\.caption is not in the root's params\.yaml, .* the nearest is 'capiton'\.$"):
        profiles.read(name)


def test_a_fault_names_the_file_that_it_is_in(root: Path) -> None:
    overlay, study = root / "profiles" / "demo" / "params.yaml", root / "params.yaml"
    shipped = overlay.read_text()
    overlay.write_text(shipped + "\ntiming:\n  rounds: 1\n")
    with pytest.raises(UserError, match=r"^profiles/demo/params\.yaml line \d+ cannot be used: the key 'timing' is given twice"):
        profiles.read("demo")
    overlay.write_text(shipped.replace("epochs:", "epoch:"))
    with pytest.raises(UserError, match=r"^In profiles/demo/params\.yaml: train\.epoch is not a key"):
        profiles.read("demo")
    study.write_text(study.read_text().replace("epochs: 30 ", "epochs: 0 "))
    with pytest.raises(UserError, match=r"^train\.epochs is 0"):  # the root's own, whatever the overlay says
        profiles.read("demo")


def test_laying_out_writes_what_has_changed_and_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = profiles.lay_out("demo")
    files = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    assert profiles.lay_out("demo") == directory
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == files

    generated = (directory / "params.yaml").read_text()
    assert generated.startswith("# Generated from params.yaml and profiles/demo/params.yaml of the root")
    assert params.read(directory / "params.yaml") == profiles.read("demo")
    assert yaml.safe_load(generated) == profiles.read("demo")  # no number that YAML's versions read differently

    stages = yaml.safe_load((directory / "dvc.yaml").read_text())
    assert stages["vars"] == [{"code": "../.."}]
    ours, theirs = (yaml.safe_load((place / "dvc.yaml").read_text())["stages"] for place in (directory, ROOT))
    assert ours.keys() == theirs.keys()
    for name, stage in theirs.items():
        copied = ours[name]
        deps, original = copied.get("do", copied).pop("deps"), stage.get("do", stage).pop("deps")
        assert copied == stage
        # The same dependencies, folders of code as their source files: bytecode is no reason to train again.
        assert not any("__pycache__" in dep for dep in deps)
        for dep in original:
            assert any(file == dep or file.startswith(f"{dep}/") for file in deps), dep
        assert all((ROOT / dep.removeprefix("${code}/")).is_file() for dep in deps if dep.startswith("${code}"))
        assert name != "code" or "${code}/pipeline/models/vit.py" in deps

    study = root / "params.yaml"
    study.write_text("# A comment is no change.\n" + study.read_text())
    profiles.lay_out("demo")
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == files
    study.write_text(study.read_text().replace("\n  dim: 32 ", "\n  dim: 64 "))
    monkeypatch.chdir(directory)  # as `make plan IN=build/demo` does
    profiles.refresh()
    assert params.load("params.yaml").base.dim == 64
    monkeypatch.chdir(root)
    study.unlink()
    profiles.refresh()  # the root is no profile's
