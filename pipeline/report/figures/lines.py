"""Means over the seeds as lines, with bands or bars, and the axis of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from scipy import special

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.style import DASHES, log_axis, plain_numbers
from pipeline.study import Training
from pipeline.study.statistics import LEVEL

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they show the range, because intervals would be wider than that
MAX_BANDS = 3  # lines in a panel that have bands; more bands would hide each other
REACH = 3.0  # factor from the mean up to which bands widen an axis of errors: one seed that fails must not press all others flat


def same_but(runs: Sequence[Training], *varied: str) -> list[list[Training]]:
    """The runs in groups whose options differ in none but these, such as `train.epochs`."""
    groups: dict[str, list[Training]] = {}
    for run in runs:
        rest = {name: value for name, value in run.options.items() if name not in varied}
        groups.setdefault(str(sorted(rest.items())), []).append(run)
    return list(groups.values())


def band_kind(n: int) -> str:
    """What the bands of a figure over n seeds show; empty for one seed, which has no band."""
    if n == 1:
        return ""
    return f"{100 * LEVEL:g} % Student t interval of that mean" if n >= INTERVAL_SEEDS else "lowest to highest seed"


def bands(runs: Sequence[Training], drawn: str = "bands", means: str = "Lines", errors: Iterable[FloatArray] = ()) -> str:
    """A caption's sentence on lines and bands.

    Args:
        drawn, means: what it calls bands and means.
        errors: (seeds, n) each, what has bands on a logarithmic axis of errors, where a lower edge at 0 cannot be drawn.
    """
    kinds = sorted({band_kind(len(run.seeds)) for run in runs} - {""})
    if not kinds:
        return f"One seed (n = 1), so no {drawn}."
    said = f"{means}: mean over n = {numbers(runs)} seeds; {drawn}: {', or with few seeds '.join(kinds)}."
    if any((band(values)[0] <= 0).any() for values in errors):
        said += " Where one runs to the lower edge, the interval reaches 0."
    return said


def numbers(runs: Sequence[Training]) -> str:
    """The number of seeds of the variants: `6`, or `6 to 10`."""
    least, most = (choose(len(run.seeds) for run in runs) for choose in (min, max))
    return str(least) if least == most else f"{least} to {most}"


def _finite(values: FloatArray) -> pd.DataFrame:
    """(seeds, n) with NaN, which pandas leaves out, in place of all values that are not finite."""
    return pd.DataFrame(np.where(np.isfinite(values), values, np.nan))


def centre(values: FloatArray) -> FloatArray:
    """(n,): mean of (seeds, n) over the finite values; NaN where there is none."""
    return _finite(values).mean().to_numpy()


def band(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper edge, (n,) each, of the band of (seeds, n); NaN where fewer than two seeds are finite."""
    frame = _finite(values)
    count = frame.count()
    if len(values) < INTERVAL_SEEDS:
        low, high = frame.min(), frame.max()
    else:
        half = special.stdtrit(np.maximum(count, 2) - 1, (1 + LEVEL) / 2) * frame.std() / np.sqrt(count)
        low, high = frame.mean() - half, frame.mean() + half
    enough = count >= min(2, len(values))
    return low.where(enough).to_numpy(), high.where(enough).to_numpy()


def draw_line(
    axes: Axes, x: npt.ArrayLike, values: FloatArray, style: dict[str, Any], *, dashed: bool = False, banded: bool = True
) -> None:
    """Draws the mean of (seeds, n) over the seeds as a line, and its band if `banded`."""
    own = {"linestyle": DASHES, "linewidth": 1.3, "markersize": 3.5} if dashed else {"linestyle": "-", "linewidth": 1.8, "markersize": 5}
    axes.plot(x, centre(values), **{**own, **style}, markeredgewidth=0)
    if banded and len(values) > 1:
        low, high = band(values)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.08 if dashed else 0.17, linewidth=0, zorder=style["zorder"] - 1)


def draw_bars(axes: Axes, x: npt.ArrayLike, values: FloatArray, style: dict[str, Any]) -> list[Artist]:
    """Draws the band of (seeds, n) as upright bars."""
    if len(values) == 1:
        return []
    return [axes.vlines(x, *band(values), color=style["color"], linewidth=1.4, alpha=0.75, zorder=style["zorder"] - 0.5)]


def move_aside(artists: Sequence[Artist], points: float) -> None:
    """Moves artists in data coordinates to the right, so that they do not hide others at the same place."""
    for artist in artists:
        figure = artist.get_figure(root=True)
        assert figure is not None
        artist.set_transform(artist.get_transform() + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans))


def error_axis(axes: Axes, shown: Sequence[FloatArray]) -> None:
    """Makes the axis of errors in %, which is logarithmic.

    Args:
        shown: (seeds, n) each, fractions. The axis holds their means, and their bands up to a factor of `REACH` from the means.
    """
    edges = []
    for values in shown:
        mean = centre(values)
        edges += [mean, *(np.clip(edge, mean / REACH, mean * REACH) for edge in band(values))]
    inside = np.concatenate(edges)
    inside = inside[inside > 0]  # neither 0 nor NaN has a logarithm
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.01, 1.0)
    pad = (high / low) ** 0.04 * 1.02
    axes.set_ylim(low / pad, high * pad)
    log_axis(axes, "y")
    plain_numbers(axes, "y", ".3g", 100)


def log_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """Makes the horizontal axis logarithmic, with these ticks and no others."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "x", ",.0f")
