"""A commit's own code at work: a git worktree in which its train stage trains a variant into this folder's finished seeds."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import params
from pipeline.commands.repro import run
from pipeline.params import Params
from pipeline.study.git import commit_of, root_of
from pipeline.system.errors import UserError
from pipeline.system.files import write_text
from pipeline.system.paths import ARRAYS, CHECKPOINTS, CONFIGS, FINISHED, PRETRAINED
from pipeline.system.provenance import git

_LOCK = "requirements.lock"
_LEFT_OUT = ("benchmarks", "docs", "reports", "store", "tables", "tests", "timing")  # which training does without
_SCENES = ARRAYS.with_name("scenes")


@dataclass(frozen=True)
class Worktree:
    """A commit's files, and the folder in them that is as the working directory is in its own repository.

    Attributes:
        python: that of the commit's own lock where it differs, else this one.
    """

    name: str
    top: Path
    folder: Path
    python: Path

    def params(self) -> Params:
        """The commit's settings. Raises UserError where today's code does not read them."""
        try:
            return params.load(self.folder / "params.yaml")
        except UserError as error:
            raise UserError(f"{self.name} has settings that this code does not read ({error}): name a later commit.") from None

    def code(self, task: str) -> str:
        """The hash of its code that trains."""
        asked = f"from pipeline.system.provenance import training_code; print(training_code({task!r}))"  # by its own list of files
        own = os.environ | {"PYTHONPATH": str(self.top.resolve())}
        done = subprocess.run([str(self.python.absolute()), "-c", asked], cwd=self.folder, env=own, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{self.name} does not say which code trains: name a later commit.")
        return done.stdout.strip()

    def train(self, variant: str, seeds: Sequence[int]) -> None:
        """Has its code finish these seeds, or replay them. Raises UserError (status 1) where that fails, after the lines that say why."""
        config = self.folder / CONFIGS / f"{variant}.json"
        self._run("pipeline.stages.resolve")
        settings = json.loads(config.read_text(encoding="utf-8"))
        settings["train"]["seeds"] = list(seeds)
        config.write_text(json.dumps(settings, sort_keys=True, indent=2) + "\n", encoding="utf-8")
        self._run("pipeline.stages.train", variant)

    def _run(self, *module: str) -> None:
        own = str(self.top.resolve())
        run(self.folder, f"{module[0]} of {self.name}", *module, python=self.python.absolute(), PYTHONPATH=own, LAB_COMMIT="1")


def checked_out(revision: str) -> Worktree:
    """The worktree of a commit, in .checkpoints/commits, with this folder's data and finished seeds.

    Raises:
        UserError: there is no such commit, or (status 1) git or the installation of its lock failed.
    """
    here = Path().resolve()
    root = root_of(here)
    if not git("ls-files", "--", "params.yaml", cwd=here).stdout:
        raise UserError(f"git does not keep {here.name}/params.yaml, so no commit has it: leave IN out, or name a variant with AGAINST.")
    commit = commit_of(root, revision)
    top = root / CHECKPOINTS / "commits" / commit[:10]
    ready, place = top / "ready", str(top.resolve())
    if not ready.exists() or ready.read_text(encoding="utf-8") != place:  # a kill came between, or the checkout was moved or copied
        shutil.rmtree(top, ignore_errors=True)
        for words in (("worktree", "prune"), ("worktree", "add", "--force", "--detach", "--no-checkout", str(top), commit)):
            done = git(*words, cwd=root, text=True)
        if done.returncode == 0:
            git("sparse-checkout", "set", "--no-cone", "/*", *(f"!/{name}/" for name in _LEFT_OUT), cwd=top)
            done = git("checkout", "--quiet", "--detach", commit, cwd=top, text=True)
        if done.returncode:
            raise UserError(f"git could not check {commit[:10]} out in {top}: {done.stderr.strip()}", status=1)
        write_text(ready, place)
    python = Path(sys.executable)
    lock, own = root / _LOCK, top / _LOCK
    if own.exists() and lock.exists() and own.read_bytes() != lock.read_bytes():
        print(f"{commit[:10]} has another {_LOCK}: its own environment is installed in {top / '.venv'}")
        python = top / ".venv" / "bin" / "python"
        if subprocess.run(["make", "--silent", "-C", str(top), "setup"]).returncode:
            raise UserError(f"The lock of {commit[:10]} could not be installed; the lines above say why.", status=1)
    folder = top / here.relative_to(root.resolve())
    tree = Worktree(f"commit {commit[:10]}", top, folder, python)
    FINISHED.mkdir(parents=True, exist_ok=True)
    for path in (ARRAYS, _SCENES, FINISHED, PRETRAINED):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).is_symlink():
            shutil.rmtree(folder / path, ignore_errors=True)
            (folder / path).symlink_to(path.resolve())
    return tree
