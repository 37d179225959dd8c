"""Pictures are drawn in several processes."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import pytest

from pipeline.errors import UserError
from pipeline.report.figures.drawing import Drawing
from pipeline.report.figures.style import Theme
from pipeline.report.parallel import call_all, pictures


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the report stage, which never imports it."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.usefixtures("without_torch")
def test_calls_are_shared_among_processes_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_PROCESSES", "2")
    found = call_all([lambda place=place: (place, os.getpid()) for place in range(8)])
    assert [place for place, _ in found] == list(range(8))
    assert os.getpid() not in {process for _, process in found}

    def draw(theme: Theme, *, of: str) -> bytes:
        return f"{of} {theme}".encode()

    drawings = [Drawing("", "", partial(draw, of=name), name) for name in ("b", "a")]
    assert list(pictures(drawings, "figures").items()) == [
        ("figures/b.png", b"b light"),
        ("figures/b-dark.png", b"b dark"),
        ("figures/a.png", b"a light"),
        ("figures/a-dark.png", b"a dark"),
    ]


@pytest.mark.usefixtures("without_torch")
def test_what_goes_wrong_there_is_said_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UserError("The weights are damaged.", status=1)

    monkeypatch.setenv("LAB_PROCESSES", "2")
    with pytest.raises(UserError, match=r"^The weights are damaged\.$") as caught:
        call_all([fail, fail])
    assert caught.value.status == 1


@pytest.mark.usefixtures("without_torch")
def test_a_process_that_is_killed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_PROCESSES", "2")
    with pytest.raises(UserError, match=r"^A process that drew pictures ended early") as caught:
        call_all([lambda: os.kill(os.getpid(), signal.SIGKILL)] * 2)
    assert caught.value.status == 1


@pytest.mark.parametrize(("processes", "torch"), [("1", False), ("2", True)])
def test_one_process_or_torch_makes_the_calls_here(monkeypatch: pytest.MonkeyPatch, processes: str, torch: bool) -> None:
    monkeypatch.setenv("LAB_PROCESSES", processes)
    if torch:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert call_all([os.getpid] * 2) == [os.getpid()] * 2
