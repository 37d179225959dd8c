"""The coordinating process: has every variant's seeds evaluated, checks the results against the training, and writes them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.evaluation import inference
from pipeline.evaluation.inference import Result, Task
from pipeline.evaluation.records import Evaluation, Records
from pipeline.measures.definitions import FloatArray
from pipeline.params import Params, VariantSettings
from pipeline.provenance import device_name, same_processor, versions
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import IMAGES_APART, TEST_TOLERANCE
from pipeline.training.records import EpochRow


def evaluate(params: Params, records: Records, wanted: Mapping[str, dict[str, Any]]) -> dict[str, UserError]:
    """Evaluates variants, and writes each variant's file as soon as its last seed is done.

    On the CPU every seed is a task of its own, for several processes of one thread each; on CUDA one process evaluates stacks, as the
    training did. Results do not depend on the number of processes.

    Args:
        wanted: by variant, the inputs of its evaluation, which are stored with it; see `Records.wanted`.

    Returns:
        By variant, why it could not be evaluated. All others were.

    Raises:
        UserError: a process died; finished evaluations are kept.
    """
    device = pool.choose_device()
    variants = {variant: params.resolve(variant) for variant in wanted}
    tasks = [
        Task(variant, settings, tuple(group), tuple(wanted[variant]["probes"]), device, records.runs / variant, records.arrays)
        for variant, settings in variants.items()
        for group in pool.make_groups(settings.train.seeds, device, stackable=settings.stackable)
    ]
    processes = pool.choose_processes() if device == "cpu" else 1
    results_of: dict[str, dict[int, Result]] = defaultdict(dict)  # by variant and a group's first seed
    faults: dict[str, UserError] = {}
    finished = 0
    outcomes = inference.run(tasks, min(processes, len(tasks)))
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
                metrics, note = _finish(records, variant, settings, in_order, wanted[variant], device)
            except UserError as error:
                if variant not in faults:
                    faults[variant] = error
                    say(f"{variant}: not evaluated. {error}")
                continue
            finished += 1
            vote, voters = metrics.get("ensemble_accuracy"), len(settings.train.seeds)
            of_vote = "" if vote is None or voters < 2 else f", of the vote of {voters} seeds {vote:.2%}"
            say(f"{variant}: accuracy {metrics['test_accuracy']:.2%}{of_vote} ({finished} of {len(wanted)})")
            if note is not None:
                say(f"{variant}: {note}")
    return faults


def _finish(
    records: Records, variant: str, settings: VariantSettings, parts: Sequence[Result], inputs: Mapping[str, Any], device: str
) -> tuple[dict[str, Any], str | None]:
    """Checks and writes one variant's evaluation. Returns its metrics, and the sentence of `check_reproduced`."""
    losses, accuracies = (np.concatenate([getattr(part, name) for part in parts]) for name in ("losses", "accuracies"))
    arrays, columns = (
        {name: np.concatenate([getattr(part, kind)[name] for part in parts]) for name in getattr(parts[0], kind)}
        for kind in ("arrays", "columns")
    )
    run = seeds.read_run(records.runs / variant)
    last = [row for row in seeds.epoch_rows(run) if row.epoch == settings.train.epochs]
    here = {"device": device_name(device), "attention": parts[0].attention, "torch": versions()["torch"]}
    note = check_reproduced(variant, last, losses, accuracies, num_tests=parts[0].num_tests, elsewhere=elsewhere(run, here))
    arrays |= {"seeds": np.array(settings.train.seeds), **parts[0].shared}
    metrics = summarize(losses, accuracies)
    if settings.task == "classification":
        metrics |= summarize_votes(arrays["predictions"], arrays["labels"])
    records.write(variant, arrays, Evaluation(dict(inputs), {name: column.tolist() for name, column in columns.items()}, metrics))
    return metrics, note


def elsewhere(run: Mapping[str, Any], here: Mapping[str, str]) -> str | None:
    """How the devices, kernels and torch versions of a training differ from those here, as a clause; None if they do not.

    Args:
        run: the content of run.json. A version of torch that it lacks counts as the same.
        here: `device`, its name; `attention`, the kernel; `torch`, its version.
    """
    clauses = []
    for group in run["trainings"]:
        there = {"device": group["device_name"], "attention": group["attention"], "torch": group["versions"].get("torch", here["torch"])}
        same = {name: there[name] == here[name] for name in here} | {"device": same_processor(there["device"], here["device"])}
        clauses += [f"{name} {there[name]}" for name in here if not same[name]]
    return f"trained with {', '.join(dict.fromkeys(clauses))}" if clauses else None


def check_reproduced(
    variant: str, last: Sequence[EpochRow], losses: np.ndarray, accuracies: np.ndarray, *, num_tests: int, elsewhere: str | None
) -> str | None:
    """Compares a test with the training's last epoch: the accuracies have to be equal, the losses to a relative 1e-5.

    If the training was computed by something else, a difference of two images and of a relative 1e-3 in the loss counts as rounding,
    as in a replay. A loss that is not finite equals any other that is not.

    Args:
        num_tests: number of examples in a test.
        elsewhere: what else computed the training, as a clause; None if nothing differs.

    Returns:
        The largest difference due to rounding, in one sentence; None if the accuracies are equal.

    Raises:
        UserError: they differ, so weights and record are not of the same training.
    """
    tolerance, images_apart = (TEST_TOLERANCE, IMAGES_APART) if elsewhere else (1e-5, 0)
    most = 0
    for row, loss, accuracy in zip(last, losses, accuracies, strict=True):
        same_loss = math.isclose(row.test_loss, loss, rel_tol=tolerance) or not (math.isfinite(row.test_loss) or math.isfinite(loss))
        apart = abs(round(row.test_accuracy * num_tests) - round(accuracy * num_tests))
        if not same_loss or apart > images_apart:
            raise UserError(
                f"The weights of variant {variant}, seed {row.seed}, test at loss {loss:.6f} and accuracy {accuracy:.4f},"
                f" but its training ended at {row.test_loss:.6f} and {row.test_accuracy:.4f}:"
                f" so its state_dict is not what it then computed with. Either it is of another training: train it again with"
                f" `dvc repro --force --single-item train@{variant}`. Or the network changes what its state_dict leaves out, such as a"
                " buffer with persistent=False: register it as persistent first.",
                status=1,
            )
        most = max(most, apart)
    return f"up to {most} of {num_tests} tests apart from its training, which is rounding: {elsewhere}." if most else None


def summarize(losses: FloatArray, accuracies: FloatArray) -> dict[str, Any]:
    """Means over the seeds of test accuracy and test loss.

    Args:
        losses: (seed,); the mean leaves out those that are not finite, and is None if none is finite.
        accuracies: (seed,).
    """
    finite = losses[np.isfinite(losses)]
    return {"test_accuracy": float(accuracies.mean()), "test_loss": float(finite.mean()) if finite.size else None}


def summarize_votes(predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """For classifiers: the accuracy of the seeds' majority vote (ties as in `pipeline.study.statistics.vote`), and the mean accuracy on
    the images of each class.

    Args:
        predictions: (seed, image).
        labels: (image,).
    """
    from pipeline.study.statistics import vote

    correct = predictions == labels  # (seed, image)
    return {
        "ensemble_accuracy": float((vote(predictions) == labels).mean()),
        "per_class_accuracy": {str(digit): float(correct[:, labels == digit].mean()) for digit in np.unique(labels).tolist()},
    }


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """A progress bar on a terminal, plain lines elsewhere. Yields a function that advances the bar by one, and one that prints a line."""
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
