"""Where a result comes from: commit, code, device, versions."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parent
# The code that decides what a training computes; dvc.yaml names the same paths as the train stage's dependencies.
TRAINING_CODE = ("data/datasets.py", "kernels", "models", "training", "stages/train.py")
# The code that decides what an evaluation of stored weights finds; the evaluate stage's dependencies.
EVALUATION_CODE = (
    "data/datasets.py",
    "kernels",
    "models",
    "training/engine.py",
    "training/stack.py",
    "training/step.py",
    "analysis/attention.py",
    "analysis/statistics.py",
    "evaluation",
    "stages/evaluate.py",
)
# What a pipeline run itself rewrites does not make the tree "dirty": dirty means that the commit does not say what ran.
_GENERATED = ("dvc.lock", "configs", "runs", "evaluations", "predictions", "reports", "timing", "benchmarks/results")


def code_hash(entries: Sequence[str] = TRAINING_CODE) -> str:
    """sha256 over names and bytes of the code that decides a result: files and folders of the package."""
    digest = hashlib.sha256()
    for entry in entries:
        path = PACKAGE / entry
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def git_state() -> tuple[str | None, bool | None]:
    """(commit, whether tracked or new files other than generated ones differ from it); (None, None) without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude){name}" for name in _GENERATED))
    return commit, bool(status)


def committed(files: Sequence[Path]) -> tuple[str | None, set[Path]]:
    """The commit that is checked out around the first file, and the files whose content it holds, under whatever name.

    So a profile's files in build/ are found where they were published. (None, none) without git.
    """
    cwd = files[0].resolve().parent
    commit = _git("rev-parse", "HEAD", cwd=cwd)
    tree = _git("ls-tree", "-r", "--full-tree", "HEAD", cwd=cwd)
    ids = _git("hash-object", "--", *(str(file.resolve()) for file in files), cwd=cwd)
    if commit is None or tree is None or ids is None:
        return None, set()
    held = {line.split(maxsplit=3)[2] for line in tree.splitlines()}
    return commit, {file for file, id in zip(files, ids.split(), strict=True) if id in held}


def _git(*arguments: str, cwd: Path = PACKAGE) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def device_name(device: str) -> str:
    """The GPU's name, or the processor's with the number of cores this process may use."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name} ({len(os.sched_getaffinity(0))} cores)"


def versions() -> dict[str, str]:
    """Versions of what computes a result."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in ("torch", "numpy", "numba")}}
