"""`make judge`: its exit status is its answer, beside a variant or a commit; killed it goes on; docs/agents.md runs as printed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipeline.commands import judge
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from tests.conftest import Repository, small_study
from tests.helpers import ROOT, commit_all, git, of_this_study, wait_until
from tests.study.test_claims import steps

PAGE = ROOT / "docs" / "agents.md"
JUDGE = (sys.executable, "-m", "pipeline.commands.judge")


@pytest.fixture
def study(tmp_path: Path, raw_params: dict[str, Any]) -> Repository:
    """Its base learns in two epochs; `slow` and `slower` do not; `close` differs in the last digits."""
    made = Repository.create(tmp_path / "study", small_study(raw_params))
    variants = {"slow": {"learning_rate": 1e-6}, "slower": {"learning_rate": 1e-7}, "close": {"learning_rate": 0.010001}}
    made.edit(variants=variants, train={"learning_rate": 0.01, "batch_size": 32, "epochs": 2})
    return made


@pytest.fixture
def committed(study: Repository) -> Repository:
    shutil.copyfile(ROOT / ".gitignore", study.path / ".gitignore")
    git(study.path, "init", "--quiet", "--initial-branch=main")
    git(study.path, "config", "user.name", "A study")
    git(study.path, "config", "user.email", "study@example.org")
    commit_all(study.path)
    return study


def judged(study: Repository, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status, and the one object on the standard output."""
    result = study.run(*JUDGE, *arguments, "--json")
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert answer["status"] == result.returncode
    return result.returncode, answer


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Say which variant to judge"),
        (["wide", "--base=HEAD", "--against=base"], "give one of them"),
        (["wide", "--seeds=5"], "whole number from 6"),
        (["wide", "--measure=accuracy"], "give a number above 0, in points"),
        (["wide", "--measure=parameters"], "nothing that seeds alone can judge by"),
        (["wide", "--measure=time to an accuracy"], "nothing that seeds alone can judge by"),
        (["base"], "nothing to judge"),
        (["wide", "--series=a/b"], "a series is called by"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_sentence(
    arguments: list[str], said: str, study: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.path)
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        judge.main(arguments)
    assert caught.value.status == 2
    assert not (study.path / FINISHED).exists()


def test_seeds_that_never_reach_what_is_measured_judge_nothing() -> None:
    made = steps(901, 900, 850)
    with pytest.raises(UserError, match="wide: some seeds never reach"):
        judge._values(cast("judge.Side", SimpleNamespace(name="wide", training=lambda n: made)), "steps to a train loss of 0.5", 3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_seeds_of_data_that_have_changed_do_not_count(study: Repository, tmp_path: Path) -> None:
    def write(seed: int) -> None:
        images = np.random.default_rng(seed).integers(256, size=(400, 28, 28), dtype=np.uint8)
        labels = images.mean((1, 2)) > 127.5
        np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels * 1, test_images=images[:99], test_labels=labels[:99] * 1)

    write(0)
    study.edit(data={"dataset": "npz", "path": "../own.npz", "size": 28, "channels": 1, "classes": 2}, train={"learning_rate": 0.001})
    assert judged(study, "close", "--seeds", "6", "--margin", "0.01")[1]["trained"] == 12
    write(1)
    study.edit(variants={"other": {"learning_rate": 0.002}})
    first, again = (judged(study, "other", "--seeds", "6", "--margin", "0.01")[1] for _ in range(2))
    assert (first["trained"], again["trained"], first["effect"]) == (12, 0, again["effect"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_answer_has_its_exit_status(study: Repository) -> None:
    status, worse = judged(study, "slow")
    assert (status, worse["answer"], worse["trained"], worse["seeds"]) == (3, "worse", 12, 6)
    assert worse["interval"][0] > 1.05
    status, nothing = judged(study, "slower", "--against", "slow")  # both learned nothing
    assert (status, nothing["seeds"], nothing["needed"], "6 of 6 seeds of slow " in nothing["sentence"]) == (5, 6, None, True)
    better = study.run(*JUDGE, "base", "--against", "slow")
    assert (better.returncode, "better" in better.stdout.splitlines()) == (0, True), better.stderr
    assert study.run(*JUDGE, "slow", "--margin", "100000").returncode == 4
    status, open_ = judged(study, "close", "--seeds", "6", "--margin", "0.01")
    assert (status, open_["answer"], open_["trained"], open_["looks"]) == (5, "not decided", 6, [6])
    assert open_["needed"] > 6
    _, looks = judged(study, "slow", "--measure", "attention entropy", "--margin", "2")  # of ln 5 at most, which an evaluation finds
    assert (looks["answer"], looks["trained"], looks["seeds"]) == ("the same", 0, 6)
    # Of a guesser no accuracy is lost, and patches of 14 pixels do not fit into 20.
    for measure in ("accuracy lost to shifts", "accuracy at another size"):
        refused = study.run(*JUDGE, "slow", "--measure", measure, "--margin", "1")
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
        assert refused.stderr.splitlines()[-1].endswith("; judge by another measure."), refused.stderr
    assert (study.path / "build" / "judge.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_commit_is_judged_by_its_own_code_and_settings(committed: Repository) -> None:
    committed.edit(train={"learning_rate": 1e-6})
    commit_all(committed.path)
    status, worse = judged(committed, "--base", "HEAD~1")
    assert (status, worse["change"], worse["trained"]) == (3, "base as it is", 12)
    assert worse["against"] == f"base of commit {git(committed.path, 'rev-parse', 'HEAD~1')[:10]}"

    step = committed.path / "pipeline" / "training" / "step.py"
    before = step.read_text()
    step.write_text(f"{before}\n_NOTHING = 0\n")  # other code that computes the same
    status, same = judged(committed, "--base", "HEAD")
    assert (status, same["answer"], same["identical"], same["trained"], same["replayed"]) == (4, "the same", True, 0, 6)

    reader = committed.path / "pipeline" / "data" / "datasets.py"  # other code may make other images, of which nothing is known
    reader.write_text((read := reader.read_text()) + "\n_NOTHING = 0\n")
    assert "makes its data by other code (data/datasets.py)" in committed.run(*JUDGE, "--base", "HEAD").stderr
    reader.write_text(read)

    step.write_text(f"{before}\nraise RuntimeError\n")
    commit_all(committed.path)
    step.write_text(before)
    fault = committed.run(*JUDGE, "--base", "HEAD")
    assert fault.returncode == 1
    assert fault.stderr.splitlines()[-1].startswith("error: `pipeline.stages.train of commit ")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_it_goes_on_and_trains_nothing_twice(study: Repository) -> None:
    command = ("slow", "--series", "one")

    def finished() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (study.path / FINISHED).glob("*/*.done")}

    started = subprocess.Popen((*JUDGE, *command), cwd=study.path, env=study.environment, stdout=subprocess.DEVNULL, start_new_session=True)
    with started as process:
        wait_until(lambda: finished() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGKILL)
    before = finished()
    assert 0 < len(before) < 12
    _, answer = judged(study, *command)
    assert (answer["answer"], answer["trained"], answer["proposal"]) == ("worse", 12 - len(before), 1)
    after = finished()
    assert len(after) == 12
    assert before.items() <= after.items()
    _, again = judged(study, *command)
    assert (again["trained"], again["effect"], again["interval"], again["proposal"]) == (0, answer["effect"], answer["interval"], 1)
    assert finished() == after


@pytest.mark.long
@pytest.mark.timeout(1800)
@of_this_study
def test_the_loop_of_the_page_runs_as_printed(committed: Repository) -> None:
    """Edit, judge, keep or drop by the table's word for the status, commit: once a new variant, once other code."""
    page = PAGE.read_text()
    (variant,) = re.findall(r"^ *variants:\n *(\w+: .*)$", page, flags=re.MULTILINE)
    new, other = [shlex.split(line) for line in re.findall(r"^ *(python -m pipeline\.commands\.judge .*)$", page, flags=re.MULTILINE)]
    keep = {int(status): action.startswith("keep it") for status, action in re.findall(r"\| (\d) \| [^|]+ \| ([^|]+) \|", page)}
    params, optimizers = committed.path / "params.yaml", committed.path / "pipeline" / "training" / "optimizers.py"

    def turn(command: list[str]) -> dict[str, Any]:
        result = committed.run(*command)
        answer: dict[str, Any] = json.loads(result.stdout)
        done = ("commit", "-am", answer["sentence"]) if keep[result.returncode] else ("checkout", "--", ".")
        git(committed.path, *done)
        return answer

    params.write_text(params.read_text().replace("variants:\n", f"variants:\n  {variant}\n"))
    first = turn(new)
    assert (first["change"], first["against"], first["series"], first["proposal"]) == ("cosine", "base", "tuning", 1)
    assert ("cosine" in committed.params()["variants"]) == keep[first["status"]]

    good = optimizers.read_text()
    optimizers.write_text(good.replace("rates = schedules.learning_rates(", "rates = 0 * schedules.learning_rates("))
    assert optimizers.read_text() != good
    second = turn(other)
    assert (second["answer"], second["change"], second["proposal"]) == ("worse", "base as it is", 2)
    assert optimizers.read_text() == good  # dropped
