"""Lines of means over the seeds with their bands, and the axis of accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from scipy import special

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.style import DASHES, plain_numbers
from pipeline.study import Training
from pipeline.study.statistics import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they would be wider than the data, so they show the range
_NICE_ACCURACY = (
    0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985,
    0.99, 0.9925, 0.995, 0.9965, 0.998, 0.999, 0.9995, 0.9998, 0.9999,
)  # fmt: skip


def band_kind(n: int) -> str:
    """What the shaded bands of a figure over n seeds are, for its caption; empty for one seed, which has none."""
    if n == 1:
        return ""
    return f"{100 * LEVEL:g} % Student t interval of that mean" if n >= INTERVAL_SEEDS else "lowest to highest seed"


def bands(runs: Sequence[Training]) -> str:
    """What lines and bands are, as the sentence of a caption."""
    kinds = sorted({band_kind(len(run.seeds)) for run in runs} - {""})
    if not kinds:
        return "One seed (n = 1), so no bands."
    return f"Lines: mean over n = {numbers(runs)} seeds; bands: {', or with few seeds '.join(kinds)}."


def numbers(runs: Sequence[Training]) -> str:
    """How many seeds the variants have: 6, or 6 to 10."""
    least, most = (choose(len(run.seeds) for run in runs) for choose in (min, max))
    return str(least) if least == most else f"{least} to {most}"


def _finite(values: FloatArray) -> pd.DataFrame:
    """(seeds, n) with NaN, which pandas leaves out, for all that is not finite."""
    return pd.DataFrame(np.where(np.isfinite(values), values, np.nan))


def centre(values: FloatArray) -> FloatArray:
    """(n,): mean over those of (seeds, n) that are finite; NaN where none is."""
    return _finite(values).mean().to_numpy()


def band(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper edge, (n,) each, of (seeds, n); NaN where fewer than two seeds are finite."""
    frame = _finite(values)
    count = frame.count()
    if len(values) < INTERVAL_SEEDS:
        low, high = frame.min(), frame.max()
    else:
        half = special.stdtrit(np.maximum(count, 2) - 1, (1 + LEVEL) / 2) * frame.std() / np.sqrt(count)
        low, high = frame.mean() - half, frame.mean() + half
    enough = count >= min(2, len(values))
    return low.where(enough).to_numpy(), high.where(enough).to_numpy()


def draw_line(axes: Axes, x: npt.ArrayLike, values: FloatArray, style: dict[str, Any], *, dashed: bool = False) -> None:
    """Mean over the seeds of (seeds, n) as a line, with its band."""
    own = {"linestyle": DASHES, "linewidth": 1.3, "markersize": 3.5} if dashed else {"linestyle": "-", "linewidth": 1.8, "markersize": 5}
    axes.plot(x, centre(values), **{**own, **style}, markeredgewidth=0)
    if len(values) > 1:
        low, high = band(values)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.09 if dashed else 0.16, linewidth=0, zorder=style["zorder"] - 1)


def accuracy_axis(axes: Axes, accuracies: Sequence[FloatArray], shown: Sequence[FloatArray]) -> None:
    """Test accuracy in %, spaced by the logarithm of the error, so that 98 and 98.5 are as far apart as 92 and 94.

    Args:
        accuracies: (seeds, n) of each line, fractions.
        shown: the parts of them that have to lie inside the axis.
    """
    errors = np.concatenate([1 - values.ravel() for values in accuracies])
    positive = errors[errors > 1e-12]
    floor = float(positive.min()) / 2 if positive.size else 1e-4  # a run without any error still has a place

    def forward(accuracy: npt.ArrayLike) -> FloatArray:
        height: FloatArray = -np.log10(np.maximum(1 - np.asarray(accuracy, dtype=np.float64), floor))
        return height

    def inverse(height: npt.ArrayLike) -> FloatArray:
        return 1 - 10.0 ** -np.asarray(height, dtype=np.float64)

    heights = forward(np.concatenate([edge for values in shown for edge in band(values)]))
    pad = 0.04 * float(np.ptp(heights)) + 0.005
    low, high = inverse([heights.min() - pad, heights.max() + pad])
    axes.set_yscale("function", functions=(forward, inverse))
    axes.set_ylim(max(low, 0.0), high)
    ticks = [tick for tick in _NICE_ACCURACY if low <= tick <= high]
    if len(ticks) < 3:
        ticks = [float(tick) for tick in MaxNLocator(nbins=5).tick_values(low, high) if low <= tick <= high]
    # From the top down those that keep a ninth of the axis between them, so that their numbers do not touch.
    top, bottom = forward([high, max(low, 0.0)])
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or forward(kept[-1]) - forward(tick) >= (top - bottom) / 9:
            kept.append(tick)
    axes.yaxis.set_major_locator(FixedLocator(kept[::-1]))
    axes.yaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "y", ".5g", 100)
