"""DVC stage `train@VARIANT`: all seeds of a variant, from initial weights to runs/VARIANT/."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, run_command
from pipeline.files import write_json
from pipeline.params import VariantSettings, load_variant
from pipeline.provenance import code_hash, device_name, git_state, versions
from pipeline.training import workers
from pipeline.training.lock import variant_lock
from pipeline.training.progress import TrainingProgress
from pipeline.training.records import EpochRow

ARRAYS = Path("data/arrays")
CHECKPOINTS = Path(".checkpoints")


def main(argv: list[str]) -> None:
    if len(argv) != 1:
        raise UserError("Usage: python -m pipeline.stages.train VARIANT")
    variant = argv[0]
    if "DVC_STAGE" in os.environ:
        workers.die_with_parent(os.getppid())
    settings = load_variant(Path("configs") / f"{variant}.json")
    with variant_lock(CHECKPOINTS / f"{variant}.lock", variant):
        train(variant, settings)


def train(variant: str, settings: VariantSettings) -> None:
    """Trains, or goes on from the checkpoints of a training of the same configuration, code, data and device.

    Raises:
        UserError: status 1 when a loss was not finite or a process died, 2 when something has to be mended first.
    """
    device = workers.choose_device()
    run = _describe(variant, settings, device)
    identity = "-".join(run[key][:12] for key in ("config_hash", "code_hash", "data_digest")) + f"-{device}"
    checkpoints = CHECKPOINTS / variant / identity
    run = _adopt(checkpoints / "run.json", run)
    groups = workers.make_groups(settings.train.seeds, device)
    job = workers.Job(settings, ARRAYS, checkpoints, device)
    processes = workers.choose_processes() if device == "cpu" else 1

    from pipeline.tracking import Tracker  # starts its thread: not before there is something to track

    tracker = Tracker(run)
    failed: dict[int, int] = {}
    rows: list[EpochRow] = []
    last: dict[int, list[EpochRow]] = {}
    with TrainingProgress(variant, groups, settings.train.epochs) as progress:

        def handle(message: workers.Message) -> None:
            match message:
                case workers.Started():
                    if message.warning:
                        progress.say(f"{message.warning}: seeds {message.seeds} start from the beginning.")
                    progress.started(message.seeds, message.epoch)
                    record(message.seeds, message.rows)
                case workers.Epoch():
                    progress.epoch(message.seeds, message.epoch, message.rows)
                    record(message.seeds, message.rows)
                case workers.Done():
                    failed.update(message.failed)
                    progress.finished(message.seeds, last.get(message.seeds[0], []))

        def record(seeds: list[int], new: list[EpochRow]) -> None:
            rows.extend(new)
            last[seeds[0]] = new or last.get(seeds[0], [])
            for row in new:
                tracker.epoch(row)

        try:
            workers.run(job, groups, processes, handle)
        except BaseException:
            tracker.close("FAILED", metrics=None, artifacts=())
            raise
    if failed:
        tracker.close("FAILED", metrics=None, artifacts=())
        seeds = "; ".join(f"seed {seed} in epoch {epoch}" for seed, epoch in sorted(failed.items()))
        raise UserError(
            f"The loss of variant {variant} was not finite: {seeds}. Lower train.learning_rate or change the variant in params.yaml.", status=1
        )
    _finish(variant, settings, run, checkpoints, groups, rows, tracker)


def _describe(variant: str, settings: VariantSettings, device: str) -> dict[str, Any]:
    """What is known of the run before it starts; see run.json in docs/architecture.md."""
    from pipeline.data.datasets import data_digest
    from pipeline.kernels import attention_path

    commit, dirty = git_state()
    model = settings.model
    return {
        "training_id": uuid.uuid4().hex,
        "variant": variant,
        "stage": f"train@{variant}",
        "config": settings.model_dump(mode="json"),
        "config_hash": settings.config_hash,
        "code_hash": code_hash(),
        "data_digest": data_digest(ARRAYS),
        "dataset": settings.data.dataset,
        "git_commit": commit,
        "git_dirty": dirty,
        "device": device,
        "device_name": device_name(device),
        "attention": attention_path(device=device, head_dim=model.dim // model.heads, tokens=model.num_tokens),
        "versions": versions(),
        "seeds": list(settings.train.seeds),
        "started": _now(),
    }


def _adopt(path: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The description of the training that left its checkpoints here, or else the new one, now written there."""
    try:
        earlier: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return earlier
    except (FileNotFoundError, ValueError):
        write_json(path, run)
        return run


def _finish(
    variant: str,
    settings: VariantSettings,
    run: dict[str, Any],
    checkpoints: Path,
    groups: list[list[int]],
    rows: list[EpochRow],
    tracker: Any,
) -> None:
    from pipeline.training import checkpoint, results

    weights = checkpoint.load_weights(checkpoints, groups)
    directory = Path("runs") / variant
    metrics = results.write(directory, settings, weights, rows)
    write_json(directory / "run.json", run | {"finished": _now()})
    artifacts = [directory / name for name in ("metrics.json", "epochs.csv", "run.json")]
    tracker.close("FINISHED", metrics=metrics, artifacts=artifacts)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    run_command(main)
