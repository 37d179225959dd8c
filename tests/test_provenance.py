"""What a run says of its code and machine."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipeline import provenance

ROOT = Path(__file__).parent.parent


def test_the_code_hash_and_dvc_watch_the_same_code() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    watched = {dep.removeprefix("${code}/pipeline/") for dep in stages["train"]["do"]["deps"] if dep.startswith("${code}/pipeline/")}
    assert watched == set(provenance.TRAINING_CODE)
    assert all((ROOT / "pipeline" / entry).exists() for entry in watched)


def test_the_code_hash_is_repeatable() -> None:
    before = provenance.code_hash()
    assert before == provenance.code_hash()
    assert len(before) == 64


def test_device_and_versions_are_those_of_this_machine() -> None:
    assert "cores)" in provenance.device_name("cpu")
    assert set(provenance.versions()) == {"python", "torch", "numpy", "numba"}
