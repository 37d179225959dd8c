"""The figures of the timing page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from pipeline.report.figures.drawing import Drawing
from pipeline.report.figures.lines import log_ticks
from pipeline.report.figures.style import COLOURS, DASHES, INK, MARKERS, MUTED, WIDTH, Theme, legend_below, plain_numbers, png, style
from pipeline.report.text import digits
from pipeline.timing.results import Timings
from pipeline.timing.subjects import WAYS, Way

WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}
SPOKEN: dict[Way, str] = {"published": "As published", "fast": "On the fast path"}


def profile(timings: Timings, label: Callable[[str], str]) -> Drawing:
    """Where the time of a training step goes, for every subject that was timed in both ways."""
    profiles, subjects = timings.raw["profiles"], timings.subjects("fast")
    panels = [(SPOKEN[way], [(label(name), profiles[f"step/{way}/{name}"]["groups"]) for name in subjects]) for way in WAYS]
    totals = {name: [digits(1e3 * profiles[f"step/{way}/{name}"]["seconds"]) for way in WAYS] for name in subjects}
    spoken = "; ".join(f"{label(name)} {published} and {fast}" for name, (published, fast) in totals.items())
    alt = f"Bars of each part's share of a profiled step. Milliseconds of a step as published and on the fast path: {spoken}."
    caption = (
        "Where the time of a training step goes, in % of the profiled step, whose milliseconds stand at the end of its bar. The profiler "
        "adds to every operator and so makes what calls many of them look slower than it is; Tables 1 and 2 are taken without it."
    )
    return Drawing(alt, caption, lambda theme: draw_profile(panels, theme), "profile")


def draw_profile(panels: Sequence[tuple[str, Sequence[tuple[str, Mapping[str, float]]]]], theme: Theme) -> bytes:
    """PNG: bars of equal length, divided into the shares of their parts, with their milliseconds at the end.

    Args:
        panels: (title, [(label of a bar, seconds of each part)]), the same parts and labels in all.
    """
    with style(theme):
        drawn = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        parts = list(panels[0][1][0][1])
        colours = [*COLOURS[theme], INK[theme], MUTED[theme]]
        for axes, (title, bars) in zip(drawn.subplots(1, len(panels), sharey=True), panels, strict=True):
            places = np.arange(len(bars))
            seconds = np.array([[of[part] for part in parts] for _, of in bars])  # (bar, part)
            totals = seconds.sum(axis=1)
            widths = 100 * seconds / totals[:, None]
            for part, colour, width, end in zip(parts, colours, widths.T, widths.cumsum(axis=1).T, strict=True):
                axes.barh(places, width, left=end - width, color=colour, height=0.68, linewidth=0, label=part)
            for place, total in zip(places, totals, strict=True):
                axes.text(102, place, f"{digits(1e3 * total)} ms", va="center", fontsize=9.5)
            axes.set_title(title)
            axes.set_xlabel("% of a step")
            axes.set_xlim(0, 128)
            axes.set_xticks([0, 25, 50, 75, 100])
            axes.set_yticks(places, [label for label, _ in bars])
            axes.set_ylim(len(bars) - 0.5, -0.5)
            axes.grid(False)
            sns.despine(ax=axes, left=True)
        legend_below(drawn, drawn.axes[0].get_legend_handles_labels()[0], ncols=4)
        return png(drawn)


def growth(timings: Timings) -> Drawing:
    """Time and memory of a step and of attention alone against the number of tokens."""
    time_lines, byte_lines = [], []
    for way in WAYS:
        for entries, what in ((timings.growth("growth", way), "step"), (timings.growth("attention", way), "attention alone")):
            x = [entry["tokens"] for entry in entries]
            label = f"{what}, {WAY_LABELS[way]}"
            milliseconds = [1e3 * float(np.median(timings.seconds(entry["name"]))) / entry["batch"] for entry in entries]
            time_lines.append((label, x, milliseconds))
            byte_lines.append((label, x, [entry["saved_bytes"] / entry["batch"] / 1e6 for entry in entries]))
    spoken = "; ".join(f"{label} from {digits(y[0])} to {digits(y[-1])} ms" for label, _, y in time_lines)
    alt = f"Time and memory per image against the number of tokens, both axes logarithmic. {spoken}."
    caption = (
        "Left: time of a training step and of one block's attention, divided by the "
        f"{timings.growth('growth', 'published')[0]['batch']} images of a batch, median over the rounds. Right: bytes kept for the "
        "backward pass. The dotted lines grow with the square of the tokens."
    )
    panels = [("Time (ms per image)", time_lines), ("Kept for backward (MB per image)", byte_lines)]
    return Drawing(alt, caption, lambda theme: draw_growth(panels, theme), "growth")


def draw_growth(panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]]], theme: Theme) -> bytes:
    """PNG: lines on two logarithmic axes, with a dotted line of slope 2 through the end of the highest of each panel.

    Args:
        panels: (title, [(label, x, y)]), the same labels in all.
    """
    with style(theme):
        drawn = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        for axes, (title, lines) in zip(drawn.subplots(1, len(panels)), panels, strict=True):
            for i, (label, x, y) in enumerate(lines):
                colour, marker, dash = COLOURS[theme][i // 2], MARKERS[i % len(MARKERS)], "-" if i % 2 == 0 else DASHES
                axes.plot(x, y, color=colour, marker=marker, linestyle=dash, label=label, markeredgewidth=0)
            _, x, y = max(lines, key=lambda line: line[2][-1])
            counts = np.array(x, dtype=np.float64)
            axes.plot(counts, y[-1] * (counts / counts[-1]) ** 2, color=MUTED[theme], linestyle=":", linewidth=1.2, zorder=1)
            axes.set(yscale="log", ylim=(0.6 * min(min(line[2]) for line in lines), 1.8 * y[-1]))
            axes.set_title(title)
            axes.set_xlabel("tokens")
            log_ticks(axes, x)
            plain_numbers(axes, "y")
            axes.yaxis.set_minor_formatter(NullFormatter())
            sns.despine(ax=axes, left=True)
        legend_below(drawn, drawn.axes[0].get_legend_handles_labels()[0])
        return png(drawn)
