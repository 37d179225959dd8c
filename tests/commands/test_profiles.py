"""Profiles: overlays on the study's settings, and a nested repository that leaves the root alone."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import params
from pipeline.commands import profiles
from pipeline.system.errors import UserError
from tests.helpers import ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of its own: the tests' study with two profiles, the repository's dvc.yaml, and a build/ that may be written to."""
    (tmp_path / "profiles").mkdir()
    for name in ("demo", "mine"):
        (tmp_path / "profiles" / f"{name}.yaml").write_text("train: {seeds: 3}\nvariants: {base: , deep: {epochs: 1}}\n")
    shutil.copy(ROOT / "tests/params.yaml", tmp_path)
    for name in ("dvc.yaml", ".dvcignore", "pipeline"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "plots").symlink_to(ROOT / ".dvc" / "plots")
    monkeypatch.setattr(profiles, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("arrays")  # whose images are counted
def test_every_claim_of_the_demo_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    demo = params.parse(profiles.read("demo"))
    assert capsys.readouterr().err == ""  # all that it names is there
    assert len(demo.variants) == 8
    assert not demo.timing.subjects
    for claim in demo.claims.values():
        sides = {name for part in claim.comparisons for name in part.variants}
        assert all(demo.resolve(name).images_shown >= demo.images_shown for name in sides)
        assert all(len(demo.resolve(name).train.seeds) in demo.looks for name in sides)
    assert not {"scenes", "timing"} & profiles.stages_of(profiles.read("demo"))["stages"].keys()


def test_the_preview_changes_the_study_only_in_scale(study: params.Params, capsys: pytest.CaptureFixture[str]) -> None:
    profile = params.parse(profiles.read("preview"))
    assert capsys.readouterr().err == ""  # all that it names is there
    assert profile.preview
    assert (profile.base, profile.claims) == (study.base, study.claims)
    assert all(profile.resolve(variant).images_shown < profile.images_shown for variant in profile.variants)  # observations only
    scale = {"seeds", "epochs", "epoch_images"}
    for variant in profile.variants:
        ours, theirs = profile.resolve(variant), study.resolve(variant)
        assert ours.model == theirs.model
        assert ours.train.model_dump(exclude=scale) == theirs.train.model_dump(exclude=scale)
        assert ours.train.seeds == profile.train.seeds


def test_what_is_not_named_stays_and_seeds_hold_for_all(own: dict[str, Any]) -> None:
    before = copy.deepcopy(own)
    variants = {name: {} for name in own["variants"]} | {"wide": {"heads": 4}, "cnn": {"seeds": 5}}
    change = {"train": {"seeds": [3], "epochs": 1}, "variants": variants, "claims": {"W2": own["claims"]["W1"]}, "experiments": {}}
    merged = params.parse(profiles.overlay(own, change))
    assert own == before
    study = params.parse(own)
    assert merged.train == study.train.model_copy(update={"seeds": (3,), "epochs": 1})
    seeds = {name: merged.resolve(name).train.seeds for name in merged.variants}
    assert seeds == {name: tuple(range(5)) if name in ("cnn", "cnn-100") else (3,) for name in study.variants}
    assert merged.difference("deep") == {"mlp_dim": 16, "blocks": 2, "heads": 4}  # what changes in one reaches those that start from it
    assert (merged.claims, merged.experiments) == ({"W2": study.claims["W1"]}, {})
    assert (merged.base, merged.timing) == (study.base, study.timing)


def test_variants_that_are_not_named_go_with_what_is_said_of_them(own: dict[str, Any]) -> None:
    merged = params.parse(profiles.overlay(own, {"variants": {"deep": None, "base": None, "cnn-100": None}}))
    assert list(merged.variants) == ["base", "deep", "cnn-100"]  # in the study's order
    study = params.parse(own)
    assert all(merged.resolve(name) == study.resolve(name) for name in merged.variants)  # without those that they start from
    assert list(merged.experiments) == ["width"]  # the other has one variant left
    assert merged.experiments["width"].variants == ("base", "deep")
    assert merged.claims == study.claims


def test_a_profile_lies_over_another_study(own: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """One that took the place of the repository's own: names that it does not have are left out, and told."""
    assert list(profiles.overlay(own, {"variants": {"base": None, "gone": None}})["variants"]) == ["base"]
    assert "gone" in capsys.readouterr().err
    assert profiles.overlay(own, {"variants": {"gone": None}})["variants"].keys() == own["variants"].keys()


def test_a_wrong_overlay_is_one_sentence_that_names_its_file(root: Path, own: dict[str, Any]) -> None:
    changes = {
        "a profile": ["train"],
        "trian: ": {"trian": {}},
        "claims.W9.": {"claims": {"W9": {}}},
        "experiments.p": {"experiments": {"p": None}},
        "variants.base.epoch: ": {"variants": {"base": {"epoch": 3}}},
    }
    for key, change in changes.items():
        with pytest.raises(UserError, match=f"^{re.escape(key)}"):
            profiles.overlay(own, change)
    with pytest.raises(UserError, match=r"^There is no profile '\.\./dmo'; the "):
        profiles.lay_out("../dmo")
    overlay, study = root / "profiles" / "demo.yaml", root / "params.yaml"
    overlay.write_text("train: {epoch: 1}")
    with pytest.raises(UserError, match=r"^In profiles/demo\.yaml: train\.epoch: "):
        profiles.read("demo")
    study.write_text(study.read_text().replace("epochs: 2", "epochs: 0"))
    with pytest.raises(UserError, match=r"^train\.epochs"):  # the root's own, whatever the overlay says
        profiles.read("demo")


def test_laying_out_writes_what_has_changed_and_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = profiles.lay_out("demo")
    files = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    assert profiles.lay_out("demo") == directory
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == files
    assert params.study.read_both(directory / "params.yaml") == profiles.read("demo")
    assert params.read(directory / "claims.yaml").keys() == {"experiments", "claims"}

    stages = yaml.safe_load((directory / "dvc.yaml").read_text())
    assert stages["vars"] == [{"code": "../.."}]
    whole = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert stages["stages"].keys() == whole.keys() - {"scenes"}  # none of its variants writes captions
    for stage in stages["stages"].values():  # folders of code as their source files: bytecode is no reason to train again
        assert not any("__pycache__" in dep or dep.endswith("pipeline/models") for dep in stage.get("do", stage)["deps"])

    study = root / "params.yaml"
    study.write_text("# A comment is no change.\n" + study.read_text())
    profiles.lay_out("demo")
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == files
    study.write_text(study.read_text().replace("\n  dim: 8\n", "\n  dim: 16\n"))
    monkeypatch.chdir(directory)  # as `make plan IN=build/demo` does
    profiles.refresh()
    assert params.load("params.yaml").base.dim == 16
    monkeypatch.chdir(root)
    study.unlink()
    profiles.refresh()  # the root is no profile's
