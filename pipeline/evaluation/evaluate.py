"""The coordinating process: has every variant's seeds evaluated, checks the results against the training, and writes them.

A seed whose weights, settings, data, probes and code are the same keeps what it has. Where the code is another, the seeds whose weights
are not here keep it, too, if the first seed, which is tested anew, gives the same as before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.evaluation import inference
from pipeline.evaluation.inference import Result, Task
from pipeline.evaluation.records import Evaluation, Records
from pipeline.params import Params, VariantSettings
from pipeline.provenance import device_name, same_processor, versions
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import IMAGES_APART, TEST_TOLERANCE
from pipeline.training.records import EpochRow

# What rounding may change in an evaluation on another kind of processor: the share of predictions or words, and a number.
_OTHER, _RELATIVE, _ABSOLUTE = 0.01, 0.05, 0.002

Arrays = dict[str, np.ndarray]


@dataclass
class _Variant:
    """A variant whose evaluation is not up to date.

    Attributes:
        inputs: what it is to be made from.
        stored: what there is, with its arrays.
        tested: the seeds to test; the others keep what they have.
        earlier: of these, by seed the code that tested those whose weights are not here. The first seed has to give the same as before.
    """

    name: str
    settings: VariantSettings
    inputs: Mapping[str, Any]
    stored: tuple[Evaluation, Arrays] | None
    tested: list[int] = field(default_factory=list)
    earlier: dict[str, str] = field(default_factory=dict)
    results: list[tuple[Task, Result]] = field(default_factory=list)


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
    faults: dict[str, UserError] = {}
    variants: dict[str, _Variant] = {}
    for name, inputs in wanted.items():
        try:
            variants[name] = _divided(records, _Variant(name, params.resolve(name), inputs, records.stored(name)))
        except UserError as error:
            faults[name] = error
    tasks = [
        Task(
            one.name, one.settings, tuple(group), tuple(one.inputs["probes"]), device, records.training(one.name), records.arrays,
            records.finished,
        )
        for one in variants.values()
        for group in pool.make_groups(one.tested, device, stackable=one.settings.stackable)
        if group
    ]  # fmt: skip
    left = defaultdict[str, int](int)
    for task in tasks:
        left[task.variant] += 1
    finished = 0

    def finish(one: _Variant) -> None:
        nonlocal finished
        try:
            said = _finish(records, one, device)
        except UserError as error:
            faults[one.name] = error
            say(f"{one.name}: not evaluated. {error}")
            return
        finished += 1
        say(f"{one.name}: {said} ({finished} of {len(wanted)})")

    with _progress(len(tasks)) as (advance, say):
        for name, fault in faults.items():
            say(f"{name}: not evaluated. {fault}")
        for one in variants.values():
            if not one.tested:
                finish(one)
        if not tasks:
            return faults
        processes = pool.choose_processes() if device == "cpu" else 1
        with closing(inference.run(tasks, min(processes, len(tasks)))) as outcomes:
            for task, outcome in outcomes:
                advance()
                one = variants[task.variant]
                left[one.name] -= 1
                if isinstance(outcome, UserError) and one.name not in faults:
                    faults[one.name] = outcome
                    say(f"{one.name}: not evaluated. {outcome}")
                elif isinstance(outcome, Result):
                    one.results.append((task, outcome))
                    if not left[one.name] and one.name not in faults:
                        finish(one)
    return faults


def _divided(records: Records, one: _Variant) -> _Variant:
    """With what is to be tested. Raises UserError where that needs weights that are not here."""
    weights = {str(part.seed): part.has_weights for part in seeds.load(records.training(one.name), records.finished)}
    old = None if one.stored is None else one.stored[0]
    same = {seed for seed, digest in one.inputs["weights"].items() if old is not None and old.inputs["weights"].get(seed) == digest}
    if old is not None and old.is_of(one.inputs):
        one.tested = [int(seed) for seed in weights if seed not in same]
        one.earlier = {seed: code for seed, code in old.inputs.get("earlier", {}).items() if seed in same}
        gone = [seed for seed in weights if seed not in same and not weights[seed]]
    else:
        one.tested = [int(seed) for seed in weights if weights[seed]]
        gone = [seed for seed in weights if not weights[seed]]
        alike = old is not None and all(old.inputs.get(name) == one.inputs[name] for name in ("config", "data"))
        if old is not None and alike and next(iter(weights)) in same and {*one.inputs["probes"]} <= {*old.inputs["probes"]}:
            before = old.inputs.get("earlier", {})
            one.earlier = {seed: before.get(seed, old.inputs["code"]) for seed in gone if seed in same}
            gone = [seed for seed in gone if seed not in same]
    if gone:
        raise UserError(
            f"The weights of seed {', '.join(gone)} are not here, and what an earlier evaluation found of them does not hold or does not"
            f" suffice: `REPLAY=0 dvc repro --force --single-item train@{one.name}` trains the variant's seeds again."
        )
    return one


def _finish(records: Records, one: _Variant, device: str) -> str:
    """Checks and writes one variant's evaluation. Returns what there is to say of it."""
    run, all_seeds = seeds.read_record(records.training(one.name)), list(one.settings.train.seeds)
    order = [seed for task, _ in one.results for seed in task.seeds]
    fresh, columns = Arrays(), Arrays()
    notes = []
    if one.results:
        results = [result for _, result in one.results]
        first = results[0]
        losses, accuracies = (np.concatenate([getattr(result, name) for result in results]) for name in ("losses", "accuracies"))
        fresh, columns = (
            {name: np.concatenate([getattr(result, kind)[name] for result in results]) for name in getattr(first, kind)}
            for kind in ("arrays", "columns")
        )
        rows = {row.seed: row for row in seeds.epoch_rows(run) if row.epoch == one.settings.train.epochs}
        here = {"device": device_name(device), "attention": first.attention, "torch": versions()["torch"]}
        clause = elsewhere(run, here)
        note = check_reproduced(one.name, [rows[seed] for seed in order], losses, accuracies, num_tests=first.num_tests, elsewhere=clause)
        notes += [note] if note else []
    kept, before = one.stored or (Evaluation({}, {}, {}), Arrays())
    names = tuple(fresh) or kept.by_seed
    places = {seed: i for i, seed in enumerate(before["seeds"].tolist())} if one.stored else {}
    taken = [seed for seed in all_seeds if seed not in order]
    old_columns = {name: np.array(column) for name, column in kept.columns.items()}
    if one.earlier and order:
        exact = kept.inputs.get("torch") == versions()["torch"] and same_processor(kept.inputs.get("device") or "", device_name(device))
        i, j = order.index(all_seeds[0]), places[all_seeds[0]]
        for name, value in (fresh | columns).items():
            was = (before | old_columns).get(name)
            if was is None or not _alike(value[i], was[j], exact=exact):
                raise UserError(
                    f"Its first seed has another `{name}` than by the code before, and the weights of seed {', '.join(one.earlier)} are not"
                    f" here: `REPLAY=0 dvc repro --force --single-item train@{one.name}` trains the variant's seeds again.",
                    status=1,
                )
        notes.append(f"seed {', '.join(one.earlier)} kept, whose weights are not here: the first seed gives what it gave before")

    def joined(new: Arrays, old: Arrays, names: Sequence[str]) -> Arrays:
        """Of all seeds, in the order of the settings."""
        by_seed = {name: [new[name][order.index(s)] if s in order else old[name][places[s]] for s in all_seeds] for name in names}
        return {name: np.array(values) for name, values in by_seed.items()}

    found = joined(columns, old_columns, tuple(columns) or tuple(old_columns))
    shared = next((result.shared for task, result in one.results if all_seeds[0] in task.seeds), None)
    if shared is None:  # the first seed's were kept
        shared = {name: value for name, value in before.items() if name not in (*names, "seeds")}
    arrays = joined(fresh, before, names) | {"seeds": np.array(all_seeds), **shared}
    votes = summarize_votes(arrays["predictions"], arrays["labels"]) if one.settings.task == "classification" else {}
    inputs = {**one.inputs, "device": device_name(device) if order else kept.inputs.get("device"), "earlier": one.earlier}
    records.write(one.name, arrays, Evaluation(inputs, {name: column.tolist() for name, column in found.items()}, votes, names))
    vote = f", of the vote of {len(all_seeds)} seeds {votes['ensemble_accuracy']:.2%}" if votes and len(all_seeds) > 1 else ""
    said = f"accuracy {run['metrics']['test_accuracy_mean']:.2%}{vote}{f', {len(taken)} seeds kept' if taken else ''}"
    return "; ".join([said, *notes])


def _alike(new: np.ndarray, old: np.ndarray, *, exact: bool) -> bool:
    """Whether two evaluations of the same weights found the same, on another kind of processor up to rounding."""
    new, old = np.asarray(new), np.asarray(old)
    if new.shape != old.shape:
        return False
    if new.dtype.kind != "f":
        return bool((new != old).mean() <= (0 if exact else _OTHER)) if new.size else True
    tolerances = (0.0, 0.0) if exact else (_RELATIVE, _ABSOLUTE)
    return bool(np.isclose(new.astype(np.float64), old.astype(np.float64), *tolerances, equal_nan=True).all())


def elsewhere(run: Mapping[str, Any], here: Mapping[str, str]) -> str | None:
    """How the devices, kernels and torch versions of a training differ from those here, as a clause; None if they do not.

    Args:
        run: a training's record. A version of torch that it lacks counts as the same.
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
