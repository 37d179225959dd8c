"""Changes judged by the command: one that helps, one that harms and one that does nothing, and the first two on MNIST.

`python -m docs.method.judge_runs` makes a study of scikit-learn's digits in a temporary folder, trains there on the CPU what the command
asks for (a minute or two), asks it the same of this repository's stored seeds, and writes the answers into docs/judge.md.
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
from pipeline.report.text import digits
from pipeline.study.proposals import STATUS
from pipeline.system.errors import run_command
from pipeline.system.provenance import ROOT, device_name, git

MARKS = ("<!-- recorded by python -m docs.method.judge_runs -->\n", "<!-- end of what is recorded -->\n")
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
    argparse.ArgumentParser(prog="python -m docs.method.judge_runs", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "digits"
        _make(own)
        rows = [["digits", *judged(own, what, *arguments)] for what, *arguments in _JUDGED]
    rows += [["MNIST", *judged(ROOT, what, *arguments)] for what, *arguments in _JUDGED[:2]]
    said = (
        f"Recorded on {device_name('cpu')}. Digits: a study as `make study` makes it, with {_TRAIN['epochs']} epochs at a constant rate of "
        f"{_TRAIN['learning_rate']:g}; its three were judged in this order, so the second finds the base's seeds trained. MNIST: the "
        f"seeds of this repository."
    )
    head = ["on", "change", "answer", "errors, times", "seeds a side", "trained", "replayed", "seconds"]
    write_between(PAGE, MARKS, [said, "", *table(head, "lllrrrrr", rows)])


def _make(folder: Path) -> None:
    study.make(folder)
    settings = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    settings["train"] |= _TRAIN
    settings["variants"] = _VARIANTS
    (folder / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    git("-c", "user.name=A study", "-c", "user.email=study@localhost", "commit", "--quiet", "-am", "A constant rate", cwd=folder)


def judged(folder: Path, what: str, *arguments: str) -> list[str]:
    """What the command answers in a study, as the cells of a row."""
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
    return [
        f"{what}: `{' '.join(arguments)}`",
        f"**{found['answer']}**",
        ratio,
        *(f"{found[key]:.0f}" for key in ("seeds", "trained", "replayed", "seconds")),
    ]


if __name__ == "__main__":
    run_command(main)
