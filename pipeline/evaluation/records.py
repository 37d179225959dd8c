"""The stored evaluations of variants with their inputs: which of them are up to date, and how they are read and written."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.measures import PROBES
from pipeline.params import Params
from pipeline.runner import seeds
from pipeline.system.files import replacing, write_bytes, write_changed
from pipeline.system.paths import ARRAYS, FINISHED, PREDICTIONS, TABLES, TRAININGS
from pipeline.system.provenance import EVALUATION_CODE, code_hash, versions
from pipeline.training.tasks import data_digest


class Evaluation(NamedTuple):
    """The evaluation of a variant, without the arrays of its predictions' file.

    Attributes:
        inputs: what it was made from: the digests of each seed's weights, of settings, data and code, the probes, the version of torch.
            `device` is what computed it last. `earlier` has the code that evaluated seeds of which the weights were not here since: the
            first seed's evaluation was the same by the code of today.
        columns: by name, a value per seed.
        metrics: of all seeds together, as `evaluate.summarize_votes` returns them.
        by_seed: the names of the arrays that have a value per seed.
    """

    inputs: dict[str, Any]
    columns: dict[str, list[float]]
    metrics: dict[str, Any]
    by_seed: Sequence[str] = ()

    def is_of(self, inputs: Mapping[str, Any]) -> bool:
        """Whether it was made from these inputs, of the same seeds or of others."""
        return all(self.inputs.get(name) == value for name, value in inputs.items() if name != "weights")

    def has_seeds_of(self, weights: Mapping[str, str]) -> bool:
        """Whether its values are those of these weights, by seed, in this order."""
        return [*self.inputs["weights"].items()] == [*weights.items()]


class Records:
    """The evaluations of the study in a folder: a file per variant with its arrays and its `Evaluation`, and the tables of all."""

    def __init__(self, root: Path = Path()) -> None:
        places = (root / place for place in (ARRAYS, FINISHED, TRAININGS, PREDICTIONS, TABLES))
        self.arrays, self.finished, self.trainings, self.predictions, self.tables = places

    def training(self, variant: str) -> Path:
        return self.trainings / f"{variant}{seeds.SUFFIX}"

    def wanted(self, params: Params) -> dict[str, dict[str, Any]]:
        """The inputs of the evaluation of each variant with a finished training, as in `Evaluation.inputs`; reports the other variants.

        Raises:
            UserError: the arrays are missing, or a training's record is damaged.
        """
        shared = {"code": code_hash(EVALUATION_CODE), "torch": versions()["torch"]}
        probed = {probe: params.probed(probe) for probe in PROBES}
        wanted = {}
        if missing := [variant for variant in params.variants if not self.training(variant).exists()]:
            print(f"left out, without a finished training in {self.trainings}/: {', '.join(missing)}")
        for variant in [variant for variant in params.variants if variant not in missing]:
            settings, run = params.resolve(variant), seeds.read_record(self.training(variant))
            if not settings.trained_as(run["config"], seeds=True):
                print(f"{variant}: left out, params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it")
                continue
            own = {"weights": run["outputs"]["weights"], "config": settings.training_hash, "data": data_digest(settings.task, self.arrays)}
            if run["data_digest"] != own["data"]:
                print(f"{variant}: left out, it was trained on other data than are here; `dvc repro train@{variant}` mends it")
                continue
            wanted[variant] = own | {"probes": [probe for probe, names in probed.items() if variant in names]} | shared
        return wanted

    def split_stale(self, wanted: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
        """The variants whose evaluation is up to date, and those to evaluate."""
        lacking = [variant for variant in wanted if not self._path(variant).exists()]
        if lacking:  # one that was renamed, or shares seeds with another, takes what that has of them: their weights may not be here
            others = {path: one.inputs["weights"].items() for path in self.predictions.glob("*.npz") if (one := self.read(path.stem))}
            for variant in lacking:
                shared = {path: len(of & wanted[variant]["weights"].items()) for path, of in others.items()}
                if any(shared.values()):
                    write_bytes(self._path(variant), max(shared, key=shared.__getitem__).read_bytes())
        found = {variant: self.read(variant) for variant in wanted}
        kept = [name for name, one in found.items() if one and one.is_of(wanted[name]) and one.has_seeds_of(wanted[name]["weights"])]
        return kept, [variant for variant in wanted if variant not in kept]

    def prune(self, params: Params) -> None:
        """Removes all but the evaluations of the variants, so that the folder does not depend on earlier params.yaml or on kills.

        A stale one stays until it is replaced: its seeds may be needed. What shows it compares its weights with the training's. So does
        one of the settings of a variant without a training, which may be that variant under another name.
        """
        self.predictions.mkdir(parents=True, exist_ok=True)
        waiting = {params.resolve(name).training_hash for name in params.variants if not self.training(name).exists()}
        for path in self.predictions.iterdir():
            other = path.name not in {f"{variant}.npz" for variant in params.variants}
            if other and not ((one := self.read(path.stem)) and one.inputs.get("config") in waiting):
                path.unlink()

    def write(self, variant: str, arrays: Mapping[str, np.ndarray], evaluation: Evaluation) -> None:
        """Writes one variant's evaluation.

        Args:
            arrays: of a classifier, among them "labels" (image,) and "predictions" (seed, image), of one type.
        """
        with replacing(self._path(variant)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays, evaluation=np.array(json.dumps(evaluation._asdict())))  # type: ignore[arg-type]

    def read(self, variant: str) -> Evaluation | None:
        """One variant's evaluation; None if there is none or its file is damaged."""
        found = self.stored(variant)
        return found and found[0]

    def stored(self, variant: str) -> tuple[Evaluation, dict[str, np.ndarray]] | None:
        """The evaluation with its arrays, as `read`."""
        try:
            content = self._path(variant).read_bytes()
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}  # reading all of them checks their CRCs
            return Evaluation(**json.loads(str(arrays.pop("evaluation")))), arrays
        except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            # RuntimeError: a flipped bit that says that the file is encrypted, or compressed in another way.
            return None

    def _path(self, variant: str) -> Path:
        return self.predictions / f"{variant}.npz"

    def write_tables(self, wanted: Mapping[str, dict[str, Any]]) -> None:
        """Writes the tables of all finished trainings, and metrics.json for `dvc metrics`."""
        from pipeline.study import tables

        trainings, metrics = [], {}
        for variant, inputs in wanted.items():
            run, found = seeds.read_record(self.training(variant)), self.read(variant)
            if found and not found.has_seeds_of(inputs["weights"]):
                found = None
            trainings.append(tables.training(run, found and found.columns))
            metrics[variant] = run["metrics"] | (found.metrics if found else {})
        for name, text in tables.render(trainings).items():
            write_changed(self.tables / name, text)
        write_changed(self.tables / "metrics.json", json.dumps(metrics, indent=2) + "\n")
