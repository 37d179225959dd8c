"""Seeds on disk: finished ones, checkpoints of those in training, and `runs/VARIANT`, in which a variant's seeds lie together.

A folder holds the seeds of one key: settings without the seeds, and data. A file is one seed, trained by one version of the code, on
whatever device. So a seed is added or removed without touching the others, and settings that were trained once are found again under
any name of the variant.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from safetensors import safe_open
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from pipeline.errors import UserError
from pipeline.files import DamagedError, read_sealed, read_sealed_json, replacing, sealed_json, sha256, write_json, write_sealed
from pipeline.measures.definitions import is_diverged
from pipeline.params import VariantSettings, recorded
from pipeline.provenance import same_processor
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

WEIGHTS = "model.safetensors"
STEPS = "steps.npz"
RUN = "run.json"
OUTPUTS = (WEIGHTS, STEPS)
# Where DVC keeps what it has: its cache, and the remote that travels with the repository.
_STORES = (Path(".dvc/cache/files/md5"), Path("results/files/md5"))
# What seeds trained together have in common.
_SHARED = ("code_hash", "git_commit", "git_dirty", "git_edits", "device", "device_name", "engine", "attention", "graphs", "versions")


@dataclass(frozen=True)
class Finished:
    """One finished seed.

    Attributes:
        tensors: `model.NAME` (weights and buffers), and for the kept steps `trace.step` (counted from 1), `trace.loss` (nats, mean
            over the step's batch) and `trace.gradient_norm` (L2, before clipping), each (step,).
        rows: its epochs, in order.
        origin: where it comes from. `code_hash`, `git_commit`, `git_dirty`, `git_edits`, `versions`, `device`, `device_name`, `attention`,
            `started` and `finished` describe its training; `engine` and `claims` (of `pool.Job`) too, which earlier versions did not
            have; on a GPU `graphs` (see `pipeline.training.step.Driver`). `stack` has the seeds that it was trained with, `parameters` and
            `flops` are the model's, `tables` the digests of `replay.tables`, `config` the settings, `replays` the later versions of the
            code that compute the same.
    """

    seed: int
    tensors: dict[str, np.ndarray]
    rows: tuple[EpochRow, ...]
    origin: dict[str, Any]

    @property
    def is_fused(self) -> bool:
        """Whether the engine with the fused kernel trained it, so that its bits do not depend on its stack."""
        return self.origin.get("engine") == "fused"

    @property
    def codes(self) -> list[str]:
        """Hashes of the versions of the code that compute this result."""
        return [self.origin["code_hash"], *(replay["code_hash"] for replay in self.origin["replays"])]

    def replayed(self, replay: dict[str, Any]) -> Finished:
        """The same result, with one more version of the code that computes it."""
        return replace(self, origin={**self.origin, "replays": [*self.origin["replays"], replay]})


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
            tensors = {name: value[i] for name, value in state.items() if name.startswith("model.")}
            tensors |= {name: state[name][i, steps - 1] for name in ("trace.loss", "trace.gradient_norm")} | {"trace.step": steps}
            rows = tuple(row for row in trainer.rows if row.seed == seed)
            result.append(Finished(seed, tensors, rows, {**origin, "tables": tables[seed]}))
    return result


def write(directory: Path, finished: Finished) -> None:
    """Keeps a finished seed."""
    content = {"seed": finished.seed, "rows": finished.rows, "origin": finished.origin}
    tensors = {name: np.asarray(value, order="C") for name, value in finished.tensors.items()}
    write_sealed(_path(directory, finished.seed, finished.origin["code_hash"]), to_bytes(tensors, {"content": json.dumps(content)}))


def read(path: Path) -> Finished:
    """Raises FileNotFoundError, or DamagedError where the file is not what was written."""
    stored = read_sealed(path)
    content = _metadata(stored)
    return Finished(content["seed"], from_bytes(stored), tuple(EpochRow(*row) for row in content["rows"]), content["origin"])


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
    for path in sorted(directory.glob("seed-*.done")):
        try:
            parts.append(read(path))
        except DamagedError as fault:
            damaged[path] = str(fault)
    return parts, damaged


def best(parts: Iterable[Finished], code: str, settings: VariantSettings | None = None) -> dict[int, Finished]:
    """By seed, the result that `find` takes of several."""

    def rank(finished: Finished) -> tuple[bool, bool, str]:
        return finished.origin["code_hash"] == code, code in finished.codes, finished.origin["finished"]

    found: dict[int, Finished] = {}
    for part in parts:
        # Seeds that were kept before they carried their settings have their folder alone.
        if settings is None or not part.origin.get("config") or settings.trained_as(part.origin["config"]):
            found[part.seed] = max(found.get(part.seed, part), part, key=rank)
    return found


def _path(directory: Path, seed: int, code: str) -> Path:
    return directory / f"seed-{seed}.{code[:12]}.done"


def is_there(directory: Path, seed: int, origin: Mapping[str, Any]) -> bool:
    """Whether the seed is kept as trained by the code that `origin` names, with at least its replays."""
    try:
        kept = read(_path(directory, seed, origin["code_hash"]))
    except (FileNotFoundError, DamagedError):
        return False
    return {replay["code_hash"] for replay in origin.get("replays", ())} <= set(kept.codes)


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

    def restore(self, trainer: Trainer, device_name: str, versions: Mapping[str, str]) -> dict[str, Any]:
        """Sets the trainer to the checkpoint, if there is one.

        Args:
            device_name, versions: of this process, as `provenance` gives them. Checkpoints of earlier versions have neither, and pass.

        Returns:
            The `origin` that was saved; an empty one where there is no checkpoint.

        Raises:
            DamagedError: the checkpoint is not what was written, or was computed on another kind of processor, by other software or by
                the other engine; the trainer is untouched.
        """
        from safetensors.torch import load

        try:
            stored = read_sealed(self.path)
        except FileNotFoundError:
            return {}
        content = self._checked(stored, device_name, versions)
        if (content.get("engine") == "fused") != trainer.is_fused:
            raise DamagedError(f"{self.path} is of another engine")
        rows = [EpochRow(*row) for row in content.pop("rows")]
        failed = {int(seed): epoch for seed, epoch in content.pop("failed").items()}
        trainer.load(load(stored), epoch=content.pop("epoch"), rows=rows, failed=failed)
        return content

    def epoch(self, device_name: str, versions: Mapping[str, str]) -> int:
        """The epoch after which a training goes on from it; 0 where there is none that can be used. For the arguments see `restore`."""
        try:
            return int(self._checked(read_sealed(self.path), device_name, versions)["epoch"])
        except (FileNotFoundError, DamagedError):
            return 0

    def _checked(self, stored: bytes, device_name: str, versions: Mapping[str, str]) -> dict[str, Any]:
        """What it says beside its tensors. The bits of a training are those of one processor and one software: others are refused."""
        content = _metadata(stored)
        if not same_processor(before := content.get("device_name", device_name), device_name):
            raise DamagedError(f"{self.path} is of another processor ({before})")
        known = content.get("versions", versions)
        if others := [f"{name} {known.get(name)}" for name in {**known, **versions} if known.get(name) != versions.get(name)]:
            raise DamagedError(f"{self.path} is of other software ({', '.join(others)})")
        return content


# --- the seeds of a variant, runs/VARIANT ---


def assemble(
    directory: Path, settings: VariantSettings, parts: Sequence[Finished], description: Mapping[str, Any], code: str | None = None
) -> None:
    """Writes model.safetensors, steps.npz, and last run.json, which has their digests.

    Args:
        directory: `runs/VARIANT`.
        parts: the finished seeds, in the order of the settings.
        description: what run.json says of the training as a whole; added are the seeds' origins and epochs, a summary and digests.
        code: as for `origins`.
    """
    arrays = {name: np.stack([part.tensors[name] for part in parts]) for name in parts[0].tensors if name != "trace.step"}  # (seed, ...)
    weights = {name.removeprefix("model."): value for name, value in arrays.items() if name.startswith("model.")}
    seeds = [part.seed for part in parts]
    with replacing(directory / WEIGHTS) as temporary:
        # Its own function for files writes to one of its own names, which a kill would leave beside ours.
        temporary.write_bytes(to_bytes(weights, metadata={"seeds": json.dumps(seeds)}))
    trace = {"step": parts[0].tensors["trace.step"]} | {name: arrays[f"trace.{name}"] for name in ("loss", "gradient_norm")}
    with replacing(directory / STEPS) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, seeds=np.array(seeds), **trace)  # type: ignore[arg-type]
    rows = [row for part in parts for row in part.rows]
    last = [row for row in rows if row.epoch == settings.train.epochs]
    taught = [row for row in rows if row.epoch == settings.taught_epochs]
    diverged = is_diverged([row.train_loss for row in taught], settings.choices)
    metrics: dict[str, Any] = {"n": len(last), "diverged": int(diverged.sum())}
    for name, of in (("test_accuracy", last), ("test_loss", last), ("train_loss", taught)):
        values = [value for row in of if math.isfinite(value := float(getattr(row, name)))]
        metrics[f"{name}_mean"], metrics[f"{name}_sd"] = _mean_sd(values) if values else (None, None)
    metrics |= {name: parts[0].origin[name] for name in ("parameters", "flops")}
    write_run(directory, {**description, **origins(parts, code), "metrics": metrics, "epochs": rows})


def write_run(directory: Path, run: Mapping[str, Any]) -> None:
    """Writes run.json, with the digests of the files beside it and its own."""
    outputs = {name: sha256(path) for name in OUTPUTS if (path := directory / name).exists()}
    write_json(directory / RUN, sealed_json({**run, "outputs": outputs}))


def read_run(directory: Path) -> dict[str, Any]:
    """What run.json says, after it has been checked against its own digest.

    Raises:
        UserError: it is missing or damaged; the sentence names it.
    """
    path = directory / RUN
    try:
        return read_sealed_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {_mend(directory)}.") from None
    except DamagedError as fault:
        raise UserError(f"{fault}: {_mend(directory)}.") from None


def epoch_rows(run: Mapping[str, Any]) -> list[EpochRow]:
    """Every seed's epochs, in order, of what run.json says."""
    return [EpochRow(*row) for row in run["epochs"]]


def settings_of(run: Mapping[str, Any]) -> VariantSettings:
    """The settings that run.json was written with. Raises UserError where they are of another version."""
    return recorded(run["config"], f"{run['variant']}'s {RUN}")


def origins(parts: Sequence[Finished], code: str | None = None) -> dict[str, Any]:
    """What run.json says of where the seeds come from.

    Seeds of one origin are grouped under `trainings`. The run as a whole has the `code_hash` and so on of the seeds that were trained
    last.

    Args:
        code: the hash of that which trained last; by default the clocks decide.
    """
    groups: dict[str, dict[str, Any]] = {}
    for part in parts:
        # Not all have `git_edits`, those of the CPU no `graphs`, and those of earlier versions no `engine` or `claims`.
        shared = {name: part.origin[name] for name in (*_SHARED, "claims", "replays") if name in part.origin}
        group = groups.setdefault(json.dumps(shared, sort_keys=True), {"seeds": [], **shared, "started": [], "finished": []})
        group["seeds"].append(part.seed)
        for name in ("started", "finished"):
            group[name].append(part.origin[name])
    trainings = [
        {**group, "started": min(group["started"]), "finished": max(group["finished"])}
        for group in sorted(groups.values(), key=lambda group: (group["code_hash"] == code, max(group["finished"])))
    ]
    return {
        **{name: trainings[-1][name] for name in _SHARED if name in trainings[-1]},
        "started": min(group["started"] for group in trainings),
        "finished": trainings[-1]["finished"],
        "trainings": trainings,
        "stacks": {str(part.seed): part.origin["stack"] for part in parts if len(part.origin["stack"]) > 1},
        "tables": {str(part.seed): part.origin["tables"] for part in parts},
    }


def load(directory: Path) -> list[Finished]:
    """The finished seeds that `assemble` was given, from what lies in `runs/VARIANT`.

    Raises:
        UserError: a file is missing or damaged, or of an older form.
    """
    run = read_run(directory)
    if "epochs" not in run:
        raise UserError(f"{directory / RUN} is of an older form.")
    weights = {f"model.{name}": value for name, value in _read_weights(directory, run, "np").items()}
    steps = directory / STEPS
    if not steps.exists() or sha256(steps) != run["outputs"][STEPS]:
        raise UserError(f"{steps} is missing or damaged: {_mend(directory)}.")
    with np.load(steps, allow_pickle=False) as stored:
        arrays = weights | {f"trace.{name}": stored[name] for name in ("loss", "gradient_norm")}
        step = stored["step"]
    return [
        replace(part, tensors={name: value[i] for name, value in arrays.items()} | {"trace.step": step})
        for i, part in enumerate(outline(run))
    ]


def outline(run: Mapping[str, Any]) -> list[Finished]:
    """The finished seeds of what run.json says, without tensors. Raises KeyError where it is of an older form."""
    rows = epoch_rows(run)
    parts = []
    for seed in run["seeds"]:
        group = next(group for group in run["trainings"] if seed in group["seeds"])
        origin = {name: value for name, value in group.items() if name != "seeds"}
        origin |= {"config": run.get("config"), "stack": run["stacks"].get(str(seed), [seed]), "tables": run["tables"][str(seed)]}
        origin |= {name: run["metrics"][name] for name in ("parameters", "flops")}
        parts.append(Finished(seed, {}, tuple(row for row in rows if row.seed == seed), origin))
    return parts


def load_weights(directory: Path, settings: VariantSettings) -> dict[str, Tensor]:
    """The stacked weights (seed, ...) of a finished training.

    Raises:
        UserError: a file is missing, the weights do not have the recorded sha256, or they are of other seeds.
    """
    run = read_run(directory)
    weights: dict[str, Tensor] = _read_weights(directory, run, "pt")
    if tuple(run["seeds"]) != settings.train.seeds:
        raise UserError(f"{directory} holds seeds {run['seeds']}, but params.yaml asks for {list(settings.train.seeds)}: run `dvc repro`.")
    return weights


def _read_weights(directory: Path, run: Mapping[str, Any], framework: Literal["pt", "np"]) -> dict[str, Any]:
    path = directory / WEIGHTS
    if not path.exists():
        raise UserError(f"{path} is missing: {_mend(directory)}.")
    if sha256(path) != run["outputs"][WEIGHTS]:
        raise UserError(f"{path} does not have the sha256 that {RUN} recorded, so it is damaged: {_mend(directory)}.")
    with safe_open(path, framework=framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def _mean_sd(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mend(directory: Path) -> str:
    return (
        f"run `dvc repro train@{directory.name}`, which writes it again where its finished seeds are kept; else restore it with"
        f" `git checkout` or `dvc pull --allow-missing`, or train anew with `REPLAY=0 dvc repro train@{directory.name}`"
    )


def training_id(place: Path, variant: str, seeds: Sequence[int], code: str) -> str:
    """The name of a training in MLflow, the same whenever these seeds of this code are asked for."""
    path = _id_path(place, variant, seeds, code)
    try:
        return str(read_sealed_json(path)["training_id"])
    except (FileNotFoundError, DamagedError):
        content = sealed_json({"training_id": uuid.uuid4().hex})
        write_json(path, content)
        return str(content["training_id"])


def last_code(place: Path, variant: str, parts: Sequence[Finished], own: str) -> str:
    """Hash of the code that trained last of these seeds, by which the training has its id.

    Clocks may be wrong, so they decide only where it is not known otherwise: code that began to train here has given the training an id.

    Args:
        own: hash of the code that runs.
    """
    seeds = [part.seed for part in parts]

    def rank(part: Finished) -> tuple[bool, bool, str]:
        code = part.origin["code_hash"]
        return _id_path(place, variant, seeds, code).exists(), code == own, part.origin["finished"]

    return str(max(parts, key=rank).origin["code_hash"])


def _id_path(place: Path, variant: str, seeds: Sequence[int], code: str) -> Path:
    return place / f"{variant}.{hashlib.sha256(json.dumps(list(seeds)).encode()).hexdigest()[:12]}.{code[:12]}.json"


# --- from runs/ and DVC's stores to finished seeds ---


def keep(directory: Path, root: Path, only: Collection[Path] | None = None) -> None:
    """Copies the finished seeds of `runs/VARIANT` into the folder of their key, where every variant finds them.

    Weights and trace that are missing or damaged are taken from DVC's stores. Results of an older form are left out.

    Args:
        directory: need not be there.
        root: of the folders of `folder`.
        only: the folders that are of interest; None for any.

    Raises:
        UserError: a file is missing or damaged, and DVC does not have it, or as `settings_of`.
    """
    if not (directory / RUN).exists():
        return
    try:
        run = read_run(directory)
        place = folder(root, settings_of(run), run["data_digest"])
        groups = run["trainings"]
    except KeyError:
        return
    if "epochs" not in run or (only is not None and place not in only):
        return
    id_path = _id_path(place, run["variant"], run["seeds"], run["code_hash"])
    all_there = all(is_there(place, seed, group) for group in groups for seed in group["seeds"])
    if all_there and id_path.exists():
        return
    parts: list[Finished] = []
    if not all_there:  # reading the lock is slow in a large study
        lock = read_lock()
        for path in (directory / name for name in OUTPUTS):
            intact = path.exists() and sha256(path) == run["outputs"][path.name]
            if not intact and (source := _stored(path, lock)) is not None and sha256(source) == run["outputs"][path.name]:
                _copy(source, path)
        parts = load(directory)
    # Before the seeds, so that a kill in between does not have them found without it. Two variants may share the seeds, but no id.
    write_json(id_path, sealed_json({"training_id": run["training_id"]}))
    for part in parts:
        if not is_there(place, part.seed, part.origin):
            write(place, part)


def restore_runs(root: Path, wanted: Callable[[str], bool]) -> None:
    """Restores each missing or damaged `VARIANT/run.json` below `root` that dvc.lock names and DVC has, of the wanted variants.

    Raises:
        UserError: DVC's own is damaged, too.
    """
    lock = read_lock()
    variants = [stage.removeprefix("train@") for stage in lock if stage.startswith("train@")]
    for path in (root / variant / RUN for variant in variants if wanted(variant)):
        try:
            read_sealed_json(path)
        except (FileNotFoundError, DamagedError):
            if (source := _stored(path, lock)) is not None:
                _copy(source, path)


def read_lock() -> dict[str, Any]:
    """The stages of dvc.lock; none where there is no such file, or a damaged one."""
    try:
        stages = yaml.load(Path("dvc.lock").read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["stages"]
    except (OSError, yaml.YAMLError, LookupError, TypeError):
        return {}
    return stages if isinstance(stages, dict) else {}


def is_stored(path: Path, lock: Mapping[str, Any]) -> bool:
    """Whether DVC's stores have a file, intact or not, that dvc.lock names as this output of a train stage."""
    return any(place.is_file() for place in _places(path, lock)[1])


def _stored(path: Path, lock: Mapping[str, Any]) -> Path | None:
    """The file in DVC's stores that dvc.lock names as this output of a train stage; None where they do not have it.

    Raises:
        UserError: what they have is damaged. It would be trained anew, and DVC's own commands remove it.
    """
    md5, places = _places(path, lock)
    there = [place for place in places if place.is_file()]
    if (intact := next((place for place in there if _md5(place) == md5), None)) is None and there:
        raise UserError(
            f"{there[-1]} is damaged, its name is not its md5 (git changes the ends of lines where `core.autocrlf` is set): `rm -r results`"
            " and `git checkout results` bring back what git has; without the file its training is done anew."
        )
    return intact


def _places(path: Path, lock: Mapping[str, Any]) -> tuple[str, list[Path]]:
    """The md5 of an output in dvc.lock, and where DVC's stores would have it; nowhere if it is not named."""
    try:
        md5 = next(out["md5"] for out in lock[f"train@{path.parent.name}"]["outs"] if out["path"] == path.as_posix())
        return md5, [store / md5[:2] / md5[2:] for store in _STORES]
    except (LookupError, TypeError, StopIteration):
        return "", []


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _copy(source: Path, path: Path) -> None:
    with replacing(path) as temporary:
        shutil.copyfile(source, temporary)
