"""Where a study keeps its files, and how those of a folder or of a commit are read."""

import os
from pathlib import Path, PurePosixPath

from pipeline.system.provenance import git

# Where the stages keep things, relative to the DVC repository's root.
ARRAYS = Path("data/arrays")
CHECKPOINTS = Path(".checkpoints")
CODE_HASHES = Path("code-hashes")
CONFIGS = Path("configs")
FINISHED = CHECKPOINTS / "seeds"
STORE = Path("store")  # which git tracks: two files a variant
TRAININGS = STORE / "trainings"
PREDICTIONS = STORE / "predictions"
PRETRAINED = STORE / "pretrained"  # weights of other trainings to start from
TABLES = Path("tables")
TIMINGS = Path("timing")  # cpu.json, cuda.json: a file for each kind of device that was timed

CURVES = ("train_loss", "test_loss", "test_accuracy", "seconds", "gradient_norm")  # of epochs.csv
REPEATED = ("test_accuracy", "test_loss")  # of the last epoch: an evaluation is accepted only if it finds them again


class Files:
    """The files of a folder, whether git knows them or not, or of a commit of the repository with this top folder."""

    def __init__(self, root: Path, commit: str = "") -> None:
        self._root, self._commit = root, commit

    def read(self, pattern: str) -> dict[str, bytes]:
        """Contents by their paths from the top folder, sorted; a `*` stays inside one part of a path. What git does not hold is empty."""
        if not self._commit:
            here = sorted(path for path in self._root.glob(pattern) if path.is_file())
            return {path.relative_to(self._root).as_posix(): path.read_bytes() for path in here}
        listed = git("ls-tree", "-r", "-z", "--name-only", "--full-tree", self._commit, cwd=self._root).stdout.split(b"\0")
        found = (path for path in map(os.fsdecode, listed) if path and PurePosixPath("/", path).match(f"/{pattern}"))
        return {path: git("cat-file", "blob", f"{self._commit}:{path}", cwd=self._root).stdout for path in found}


def mend(stage: str) -> str:
    """How to have a stage write its files again, as a clause."""
    return f"run `dvc repro --force --single-item {stage}`"
