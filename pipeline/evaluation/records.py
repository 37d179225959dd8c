"""The files that an evaluation consists of, and what it was made from: which of them still hold, and how they are written."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.datasets import data_digest
from pipeline.files import replacing, sha256, write_json, write_text
from pipeline.params import Params
from pipeline.provenance import EVALUATION_CODE, code_hash, versions
from pipeline.runner import results

INPUTS = "inputs.json"
_TEXTS = ("metrics.json", "seeds.csv", "confusion.csv")


@dataclass(frozen=True)
class Records:
    """Where a study keeps its evaluations, and what they are made from.

    Attributes:
        arrays: `data/arrays`.
        runs: a folder a variant, with its weights; read only.
        evaluations: a folder a variant, with inputs.json and the other text files.
        predictions: an npz file a variant.
    """

    arrays: Path
    runs: Path
    evaluations: Path
    predictions: Path

    def wanted(self, params: Params, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
        """What the evaluation of each variant with a finished training follows from; says a line about each of the others.

        Raises:
            UserError: the arrays are not there, or a training's files are damaged.
        """
        shared = {"data": data_digest(self.arrays), "code": code_hash(EVALUATION_CODE), "torch": versions()["torch"]}
        probed = {probe: params.probed(probe) for probe in ("shifts", "attention")}
        wanted = {}
        for variant in params.variants:
            settings, directory = params.resolve(variant), self.runs / variant
            if not (directory / results.RUN).exists():
                say(f"{variant}: left out, it has no finished training in {self.runs}/")
                continue
            run = results.read_run(directory)
            if run["config"] != settings.model_dump(mode="json"):
                say(f"{variant}: left out, params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it")
            else:
                wanted[variant] = {
                    "weights": run["outputs"][results.WEIGHTS],
                    "config": settings.config_hash,
                    "probes": [probe for probe, names in probed.items() if variant in names],
                    **shared,
                }
        return wanted

    def sort_out(self, wanted: Mapping[str, dict[str, Any]], say: Callable[[str], None]) -> tuple[list[str], list[str]]:
        """The variants whose evaluation is up to date, and those to evaluate; one without weights here is neither, or up to date."""
        kept, stale = [], []
        for variant, inputs in wanted.items():
            recorded = self._recorded(variant)
            current = {key: value for key, value in recorded.items() if key != "outputs"} == inputs
            weights = self.runs / variant / results.WEIGHTS
            if not weights.exists():
                say(f"{variant}: left out, {weights} is not here; `dvc checkout` or `dvc pull` restores it")
                # Text files of a clone without DVC's cache; they are of this very training.
                kept += [variant] * current
            elif current and sha256(weights) == inputs["weights"] and self._intact(variant, recorded["outputs"]):
                kept.append(variant)
            else:
                stale.append(variant)
        return kept, stale

    def prune(self, wanted: Mapping[str, dict[str, Any]], kept: Collection[str], stale: Collection[str]) -> None:
        """Removes what is neither up to date nor, though stale, of the weights that are here."""
        # Until they are replaced, evaluations of these very weights are right, if not what is now asked for; others would mislead.
        standing = {*kept, *(variant for variant in stale if self._recorded(variant).get("weights") == wanted[variant]["weights"])}
        _prune(self.evaluations, standing)
        _prune(self.predictions, {f"{variant}.npz" for variant in standing})

    def write(
        self,
        variant: str,
        seeds: Sequence[int],
        columns: Mapping[str, Sequence[float]],
        arrays: Mapping[str, np.ndarray],
        metrics: Mapping[str, Any],
        inputs: Mapping[str, Any],
        classes: int,
    ) -> None:
        """Writes one variant's evaluation.

        Args:
            columns: of seeds.csv, each (seed,).
            arrays: of the predictions' npz file; among them "labels" (image,) and "predictions" (seed, image), uint8.
            metrics: what metrics.json holds.
            inputs: what the evaluation follows from, as `wanted` gave it.
        """
        directory = self.evaluations / variant
        paths = self._outputs(variant)
        with replacing(paths["predictions"]) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        rows = ([seed, *values] for seed, *values in zip(seeds, *columns.values(), strict=True))
        write_text(paths["seeds.csv"], _csv(["seed", *columns], rows))
        pairs = arrays["labels"].astype(np.int64) * classes + arrays["predictions"]  # (seed, image)
        counts = np.bincount(pairs.ravel(), minlength=classes**2)
        rows = ([*divmod(pair, classes), int(count)] for pair, count in enumerate(counts))
        write_text(paths["confusion.csv"], _csv(["actual", "predicted", "count"], rows))
        write_json(paths["metrics.json"], metrics)
        # Last, so that a kill leaves files that inputs.json does not vouch for.
        write_json(directory / INPUTS, {**inputs, "outputs": {name: sha256(path) for name, path in paths.items()}})
        _prune(directory, {INPUTS, *_TEXTS})

    def _recorded(self, variant: str) -> dict[str, Any]:
        """inputs.json; empty where there is none or it is damaged."""
        try:
            content = json.loads((self.evaluations / variant / INPUTS).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) and isinstance(content.get("outputs"), dict) else {}

    def _outputs(self, variant: str) -> dict[str, Path]:
        return {name: self.evaluations / variant / name for name in _TEXTS} | {"predictions": self.predictions / f"{variant}.npz"}

    def _intact(self, variant: str, digests: Mapping[str, str]) -> bool:
        return all(path.exists() and sha256(path) == digests.get(name) for name, path in self._outputs(variant).items())


def _prune(directory: Path, names: set[str]) -> None:
    """Makes the directory, and leaves in it only these names: what is there does not depend on earlier params.yaml or on kills."""
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _csv(header: Sequence[str], rows: Iterator[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
