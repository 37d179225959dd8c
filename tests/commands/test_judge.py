"""`make judge`: killed in the middle it goes on, nothing is trained twice, and its exit status is its answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.study.files import FINISHED
from tests.conftest import Repository, small_study
from tests.helpers import wait_until

JUDGE = (sys.executable, "-m", "pipeline.commands.judge")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Say which variant to judge"),
        (("widd",), "widd"),
        (("wide", "--base", "HEAD", "--against", "base"), "give one of them"),
        (("wide", "--margin", "none"), "has to be a number above 0"),
        (("wide", "--seeds", "5"), "whole number from 6"),
        (("wide", "--measure", "accuracy"), "say by MARGIN"),
        (("wide", "--measure", "nothing"), "There is no measure"),
        (("base",), "nothing to judge"),
        (("wide", "--in", "nowhere"), "holds no params.yaml"),
        (("wide", "--series", "a/b"), "a series is called by"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, raw_params: dict[str, Any]
) -> None:
    study = Repository.create(tmp_path / "study", small_study(raw_params))
    result = study.run(*JUDGE, *arguments)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False), result.stderr
    assert re.search(rf"^error: .*{re.escape(said)}", result.stderr, flags=re.M)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_it_goes_on_and_trains_nothing_twice(tmp_path: Path, raw_params: dict[str, Any]) -> None:
    study = Repository.create(tmp_path / "study", small_study(raw_params))
    study.edit(variants={"slow": {"learning_rate": 1e-6}}, train={"learning_rate": 0.01, "batch_size": 32, "epochs": 2})
    command = (*JUDGE, "slow", "--json", "--series", "one")

    def finished() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (study.path / FINISHED).glob("*/*.done")}

    with subprocess.Popen(command, cwd=study.path, env=study.environment, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: finished() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGKILL)
    before = finished()
    assert 0 < len(before) < 12

    result = study.run(*command)
    assert result.returncode == 3, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["answer"], answer["seeds"], answer["trained"], answer["proposal"]) == ("worse", 6, 12 - len(before), 1)
    assert answer["interval"][0] > 1.05
    after = finished()
    assert len(after) == 12
    assert before.items() <= after.items()

    again = json.loads(study.run(*command).stdout)
    assert (again["trained"], again["effect"], again["interval"]) == (0, answer["effect"], answer["interval"])
    better = study.run(*JUDGE, "base", "--against", "slow")
    assert (better.returncode, better.stdout.splitlines()[-3]) == (0, "better"), better.stderr
    assert study.run(*JUDGE, "slow", "--margin", "100000").returncode == 4
    assert finished() == after
    assert (study.path / "build" / "judge.png").read_bytes().startswith(b"\x89PNG")
