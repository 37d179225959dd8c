"""DVC stage `evaluate`: the stored weights of every variant, tested anew; what they predict, and where they err.

One stage for all variants, which keeps what it has of a variant as long as everything that decides it is the same:
`evaluations/VARIANT/inputs.json` says what that was.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.data.datasets import Dataset, data_digest, load
from pipeline.errors import UserError, run_command
from pipeline.files import replacing, sha256, write_json, write_text
from pipeline.params import NUM_CLASSES, SHIFTS, ModelSettings, Params, VariantSettings
from pipeline.params import load as load_params
from pipeline.provenance import EVALUATION_CODE, code_hash, versions
from pipeline.stages.paths import ARRAYS, CHECKPOINTS, RUNS
from pipeline.training import results, workers
from pipeline.training.records import EpochRow, read_epochs

if TYPE_CHECKING:  # a run that finds nothing to do does not pay for torch
    from torch import Tensor, nn

    from pipeline.analysis.attention import Probe

EVALUATIONS = Path("evaluations")
PREDICTIONS = Path("predictions")
INPUTS = "inputs.json"
_TEXTS = ("metrics.json", "seeds.csv", "confusion.csv")
_ATTENTION_COLUMNS = {"attention_entropy": "entropy", "ink_correlation": "ink_correlation"}  # of seeds.csv, and of a Probe
_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right, as (rows, columns)


@dataclass(frozen=True)
class Task:
    """One group of seeds of a variant: a stack on CUDA, a single seed on the CPU."""

    variant: str
    settings: VariantSettings
    seeds: tuple[int, ...]
    probes: tuple[str, ...]
    device: str


@dataclass(frozen=True)
class Result:
    """What a group's weights do on the test images.

    Attributes:
        losses: mean cross-entropy (seed,) float64.
        predictions: classes (seed, image) uint8.
        positions: the vectors added to the tokens (seed, token, dim) float32; (seed, 0, 0) where there are none.
        shifted: accuracy (seed, distance), mean over the directions; None where it is not asked for.
        attention: of each seed; None where it is not asked for.
    """

    losses: npt.NDArray[np.float64]
    predictions: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.float32]
    shifted: npt.NDArray[np.float64] | None
    attention: list[Probe] | None


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.evaluate", description=__doc__).parse_args(argv)
    if "DVC_STAGE" in os.environ:
        workers.die_with_parent(os.getppid())
    params = load_params()
    wanted = _wanted(params)
    kept, stale = _sort_out(wanted)
    if not kept and not stale:
        raise UserError(
            "There is nothing to evaluate: runs/ holds no finished training of what params.yaml describes; run `dvc repro` first."
        )
    # Until they are replaced, evaluations of these very weights are right, if not what is now asked for; others would mislead.
    standing = {*kept, *(variant for variant in stale if _recorded(variant).get("weights") == wanted[variant]["weights"])}
    _prune(EVALUATIONS, standing)
    _prune(PREDICTIONS, {f"{variant}.npz" for variant in standing})
    if not stale:
        print(f"The evaluation of {len(kept)} variant{'s' * (len(kept) != 1)} is up to date.", flush=True)
        return
    faults = evaluate(params, {variant: wanted[variant] for variant in stale})
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        raise UserError(f"{', '.join(faults)} were not evaluated, for the reasons above; all other variants were.")


def _wanted(params: Params) -> dict[str, dict[str, Any]]:
    """What the evaluation of each variant with a finished training follows from; a line about each of the others."""
    shared = {"data": data_digest(ARRAYS), "code": code_hash(EVALUATION_CODE), "torch": versions()["torch"]}
    probed = {probe: params.probed(probe) for probe in ("shifts", "attention")}
    wanted = {}
    for variant in params.variants:
        settings, directory = params.resolve(variant), RUNS / variant
        if not all((directory / name).exists() for name in ("run.json", "epochs.csv", results.SIDECAR)):
            print(f"{variant}: left out, it has no finished training in {RUNS}/", flush=True)
        elif _config(directory) != settings.model_dump(mode="json"):
            print(
                f"{variant}: left out, params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it",
                flush=True,
            )
        else:
            wanted[variant] = {
                "weights": " ".join((directory / results.SIDECAR).read_text(encoding="utf-8").split()[:1]),
                "config": settings.config_hash,
                "probes": [probe for probe, names in probed.items() if variant in names],
                **shared,
            }
    return wanted


def _config(directory: Path) -> Any:
    """The settings of a training; None where run.json is damaged."""
    try:
        return json.loads((directory / "run.json").read_text(encoding="utf-8"))["config"]
    except (ValueError, KeyError, TypeError):
        return None


def _sort_out(wanted: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The variants whose evaluation is up to date, and those to evaluate; one without weights here is neither, or up to date."""
    kept, stale = [], []
    for variant, inputs in wanted.items():
        recorded = _recorded(variant)
        current = {key: value for key, value in recorded.items() if key != "outputs"} == inputs
        weights = RUNS / variant / results.WEIGHTS
        if not weights.exists():
            print(f"{variant}: left out, {weights} is not here; `dvc checkout` or `dvc pull` restores it", flush=True)
            # Text files of a clone without DVC's cache; they are of this very training.
            kept += [variant] * current
        elif current and sha256(weights) == inputs["weights"] and _intact(variant, recorded["outputs"]):
            kept.append(variant)
            # Left by a training whose weights came out as they were.
            shutil.rmtree(CHECKPOINTS / variant, ignore_errors=True)
        else:
            stale.append(variant)
    return kept, stale


def _recorded(variant: str) -> dict[str, Any]:
    """inputs.json; empty where there is none or it is damaged."""
    try:
        content = json.loads((EVALUATIONS / variant / INPUTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("outputs"), dict) else {}


def _outputs(variant: str) -> dict[str, Path]:
    return {name: EVALUATIONS / variant / name for name in _TEXTS} | {"predictions": PREDICTIONS / f"{variant}.npz"}


def _intact(variant: str, digests: Mapping[str, str]) -> bool:
    return all(path.exists() and sha256(path) == digests.get(name) for name, path in _outputs(variant).items())


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


def evaluate(params: Params, wanted: Mapping[str, dict[str, Any]]) -> dict[str, UserError]:
    """Evaluates variants and writes their files, each variant's as soon as its last seed is through.

    On the CPU every seed is a piece of work of its own, for several processes of one thread each; on CUDA one process evaluates
    stacks, as the training did. A result does not depend on the number of processes.

    Args:
        wanted: by variant, what its evaluation follows from; it becomes inputs.json.

    Returns:
        What is wrong with the variants that could not be evaluated. All others were.

    Raises:
        UserError: a process died; what was evaluated until then is kept.
    """
    device = workers.choose_device()
    variants = {variant: params.resolve(variant) for variant in wanted}
    tasks = [
        Task(variant, settings, tuple(group), tuple(wanted[variant]["probes"]), device)
        for variant, settings in variants.items()
        for group in workers.make_groups(settings.train.seeds, device, stackable=settings.model.stackable)
    ]
    processes = workers.choose_processes() if device == "cpu" else 1
    dataset = load(ARRAYS)
    results_of: dict[str, dict[int, Result]] = defaultdict(dict)  # by a group's first seed
    faults: dict[str, UserError] = {}
    finished = 0
    outcomes = _run(tasks, min(processes, len(tasks)))
    with closing(outcomes), _progress(len(tasks)) as (advance, say):
        for task, outcome in outcomes:
            advance()
            variant, settings = task.variant, variants[task.variant]
            try:
                if isinstance(outcome, UserError):
                    raise outcome
                results_of[variant][task.seeds[0]] = outcome
                if sum(len(result.losses) for result in results_of[variant].values()) < len(settings.train.seeds):
                    continue
                parts = results_of.pop(variant)
                in_order = [parts[seed] for seed in settings.train.seeds if seed in parts]
                metrics = _finish(variant, settings, in_order, dataset, wanted[variant])
            except UserError as error:
                if variant not in faults:
                    faults[variant] = error
                    say(f"{variant}: not evaluated. {error}")
                continue
            finished += 1
            mean, vote = (f"{metrics[name]:.2%}" for name in ("test_accuracy", "ensemble_accuracy"))
            say(f"{variant}: accuracy {mean}, of the vote of {len(settings.train.seeds)} seeds {vote} ({finished} of {len(wanted)})")
    return faults


def _run(tasks: Sequence[Task], processes: int) -> Generator[tuple[Task, Result | UserError]]:
    """Works on all tasks in processes of their own; results come as they are ready."""
    # Not forked: torch's threads and CUDA do not survive it.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(os.getpid(), tasks[0].device))
    try:
        futures = {pool.submit(measure, task): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except UserError as error:
                yield futures[future], error
    except BrokenProcessPool:
        raise UserError(
            "A process of the evaluation ended early (out of memory?); run the same command again: what is evaluated is kept.", status=1
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(parent: int, device: str) -> None:
    """A worker's beginning."""
    workers.die_with_parent(parent)
    import torch

    from pipeline.training.engine import set_reproducible

    set_reproducible(torch.device(device))


@cache
def _dataset() -> Dataset:
    return load(ARRAYS)


def measure(task: Task) -> Result:
    """Tests the stored weights of a group of seeds as the training did: the same device, grouping and batches; and probes them.

    Raises:
        UserError: the weights are missing, damaged or of other seeds.
    """
    import torch

    from pipeline.training import engine

    dataset, model, device = _dataset(), task.settings.model, torch.device(task.device)
    images = torch.from_numpy(dataset.test_images).to(device)
    labels = torch.from_numpy(dataset.test_labels).long().to(device)
    weights = results.load_weights(RUNS / task.variant, task.settings)
    places = [task.settings.train.seeds.index(seed) for seed in task.seeds]
    stack = engine.Stack(model, task.seeds, device)
    stack.load({name: value[places].to(device) for name, value in weights.items()})

    def test(images: Tensor) -> tuple[Tensor, Tensor]:
        return engine.evaluate(stack, images, labels, num_seeds=len(task.seeds))

    losses, predictions = test(images)
    shifted = None
    if "shifts" in task.probes:
        shifted = np.zeros((len(task.seeds), len(SHIFTS)))
        for column, distance in enumerate(SHIFTS):
            for down, right in _DIRECTIONS:
                _, predicted = test(shift(images, down * distance, right * distance))
                shifted[:, column] += (predicted == labels).double().mean(1).cpu().numpy() / len(_DIRECTIONS)
    attention = None
    if "attention" in task.probes:
        assert isinstance(model, ModelSettings)
        attention = []
        for seed, place in zip(task.seeds, places, strict=True):
            single = engine.Stack(model, [seed], device)  # the maps are read from a plain module
            single.load({name: value[[place]].to(device) for name, value in weights.items()})
            attention.append(_probe(single.module, model, dataset))
    position = stack.position()
    return Result(
        losses=losses.cpu().numpy(),
        predictions=predictions.cpu().numpy().astype(np.uint8),
        positions=np.zeros((len(task.seeds), 0, 0), np.float32) if position is None else position.cpu().numpy(),
        shifted=shifted,
        attention=attention,
    )


def _probe(module: nn.Module, model: ModelSettings, dataset: Dataset) -> Probe:
    from pipeline.analysis.attention import NUM_IMAGES, first_of_each_class, probe

    digits = dataset.test_images[first_of_each_class(dataset.test_labels)]
    return probe(module, model, dataset.test_images[:NUM_IMAGES], digits)


def shift(images: Tensor, down: int, right: int) -> Tensor:
    """Images (..., height, width) moved by whole pixels, negative ones up and left; zeros move in."""
    from torch.nn.functional import pad

    return pad(images, (right, -right, down, -down))


def _finish(
    variant: str, settings: VariantSettings, parts: Sequence[Result], dataset: Dataset, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Checks and writes one variant's evaluation. Returns what metrics.json holds."""
    losses, predictions = (np.concatenate([getattr(part, name) for part in parts]) for name in ("losses", "predictions"))
    labels = dataset.test_labels
    accuracies = (predictions == labels).mean(1)
    last = [row for row in read_epochs(RUNS / variant / "epochs.csv") if row.epoch == settings.train.epochs]
    check_reproduced(variant, last, losses, accuracies)
    columns: dict[str, Sequence[float]] = {"test_accuracy": accuracies.tolist(), "test_loss": losses.tolist()}
    arrays: dict[str, np.ndarray] = {
        "labels": labels,
        "predictions": predictions,
        "seeds": np.array(settings.train.seeds),
        "positions": np.concatenate([part.positions for part in parts]),
    }
    if "shifts" in inputs["probes"]:
        shifted = np.concatenate([part.shifted for part in parts if part.shifted is not None])
        columns |= {f"shift_{distance}": shifted[:, i].tolist() for i, distance in enumerate(SHIFTS)}
    if "attention" in inputs["probes"]:
        assert isinstance(settings.model, ModelSettings)
        probes = [probe for part in parts for probe in part.attention or ()]
        columns |= {name: [getattr(probe, field) for probe in probes] for name, field in _ATTENTION_COLUMNS.items()}
        arrays |= _attention_arrays(probes, settings.model, dataset)
    metrics = summarize(losses, predictions, labels)
    _write(variant, settings.train.seeds, columns, arrays, metrics, inputs)
    # Not before now: until the train stage is committed, its checkpoints are the only copy that a kill cannot take.
    shutil.rmtree(CHECKPOINTS / variant, ignore_errors=True)
    return metrics


def _attention_arrays(probes: Sequence[Probe], model: ModelSettings, dataset: Dataset) -> dict[str, np.ndarray]:
    from pipeline.analysis.attention import first_of_each_class

    places = first_of_each_class(dataset.test_labels)
    return {
        "images": dataset.test_images[places],
        "image_labels": dataset.test_labels[places],
        "maps": probes[0].maps,
        "rollout": np.stack([probe.rollout for probe in probes]),
        "has_cls": np.array(int(model.has_cls)),
    }


def check_reproduced(variant: str, last: Sequence[EpochRow], losses: np.ndarray, accuracies: np.ndarray) -> None:
    """Compares with the training's last epoch: the accuracy has to be equal, the loss to five digits (bitwise on one machine).

    A loss that is not finite is reproduced by any other that is not.

    Raises:
        UserError: they differ, so weights and epochs.csv are not of the same training.
    """
    for row, loss, accuracy in zip(last, losses, accuracies, strict=True):
        same_loss = math.isclose(row.test_loss, loss, rel_tol=1e-5) or not (math.isfinite(row.test_loss) or math.isfinite(loss))
        if not (same_loss and math.isclose(row.test_accuracy, accuracy, abs_tol=1e-9)):
            raise UserError(
                f"The weights of variant {variant}, seed {row.seed}, test at loss {loss:.6f} and accuracy {accuracy:.4f},"
                f" but its training ended at {row.test_loss:.6f} and {row.test_accuracy:.4f}:"
                f" train it again with `dvc repro --force --single-item train@{variant}`.",
                status=1,
            )


def summarize(losses: np.ndarray, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """What metrics.json holds.

    Args:
        losses: (seed,); those that are not finite are left out of the mean, which is None when none is left.
        predictions: (seed, image).
        labels: (image,).

    Returns:
        means over the seeds of test accuracy, test loss and the accuracy on the images of each class; and the accuracy of the
        seeds' majority vote, whose ties go as `pipeline.analysis.statistics.vote` says.
    """
    from pipeline.analysis.statistics import vote

    correct = predictions == labels  # (seed, image)
    finite = losses[np.isfinite(losses)]
    return {
        "test_accuracy": float(correct.mean()),
        "test_loss": float(finite.mean()) if finite.size else None,
        "ensemble_accuracy": float((vote(predictions) == labels).mean()),
        "per_class_accuracy": {
            str(digit): float(correct[:, labels == digit].mean()) for digit in range(NUM_CLASSES) if (labels == digit).any()
        },
    }


def _write(
    variant: str,
    seeds: Sequence[int],
    columns: Mapping[str, Sequence[float]],
    arrays: Mapping[str, np.ndarray],
    metrics: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> None:
    directory = EVALUATIONS / variant
    paths = _outputs(variant)
    with replacing(paths["predictions"]) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    rows = ([seed, *values] for seed, *values in zip(seeds, *columns.values(), strict=True))
    write_text(paths["seeds.csv"], _csv(["seed", *columns], rows))
    pairs = arrays["labels"].astype(np.int64) * NUM_CLASSES + arrays["predictions"]  # (seed, image)
    counts = np.bincount(pairs.ravel(), minlength=NUM_CLASSES**2)
    rows = ([*divmod(pair, NUM_CLASSES), int(count)] for pair, count in enumerate(counts))
    write_text(paths["confusion.csv"], _csv(["actual", "predicted", "count"], rows))
    write_json(paths["metrics.json"], metrics)
    # Last, so that a kill leaves files that inputs.json does not vouch for.
    write_json(directory / INPUTS, {**inputs, "outputs": {name: sha256(path) for name, path in paths.items()}})
    _prune(directory, {INPUTS, *_TEXTS})


def _csv(header: Sequence[str], rows: Iterator[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """A bar on a terminal, plain lines elsewhere. Yields what moves the bar on by one, and what says a line."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    columns = (TextColumn("evaluate"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("seeds"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        work = bar.add_task("evaluate", total=total)

        def say(line: str) -> None:
            if console.is_terminal:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            else:
                print(line, flush=True)

        yield lambda: bar.advance(work), say


if __name__ == "__main__":
    run_command(main)
