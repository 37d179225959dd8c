"""The figures of the timing page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from pipeline.report.figures.base import COLOURS, DASHES, MARKERS, MUTED, WIDTH, Picture, legend_below, log_ticks, plain_numbers
from pipeline.timing.results import Timings
from pipeline.timing.subjects import WAYS, Way

WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}


def growth(timings: Timings) -> Picture:
    """Time and memory of a step and of attention alone against the number of tokens."""
    times, kept = [], []
    for way in WAYS:
        for entries, what in ((timings.growth("growth", way), "step"), (timings.growth("attention", way), "attention alone")):
            x, label = [entry["tokens"] for entry in entries], f"{what}, {WAY_LABELS[way]}"
            times.append((label, x, [1e3 * timings.median(entry["name"]) / entry["batch"] for entry in entries]))
            kept.append((label, x, [entry["saved_bytes"] / entry["batch"] / 1e6 for entry in entries]))
    caption = (
        "Time and memory of an image against the tokens. Left: time of a training step and of one block's attention, median over the "
        "rounds. Right: bytes kept for the backward pass. The dotted lines grow with the square of the tokens."
    )
    panels = [("Time (ms per image)", times), ("Kept for backward (MB per image)", kept)]
    return Picture(caption, partial(draw_growth, panels), "growth")


def draw_growth(panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]]]) -> Figure:
    """Lines on two logarithmic axes, with a dotted line of slope 2 through the end of the highest of each panel.

    Args:
        panels: (title, [(label, x, y)]), the same labels in all.
    """
    drawn = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    for axes, (title, lines) in zip(drawn.subplots(1, len(panels)), panels, strict=True):
        for i, (label, x, y) in enumerate(lines):
            colour, dash = COLOURS[i // 2], "-" if i % 2 == 0 else DASHES
            axes.plot(x, y, color=colour, marker=MARKERS[i], linestyle=dash, label=label, markeredgewidth=0)
        _, x, y = max(lines, key=lambda line: line[2][-1])
        counts = np.array(x, dtype=np.float64)
        axes.plot(counts, y[-1] * (counts / counts[-1]) ** 2, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
        axes.set(yscale="log", ylim=(0.6 * min(min(line[2]) for line in lines), 1.8 * y[-1]))
        axes.set_title(title)
        axes.set_xlabel("tokens (log scale)")
        log_ticks(axes, x)
        plain_numbers(axes, "y")
        axes.yaxis.set_minor_formatter(NullFormatter())
        sns.despine(ax=axes, left=True)
    legend_below(drawn, drawn.axes[0].get_legend_handles_labels()[0])
    return drawn
