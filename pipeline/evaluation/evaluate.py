"""The coordinating process: has every variant's seeds evaluated, checks the results against the training, and writes them.

A seed whose weights, settings, data, probes and code are the same keeps what it has. Where the code is another, the seeds whose weights
are not here keep it, too, if the first seed, which is tested anew, gives the same as before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

Outcome = tuple[Task, Result]


@dataclass(frozen=True)
class _Variant:
    """A variant whose evaluation is not up to date.

    Attributes:
        inputs: what it is to be made from.
        kept, arrays: what there is.
        tested: the seeds to test; the others keep what they have.
        earlier: of these, the code that tested those whose weights are not here. The first seed has to give the same as before.
    """

    name: str
    settings: VariantSettings
    inputs: Mapping[str, Any]
    kept: Evaluation
    arrays: Mapping[str, np.ndarray]
    tested: Sequence[int]
    earlier: Mapping[str, str]


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
    faults, variants, results = dict[str, UserError](), dict[str, _Variant](), defaultdict[str, list[Outcome]](list)

    def fail(name: str, error: UserError) -> None:
        if name not in faults:
            faults[name] = error
            print(f"{name}: not evaluated. {error}", flush=True)

    def finish(name: str) -> None:
        if name not in faults:
            try:
                said = _finish(records, variants[name], results.pop(name, []), device)
                finished.append(name)
                print(f"{name}: {said} ({len(finished)} of {len(wanted)})", flush=True)
            except UserError as error:
                fail(name, error)

    for name, inputs in wanted.items():
        try:
            variants[name] = _divided(records, name, params.resolve(name), inputs)
        except UserError as error:
            fail(name, error)
    tasks = [
        Task(
            name, one.settings, tuple(group), tuple(one.inputs["probes"]), device, records.training(name), records.arrays, records.finished
        )
        for name, one in variants.items()
        for group in pool.make_groups(one.tested, device, stackable=one.settings.stackable)
        if group
    ]
    left, finished = {name: sum(task.variant == name for task in tasks) for name in variants}, list[str]()
    for name in [name for name, count in left.items() if not count]:
        finish(name)
    processes = pool.choose_processes() if device == "cpu" else 1
    for task, outcome in inference.run(tasks, min(processes, len(tasks))) if tasks else ():
        if isinstance(outcome, UserError):
            fail(task.variant, outcome)
        else:
            results[task.variant].append((task, outcome))
        left[task.variant] -= 1
        if not left[task.variant]:
            finish(task.variant)
    return faults


def _divided(records: Records, name: str, settings: VariantSettings, inputs: Mapping[str, Any]) -> _Variant:
    """What is to be tested of a variant. Raises UserError where that needs weights that are not here."""
    here = {str(part.seed): part.has_weights for part in seeds.load(records.training(name), records.finished)}
    old, arrays = records.stored(name) or (Evaluation({}, {}, {}), {})
    same = [seed for seed, digest in inputs["weights"].items() if old.inputs.get("weights", {}).get(seed) == digest]
    before = {seed: code for seed, code in old.inputs.get("earlier", {}).items() if seed in same}
    if old.is_of(inputs):
        tested, earlier = [seed for seed in here if seed not in same], before
        gone = [seed for seed in tested if not here[seed]]
    else:
        tested, earlier = [seed for seed in here if here[seed]], {}
        gone = [seed for seed in here if not here[seed]]
        alike = all(old.inputs.get(one) == inputs[one] for one in ("config", "data")) and {*inputs["probes"]} <= {*old.inputs["probes"]}
        if alike and tested[0] in same:
            earlier = {seed: before.get(seed, old.inputs["code"]) for seed in gone if seed in same}
            gone = [seed for seed in gone if seed not in same]
    if gone:
        raise UserError(
            f"The weights of seed {', '.join(gone)} are not here, and what an earlier evaluation found of them does not hold or does not"
            f" suffice: {_train_again(name)}."
        )
    return _Variant(name, settings, inputs, old, arrays, [int(seed) for seed in tested], earlier)


def _finish(records: Records, one: _Variant, results: Sequence[Outcome], device: str) -> str:
    """Checks and writes a variant's evaluation. Returns what there is to say of it."""
    run, order, notes = seeds.read_record(records.training(one.name)), one.settings.train.seeds, []
    fresh = {
        seed: {name: value[i] for part in (result.arrays, result.columns) for name, value in part.items()}
        for task, result in results
        for i, seed in enumerate(task.seeds)
    }
    stored = {name: one.arrays[name] for name in one.kept.by_seed} | one.kept.columns
    old = {
        seed: {name: value[i] for name, value in stored.items()} for i, seed in enumerate(one.arrays.get("seeds", np.array([])).tolist())
    }
    here = device_name(device)
    if results:
        result = results[0][1]
        rows = {row.seed: row for row in seeds.epoch_rows(run) if row.epoch == one.settings.train.epochs}
        losses, accuracies = (np.concatenate([getattr(result, name) for _, result in results]) for name in ("losses", "accuracies"))
        other = elsewhere(run, {"device": here, "attention": result.attention, "torch": versions()["torch"]})
        last = [rows[seed] for seed in fresh]
        note = check_reproduced(one.name, last, losses, accuracies, num_tests=result.num_tests, elsewhere=other)
        notes += [note] if note else []
        if one.earlier:
            exact = one.kept.inputs["torch"] == versions()["torch"] and same_processor(one.kept.inputs.get("device") or "", here)
            new, was = fresh[order[0]], old[order[0]]
            if unlike := [name for name, value in new.items() if name not in was or not _alike(value, was[name], exact=exact)]:
                raise UserError(
                    f"Its first seed has another `{unlike[0]}` than by the code before, and the weights of seed"
                    f" {', '.join(one.earlier)} are not here: {_train_again(one.name)}.",
                    status=1,
                )
            notes.append(f"seed {', '.join(one.earlier)} kept, whose weights are not here: the first seed gives what it gave before")
    names, columns = (results[0][1].arrays, results[0][1].columns) if results else (one.kept.by_seed, one.kept.columns)
    found = old | fresh
    arrays = {name: np.array([found[seed][name] for seed in order]) for name in names} | {"seeds": np.array(order)}
    # What is stored only once is the first seed's.
    shared = [result.shared for task, result in results if order[0] in task.seeds]
    arrays |= shared[0] if shared else {name: value for name, value in one.arrays.items() if name not in arrays}
    votes = summarize_votes(arrays["predictions"], arrays["labels"]) if one.settings.task == "classification" else {}
    inputs = {**one.inputs, "device": here if results else one.kept.inputs.get("device"), "earlier": dict(one.earlier)}
    by_column = {name: [float(found[seed][name]) for seed in order] for name in columns}
    records.write(one.name, arrays, Evaluation(inputs, by_column, votes, list(names)))
    vote = f", of the vote of {len(order)} seeds {votes['ensemble_accuracy']:.2%}" if votes and len(order) > 1 else ""
    return "; ".join([f"accuracy {run['metrics']['test_accuracy_mean']:.2%}{vote}", *notes])


def _train_again(name: str) -> str:
    return f"`REPLAY=0 dvc repro --force --single-item train@{name}` trains the variant's seeds again"


def _alike(new: Any, old: Any, *, exact: bool) -> bool:
    """Whether two evaluations of the same weights found the same, on another kind of processor up to rounding."""
    new, old = np.asarray(new), np.asarray(old)
    if new.shape != old.shape:
        return False
    if new.dtype.kind != "f":
        return not new.size or bool((new != old).mean() <= (0 if exact else _OTHER))
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
