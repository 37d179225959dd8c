"""A study's results as a user holds them: one `Training` a variant, and tidy pandas frames.

    from pipeline.study import load
    load(".").epochs                    # of a folder; load("HEAD~3") of a commit; load("HEAD", store="mlflow.db") of its MLflow runs

Makers write the files, tellers read them here and nowhere else.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from pipeline.errors import UserError
from pipeline.files import DamagedError
from pipeline.measures import NotMeasured
from pipeline.measures.definitions import FloatArray, is_diverged
from pipeline.params import ModelSettings, Params, VariantSettings, flatten
from pipeline.study import tables
from pipeline.study.files import (
    ARRAYS,
    PREDICTIONS,
    RUNS,
    TABLES,
    TIMINGS,
    CommitFiles,
    Files,
    FolderFiles,
    parse_json,
)
from pipeline.study.git import Repository

if TYPE_CHECKING:
    import pandas as pd

# Entries of run.json that decide a result, besides settings and versions.
CAUSES = ("code_hash", "data_digest", "device", "device_name", "attention")
_Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Attention:
    """Attention on the same test images, on the patch grid.

    Attributes:
        images: (images, height, width), in [0, 1], the mean over channels; `labels` are their classes.
        maps: (images, block, head, grid, grid): softmax weights of the first seed, from the class token (without one: mean over all
            tokens) to the patches.
        keys: how many tokens and memory slots share the weight of 1.
        rollout: (seeds, images, grid, grid): attention rollout to the patches.
    """

    images: FloatArray
    labels: tuple[int, ...]
    maps: FloatArray
    keys: int
    rollout: FloatArray
    has_cls: bool


@dataclass(frozen=True)
class Training:
    """One trained variant, and what the evaluation left of it.

    Attributes:
        record: what run.json says, as far as it is recorded.
        curves: (seeds, epochs) each, by the columns of epochs.csv: losses in nats, accuracy a fraction, seconds of one epoch.
        parameters, flops: of one seed's model, of one image's forward pass; None where not recorded.
        evaluation: the columns of seeds.csv, (seeds,) each; None where the variant was not evaluated.
        stored: reads the predictions' npz file; None where it is not here. Raises UserError where it is damaged.
    """

    variant: str
    record: Mapping[str, Any]
    seeds: tuple[int, ...]
    curves: Mapping[str, FloatArray]
    parameters: int | None = None
    flops: int | None = None
    evaluation: Mapping[str, FloatArray] | None = None
    stored: Callable[[], _Arrays | None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def id(self) -> str | None:
        """What tells it from every other training, or None where not recorded."""
        return str(self.record["training_id"]) if self.record.get("training_id") else None

    @cached_property
    def options(self) -> dict[str, Any]:
        """The resolved settings by dotted key, as far as they are recorded."""
        return dict(flatten(self.record.get("config", {})))

    @cached_property
    def settings(self) -> VariantSettings:
        """The resolved settings. Raises ValueError where they are of another version."""
        return VariantSettings.model_validate_json(json.dumps(self.record["config"]))

    @cached_property
    def origin(self) -> dict[str, str]:
        """What else decided the training, as far as it is recorded: those of CAUSES, and versions.NAME."""
        versions = self.record.get("versions")
        found = {key: str(self.record[key]) for key in CAUSES if self.record.get(key) is not None}
        return found | {f"versions.{name}": str(version) for name, version in (versions if isinstance(versions, dict) else {}).items()}

    @property
    def images_shown(self) -> int:
        return self.settings.images_shown

    @property
    def test_accuracy(self) -> FloatArray:
        return self.curves["test_accuracy"]

    @property
    def test_loss(self) -> FloatArray:
        return self.curves["test_loss"]

    @property
    def train_loss(self) -> FloatArray:
        return self.curves["train_loss"]

    @property
    def gradient_norm(self) -> FloatArray:
        return self.curves["gradient_norm"]

    @property
    def seconds(self) -> FloatArray:
        return self.curves["seconds"]

    @property
    def accuracy(self) -> FloatArray:
        """(seeds,) test accuracy after the last epoch."""
        return self.test_accuracy[:, -1]

    @property
    def classes(self) -> int:
        return self.settings.model.shape.classes

    @property
    def diverged(self) -> int:
        """Seeds whose last train loss is not finite or no better than a guess."""
        return int(is_diverged(self.train_loss[:, -1], self.classes).sum())

    @property
    def grid(self) -> int:
        """Patches along one side; 0 for a network without patches."""
        return self.settings.model.grid if isinstance(self.settings.model, ModelSettings) else 0

    @cached_property
    def _arrays(self) -> _Arrays | None:
        """All of the predictions' file; None where it is not here. Raises UserError where it is damaged or of another training."""
        arrays = self.stored()
        if arrays is None:
            return None
        if lacking := {"labels", "predictions", "seeds", "positions"} - arrays.keys():
            raise self._damaged(f"it lacks {', '.join(sorted(lacking))}")
        if tuple(arrays["seeds"].tolist()) != self.seeds or arrays["predictions"].shape != (len(self.seeds), len(arrays["labels"])):
            raise self._damaged("its arrays do not fit the seeds of the training")
        if not np.allclose((arrays["predictions"] == arrays["labels"]).mean(axis=1), self.accuracy, rtol=0, atol=1e-6):
            raise UserError(f"{self._predictions} is of another training than {RUNS / self.variant}: run `dvc repro evaluate`.")
        return arrays

    @property
    def _predictions(self) -> Path:
        return PREDICTIONS / f"{self.variant}.npz"

    def _damaged(self, fault: str) -> UserError:
        return UserError(f"{self._predictions} is damaged, {fault}: {_mend('evaluate')}.")

    @property
    def correct(self) -> npt.NDArray[np.bool_] | None:
        """(seeds, images): whether a seed's prediction of a test image is right; None without predictions."""
        if self._arrays is None:
            return None
        right: npt.NDArray[np.bool_] = self._arrays["predictions"] == self._arrays["labels"]
        return right

    @property
    def vote_correct(self) -> npt.NDArray[np.bool_] | None:
        """(images,): whether the vote of all seeds is right about the test image; None without predictions."""
        if self._arrays is None:
            return None
        from pipeline.study.statistics import vote

        right: npt.NDArray[np.bool_] = vote(self._arrays["predictions"]) == self._arrays["labels"]
        return right

    @property
    def has_positions(self) -> bool:
        """Whether the predictions' file, which holds the position vectors, is here."""
        return self._arrays is not None

    @property
    def patch_positions(self) -> FloatArray:
        """(seeds, grid^2, dim) float64, the class token's row left out; (seeds, 0, dim) where the variant adds none.

        Raises:
            NotMeasured: the predictions' file is not here.
            UserError: it is damaged or of another shape.
        """
        model = self.settings.model
        if not isinstance(model, ModelSettings):
            return np.zeros((len(self.seeds), 0, 0))
        if model.position == "none":
            return np.zeros((len(self.seeds), 0, model.dim))
        if self._arrays is None:
            raise NotMeasured("its position vectors are not there: `dvc repro evaluate` writes them")
        positions = self._arrays["positions"]
        if positions.shape != (len(self.seeds), model.num_tokens, model.dim):
            raise self._damaged(f"its array `positions` has the shape {positions.shape}")
        return positions[:, int(model.has_cls) :].astype(np.float64)

    @property
    def attention(self) -> Attention | None:
        """What the trained model attends to; None where that was not evaluated. Raises UserError where it is damaged."""
        model = self.settings.model
        if self._arrays is None or "maps" not in self._arrays or not isinstance(model, ModelSettings):
            return None
        try:
            has_cls = int(self._arrays["has_cls"])
            images, maps, rollout = (self._arrays[name] for name in ("images", "maps", "rollout"))
            patches = slice(has_cls, has_cls + self.grid**2)
            shape = (self.grid, self.grid)
            return Attention(
                images=images.reshape(len(images), -1, *images.shape[-2:]).astype(np.float64).mean(1) / 255,
                labels=tuple(self._arrays["image_labels"].tolist()),
                maps=maps[..., patches].astype(np.float64).reshape(*maps.shape[:3], *shape),
                keys=model.num_tokens + model.memory,
                rollout=rollout[..., patches].astype(np.float64).reshape(*rollout.shape[:2], *shape),
                has_cls=bool(has_cls),
            )
        except (KeyError, ValueError, IndexError, TypeError):
            raise self._damaged("its attention maps do not fit the model") from None


@dataclass(frozen=True)
class Study:
    """All results of one place.

    Attributes:
        place: where the results were found, for people.
        prefix: folder that holds runs/, dvc.lock and so on, from the top folder; "" or ending in "/".
        trainings: by variant, in the order of params.yaml.
        left_out: variants without a whole record, and what it lacks.
    """

    place: str
    prefix: str
    trainings: Mapping[str, Training]
    files: Files
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """A row for each variant, seed and epoch (from 1), with the columns of epochs.csv."""
        return _stacked(_epoch_columns(training) for training in self.trainings.values())

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """A row for each variant and seed: after the last epoch, and what the evaluation found."""
        return _stacked(_seed_columns(training) for training in self.trainings.values())

    @cached_property
    def variants(self) -> pd.DataFrame:
        """A row for each variant: its settings by dotted key, its model's size, and where it comes from."""
        import pandas as pd

        return pd.DataFrame([_variant_columns(training) for training in self.trainings.values()])

    @cached_property
    def timings(self) -> pd.DataFrame:
        """A row for each round of the timing stage and each thing that it timed: seconds of one step. Empty where none was taken."""
        import pandas as pd

        path = f"{self.prefix}{TIMINGS.as_posix()}"
        content = self.files.read([path]).get(path)
        columns = ("kind", "way", "subject", "tokens", "batch")
        try:
            raw: dict[str, Any] = {"measurements": [], "rounds": []} if content is None else json.loads(content)
            rows = [
                {name: entry.get(name) for name in columns}
                | {"round": i, "foreign": one["foreign"], "kept": one["kept"], "seconds": one["seconds"][entry["name"]]}
                for i, one in enumerate(raw["rounds"])
                for entry in raw["measurements"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{path} is damaged: {_mend('timing')}.") from None
        return pd.DataFrame(rows, columns=[*columns, "round", "foreign", "kept", "seconds"])

    @property
    def preview(self) -> str | None:
        """What the report of the results says above everything else, as a quotation: that they are no full study.

        The report and not params.yaml, which may have gone on since these results were made.
        """
        path = f"{self.prefix}README.md" if self.prefix.startswith("reports/") else f"{self.prefix}reports/README.md"
        lines = self.files.read([path]).get(path, b"").decode("utf-8", "replace").splitlines()
        first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
        return first.removeprefix(">").strip() if first.startswith(">") else None


def _epoch_columns(training: Training) -> dict[str, Any]:
    seeds, epochs = training.test_accuracy.shape
    own = {"variant": training.variant, "seed": np.repeat(training.seeds, epochs), "epoch": np.tile(np.arange(1, epochs + 1), seeds)}
    return own | {name: curve.ravel() for name, curve in training.curves.items()}


def _seed_columns(training: Training) -> dict[str, Any]:
    last = {name: curve[:, -1] for name, curve in training.curves.items() if name != "seconds"}
    groups = training.record.get("trainings") or [{**training.record, "seeds": training.seeds}]
    group_of = {seed: group for group in groups for seed in group["seeds"]}
    origin = {
        name: [group_of[seed].get(name) for seed in training.seeds] for name in ("code_hash", "git_commit", "device_name", "finished")
    }
    return {"variant": training.variant, "seed": training.seeds, **last, **dict(sorted((training.evaluation or {}).items())), **origin}


def _variant_columns(training: Training) -> dict[str, Any]:
    sizes = {"parameters": training.parameters, "flops": training.flops}
    mean = {"num_seeds": len(training.seeds), "test_accuracy": training.accuracy.mean()}
    return {"variant": training.variant, **mean, **sizes, **training.options, **training.origin}


def _stacked(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frames = [pd.DataFrame(part) for part in parts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


# --- reading ---


def load(source: str | os.PathLike[str] = ".", folder: str | None = None, *, store: str | None = None) -> Study:
    """The results of a folder, or of a commit of the repository that the working directory lies in.

    With `store`, they come from the MLflow runs of that commit, or of the one that is checked out in the folder. `epochs`, `seeds`
    and `variants` are those of the files to the last bit; `timings` is empty, and no predictions are there.

    Args:
        source: a folder that holds runs/, such as "." or "build/demo", or what git takes for a commit, such as "HEAD~3".
        folder: where runs/ lies in the commit, from the repository's top; None: the top, or the one reports/NAME that has runs/.
        store: an MLflow store: a server's address, such as "http://127.0.0.1:5000", or a SQLite file, such as "mlflow.db" or
            "sqlite:///mlflow.db". A commit's runs are those trained at it, and those that `make sync` found it to hold; what an
            evaluation after that commit found is there, too.

    Raises:
        UserError: there are no results, a file is damaged, or the store cannot be read.
    """
    if not Path(source).is_dir():
        return load_commit(Repository.around(Path.cwd()), str(source), folder, store=store)
    if store is not None:
        return load_commit(Repository.around(Path(source)), "HEAD", folder, store=store)
    return read(FolderFiles(Path(source)), folder, name=str(source), root=Path(source))


def load_commit(repository: Repository, revision: str, folder: str | None = None, *, store: str | None = None) -> Study:
    """As `load`, of a commit of any repository."""
    if store is not None:
        from pipeline.study import stored

        return stored.read(repository, revision, folder, store)
    commit = repository.commit(revision)
    return read(CommitFiles(repository, commit.id), folder, name=f"the commit {revision}", hint=repository.newest_with_runs)


def read(
    files: Files,
    folder: str | None = None,
    *,
    name: str,
    hint: Callable[[], str | None] = lambda: None,
    root: Path | None = None,
) -> Study:
    """What these files hold.

    Args:
        name: of the source, in sentences.
        hint: names a commit that has results, for a source that has none.
        root: the folder of these files, in which the stored predictions are found, too; None for a commit.

    Raises:
        UserError: no results there, more than one place that could be meant, or a damaged file.
    """
    prefix = locate(files, folder)
    if prefix is None:
        newest = hint()
        where = f"{folder}/tables" if folder is not None else "tables/ or reports/NAME/tables/"
        said = f"{name[0].upper()}{name[1:]} holds no results in {where}"
        raise UserError(f"{said}{f'; the newest commit that wrote some is {newest}' if newest else ''}.")
    if files.matching(f"{prefix}tables/variants.csv"):
        place, left_out = f"{prefix}{TABLES}", dict[str, str]()
        trainings = _of_tables(files, prefix, name)
        if root is not None:
            stored = {variant: partial(_stored, root / prefix / PREDICTIONS / f"{variant}.npz") for variant in trainings}
            trainings = {variant: replace(training, stored=stored[variant]) for variant, training in trainings.items()}
    else:
        from pipeline.study import former

        place = f"{prefix}{RUNS}"
        trainings, left_out = former.read(files, prefix, name)
    order, _ = described(files, prefix)
    ranked = sorted(trainings, key=lambda variant: (order.index(variant) if variant in order else len(order), variant))
    return Study(place, prefix, {variant: trainings[variant] for variant in ranked}, files, left_out)


def _of_tables(files: Files, prefix: str, name: str) -> dict[str, Training]:
    paths = {table: f"{prefix}{TABLES}/{table}" for table in tables.NAMES}
    contents = files.read(paths.values())
    try:
        found = tables.parse({table: contents[path] for table, path in paths.items() if path in contents})
        return {training.variant: training for training in found}
    except DamagedError as fault:
        is_commit = name.startswith("the commit")
        of, mend = (f" of {name}", "compare another commit") if is_commit else ("", _mend("evaluate"))
        raise UserError(f"{prefix}{TABLES}/{of} is damaged, {fault}: {mend}.") from None


def _stored(path: Path) -> _Arrays | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise UserError(f"{path} is damaged: {_mend('evaluate')}.") from None


def _mend(stage: str) -> str:
    return f"run `dvc repro --force --single-item {stage}`"


def load_current(params: Params, root: Path = Path()) -> Study:
    """The results of the variants that params name, checked against it; one that was not trained is left out.

    Raises:
        UserError: no variant was trained, one not with these settings, or its files are damaged; names the command that mends it.
    """
    study = read(FolderFiles(root), "", name="this folder", root=root)
    trainings = {variant: study.trainings[variant] for variant in params.variants if variant in study.trainings}
    if not trainings:
        raise UserError(f"{TABLES}/ has no results of any variant that params.yaml names: run `dvc repro`.")
    for variant, training in trainings.items():
        settings = params.resolve(variant)
        trained = (settings.train.seeds, settings.train.epochs)
        if training.record["config"] != settings.model_dump(mode="json") or (training.seeds, training.test_loss.shape[1]) != trained:
            raise UserError(f"{RUNS / variant} was trained with other settings than params.yaml now has: run `dvc repro`.")
        if training.parameters is None or training.flops is None:
            raise UserError(f"{TABLES}/variants.csv is damaged, {variant} lacks `parameters` or `flops`: {_mend('evaluate')}.")
    return replace(study, trainings=trainings)


def locate(files: Files, folder: str | None) -> str | None:
    """The folder whose tables/ (of an older study: runs/) hold results, as a prefix of paths; None where there are none.

    Raises:
        UserError: several could be meant.
    """

    if folder is not None:
        prefix = f"{folder}/" if folder else ""
        return prefix if _places(files, prefix) else None
    places = _places(files, "") or _places(files, "reports/*/")
    if len(places) > 1:
        raise UserError(f"Results lie in {', '.join(places)}: say which with --in, for example IN={places[0]}.")
    return (places[0] + "/").removeprefix("/") if places else None


def _places(files: Files, top: str) -> list[str]:
    paths = [f"{path}/-" for path in files.matching(f"{top}tables/variants.csv")] + files.matching(f"{top}runs/*/run.json")
    return sorted({"/".join(path.split("/")[:-3]) for path in paths})


class Described(NamedTuple):
    """What params.yaml says of the whole: variants in its order, and the data set's name; nothing where unreadable."""

    variants: list[str]
    dataset: str | None


def described(files: Files, prefix: str) -> Described:
    """Reads the params.yaml that the results in `prefix` follow, of whatever age: the root's, and a profile's laid over it."""
    paths = ["params.yaml", f"profiles/{PurePosixPath(prefix).name}/params.yaml"] if prefix else ["params.yaml"]
    contents = files.read(paths)
    layers = [_yaml(contents[path]) for path in paths if path in contents]
    variants = [str(name) for layer in layers for name in _mapping_at(layer, "variants")]
    datasets = [_mapping_at(layer, "data").get("dataset") for layer in layers]
    return Described(list(dict.fromkeys(variants)), next((name for name in reversed(datasets) if isinstance(name, str)), None))


def _yaml(content: bytes) -> dict[str, Any]:
    try:
        value = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        value = None
    return value if isinstance(value, dict) else {}


def _mapping_at(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def load_dataset(root: Path = Path()) -> dict[str, Any] | None:
    """`data/arrays/dataset.json` as the prepare stage writes it, or None where the data are not here."""
    path = root / ARRAYS / "dataset.json"
    if not path.exists():
        return None
    try:
        data = parse_json(path.read_bytes())
        if lacking := {"arrays", "class_counts", "pixel_mean", "pixel_std", "digest"} - data.keys():
            raise DamagedError(f"it lacks {', '.join(sorted(lacking))}")
    except DamagedError as fault:
        raise UserError(f"{path} is damaged, {fault}: {_mend('prepare')}.") from None
    return data
