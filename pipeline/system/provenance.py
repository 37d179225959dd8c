"""The origin of a result: commit, code, device, versions."""

import ast
import hashlib
import importlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from pipeline.system.environment import FOREIGN
from pipeline.system.errors import UserError, first_line

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
# The code that decides the result of a training, and what else decides it for captions. A finished seed is stored under its hash.
TRAINING_CODE = (
    "data/datasets.py", "kernels", "models", "params/architectures.py", "params/model.py", "params/train.py", "params/variant.py",
    "training",
)  # fmt: skip
CAPTIONING_CODE = ("captioning",)
# The code that decides the result of evaluating stored weights.
EVALUATION_CODE = (
    *TRAINING_CODE, *CAPTIONING_CODE, "evaluation", "measures/definitions.py", "measures/positions.py", "measures/traces.py",
    "study/statistics.py", "stages/evaluate.py",
)  # fmt: skip
# The code that decides what the timing stage measures. The other modules of timing/ read its results.
TIMING_CODE = tuple(f"timing/{name}.py" for name in ("load", "measure", "profile", "published", "rounds", "steps", "subjects"))
# All code of each stage. When it changes, DVC runs the stage again; DVC sees it as the file code-hashes/STAGE.txt.
STAGE_CODE = {
    "scenes": (
        "captioning/grammar.py", "captioning/scenes.py", "data/datasets.py", "models/dropout.py", "params/data.py", "stages/scenes.py",
        "system/files.py",
    ),
    "train": (
        *TRAINING_CODE, *CAPTIONING_CODE, "measures/definitions.py", "params/data.py", "runner", "stages/train.py", "system/files.py",
    ),
    "evaluate": (
        *EVALUATION_CODE, "measures", "params", "runner/pool.py", "runner/replay.py", "runner/seeds.py", "stages/__init__.py",
        "study/tables.py", "study/training.py", "system/files.py", "system/paths.py", "system/provenance.py",
    ),
    "timing": (
        *CAPTIONING_CODE, "kernels", "models", "params/architectures.py", "params/model.py", "params/train.py", "training", *TIMING_CODE,
        "stages/timing.py",
    ),
    "report": (
        "captioning/grammar.py", "measures", "params", "study", "report", "timing/results.py",
        "timing/subjects.py", "stages/report.py",
    ),
}  # fmt: skip
# A pipeline run rewrites these itself, so they do not make the tree "dirty", which means that the commit is not what ran.
_GENERATED = ("benchmarks/results", "dvc.lock", "reports", "store", "tables", "timing")


def code_hash(entries: Sequence[str] = TRAINING_CODE, package: Path = PACKAGE) -> str:
    """sha256 over names and content of modules, and of files that they may read, or of folders of them.

    Comments, docstrings and layout of modules do not count. The hash is the same on every Python that the project supports.

    Args:
        entries: paths of files or folders, relative to `package`.

    Raises:
        UserError: a module is no Python.
    """
    digest = hashlib.sha256()
    for file in files_of(entries, package):
        try:
            content = file.read_bytes()
            if file.suffix == ".py":
                content = canonical(content.decode()).encode()
        except (SyntaxError, ValueError) as error:  # ValueError: no UTF-8, or a null byte
            raise UserError(f"{os.path.relpath(file)} cannot be read ({first_line(error)}): mend it, or move it elsewhere.") from None
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def files_of(entries: Sequence[str], package: Path) -> Iterator[Path]:
    """The files that a stage's `entries` name, those of folders in order."""
    for path in (package / entry for entry in entries):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            # Also what a module may read beside it; not bytecode, nor an editor's lock or backup.
            if file.is_file() and not file.name.startswith(".") and "__pycache__" not in file.parts and file.name[-1] != "~":
                yield file


@cache
def loaded_code() -> dict[str, str]:
    """By task, the hash of the code with which this process trains. All of it is imported, so that an edit does not reach it any more."""
    for file in files_of(code_of("captioning"), PACKAGE):
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if file.suffix == ".py":
            try:
                importlib.import_module(name)
            except Exception:
                if ".kernels." not in name:  # those whose compiler is missing are not used
                    raise
    return {task: training_code(task) for task in ("classification", "captioning")}


def code_of(task: str) -> Sequence[str]:
    """The code that trains networks for a task, as entries for `code_hash`."""
    return (*TRAINING_CODE, *CAPTIONING_CODE) if task == "captioning" else TRAINING_CODE


@cache
def training_code(task: str = "classification") -> str:
    """The hash of the code that trains networks for a task."""
    return code_hash(code_of(task))


@cache  # stages share most of their code
def canonical(source: str) -> str:
    """A module's syntax tree as text, without docstrings.

    `ast.dump` depends on the Python version: 3.12 added a field for type parameters to functions and classes, and splits the text of
    f-strings in other places; 3.13 leaves out empty fields. Here empty fields are left out, and neighbouring texts are joined.
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


def git(*arguments: str, cwd: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[Any]:
    """What git does with the repository that a folder lies in, whatever repository the environment names. Raises OSError without git.

    Args:
        options: of `subprocess.run`.
    """
    own = {name: value for name, value in os.environ.items() if name not in FOREIGN} | {"LC_ALL": "C"}
    return subprocess.run(["git", *arguments], cwd=cwd, env=own, capture_output=True, **options)


def check_git(folder: Path, *, needed: bool) -> None:
    """Raises UserError where git refuses the repository that a folder lies in, and where there is none, but one is needed."""
    try:
        asked = git("rev-parse", "--git-dir", cwd=folder)
    except OSError:
        if needed:
            raise UserError("This command needs git, and there is no git here: install it.") from None
        return
    first, *others = asked.stderr.decode(errors="replace").strip().splitlines() or [f"status {asked.returncode}"]
    if asked.returncode and "not a git repository" not in first:
        mend = next((f"run `{line.strip()}`" for line in others if line.strip().startswith("git config")), "mend that")
        raise UserError(
            f"git refuses this repository ({first.removeprefix('fatal: ')}), and trainings would not name their commit:"
            f" {mend}, then run the command again."
        )
    if asked.returncode and needed:
        raise UserError(
            f"{folder.resolve()} is not in a git repository, which this command needs: run it inside a clone of the study,"
            " or have `git init`, `git add .` and `git commit` make one of this copy."
        )


def git_state(*paths: str) -> tuple[str | None, bool | None]:
    """The commit, and whether tracked or new files among `paths` (all but generated ones, where none is given) differ from it.

    Without git or commits COMMIT of the environment names the commit that this is a copy of, as on a lent machine; else (None, None).
    """
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return (named, False) if (named := os.environ.get("COMMIT")) else (None, None)
    status = _git("status", "--porcelain", "--", *(paths or (":/", *(f":(top,exclude){name}" for name in _GENERATED))))
    return commit, status != ""  # None where git fails: what is not known to be the commit's is not called so


def mapping(text: str | bytes | None) -> dict[str, Any]:
    """The mapping that a YAML text holds; an empty one where it holds none, or is no YAML."""
    try:
        value = yaml.load(text or "", Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError):  # the loader's own for a date like 2026-02-30
        return {}
    return value if isinstance(value, dict) else {}


def _git(*arguments: str) -> str | None:
    try:
        result = git(*arguments, cwd=ROOT, encoding="utf-8", errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def device_name(device: str) -> str:
    """The name of the GPU, or of the kind of processor with the number of cores that this process may use."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    try:
        kind = _processor(Path("/proc/cpuinfo").read_text())
    except OSError:
        kind = None
    return f"{kind or platform.processor() or platform.machine()} ({len(os.sched_getaffinity(0))} cores)"


def _processor(cpuinfo: str) -> str | None:
    """The kind of processor, by what its libraries choose their code by: name, family, model and widest vectors; None where unnamed.

    The name alone does not suffice: virtual machines call several generations "AMD EPYC", and may hide AVX-512.
    """
    first = dict(re.findall(r"^([^\t:\n]+)\t*: (.*)$", cpuinfo.split("\n\n")[0], flags=re.MULTILINE))
    if "model name" not in first:
        return None
    flags = first.get("flags", "").split()
    widest = next((shown for flag, shown in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None)
    numbers = f"family {first['cpu family']} model {first['model']}" if {"cpu family", "model"} <= first.keys() else None
    return ", ".join(part for part in (first["model name"].strip(), numbers, widest) if part)


def same_processor(name: str, other: str) -> bool:
    """Whether two device names are of the same kind, apart from the number of cores, which does not affect results.

    Trainings of earlier versions recorded the processor's name alone, which is no kind.
    """
    kind, another = (re.sub(r" \(\d+ cores\)$", "", one) for one in (name, other))
    return kind == another


def origin(device: str, task: str = "classification") -> dict[str, Any]:
    """The origin of a training, as known before it starts. `device`: "cpu" or "cuda".

    `git_commit` is the checked-out commit; `git_dirty` says whether settings or the code that decides the training differ from it.
    Records of earlier versions list the differences, as `git_edits`.
    """
    commit, dirty = git_state("params.yaml", "profiles", *(f"{PACKAGE.name}/{entry}" for entry in code_of(task)))
    return {"code_hash": training_code(task), "git_commit": commit, "git_dirty": dirty, "device": device, "versions": versions(device)}


def versions(device: str = "cpu") -> dict[str, str]:
    """Versions of the software that computes a result; on a GPU also of CUDA and the driver."""
    found = {"python": platform.python_version(), **{name: metadata.version(name) for name in ("torch", "numpy", "numba")}}
    if device == "cuda":
        import torch

        found |= {"cuda": str(torch.version.cuda), "driver": _driver_version()}
    return found


def _driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The GPU driver's; "unknown" where the kernel does not tell it (WSL)."""
    # The compiler's version, which follows, starts with a shorter number.
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)*", file.read_text()) if file.exists() else None
    return version[0] if version else "unknown"
