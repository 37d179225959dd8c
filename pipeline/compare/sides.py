"""What is known of the trainings at a commit, in the working tree or in MLflow, in one shape for all three.

Records of any age are read: what an older one lacks is absent here, and absent is not the same as different.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
import yaml

from pipeline.compare.git import Commit, Repository
from pipeline.errors import UserError
from pipeline.params import flatten
from pipeline.study.statistics import FloatArray

CURVES = ("train_loss", "test_loss", "test_accuracy", "seconds")
LATER_CURVES = ("gradient_norm",)  # columns that records of an older study lack
# Entries of run.json that decide a result, besides settings and versions.
CAUSES = ("code_hash", "data_digest", "device", "device_name", "attention")


@dataclass(frozen=True)
class Training:
    """One trained variant.

    Attributes:
        id: what tells it from every other training, or None where not recorded.
        settings: the resolved settings by dotted key, as far as they are recorded.
        origin: what else decided the training, as far as it is recorded: those of CAUSES, and versions.NAME.
        curves: (seeds, epochs) each, by the columns of epochs.csv: losses in nats, accuracy a fraction, seconds of one epoch.
        parameters, flops: of one seed's model, of one image's forward pass; None where not recorded.
    """

    variant: str
    id: str | None
    settings: Mapping[str, Any]
    origin: Mapping[str, str]
    seeds: tuple[int, ...]
    curves: Mapping[str, FloatArray]
    parameters: int | None
    flops: int | None

    @property
    def accuracy(self) -> FloatArray:
        """(seeds,) test accuracy after the last epoch."""
        return self.curves["test_accuracy"][:, -1]


@dataclass(frozen=True)
class Side:
    """One of the two things compared.

    Attributes:
        commit: the commit itself, or the one that the working tree started from; None before the first commit.
        dirty: whether this is a working tree with changes of its own, or None for a commit.
        place: where the results were found, for people.
        prefix: folder that holds runs/, dvc.lock and so on, from the top folder; "" or ending in "/".
        preview: the report's own sentence about being no full study.
        left_out: variants without a whole record, and what it lacks.
    """

    revision: str
    commit: Commit | None
    dirty: bool | None
    place: str
    prefix: str
    preview: str | None
    trainings: Mapping[str, Training]
    files: Files
    left_out: Mapping[str, str] = field(default_factory=dict)


class Files(Protocol):
    """Files by their paths from the repository's top folder."""

    def matching(self, pattern: str) -> list[str]:
        """Paths, sorted; a `*` stays inside one part of a path."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Contents of those files that exist."""


class CommitFiles:
    """The files at a commit."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self._repository = repository
        self._ids = repository.files(commit)

    def matching(self, pattern: str) -> list[str]:
        parts = pattern.split("/")
        return sorted(path for path in self._ids if _fits(path.split("/"), parts))

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        ids = {path: self._ids[path] for path in paths if path in self._ids}
        contents = self._repository.contents(ids.values())
        return {path: contents[id] for path, id in ids.items()}


def _fits(path: list[str], pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))


class FolderFiles:
    """The files of a working tree, whether git knows them or not."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def matching(self, pattern: str) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.glob(pattern) if path.is_file())

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: (self._root / path).read_bytes() for path in paths if (self._root / path).is_file()}


def read_revision(repository: Repository, revision: str, folder: str | None = None) -> Side:
    """The study that a commit holds.

    Args:
        folder: where runs/ lies, from the repository's top folder; None: the top folder, or the one reports/NAME that has runs/.

    Raises:
        UserError: no such commit, no results there, more than one place that could be meant, or a damaged file.
    """
    commit = repository.commit(revision)
    files = CommitFiles(repository, commit.id)
    return _read(repository, files, folder, revision, commit, None)


def read_working_tree(repository: Repository, folder: str | None = None) -> Side:
    """The study as it lies in the working tree, committed or not. Raises as `read_revision`."""
    commit = repository.commit("HEAD") if repository.has_commits() else None
    return _read(repository, FolderFiles(repository.root), folder, "working tree", commit, repository.changed())


def _read(repository: Repository, files: Files, folder: str | None, revision: str, commit: Commit | None, dirty: bool | None) -> Side:
    name = "The working tree" if dirty is not None else f"The commit {revision}"
    prefix = locate(files, folder)
    if prefix is None:
        newest = repository.newest_with_runs()
        where = f"{folder}/runs" if folder is not None else "runs/ or reports/NAME/runs/"
        raise UserError(f"{name} holds no results in {where}{f'; the newest commit that wrote some is {newest}' if newest else ''}.")
    trainings: dict[str, Training] = {}
    left_out: dict[str, str] = {}
    found = files.matching(f"{prefix}runs/*/run.json")
    wanted = ("run.json", "epochs.csv", "metrics.json")
    contents = files.read(path.removesuffix("run.json") + name for path in found for name in wanted)
    for path in found:
        variant, directory = PurePosixPath(path).parent.name, path.removesuffix("run.json")
        missing = [name for name in wanted if directory + name not in contents]
        if missing:
            left_out[variant] = f"no {' and no '.join(missing)}"
            continue
        try:
            trainings[variant] = _training(variant, *(contents[directory + name] for name in wanted))
        except _Damaged as error:
            mend = "compare another commit" if dirty is None else f"restore it with `git checkout -- {directory}{error.file}`"
            raise UserError(f"{directory}{error.file} of {name[0].lower()}{name[1:]} is damaged ({error.fault}): {mend}.") from None
    if not trainings:
        raise UserError(
            f"{name} holds no whole record in {prefix}runs ({'; '.join(f'{v}: {why}' for v, why in sorted(left_out.items())[:3])})."
        )
    order, _ = study(files, prefix)
    ranked = sorted(trainings, key=lambda variant: (order.index(variant) if variant in order else len(order), variant))
    trainings = {variant: trainings[variant] for variant in ranked}
    return Side(revision, commit, dirty, f"{prefix}runs", prefix, preview(files, prefix), trainings, files, left_out)


def locate(files: Files, folder: str | None) -> str | None:
    """The folder whose runs/ holds results, as a prefix of paths; None where there are none.

    Raises:
        UserError: several could be meant.
    """
    if folder is not None:
        prefix = f"{folder}/" if folder else ""
        return prefix if files.matching(f"{prefix}runs/*/run.json") else None
    if files.matching("runs/*/run.json"):
        return ""
    places = sorted({path.split("/runs/")[0] for path in files.matching("reports/*/runs/*/run.json")})
    if len(places) > 1:
        raise UserError(f"Results lie in {', '.join(places)}: say which with --in, for example IN={places[0]}.")
    return f"{places[0]}/" if places else None


class Study(NamedTuple):
    """What is said of the whole: variants in the order of params.yaml, and the data set's name; nothing where unreadable."""

    variants: list[str]
    dataset: str | None


def study(files: Files, prefix: str) -> Study:
    """Reads the params.yaml that the results in `prefix` follow, of whatever age: the root's, and a profile's laid over it."""
    paths = ["params.yaml", f"profiles/{PurePosixPath(prefix).name}/params.yaml"] if prefix else ["params.yaml"]
    contents = files.read(paths)
    layers = [_yaml(contents[path]) for path in paths if path in contents]
    variants = [str(name) for layer in layers for name in _mapping_at(layer, "variants")]
    datasets = [_mapping_at(layer, "data").get("dataset") for layer in layers]
    return Study(list(dict.fromkeys(variants)), next((dataset for dataset in reversed(datasets) if isinstance(dataset, str)), None))


def preview(files: Files, prefix: str) -> str | None:
    """What the report of the results says above everything else, as a quotation: that they are no full study.

    The report and not params.yaml, which may have gone on since these results were made.
    """
    path = f"{prefix}README.md" if prefix.startswith("reports/") else f"{prefix}reports/README.md"
    lines = files.read([path]).get(path, b"").decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return first.removeprefix(">").strip() if first.startswith(">") else None


def _yaml(content: bytes) -> dict[str, Any]:
    try:
        value = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        value = None
    return value if isinstance(value, dict) else {}


def _mapping_at(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


class _Damaged(Exception):
    def __init__(self, file: str, fault: str) -> None:
        super().__init__(file, fault)
        self.file, self.fault = file, fault


def _training(variant: str, run_json: bytes, epochs_csv: bytes, metrics_json: bytes) -> Training:
    run, metrics = _mapping("run.json", run_json), _mapping("metrics.json", metrics_json)
    config, versions = run.get("config"), run.get("versions")
    if not isinstance(config, dict):
        raise _Damaged("run.json", "it lacks `config`")
    seeds, curves = parse_epochs(epochs_csv)
    identity = run.get("training_id")
    origin = {key: str(run[key]) for key in CAUSES if run.get(key) is not None}
    if isinstance(versions, dict):
        origin |= {f"versions.{name}": str(version) for name, version in versions.items()}
    sizes = [int(metrics[key]) if isinstance(metrics.get(key), (int, float)) else None for key in ("parameters", "flops")]
    return Training(variant, str(identity) if identity else None, dict(flatten(config)), origin, seeds, curves, *sizes)


def _mapping(file: str, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _Damaged(file, "it is not a JSON object")
    return value


def parse_epochs(content: bytes) -> tuple[tuple[int, ...], dict[str, FloatArray]]:
    """Seeds and curves of an epochs.csv of any age."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
        columns = [*CURVES, *(name for name in LATER_CURVES if name in (reader.fieldnames or ()))]
        rows = [(int(row["seed"]), int(row["epoch"]), [float(row[name]) for name in columns]) for row in reader]
    except (KeyError, TypeError, ValueError, csv.Error):
        raise _Damaged("epochs.csv", "it is not a table of numbers with the columns of a training") from None
    seeds = tuple(dict.fromkeys(seed for seed, _, _ in rows))
    epochs = max((epoch for _, epoch, _ in rows), default=0)
    full = 0 < len(rows) == len(seeds) * epochs
    expected = [(seed, epoch) for seed in seeds for epoch in range(1, epochs + 1)] if full else []
    if not full or sorted((seed, epoch) for seed, epoch, _ in rows) != sorted(expected):
        raise _Damaged("epochs.csv", "it has not one row for every seed and epoch")
    place = {pair: index for index, pair in enumerate(expected)}
    table = np.empty((len(expected), len(columns)))
    for seed, epoch, values in rows:
        table[place[seed, epoch]] = values
    curves = {name: table[:, index].reshape(len(seeds), epochs) for index, name in enumerate(columns)}
    accuracy = curves["test_accuracy"]
    if not ((accuracy >= 0) & (accuracy <= 1)).all():
        raise _Damaged("epochs.csv", "it holds an accuracy that is not between 0 and 1")
    return seeds, curves
