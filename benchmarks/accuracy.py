"""Whether the fast path moves the accuracy: the same seeds trained with the fused attention and with PyTorch's own."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks import images
from benchmarks.measure import THESIS
from benchmarks.runner import Options
from pipeline.timing.rounds import Say

SEEDS = 5
EPOCHS = 3
STEPS = 50  # their losses are compared one by one
_PATHS = ("fused", "sdpa")


def measure(options: Options, say: Say, *, quick: bool) -> dict[str, Any]:
    """Trains the thesis's configuration on both paths, one process per core.

    Returns:
        seeds, epochs, images; per path the accuracy of each seed after the last epoch; per seed the largest difference of the
        losses of the first `STEPS` steps.
    """
    seeds, epochs = (2, 1) if quick else (SEEDS, EPOCHS)
    jobs = [(path, seed) for seed in range(seeds) for path in _PATHS]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.threads if options.device == "cpu" else 1, mp_context=context) as pool:
        futures = {job: pool.submit(_train, options, *job, epochs, 2_560 if quick else None) for job in jobs}
        done = {}
        for job, future in futures.items():
            done[job] = future.result()
            say(f"accuracy   {job[0]} seed {job[1]}: {done[job][0]:.2%} after {epochs} epochs")
    return {
        "seeds": seeds,
        "epochs": epochs,
        "images": done[jobs[0]][2],
        "accuracy": {path: [done[path, seed][0] for seed in range(seeds)] for path in _PATHS},
        "loss_difference": [
            max(abs(a - b) for a, b in zip(done["fused", seed][1], done["sdpa", seed][1], strict=True)) for seed in range(seeds)
        ],
    }


def _train(options: Options, path: str, seed: int, epochs: int, limit: int | None) -> tuple[float, list[float], int]:
    """Test accuracy of the last epoch, losses of the first steps, and the number of training images."""
    os.environ["LAB_ATTENTION"] = "sdpa" if path == "sdpa" else ""
    import torch

    from benchmarks.ours import variant
    from pipeline.training.engine import Trainer, set_reproducible

    device = torch.device(options.device)
    set_reproducible(device)
    dataset = images.load(options.data)
    if limit:
        dataset = images.part(dataset, limit, limit)
    trainer = Trainer(variant(THESIS, 1, epochs), dataset, [seed], device)
    while not trainer.done:
        trainer.run_epoch()
    losses = trainer.trace.loss[0, : min(STEPS, trainer.trace.loss.shape[1])].tolist()
    return trainer.rows[-1].test_accuracy, losses, len(dataset.train_labels)
