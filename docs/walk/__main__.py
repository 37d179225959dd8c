"""A new user's walk from a clone to an experiment that is kept: `python -m docs.walk` takes it, and writes docs/walk.md.

Its steps are commands with what they print. A test takes the same steps, but for the demo, which CI runs before the tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.environment import clean
from pipeline.errors import run_command

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "walk.md"
WHO = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "A student"), ("EMAIL", "student@example.org"))
}


@dataclass(frozen=True)
class Step:
    """Some commands of one kind.

    Attributes:
        title, text: what the page says above them.
        commands: run by a shell one after another; each has to end with status 0.
        shown: patterns of the lines of output that the page shows; those of no pattern are left out.
        seconds: after which the last command is ended, where it would go on by itself: a server.
    """

    title: str
    text: str
    commands: tuple[str, ...]
    shown: tuple[str, ...] = ()
    seconds: float | None = None


DEMO = Step(
    "The demo",
    "Everything on scikit-learn's digits, in `build/demo`.",
    ("make demo",),
    (r"^demo: done", r"^  The report", r"^  MLflow"),
)
STEPS = (
    Step(
        "A study of your own",
        "A study is one file. This one has two variants and replaces the repository's own, so use a separate clone. "
        "Its tests of the old catalogue and of README.md fail until they are changed, too.",
        (
            "cp docs/walk/*.yaml .",
            "make list",
            "make repro",
            "git add --all",
            'git commit --quiet -m "A small study"',
        ),
        (r"^variant", r"^(base|no-position) +[0-9,]+ ", r"epoch 3/3", r": accuracy [0-9.]+%", r"finished seeds kept", r"^W1"),
    ),
    Step(
        "A variant",
        "One line for the variant, one name in the experiment. What is trained already is not trained again.",
        (
            "sed -i 's/^  no-position: .*/&\\n  wide: {mlp_dim: 64}/; "
            "s/\\[base, no-position\\]/[base, no-position, wide]/' params.yaml claims.yaml",
            "make repro",
            "make compare BASE=HEAD",
            "git add --all",
            'git commit --quiet -m "Is a wider MLP better?"',
        ),
        (r"^wide +seed . +epoch 3/3", r"^wide: accuracy", r"^# What", r"^\*\*", r"^- Added", r"^- Settings"),
    ),
    Step(
        "Two commits",
        "The same page for two commits; nothing is checked out, and nothing is trained.",
        ("make compare BASE=HEAD~1 HEAD=HEAD",),
        (r"^# What", r"^\*\*", r"^- Added"),
    ),
    Step(
        "In MLflow",
        "`make sync` completes the store, `make ui` serves its pages and prints the links to the useful ones.",
        ("make sync", "make ui"),
        (r"^base: ", r"^wide: ", r"^ +The study"),
        seconds=15,
    ),
    Step(
        "Three experiments",
        "DVC queues them, runs each in a copy of the workspace, and keeps it beside the branch under its name.",
        (
            "dvc exp run --queue -S train.learning_rate=0.001 -n slow",
            "dvc exp run --queue -S train.learning_rate=0.02 -n fast",
            "dvc exp run --queue -S train.epochs=6 -n longer",
            "dvc exp run --run-all",
            "dvc exp show --drop '.*' --keep 'Experiment|train.epochs$|train.learning_rate$|base.test_accuracy_mean'",
            "make compare BASE=HEAD HEAD=fast",
        ),
        (r"Experiment", r"workspace", r"\[(slow|fast|longer)\]", r"^  main ", r"^# What", r"^\*\*", r"^- Settings"),
    ),
    Step(
        "One is kept",
        "Applied to the workspace, and committed like any other result. Three seeds, read on test images, are no ground to choose by:"
        " a study declares its claim first.",
        (
            "dvc exp apply fast",
            "make repro",
            "git add --all",
            'git commit --quiet -m "A rate of 0.02"',
            "make compare BASE=HEAD~1 HEAD=HEAD",
        ),
        (r"^Changes for experiment", r"^# What", r"^\*\*", r"^- Settings"),
    ),
)


def checkout(folder: Path) -> None:
    """A clone's files as they are in this working tree, in a repository with one commit; with the packages that run this."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    venv.create(folder / ".venv", symlinks=True)
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (packages / "those-of-the-walk.pth").write_text("\n".join([str(folder), *site.getsitepackages()]))
    (folder / ".venv" / ".installed").write_text(f"{folder.resolve()}\n")
    for command in ("git init --quiet --initial-branch=main", "git add --all", "git commit --quiet -m Clone"):
        subprocess.run(command.split(), cwd=folder, env=os.environ | WHO, check=True)


def take(step: Step, folder: Path) -> list[tuple[str, str]]:
    """Runs a step's commands. Returns each with what it printed.

    Raises:
        RuntimeError: one failed; the message holds its output.
    """
    path = os.pathsep.join([str(folder / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"PATH": path, "PYTHONPATH": "", "COLUMNS": "120", "LAB_DEVICE": "cpu", "BROWSER": "", "DISPLAY": "", **WHO}
    said = []
    for command in step.commands:
        server = step.seconds is not None and command == step.commands[-1]
        limited = ["timeout", "--signal=INT", str(step.seconds)] if server else []
        done = subprocess.run([*limited, "bash", "-c", command], cwd=folder, env=os.environ | given, capture_output=True, text=True)
        if done.returncode and not server:
            raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        said.append((command, done.stdout))
    return said


def page(taken: list[tuple[Step, list[tuple[str, str]]]]) -> str:
    lines = [
        "# A walk: from a clone to an experiment that is kept",
        "",
        "Written by `python -m docs.walk`, which took the steps that come after these three commands. Of what a command prints, only the "
        "lines that matter here are shown; `...` stands for those left out between them.",
        "",
        "```sh",
        "git clone ADDRESS lab && cd lab",
        "make setup",
        ". .venv/bin/activate",
        "```",
    ]
    for step, said in taken:
        lines += ["", f"## {step.title}", "", step.text, "", "```console"]
        for command, output in said:
            lines.append(f"$ {command}")
            skipped = False
            for line in output.splitlines():
                plain = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
                if any(re.search(pattern, plain) for pattern in step.shown):
                    lines += ["..."] * skipped + [plain if "://" in plain else plain[:160]]
                    skipped = False
                else:
                    skipped = True
        lines.append("```")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    clean()
    argparse.ArgumentParser(prog="python -m docs.walk", description="Walks through a study, and writes docs/walk.md.").parse_args(argv)
    with TemporaryDirectory(prefix="walk-") as name:
        folder = Path(name) / "lab"
        folder.mkdir()
        checkout(folder)
        taken = []
        for step in (DEMO, *STEPS):
            print(step.title, flush=True)
            taken.append((step, take(step, folder)))
    PAGE.write_text(page(taken), encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}.")


if __name__ == "__main__":
    run_command(main)
