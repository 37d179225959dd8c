"""The comparison of the fast path with the plain one trains both, and finds them equal but for rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import accuracy, page
from benchmarks.runner import Options
from pipeline.kernels import why_not_fused


@pytest.mark.long
def test_both_paths_are_trained_and_agree_to_rounding(tmp_path: Path) -> None:
    if why_not_fused(4):
        pytest.skip("the fused kernel cannot run on this machine")
    options = Options(
        device="cpu", data=tmp_path / "none", threads=2, warmup=0, threshold=1.0, attempts=1, steps=None
    )  # fmt: skip
    said: list[str] = []
    measured = accuracy.measure(options, said.append, quick=True)
    assert (measured["seeds"], measured["epochs"], measured["images"]) == (2, 1, 2560)
    # Two ways of summing: not the same to the last bit, so both ran; and the same to rounding.
    assert all(0 < difference < 1e-4 for difference in measured["loss_difference"])
    assert len(said) == 4
    text = page._accuracy({"accuracy": measured})
    assert "on 2,560 images, 1 epoch, seeds 0 to 1" in text
    assert f"{measured['accuracy']['fused'][1]:.2%}" in text
