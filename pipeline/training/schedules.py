"""Learning rates, step by step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.params import TrainSettings


def learning_rates(settings: TrainSettings, total_steps: int) -> Tensor:
    """The learning rate of every step (total_steps,), float64.

    Let T = total_steps, w = max(1, round(warmup T)) the steps of warm-up, t = 0 .. T - 1 the step, and
    d = max(0, t - (w - 1)) / (T - (w - 1)) the completed share of the decay. The rate is `learning_rate` times

        constant               1
        linear, warmup_linear  min(1, (t + 1) / w) (1 - d)
        noam                   min((t + 1) / w, sqrt(w / (t + 1)))
        cosine                 min(1, (t + 1) / w) (1 + cos(pi d)) / 2

    So a warm-up rises from 1 / w, not from 0, and reaches its peak, exactly `learning_rate`, in its last step, t = w - 1. A decay
    would reach 0 at t = T, after the last step. A warm-up of one step is the same as none. noam is equation 3 of Vaswani et al. 2017,
    scaled so that its peak is `learning_rate`; cosine is equation 5 of Loshchilov and Hutter 2017 without restarts. Self-critical
    epochs follow the schedule, at their own rate.
    """
    last = total_steps * settings.self_critical_epochs // settings.epochs
    total_steps -= last
    # Plain numbers, not vectors, because vectorised cosines may round differently between processors, and replay compares digests.
    warm_up = max(1, round(settings.warmup * total_steps))
    shares = [_share(settings.schedule, step, warm_up, total_steps) for step in range(1, total_steps + 1)]
    rates = settings.learning_rate * torch.tensor(shares, dtype=torch.float64)
    return torch.cat([rates, torch.full((last,), settings.self_critical_rate, dtype=torch.float64)]) if last else rates


def _share(schedule: str, count: int, warm_up: int, total_steps: int) -> float:
    """The rate of a step as a share of `learning_rate`; `count` is t + 1."""
    rise = min(1.0, count / warm_up)
    done = max(0, count - warm_up) / (total_steps + 1 - warm_up)
    match schedule:
        case "linear" | "warmup_linear":
            return rise * (1 - done)
        case "noam":
            return min(count / warm_up, math.sqrt(warm_up / count))
        case "cosine":
            return rise * (1 + math.cos(math.pi * done)) / 2
    return 1.0
