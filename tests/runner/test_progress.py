"""What a training says of its time."""

from __future__ import annotations

from pipeline.runner.progress import study_line


def test_the_line_of_a_study() -> None:
    assert study_line(4, 61, 0.0567, 4320, 72_000) == "study: 4 of 61 variants (5 %), 1 h 12 min done, about 20 h 00 min left"
    assert study_line(4, 61, 0.0567, 4, None) == "study: 4 of 61 variants (5 %), 4 s done"
