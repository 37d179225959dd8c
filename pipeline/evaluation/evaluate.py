"""The coordinating process: has every variant's seeds evaluated, checks the results against the training, and writes them.

A seed whose weights, settings, data, probes and code are the same keeps what it has. Where the code is another, the seeds whose weights
are not here keep it, too, if the first seed, which is tested anew, gives the same as before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pipeline.evaluation import inference
from pipeline.evaluation.group import Result, Task
from pipeline.evaluation.records import Evaluation, Records
from pipeline.params import Params, VariantSettings
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import Finished
from pipeline.system.errors import UserError
from pipeline.system.provenance import device_name, same_processor, versions

# What rounding may change in an evaluation on another kind of processor: the share of predictions or words, and a number.
_OTHER, _RELATIVE, _ABSOLUTE = 0.01, 0.05, 0.002

T = TypeVar("T")


@dataclass(frozen=True)
class _Variant:
    """A variant whose evaluation is not up to date.

    Attributes:
        inputs: what it is to be made from.
        parts: its finished seeds.
        kept, arrays: what there is.
        tested: the seeds to test; the others keep what they have.
        earlier: of these, the code that tested those whose weights are not here. The first seed has to give the same as before.
    """

    name: str
    settings: VariantSettings
    inputs: Mapping[str, Any]
    parts: Mapping[int, Finished]
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
    device, faults, count = pool.choose_device(), dict[str, UserError](), 0

    def attempt(name: str, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except UserError as error:
            faults[name] = error
            print(f"{name}: not evaluated. {error}")
            return None

    def finish(name: str) -> None:
        nonlocal count
        if said := attempt(name, partial(_finish, records, variants[name], results[name], device)):
            count += 1
            print(f"{name}: {said} ({count} of {len(wanted)})")

    divided = {name: attempt(name, partial(_divided, records, name, params.resolve(name), of)) for name, of in wanted.items()}
    variants = {name: one for name, one in divided.items() if one}
    tasks = [
        Task(
            name, one.settings, tuple(group), tuple(one.inputs["probes"]), device, records.training(name), records.arrays, records.finished
        )
        for name, one in variants.items()
        for group in pool.make_groups(one.tested, device, stackable=one.settings.stackable)
        if group
    ]
    left = {name: sum(task.variant == name for task in tasks) for name in variants}
    results: dict[str, list[tuple[Task, Result | UserError]]] = {name: [] for name in variants}
    for name in [name for name, number in left.items() if not number]:
        finish(name)
    processes = pool.choose_processes() if device == "cpu" else 1
    for task, outcome in inference.run(tasks, min(processes, len(tasks))) if tasks else ():
        results[task.variant].append((task, outcome))
        if len(results[task.variant]) == left[task.variant]:
            finish(task.variant)
    return faults


def _divided(records: Records, name: str, settings: VariantSettings, inputs: Mapping[str, Any]) -> _Variant:
    """What is to be tested of a variant. Raises UserError where that needs weights that are not here."""
    parts = {part.seed: part for part in seeds.load(records.training(name), records.finished)}
    here = {str(seed): part.has_weights for seed, part in parts.items()}
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
    first = str(settings.train.seeds[0])
    if first not in tested and arrays and arrays["seeds"][0] != int(first):  # what is stored only once is of another seed
        tested.insert(0, first)
        earlier.pop(first, None)
    if gone:
        back = f"`git checkout store/predictions/{name}.npz` brings back what git has of it, else " * (not arrays)
        raise UserError(
            f"The weights of seed {', '.join(gone)} are not here, and what an earlier evaluation found of them does not hold or does not"
            f" suffice: {back}{_train_again(name)}."
        )
    return _Variant(name, settings, inputs, parts, old, arrays, [int(seed) for seed in tested], earlier)


def _finish(records: Records, one: _Variant, outcomes: Sequence[tuple[Task, Result | UserError]], device: str) -> str:
    """Checks and writes a variant's evaluation. Returns what there is to say of it. Raises UserError where a seed has none."""
    order, here, said = one.settings.train.seeds, device_name(device), ""
    stored = {name: one.arrays[name] for name in one.kept.by_seed} | one.kept.columns
    old = {
        seed: {name: value[i] for name, value in stored.items()} for i, seed in enumerate(one.arrays.get("seeds", np.array([])).tolist())
    }
    new: dict[int, dict[str, Any]] = {}
    names, columns, shared = one.kept.by_seed, [*one.kept.columns], dict[str, np.ndarray]()
    for task, result in outcomes:
        if isinstance(result, UserError):
            raise result
        for i, seed in enumerate(task.seeds):
            if fault := difference(one.parts[seed], result, i, here):
                raise UserError(
                    f"The weights of variant {one.name}, seed {seed}, are not what its training tested: {fault}. Either they are of another"
                    f" training: train it again with `dvc repro --force --single-item train@{one.name}`. Or the network changes what its"
                    " state_dict leaves out, such as a buffer with persistent=False: register it as persistent first.",
                    status=1,
                )
            new[seed] = {name: value[i] for name, value in (result.arrays | result.columns).items()}
        names, columns = [*result.arrays], [*result.columns]
        shared |= result.shared if order[0] in task.seeds else {}  # what is stored only once is the first seed's
    if one.earlier and not one.kept.is_of(one.inputs):  # else the code before has been compared already
        # On a GPU the first seed alone has other bits than in the stack in which it was tested before.
        exact = device == "cpu" and one.kept.inputs["torch"] == versions()["torch"]
        exact &= same_processor(one.kept.inputs.get("device") or "", here)
        both = next(seed for seed in one.tested if seed in old)
        now, was = new[both], old[both]
        if unlike := [name for name, value in now.items() if name not in was or not alike(value, was[name], exact=exact)]:
            raise UserError(
                f"Its seed {both} has another `{unlike[0]}` than by the code before, and the weights of seed"
                f" {', '.join(one.earlier)} are not here: {_train_again(one.name)}.",
                status=1,
            )
        said = f"; seed {', '.join(one.earlier)} kept, whose weights are not here: seed {both} gives what it gave before"
    found = old | new
    arrays = {name: np.array([found[seed][name] for seed in order]) for name in names} | {"seeds": np.array(order)}
    arrays |= shared or {name: value for name, value in one.arrays.items() if name not in arrays}
    votes = summarize_votes(arrays["predictions"], arrays["labels"]) if one.settings.task == "classification" else {}
    inputs = {**one.inputs, "device": here if new else one.kept.inputs.get("device"), "earlier": dict(one.earlier)}
    by_column = {name: [float(found[seed][name]) for seed in order] for name in columns}
    records.write(one.name, arrays, Evaluation(inputs, by_column, votes, names))
    accuracy = np.mean([one.parts[seed].rows[-1].test_accuracy for seed in order])
    vote = f", of the vote of {len(order)} seeds {votes['ensemble_accuracy']:.2%}" if votes and len(order) > 1 else ""
    return f"accuracy {accuracy:.2%}{vote}{said}"


def _train_again(name: str) -> str:
    return f"`REPLAY=0 dvc repro --force --single-item train@{name}` trains the variant's seeds again"


def alike(new: Any, old: Any, *, exact: bool) -> bool:
    """Whether two evaluations of the same weights found the same, on another kind of processor up to rounding."""
    new, old = np.asarray(new), np.asarray(old)
    if new.shape != old.shape:
        return False
    if new.dtype.kind != "f":
        return not new.size or bool((new != old).mean() <= (0 if exact else _OTHER))
    tolerances = (0.0, 0.0) if exact else (_RELATIVE, _ABSOLUTE)
    return bool(np.isclose(new.astype(np.float64), old.astype(np.float64), *tolerances, equal_nan=True).all())


def difference(part: Finished, found: Result, place: int, here: str) -> str | None:
    """How a test of stored weights differs from the training's last row, as a clause; None where it does not.

    Where something else computes here than computed the training, up to the rounding that a replay allows; the clause names it.
    `place` is the seed's in the result, `here` the device's name.
    """
    from pipeline.runner.replay import test_difference

    others = elsewhere(part, here, found.attention)
    # Torch's engine has no other bits than in the same stack; a fused training is tested by torch's operations.
    exact = not others and part.origin["stack"] == [part.seed] and not part.is_fused
    clause = test_difference(part, float(found.losses[place]), float(found.accuracies[place]), found.num_tests, exact=exact)
    return clause and clause + others


def elsewhere(part: Finished, here: str, attention: str = "") -> str:
    """The processor, the versions and the attention kernel that differ from a training's, as a clause in brackets; empty without any."""
    old = {"processor": part.origin["device_name"], "attention": part.origin["attention"], **part.origin["versions"]}
    new = {"processor": old["processor"] if same_processor(old["processor"], here) else here, "attention": attention or old["attention"]}
    others = [f"{name} {now} here, {old.get(name)} there" for name, now in (new | versions()).items() if old.get(name) != now]
    return f" ({', '.join(others)})" if others else ""


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
