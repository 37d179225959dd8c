"""Seeds on disk: finished ones, checkpoints of those in training, and the store, in which git keeps what a variant's seeds left.

`.checkpoints/seeds/KEY` holds the seeds of one key: settings without the seeds, and data. A file is one seed, trained by one version of
the code, on whatever device. So a seed is added or removed without touching the others, and settings that were trained once are found
again under any name of the variant.

`store/trainings/VARIANT.safetensors` holds the record and the traces of all seeds of a variant, and the first one's weights. What it
says of the other seeds suffices to keep them: their weights are no output, and lie in `.checkpoints/seeds` where they were trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from pipeline.measures.definitions import is_diverged
from pipeline.params import VariantSettings, recorded
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError, read_sealed, replacing, sealed, sealed_json, write_bytes, write_sealed
from pipeline.system.paths import FINISHED
from pipeline.system.provenance import same_processor
from pipeline.training.records import EpochRow

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.training.engine import Trainer

# The trace keeps every step at the beginning, where replay compares it, then each tenth.
WHOLE_STEPS = 500
REPLAYED_STEPS = 50
STRIDE = 10
# How far rounding may move a test of stored weights on another kind of processor or with another kernel.
TEST_TOLERANCE = 1e-3  # of the loss
IMAGES_APART = 2

SUFFIX = ".safetensors"
_TRACE = ("trace.step", "trace.loss", "trace.gradient_norm")
# What seeds trained together have in common.
_SHARED = ("code_hash", "git_commit", "git_dirty", "git_edits", "device", "device_name", "engine", "attention", "graphs", "versions")


@dataclass(frozen=True)
class Finished:
    """One finished seed.

    Attributes:
        tensors: `model.NAME` (weights and buffers; none where they are not here), and for the kept steps `trace.step` (counted from 1),
            `trace.loss` (nats, mean over the step's batch) and `trace.gradient_norm` (L2, before clipping), each (step,).
        rows: its epochs, in order.
        origin: where it comes from. `code_hash`, `git_commit`, `git_dirty`, `git_edits`, `versions`, `device`, `device_name`, `attention`,
            `started` and `finished` describe its training; `engine` and `claims` (of `pool.Job`) too, which earlier versions did not
            have; on a GPU `graphs` (see `pipeline.training.step.Driver`). `stack` has the seeds that it was trained with, `parameters` and
            `flops` are the model's, `tables` the digests of `replay.tables`, `weights` that of `digest`, `config` the settings,
            `replays` the later versions of the code that compute the same.
    """

    seed: int
    tensors: dict[str, np.ndarray]
    rows: tuple[EpochRow, ...]
    origin: dict[str, Any]

    @property
    def has_weights(self) -> bool:
        return bool(_model(self.tensors))

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """By their names in the network."""
        return {name.removeprefix("model."): np.asarray(value) for name, value in _model(self.tensors).items()}

    @property
    def is_fused(self) -> bool:
        """Whether the engine with the fused kernel trained it, so that its bits do not depend on its stack."""
        return self.origin.get("engine") == "fused"

    @property
    def codes(self) -> list[str]:
        """Hashes of the versions of the code that compute this result."""
        return [self.origin["code_hash"], *(replay["code_hash"] for replay in self.origin["replays"])]

    def replayed(self, replay: dict[str, Any], sizes: Mapping[str, int]) -> Finished:
        """The same result, with one more version of the code that computes it, and the `parameters` and `flops` that this one counts."""
        return replace(self, origin={**self.origin, **sizes, "replays": [*self.origin["replays"], replay]})

    def with_what(self, other: Finished) -> Finished:
        """The same result, with the weights and replays that another place has of it; of other weights than these nothing is taken."""
        if self.origin["weights"] != other.origin["weights"]:
            return self
        replays = {replay["code_hash"]: replay for one in (other, self) for replay in one.origin["replays"]}
        origin = max(self.origin, other.origin, key=lambda one: len(one["replays"]))  # with the sizes that the latest of them counts
        return replace(self, tensors=other.tensors | self.tensors, origin=origin | {"replays": list(replays.values())})


def _model(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights and buffers among tensors."""
    return {name: value for name, value in tensors.items() if name.startswith("model.")}


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Of names, types, shapes and bits: the first 32 hexadecimal digits of a sha256."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = np.asarray(tensors[name], order="C")
        found.update(f"{name} {value.dtype} {value.shape}".encode())
        found.update(value.tobytes())
    return found.hexdigest()[:32]


# --- one finished seed, a file ---


def folder(root: Path, settings: VariantSettings, data_digest: str) -> Path:
    """Where the seeds of a key lie under `root`."""
    return root / f"{settings.training_hash[:16]}-{data_digest[:12]}"


def kept_steps(num_steps: int) -> np.ndarray:
    """The steps whose trace is kept, counted from 1: the first 500, then each tenth."""
    steps = np.arange(1, num_steps + 1)
    return steps[(steps <= WHOLE_STEPS) | (steps % STRIDE == 0)]


def of_trainer(trainer: Trainer, origin: dict[str, Any], tables: dict[int, dict[str, str]]) -> list[Finished]:
    """The seeds of a trainer that is done, without those whose loss stopped being finite."""
    state = {name: tensor.numpy() for name, tensor in trainer.state().items() if name.startswith(("model.", "trace."))}
    steps = kept_steps(state["trace.loss"].shape[1])
    origin = {**origin, "config": trainer.settings.model_dump(mode="json"), "stack": trainer.seeds, "replays": []}
    result = []
    for i, seed in enumerate(trainer.seeds):
        if seed not in trainer.failed:
            tensors = {name: value[i] for name, value in _model(state).items()}
            own = {**origin, "tables": tables[seed], "weights": digest(tensors)}
            tensors |= {name: state[name][i, steps - 1] for name in _TRACE[1:]} | {"trace.step": steps}
            result.append(Finished(seed, tensors, tuple(row for row in trainer.rows if row.seed == seed), own))
    return result


def write(directory: Path, *parts: Finished) -> None:
    """Keeps finished seeds, on a full disk none of them: what was left of a stack would train as another stack."""
    with contextlib.ExitStack() as stack:
        for one in parts:
            content = {"seed": one.seed, "rows": one.rows, "origin": one.origin}
            tensors = {name: np.asarray(value, order="C") for name, value in one.tensors.items()}
            temporary = stack.enter_context(replacing(_path(directory, one.seed, one.origin["code_hash"])))
            temporary.write_bytes(sealed(to_bytes(tensors, {"content": json.dumps(content)})))


def read(path: Path) -> Finished:
    """Raises FileNotFoundError, or DamagedError where the file is not what was written."""
    stored = read_sealed(path)
    content = _metadata(stored)
    return Finished(content["seed"], from_bytes(stored), tuple(EpochRow(*row) for row in content["rows"]), content["origin"])


def paths(directory: Path) -> list[Path]:
    """The files of a folder's finished seeds, of whatever code."""
    return sorted(directory.glob("seed-*.*.done"))


def find(directory: Path, code: str, settings: VariantSettings | None = None) -> tuple[dict[int, Finished], list[str]]:
    """By seed, the result of this very code, else one that this code has replayed, else the newest of other code.

    Args:
        settings: what other settings trained is left out, whatever folder it lies in; None takes any.

    Returns:
        The results, and a clause about every file that is damaged; damaged files are removed.
    """
    parts, damaged = read_all(directory)
    for path in damaged:
        path.unlink()
    return best(parts, code, settings), list(damaged.values())


def read_all(directory: Path) -> tuple[list[Finished], dict[Path, str]]:
    """Every result of a folder, of whatever code, and a clause about every file that is damaged."""
    parts, damaged = [], {}
    for path in paths(directory):
        try:
            parts.append(read(path))
        except DamagedError as fault:
            damaged[path] = str(fault)
    return parts, damaged


def best(parts: Iterable[Finished], code: str, settings: VariantSettings | None = None) -> dict[int, Finished]:
    """By seed, the result that `find` takes of several. What several places have of one training is one result."""

    def rank(finished: Finished) -> tuple[bool, bool, str]:
        return finished.origin["code_hash"] == code, code in finished.codes, finished.origin["finished"]

    trained: dict[tuple[int, str], Finished] = {}
    for part in parts:
        if settings is None or settings.trained_as(part.origin["config"]):
            key = part.seed, part.origin["code_hash"]
            trained[key] = trained[key].with_what(part) if key in trained else part
    return {part.seed: part for part in sorted(trained.values(), key=rank)}  # the last one stays


def _path(directory: Path, seed: int, code: str) -> Path:
    return directory / f"seed-{seed}.{code[:12]}.done"


def _metadata(stored: bytes) -> dict[str, Any]:
    """What a safetensors file holds beside its tensors: the JSON under the key `content`."""
    size = int.from_bytes(stored[:8], "little")
    content: dict[str, Any] = json.loads(json.loads(stored[8 : 8 + size])["__metadata__"]["content"])
    return content


# --- seeds in training ---


class Checkpoint:
    """The checkpoint of seeds that train together: one file with its own digest, and no pickles.

    It is replaced as a whole, so a kill at any moment leaves the old one or the new one.

    Args:
        directory: the folder of the seeds' key.
        code: hash of the code that trains them.
    """

    def __init__(self, directory: Path, seeds: Sequence[int], code: str) -> None:
        name = "-".join(map(str, seeds))
        if len(name) > 100:  # a hundred seeds are longer than a name may be
            name = f"{seeds[0]}-to-{seeds[-1]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        self.path = directory / f"seed-{name}.{code[:12]}.part"

    def save(self, trainer: Trainer, origin: Mapping[str, Any]) -> None:
        """Replaces the checkpoint by the trainer's state.

        Args:
            origin: what the finished seeds will say of where they come from, as far as a later process cannot find it out: `started`,
                `device_name`, `versions`, `engine`, and on a GPU `graphs`.
        """
        from safetensors.torch import save

        failed = {str(seed): epoch for seed, epoch in trainer.failed.items()}
        content = {**origin, "epoch": trainer.epoch, "rows": [list(row) for row in trainer.rows], "failed": failed}
        write_sealed(self.path, save(trainer.state(), {"content": json.dumps(content)}))

    def restore(self, trainer: Trainer, device_name: str, attention: str, versions: Mapping[str, str]) -> dict[str, Any]:
        """Sets the trainer to the checkpoint, if there is one.

        Args:
            device_name, attention, versions: of this process, as a finished seed's origin has them.

        Returns:
            The `origin` that was saved; an empty one where there is no checkpoint.

        Raises:
            DamagedError: the checkpoint is not what was written, or was computed on another kind of processor, by other software, by the
                other engine or another kernel of attention; the trainer is untouched.
        """
        from safetensors.torch import load

        try:
            stored = read_sealed(self.path)
        except FileNotFoundError:
            return {}
        content = _metadata(stored)
        same = same_processor(content["device_name"], device_name) and content["versions"] == versions
        same &= (content.get("engine") == "fused") == trainer.is_fused and content.get("attention", attention) == attention
        if not same:
            raise DamagedError(f"{self.path} is of another processor ({content['device_name']}), other software or another kernel")
        rows = [EpochRow(*row) for row in content.pop("rows")]
        failed = {int(seed): epoch for seed, epoch in content.pop("failed").items()}
        trainer.load(load(stored), epoch=content.pop("epoch"), rows=rows, failed=failed)
        return content


# --- the seeds of a variant, store/trainings/VARIANT.safetensors ---


def assemble(path: Path, settings: VariantSettings, parts: Sequence[Finished], description: Mapping[str, Any]) -> None:
    """Writes the record and the traces of all seeds, and the weights of the first.

    Args:
        path: `store/trainings/VARIANT.safetensors`.
        parts: the finished seeds, in the order of the settings.
        description: what the record says of the training as a whole; added are the seeds' origins and epochs, a summary and digests.
    """
    rows = [row for part in parts for row in part.rows]
    last = [row for row in rows if row.epoch == settings.train.epochs]
    supervised = [row for row in rows if row.epoch == settings.supervised_epochs]
    diverged = is_diverged([row.train_loss for row in supervised], settings.num_outputs)
    metrics: dict[str, Any] = {"n": len(last), "diverged": int(diverged.sum())}
    for name, of in (("test_accuracy", last), ("test_loss", last), ("train_loss", supervised)):
        values = [float(getattr(row, name)) for row in of]
        metrics[f"{name}_mean"], metrics[f"{name}_sd"] = _mean_sd(values) if values and all(map(math.isfinite, values)) else (None, None)
    metrics |= {name: parts[0].origin[name] for name in ("parameters", "flops")}
    tensors = _model(parts[0].tensors) | {"trace.step": parts[0].tensors["trace.step"]}
    tensors |= {name: np.stack([part.tensors[name] for part in parts]) for name in _TRACE[1:]}
    outputs = {"weights": {str(part.seed): part.origin["weights"] for part in parts}}
    write_record(path, {**description, **origins(parts), "metrics": metrics, "epochs": rows, "outputs": outputs}, tensors)


def write_record(path: Path, run: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a variant's file: the tensors, and as metadata the record with the traces' digest and its own."""
    traces = digest({name: value for name, value in tensors.items() if name in _TRACE})
    record = sealed_json({**run, "outputs": {**run["outputs"], "traces": traces}})
    content = json.dumps(record, separators=(",", ":"))
    # Its own function for files writes to one of its own names, which a kill would leave beside ours.
    write_bytes(path, to_bytes({name: np.asarray(value, order="C") for name, value in tensors.items()}, {"content": content}))


def read_record(path: Path) -> dict[str, Any]:
    """What the file of a variant says of its training, after it has been checked against its own digest.

    Raises:
        UserError: it is missing or damaged; the sentence names it.
    """
    try:
        run = _metadata(path.read_bytes())
        if run.get("digest") == sealed_json(run)["digest"]:
            return run
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {_mend(path)}.") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise UserError(f"{path} does not match its checksum: {_mend(path)}.")


def settings_of(run: Mapping[str, Any]) -> VariantSettings:
    """The settings that a record was written with. Raises UserError where they are of another version."""
    return recorded(run["config"], f"{run['variant']}'s record")


def origins(parts: Sequence[Finished]) -> dict[str, Any]:
    """What a record says of where the seeds come from.

    Seeds of one origin are grouped under `trainings`. The run as a whole has the `code_hash` and so on of the seeds that were trained
    last.
    """
    groups: dict[str, dict[str, Any]] = {}
    for part in parts:
        # Not all have `git_edits`, those of the CPU no `graphs`, and those of earlier versions no `engine` or `claims`.
        shared = {name: part.origin[name] for name in (*_SHARED, "claims", "replays") if name in part.origin}
        times = {name: part.origin[name] for name in ("started", "finished")}
        group = groups.setdefault(json.dumps(shared, sort_keys=True), {"seeds": [], **shared, **times})
        group["seeds"].append(part.seed)
        group |= {"started": min(group["started"], times["started"]), "finished": max(group["finished"], times["finished"])}
    trainings = sorted(groups.values(), key=lambda group: group["finished"])
    return {
        **{name: trainings[-1][name] for name in _SHARED if name in trainings[-1]},
        "started": min(group["started"] for group in trainings),
        "finished": trainings[-1]["finished"],
        "trainings": trainings,
        "stacks": {str(part.seed): part.origin["stack"] for part in parts if len(part.origin["stack"]) > 1},
        "tables": {str(part.seed): part.origin["tables"] for part in parts},
    }


def load(path: Path, root: Path | None = None, seeds: Collection[int] = ()) -> list[Finished]:
    """The finished seeds that `assemble` was given.

    Args:
        root: of the folders of finished seeds, where the weights of others than the first may lie; None leaves them out.
        seeds: those whose weights are looked for there; all of them if it is empty.

    Raises:
        UserError: the file is missing or damaged.
    """
    run = read_record(path)
    try:
        tensors = from_bytes(path.read_bytes())
        traces = {name: tensors.pop(name) for name in _TRACE}
    except Exception:  # the library's own errors have no common class
        raise UserError(f"{path} is damaged: {_mend(path)}.") from None
    parts = outline(run)
    if digest(traces) != run["outputs"]["traces"] or digest(tensors) != parts[0].origin["weights"]:
        raise UserError(f"{path} does not hold the weights and traces that its record has the digests of: {_mend(path)}.")
    weights = {parts[0].seed: tensors}
    for part in parts[1:] if root else ():
        if not seeds or part.seed in seeds:
            place = folder(root or FINISHED, settings_of(run), run["data_digest"])
            with contextlib.suppress(FileNotFoundError, DamagedError):
                kept = read(_path(place, part.seed, part.origin["code_hash"]))
                if kept.origin["weights"] == part.origin["weights"]:
                    weights[part.seed] = _model(kept.tensors)
    return [
        replace(part, tensors=weights.get(part.seed, {}) | {name: traces[name][i] for name in _TRACE[1:]} | {_TRACE[0]: traces[_TRACE[0]]})
        for i, part in enumerate(parts)
    ]


def outline(run: Mapping[str, Any]) -> list[Finished]:
    """The finished seeds of what a record says, without tensors."""
    rows = [EpochRow(*row) for row in run["epochs"]]
    parts = []
    for seed in run["seeds"]:
        group = next(group for group in run["trainings"] if seed in group["seeds"])
        origin = {name: value for name, value in group.items() if name != "seeds"}
        origin |= {"config": run["config"], "tables": run["tables"][str(seed)], "weights": run["outputs"]["weights"][str(seed)]}
        origin |= {"stack": run["stacks"].get(str(seed), [seed]), **{name: run["metrics"][name] for name in ("parameters", "flops")}}
        parts.append(Finished(seed, {}, tuple(row for row in rows if row.seed == seed), origin))
    return parts


def load_weights(path: Path, seeds: Sequence[int], root: Path = FINISHED) -> dict[str, Tensor]:
    """The stacked weights (seed, ...) of seeds of a finished training; `root`: as for `load`.

    Raises:
        UserError: a file is missing or damaged, or the weights of a seed are not here.
    """
    import torch

    parts = {part.seed: part for part in load(path, root, seeds)}
    if gone := [seed for seed in seeds if seed not in parts or not parts[seed].has_weights]:
        raise UserError(
            f"The weights of {path.stem}'s seed {', '.join(map(str, gone))} are not here: {path} has those of seed {next(iter(parts))}, and"
            f" `REPLAY=0 dvc repro --force --single-item train@{path.stem}` trains all of its seeds again."
        )
    names = parts[seeds[0]].weights
    return {name: torch.from_numpy(np.stack([parts[seed].weights[name] for seed in seeds])) for name in names}


def _mean_sd(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))


def _mend(path: Path) -> str:
    return f"`git checkout {path}` brings back the last commit's; else remove it and run `dvc repro train@{path.stem}`"


def training_id(place: Path, variant: str, seeds: Sequence[int], code: str, device_name: str) -> str:
    """The name of a training in MLflow, the same whenever these seeds of this code are asked for on such a machine."""
    return hashlib.sha256(json.dumps([place.name, variant, list(seeds), code, device_name]).encode()).hexdigest()[:32]


# --- from the store to finished seeds ---


def keep(parts: Iterable[Finished], place: Path) -> None:
    """Has the folder of their key hold finished seeds, and what is known of them."""
    for part in parts:
        try:
            kept = read(_path(place, part.seed, part.origin["code_hash"]))
        except (FileNotFoundError, DamagedError):
            write(place, part)
            continue
        both = kept.with_what(part)
        if {*both.codes} != {*kept.codes} or both.has_weights != kept.has_weights:
            write(place, both)
