"""Where a result comes from: commit, code, device, versions."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
# The code that decides what a training computes, and what else decides it for captions. A finished seed is known by it.
TRAINING_CODE = ("data/datasets.py", "kernels", "models", "params/architectures.py", "training")
CAPTIONING_CODE = ("captioning",)
# The code that decides what an evaluation of stored weights finds.
EVALUATION_CODE = (
    *TRAINING_CODE,
    *CAPTIONING_CODE,
    "evaluation",
    "measures/definitions.py",
    "measures/positions.py",
    "measures/traces.py",
    "study/statistics.py",
    "stages/evaluate.py",
)
# The code that decides what the timing stage measures; its other modules read what it left.
TIMING_CODE = tuple(f"timing/{name}.py" for name in ("load", "measure", "profile", "published", "rounds", "steps", "subjects"))
# All code of a stage, which DVC runs again when it changes. DVC sees it as the file code-hashes/STAGE.txt.
STAGE_CODE = {
    "scenes": (
        "captioning/grammar.py",
        "captioning/scenes.py",
        "data/datasets.py",
        "files.py",
        "models/dropout.py",
        "params/data.py",
        "report/figures/drawing.py",
        "report/figures/style.py",
        "report/scenes.py",
        "report/templates/scenes.md.j2",
        "report/text.py",
        "stages/scenes.py",
    ),
    "train": (*TRAINING_CODE, *CAPTIONING_CODE, "files.py", "measures/definitions.py", "runner", "stages/train.py"),
    "evaluate": (*EVALUATION_CODE, "study/files.py", "study/tables.py", "study/training.py"),
    "timing": ("kernels", "models", "params/architectures.py", "training", *TIMING_CODE, "stages/timing.py"),
    "report": (
        "captioning/data.py",
        "captioning/grammar.py",
        "measures",
        "study",
        "report",
        "timing/power_law.py",
        "timing/results.py",
        "timing/subjects.py",
        "training/tasks.py",
        "stages/report.py",
    ),
}
# What a pipeline run itself rewrites does not make the tree "dirty": dirty means that the commit does not say what ran.
_GENERATED = (
    "benchmarks/results",
    "code-hashes",
    "configs",
    "dvc.lock",
    "predictions",
    "reports",
    "results",
    "runs",
    "tables",
    "timing",
)


def code_hash(entries: Sequence[str] = TRAINING_CODE, package: Path = PACKAGE) -> str:
    """sha256 over names and meaning of code: modules, page templates and tables, or folders of them, in the package.

    Comments, docstrings and layout do not count. The hash is the same on every Python that the project runs on.
    """
    digest = hashlib.sha256()
    for entry in entries:
        path = package / entry
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix not in (".py", ".j2", ".csv"):
                continue
            text = file.read_text(encoding="utf-8")
            content = (canonical(text) if file.suffix == ".py" else text).encode()
            digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@cache
def training_code(task: str = "classification") -> str:
    """The hash of the code that trains networks for a task."""
    return code_hash((*TRAINING_CODE, *CAPTIONING_CODE) if task == "captioning" else TRAINING_CODE)


@cache  # stages share most of their code
def canonical(source: str) -> str:
    """A module's syntax tree as text, without docstrings.

    `ast.dump` would not do: Python 3.12 gave functions and classes a field for type parameters, 3.13 leaves out empty fields, and
    3.12 splits the text of f-strings in other places. Here empty fields are left out, and neighbouring texts are joined.
    """
    return _dump(ast.parse(source))


def _dump(node: object) -> str:
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr({','.join(map(_dump, _joined(node.values)))})"
    if isinstance(node, ast.AST):
        fields = []
        for name in node._fields:
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                value = _without_docstring(value)
            # `kind` is the u of u"..."; `type_comment` is a comment.
            if value is not None and value != [] and name not in ("kind", "type_comment"):
                fields.append(f"{name}={_dump(value)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, each run of texts as one, empty ones left out."""
    parts: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant):
            if parts and isinstance(before := parts[-1], ast.Constant):
                parts.pop()
                value = ast.Constant(str(before.value) + str(value.value))
            if value.value == "":
                continue
        parts.append(value)
    return parts


def git_state() -> tuple[str | None, bool | None]:
    """(commit, whether tracked or new files other than generated ones differ from it); (None, None) without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude){name}" for name in _GENERATED))
    return commit, bool(status)


def committed(files: Sequence[Path]) -> tuple[str | None, set[Path]]:
    """The commit that is checked out around the first file, and the files that it holds, as a dvc.lock in it names them by their md5.

    So a profile's files in build/ are found where they were published. (None, none) without git.
    """
    cwd = files[0].resolve().parent
    commit = _git("rev-parse", "HEAD", cwd=cwd)
    locks = _git("grep", "--full-name", "-h", "-o", "-E", r"\b[0-9a-f]{32}\b", "HEAD", "--", ":/*dvc.lock", cwd=cwd)
    if commit is None or locks is None:
        return commit, set()
    held = set(locks.split())
    return commit, {file for file in files if hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() in held}


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


def same_processor(name: str, other: str) -> bool:
    """Whether two device names are of one kind; the number of cores, which a name ends with, decides no result."""
    return name.split(" (")[0] == other.split(" (")[0]


def origin(device: str, task: str = "classification") -> dict[str, Any]:
    """What is known of a training for a task before it starts. `device`: "cpu" or "cuda"."""
    commit, dirty = git_state()
    return {"code_hash": training_code(task), "git_commit": commit, "git_dirty": dirty, "device": device, "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of what computes a result."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in ("torch", "numpy", "numba")}}
