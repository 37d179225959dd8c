"""DVC stage `train@VARIANT`: all seeds of a variant, from initial weights to runs/VARIANT/."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from pathlib import Path
from typing import Any

from pipeline.data.datasets import data_digest
from pipeline.errors import UserError, run_command
from pipeline.files import write_json
from pipeline.params import VariantSettings, load_variant
from pipeline.provenance import code_hash, git_state, versions
from pipeline.stages.paths import ARRAYS, CHECKPOINTS, CONFIGS, RUNS
from pipeline.tracking import Tracker
from pipeline.training import checkpoint, results, workers
from pipeline.training.lock import variant_lock
from pipeline.training.progress import TrainingProgress
from pipeline.training.records import EpochRow


def main(argv: list[str]) -> None:
    if len(argv) != 1:
        raise UserError("Usage: python -m pipeline.stages.train VARIANT")
    variant = argv[0]
    if "DVC_STAGE" in os.environ:
        workers.die_with_parent(os.getppid())
    settings = load_variant(CONFIGS / f"{variant}.json")
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
    groups = workers.make_groups(settings.train.seeds, device, stackable=settings.model.stackable)
    training = _Training(variant, settings, run, checkpoints, groups)
    processes = workers.choose_processes() if device == "cpu" else 1
    with training.progress:
        try:
            workers.run(workers.Job(settings, ARRAYS, checkpoints, device), groups, processes, training.handle)
            training.finish()
        except BaseException:
            training.fail()
            raise


class _Training:
    """What the coordinating process knows of a training, fed with the workers' messages."""

    def __init__(self, variant: str, settings: VariantSettings, run: dict[str, Any], checkpoints: Path, groups: list[list[int]]) -> None:
        self.progress = TrainingProgress(variant, groups, settings.train.epochs)
        self._variant = variant
        self._settings = settings
        self._run = run
        self._checkpoints = checkpoints
        self._groups = groups
        self._tracker: Tracker | None = None
        self._facts: workers.Facts | None = None
        self._rows: list[EpochRow] = []
        self._last: dict[int, list[EpochRow]] = {}  # by the group's first seed
        self._failed: dict[int, int] = {}

    def handle(self, message: workers.Message) -> None:
        """Takes one message of a worker."""
        match message:
            case workers.Started():
                if self._tracker is None and len(self._groups) > 1 and self._run["device"] == "cuda":
                    self.progress.say("This network cannot be stacked: its seeds train one after another.")
                self._start(message.facts)
                if message.warning:
                    self.progress.say(f"{message.warning}: seeds {message.seeds} start from the beginning.")
                self.progress.started(message.seeds, message.epoch)
                self._record(message.seeds, message.rows)
            case workers.Epoch():
                self.progress.epoch(message.seeds, message.epoch, message.rows)
                self._record(message.seeds, message.rows)
                if message.note:
                    self.progress.say(message.note)
            case workers.Done():
                self._failed |= message.failed
                self.progress.finished(message.seeds, self._last.get(message.seeds[0], []))

    def finish(self) -> None:
        """Writes runs/VARIANT. Raises UserError with status 1 when a seed's loss was not finite."""
        if self._failed:
            seeds = "; ".join(f"seed {seed} in epoch {epoch}" for seed, epoch in sorted(self._failed.items()))
            raise UserError(
                f"The loss of variant {self._variant} was not finite: {seeds}."
                " Lower train.learning_rate or change the variant in params.yaml; with `divergence: record` it is a result like any other.",
                status=1,
            )
        assert self._facts is not None
        assert self._tracker is not None
        tensors = checkpoint.load_seeds(self._checkpoints, self._groups)
        directory = RUNS / self._variant
        metrics = results.write(directory, self._settings, tensors, self._rows, parameters=self._facts.parameters, flops=self._facts.flops)
        write_json(directory / "run.json", self._run | {"finished": _now()})
        artifacts = [directory / name for name in ("metrics.json", "epochs.csv", "run.json")]
        self._tracker.close("FINISHED", metrics=metrics, artifacts=artifacts)

    def fail(self) -> None:
        """Ends the MLflow runs of a training that cannot be finished."""
        if self._tracker is not None:
            self._tracker.close("FAILED")

    def _start(self, facts: workers.Facts) -> None:
        """On the first message: the run is now fully described, so its description is kept and tracked."""
        if self._tracker is None:
            self._facts = facts
            if not facts.attention.startswith("fused") and facts.attention != "none":
                self.progress.say(f"{self._variant}  attention is not computed by the fused kernel but as: {facts.attention}")
            described = self._run | {"device_name": facts.device_name, "attention": facts.attention}
            self._run = _adopt(self._checkpoints / "run.json", described)
            # On CUDA the processor has time to spare, so the run can be watched from the start.
            self._tracker = Tracker(self._run, start_after=0.0) if self._run["device"] == "cuda" else Tracker(self._run)

    def _record(self, seeds: list[int], rows: list[EpochRow]) -> None:
        assert self._tracker is not None
        self._rows += rows
        self._last[seeds[0]] = [row for row in rows if row.epoch == rows[-1].epoch] or self._last.get(seeds[0], [])
        for row in rows:
            self._tracker.epoch(row)


def _describe(variant: str, settings: VariantSettings, device: str) -> dict[str, Any]:
    """What is known of the run before it starts; docs/architecture.md explains run.json."""
    commit, dirty = git_state()
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


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    run_command(main)
