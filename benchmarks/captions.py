"""How fast captioners learn and write: a training step, and captions by greedy and by beam search, in one process on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.runner import ROOT, Options
from pipeline import params
from pipeline.captioning import decoding
from pipeline.captioning.grammar import EOS, MAX_WORDS
from pipeline.captioning.learning import shifted, word_losses
from pipeline.captioning.model import CaptionModel
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import VariantSettings
from pipeline.timing.load import LoadMeter
from pipeline.timing.rounds import Say, run_rounds
from pipeline.training.engine import keep_freed_memory, set_reproducible
from pipeline.training.optimizers import make_optimizer
from pipeline.training.stack import initial_model

VARIANTS = ("caption", "caption-memory", "caption-meshed", "caption-m2", "caption-cnn-lstm")
SCENES = 500  # written at once, as by the evaluation
STEPS = 5  # timed together
KINDS = ("step", "greedy", "beam")


def measure(options: Options, say: Say, *, rounds: int) -> list[dict[str, Any]]:
    """All timings that count, for the page: variant, kind, the seconds of each round, and the scenes of one timing.

    Captions of untrained models end anywhere, so the word that ends one is made impossible: all have the greatest length.
    """
    device = torch.device(options.device)
    set_reproducible(device)
    keep_freed_memory()
    study = params.load(ROOT / "params.yaml")
    jobs = {f"{variant} {kind}": _job(study.resolve(variant), kind, device) for variant in VARIANTS for kind in KINDS}
    for job in jobs.values():
        job()

    def timed(names: Any) -> tuple[float, float]:
        with LoadMeter() as load:
            start = time.perf_counter()
            jobs[names[0]]()
            seconds = time.perf_counter() - start
        return seconds, load.foreign

    timings = run_rounds(
        list(jobs), timed, rounds=rounds, say=lambda line: say(f"captions, {line}"), repeat="timing",
        show=lambda seconds: f"{seconds:.3f} s", attempts=options.attempts, threshold=options.threshold,
    )  # fmt: skip
    result = []
    for variant in VARIANTS:
        batch = study.resolve(variant).train.batch_size
        for kind in KINDS:
            kept = [timing.value for timing in timings if timing.kept and timing.names == (f"{variant} {kind}",)]
            result.append({"variant": variant, "kind": kind, "seconds": kept, "scenes": STEPS * batch if kind == "step" else SCENES})
    return result


def _job(settings: VariantSettings, kind: str, device: torch.device) -> Callable[[], object]:
    model = initial_model(settings.model, 0).to(device)
    assert isinstance(model, CaptionModel)
    shape = settings.model.shape
    generator = torch.Generator().manual_seed(0)
    count = settings.train.batch_size if kind == "step" else SCENES
    images = torch.rand((count, shape.channels, 2 * shape.size, 2 * shape.size), generator=generator).to(device)
    if kind != "step":
        head = model.head
        assert isinstance(head, torch.nn.Linear)
        with torch.no_grad():
            head.bias[EOS] = -1e4
        return (lambda: decoding.greedy(model, images)) if kind == "greedy" else (lambda: decoding.beam(model, images, BEAM_WIDTH))
    captions = torch.randint(EOS + 1, shape.words, (count, MAX_WORDS + 1), generator=generator).to(device)
    optimizer = make_optimizer(settings.train, list(model.parameters()), num_seeds=1, stacked=False, total_steps=10_000)

    def steps() -> None:
        for _ in range(STEPS):
            word_losses(model(images, shifted(captions)), captions).mean().backward()
            optimizer.step()

    return steps


def table(measured: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each variant: ms of a step, scenes a second by greedy and by beam search; the least and the most in brackets."""
    rows = []
    for variant in VARIANTS:
        cells = []
        for kind in KINDS:
            one = next(entry for entry in measured if (entry["variant"], entry["kind"]) == (variant, kind))
            values = [1000 * s / STEPS for s in one["seconds"]] if kind == "step" else [one["scenes"] / s for s in one["seconds"]]
            cells.append(f"{median(values):,.0f} [{min(values):,.0f} .. {max(values):,.0f}]" if values else "not measured undisturbed")
        rows.append((variant, *cells))
    return rows
