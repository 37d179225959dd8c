"""By what a profile's earlier results are known, and how many of them are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.study import states

FILES = ("params.yaml", "profiles/demo/params.yaml", "profiles/other/params.yaml", "pipeline/a/b.py", "pipeline/t.csv", "README.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the results of a profile, and without git."""
    for name in (*FILES, *(f"build/demo/{name}" for name in states._COPIED)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_results_are_known_by_settings_and_code(root: Path, name: str) -> None:
    before = states.key(root, root / "build" / "demo")
    (root / name).write_text("after")
    assert (states.key(root, root / "build" / "demo") == before) == (name in ("profiles/other/params.yaml", "README.md"))


def test_the_newest_are_kept_and_none_of_settings_that_have_changed_since(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_MAX_STATES", 2)
    directory, keys = root / "build" / "demo", []
    for age in (30, 20, 10):
        (root / "params.yaml").write_text(f"{age} days old")
        keys.append(states.key(root, directory))
        assert states.keep(root, directory, keys[-1])
        os.utime(directory / states.STATES / keys[-1], (1e9 - age, 1e9 - age))
    assert not states.keep(root, directory, keys[0])
    kept = directory / states.STATES
    assert {path.name for path in kept.iterdir()} == set(keys[1:])
    assert (kept / keys[2] / "reports" / "claims.csv").read_text() == "before"
