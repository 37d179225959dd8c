"""Profiles: a nested repository that leaves the root alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline import profiles
from pipeline.errors import UserError

ROOT = Path(__file__).parent.parent


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"There is no profile 'dmo'; the choices are demo, preview\."):
        profiles.lay_out("dmo")


def test_laid_out_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    for name in ("dvc.yaml", ".dvcignore", "pipeline"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(profiles, "ROOT", tmp_path)
    directory = profiles.lay_out("demo")
    files = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    assert profiles.lay_out("demo") == directory
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == files
    stages = yaml.safe_load((directory / "dvc.yaml").read_text())
    assert stages["vars"] == [{"code": "../.."}]
    ours, theirs = (yaml.safe_load((place / "dvc.yaml").read_text())["stages"] for place in (directory, ROOT))
    assert ours.keys() == theirs.keys()
    for name, stage in theirs.items():
        copy = ours[name]
        deps, original = copy.get("do", copy).pop("deps"), stage.get("do", stage).pop("deps")
        assert copy == stage
        # The same dependencies, folders of code as their source files: bytecode is no reason to train again.
        assert not any("__pycache__" in dep for dep in deps)
        for dep in original:
            assert any(file == dep or file.startswith(f"{dep}/") for file in deps), dep
        assert all((ROOT / dep.removeprefix("${code}/")).is_file() for dep in deps if dep.startswith("${code}"))
        assert name != "train" or "${code}/pipeline/models/vit.py" in deps
