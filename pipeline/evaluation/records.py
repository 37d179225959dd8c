"""The stored evaluations of variants with their inputs: which of them are up to date, and how they are read and written."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.files import replacing, sha256, write_changed
from pipeline.measures import PROBES
from pipeline.params import Params
from pipeline.provenance import EVALUATION_CODE, code_hash, versions
from pipeline.runner import seeds
from pipeline.training.tasks import data_digest


class Evaluation(NamedTuple):
    """The evaluation of a variant, without the arrays of its predictions' file.

    Attributes:
        inputs: what it was made from: digests of weights, settings, data and code, the probes, the version of torch.
        columns: by name, a value per seed.
        metrics: of all seeds together, as `evaluate.summarize` and `evaluate.summarize_votes` return them.
    """

    inputs: dict[str, Any]
    columns: dict[str, list[float]]
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The folders of a study's evaluations and of their inputs.

    Attributes:
        arrays: `data/arrays`.
        runs: a folder per variant, with its weights; read only.
        predictions: an npz file per variant, with its arrays and its `Evaluation`.
        tables: the tables of all variants, which git tracks.
    """

    arrays: Path
    runs: Path
    predictions: Path
    tables: Path

    def wanted(self, params: Params, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
        """The inputs of the evaluation of each variant with a finished training, as in `Evaluation.inputs`; reports the other variants.

        Raises:
            UserError: the arrays are missing, or a training's record is damaged.
        """
        shared = {"code": code_hash(EVALUATION_CODE), "torch": versions()["torch"]}
        probed = {probe: params.probed(probe) for probe in PROBES}
        wanted = {}
        trained = [variant for variant in params.variants if (self.runs / variant / seeds.RUN).exists()]
        if missing := [variant for variant in params.variants if variant not in trained]:
            say(f"left out, without a finished training in {self.runs}/: {', '.join(missing)}")
        for variant in trained:
            settings, directory = params.resolve(variant), self.runs / variant
            run = seeds.read_run(directory)
            if not settings.trained_as(run["config"], seeds=True):
                say(f"{variant}: left out, params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it")
            else:
                wanted[variant] = {
                    "weights": run["outputs"][seeds.WEIGHTS],
                    "config": settings.config_hash,
                    "data": data_digest(settings.task, self.arrays),
                    "probes": [probe for probe, names in probed.items() if variant in names],
                    **shared,
                }
        return wanted

    def split_stale(self, wanted: Mapping[str, dict[str, Any]], say: Callable[[str], None]) -> tuple[list[str], list[str]]:
        """The variants whose evaluation is up to date, and those to evaluate. A variant without weights is not evaluated."""
        kept, stale = [], []
        for variant, inputs in wanted.items():
            found = self.read(variant)
            current = found is not None and found.inputs == inputs
            weights = self.runs / variant / seeds.WEIGHTS
            if not weights.exists():
                say(f"{variant}: left out, {weights} is not here; `dvc checkout` or `dvc pull` restores it")
                kept += [variant] * current
            elif current and sha256(weights) == inputs["weights"]:
                kept.append(variant)
            else:
                stale.append(variant)
        return kept, stale

    def prune(self, wanted: Mapping[str, dict[str, Any]], kept: Collection[str], stale: Collection[str]) -> None:
        """Removes all stored evaluations but those that are up to date and stale ones of the present weights."""
        # A stale evaluation of the present weights is correct and stays until it is replaced. One of other weights would mislead.
        found = {variant: self.read(variant) for variant in stale}
        right = {variant for variant, one in found.items() if one and one.inputs["weights"] == wanted[variant]["weights"]}
        names = {f"{variant}.npz" for variant in {*kept, *right}}
        self.predictions.mkdir(exist_ok=True)
        # Everything else goes, so that the folder does not depend on earlier versions of params.yaml or on kills.
        for path in self.predictions.iterdir():
            if path.name not in names:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def write(self, variant: str, arrays: Mapping[str, np.ndarray], evaluation: Evaluation) -> None:
        """Writes one variant's evaluation.

        Args:
            arrays: of a classifier, among them "labels" (image,) and "predictions" (seed, image), of one type.
        """
        with replacing(self.predictions / f"{variant}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays, evaluation=np.array(json.dumps(evaluation._asdict())))  # type: ignore[arg-type]

    def read(self, variant: str) -> Evaluation | None:
        """One variant's evaluation; None if there is none or its file is damaged."""
        try:
            content = (self.predictions / f"{variant}.npz").read_bytes()
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}  # reading all of them checks their CRCs
            return Evaluation(**json.loads(str(arrays["evaluation"])))
        except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            # RuntimeError: a flipped bit that says that the file is encrypted, or compressed in another way.
            return None

    def write_tables(self, wanted: Mapping[str, dict[str, Any]]) -> None:
        """Writes the tables of all finished trainings, and metrics.json for `dvc metrics`."""
        from pipeline.study import tables

        trainings, metrics = [], {}
        for variant, inputs in wanted.items():
            run, found = seeds.read_run(self.runs / variant), self.read(variant)
            if found is not None and found.inputs["weights"] != inputs["weights"]:
                found = None
            trainings.append(tables.training(run, None if found is None else found.columns))
            own = (
                {}
                if found is None
                else {name: value for name, value in found.metrics.items() if name not in ("test_accuracy", "test_loss")}
            )
            metrics[variant] = run["metrics"] | own
        for name, text in tables.render(trainings).items():
            write_changed(self.tables / name, text)
        write_changed(self.tables / "metrics.json", json.dumps(metrics, indent=2) + "\n")
