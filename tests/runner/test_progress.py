"""What a training says of its time."""

from __future__ import annotations

import time

import pytest

from pipeline.runner.progress import TrainingProgress, study_line


def test_the_line_of_a_study() -> None:
    assert study_line(4, 61, 0.0567, 4320, 72_000) == "study: 4 of 61 variants (5 %), 1 h 12 min done, about 20 h 00 min left"
    assert study_line(4, 61, 0.0567, 4, None) == "study: 4 of 61 variants (5 %), 4 s done"


def test_the_time_left_is_right_from_the_first_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes train four seeds, two epochs of 10 s each: 40 s in all, of which nothing is known before an epoch has ended."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    training = TrainingProgress("tiny", [[0], [1], [2], [3]], 2)
    screen = training.screen
    training.started([0], 0)
    training.started([1], 0)
    assert (screen.seconds_left(), screen.time_left()) == (None, "")
    clock[0] += 10
    for seed in (0, 1):  # seed 1 is as good as done when seed 0 is
        training.epoch([seed], 1, [])
        assert screen.seconds_left() == pytest.approx(30)
    clock[0] += 5
    assert screen.seconds_left() == pytest.approx(25)
    clock[0] += 1005  # the machine slept: an epoch that runs counts as one, however long it takes
    assert screen.seconds_left() == pytest.approx(1020)
    training.finished([0], [])
    training.finished([1], [])
    assert (screen.work_left(), screen.seconds_left()) == (4, pytest.approx(2 * 1020))


def test_the_time_left_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has trained its last epoch stores its results for a while; no further epoch of it is under way."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    training = TrainingProgress("tiny", [[0], [1]], 1)
    training.started([0], 0)
    training.started([1], 0)
    clock[0] += 10
    training.epoch([0], 1, [])
    clock[0] += 9
    training.epoch([1], 1, [])
    assert training.screen.seconds_left() == 0


def test_an_epoch_of_no_time_leaves_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    training = TrainingProgress("tiny", [[0]], 2)
    training.started([0], 0)
    training.epoch([0], 1, [])
    assert training.screen.seconds_left() == 0
