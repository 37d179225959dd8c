"""Three changes judged by the command on scikit-learn's digits: one that helps, one that harms, one that does nothing.

`python -m docs.method.judge_digits` makes a study of its own in a temporary folder, trains there on the CPU what `make judge` asks for
(minutes), and writes the answers into docs/judge.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from docs.method.judge_rates import PAGE, table, write_between
from pipeline.commands import study
from pipeline.errors import run_command
from pipeline.provenance import device_name, git
from pipeline.report.text import digits
from pipeline.study.proposals import STATUS

MARKS = ("<!-- recorded by python -m docs.method.judge_digits -->\n", "<!-- end of what is recorded -->\n")
_TRAIN = {"schedule": "constant", "learning_rate": 0.01, "epochs": 30}
_VARIANTS = {"base": None, "linear": {"schedule": "linear"}, "no-position": {"position": "none"}}
# A variable of the network's forward pass: the code's hash is another, the numbers are the same.
_RENAMED = ("pipeline/models/vit.py", "tokens", "words")
_JUDGED = (
    ("a learning rate that falls to 0, not a constant one", "linear"),
    ("no position vectors", "no-position"),
    ("a variable of the network renamed, judged against the commit", "base", "--base", "HEAD"),
)


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.judge_digits", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = [[f"{what}: `{' '.join(arguments)}`", *judged(Path(folder) / "digits", *arguments)] for what, *arguments in _JUDGED]
    head = ["change", "answer", "errors, times", "seeds a side", "trained", "replayed", "seconds"]
    said = (
        f"On scikit-learn's digits: a study as `make study` makes it, of {_TRAIN['epochs']} epochs at a constant rate of "
        f"{_TRAIN['learning_rate']:g}, on {device_name('cpu')} with {os.cpu_count()} cores. They were judged one after another, so the "
        f"second finds the base's seeds trained."
    )
    write_between(PAGE, MARKS, [said, "", *table(head, "llrrrrr", rows)])


def judged(folder: Path, *arguments: str) -> list[str]:
    """What the command answers in the study, which is made if it is not there."""
    if not folder.exists():
        study.make(folder)
        settings = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
        settings["train"] |= _TRAIN
        settings["variants"] = _VARIANTS
        (folder / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        git(
            "-c", "user.name=A study", "-c", "user.email=study@localhost", "commit", "--quiet", "--all", "-m", "A constant rate", cwd=folder
        )
    if "--base" in arguments:
        name, old, new = _RENAMED
        (folder / name).write_text(re.sub(rf"(?<![.\w]){old}\b", new, (folder / name).read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline.commands.judge", *arguments, "--json"]
    print(f"judge {' '.join(arguments)}", flush=True)
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder), "LAB_DEVICE": "cpu"}, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    assert done.returncode == STATUS[found["answer"]]
    low, high = found["interval"] or (0, 0)
    ratio = "the same bits" if found["identical"] else f"{digits(found['effect'])} [{digits(low)} to {digits(high)}]"
    return [f"**{found['answer']}**", ratio, *(f"{found[key]:.0f}" for key in ("seeds", "trained", "replayed", "seconds"))]


if __name__ == "__main__":
    run_command(main)
