"""How time grows: an epoch with seeds, tokens and images, DVC's no-op and the report with variants."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import nested, overheads, runner
from benchmarks.loops import BATCH_SIZE, EPOCH_STEPS
from benchmarks.measure import THESIS
from benchmarks.runner import Options
from pipeline.timing.load import LoadMeter, wait_until_quiet
from pipeline.timing.power_law import fit_power_law
from pipeline.timing.rounds import Say, run_rounds

SEEDS = (1, 2, 4, 8, 16, 32)
PATCHES = {14: 60, 7: 60, 4: 60, 2: 20, 1: 3}  # by patch, the steps that are timed: 785 tokens take a thousand times as long as 5
IMAGES = (1_280, 5_120, 15_360, 30_720, 59_904)  # whole batches
VARIANTS = (3, 6, 12, 25, 50)
_PANELS_A_ROW = 3

Series = dict[str, Any]
Timed = tuple[float, float]  # seconds, and the share of the machine that other processes used meanwhile


def measure(options: Options, say: Say, *, quick: bool) -> list[Series]:
    """Measures all series.

    Returns:
        for each: x_name, x, y_name, y in seconds (medians over repeats in random order).
    """
    repeats = 1 if quick else 3
    seeds, variants = (SEEDS[:3], VARIANTS[:3]) if quick else (SEEDS, VARIANTS)
    patches = list(PATCHES.items())[:3] if quick else list(PATCHES.items())
    by_tokens = {THESIS.model_copy(update={"patch": patch}).num_tokens: (patch, steps) for patch, steps in patches}
    counts = IMAGES[:3] if quick else IMAGES

    def epoch(num_seeds: int, patch: int, steps: int) -> Timed:
        """An epoch of all seeds."""
        result = runner.measure("ours", options, steps, "--seeds", str(num_seeds), "--patch", str(patch))
        return result["epoch_seconds"] * num_seeds, result["foreign"]

    def over_images(count: int) -> Timed:
        steps = count // BATCH_SIZE
        seconds, foreign = epoch(1, THESIS.patch, steps)
        return seconds * steps / EPOCH_STEPS, foreign

    def series_of(x_name: str, x: Sequence[int], y_name: str, measure: Callable[[int], Timed]) -> Series:
        return _series(x_name, x, y_name, measure, repeats, options, say)

    return [
        series_of("seeds", seeds, "an epoch of all seeds", lambda count: epoch(count, THESIS.patch, 40)),
        series_of("tokens", list(by_tokens), "an epoch of one seed", lambda tokens: epoch(1, *by_tokens[tokens])),
        series_of("images", counts, "an epoch of one seed over them", over_images),
        series_of("variants", variants, "`dvc repro` with nothing to do", lambda count: overheads.noop_seconds(options, count, 1)[0]),
        _report_series(options, variants, repeats, say),
    ]


def _series(
    x_name: str, x: Sequence[int], y_name: str, measure: Callable[[int], Timed], repeats: int, options: Options, say: Say
) -> Series:
    """Measures every x once a repeat, in random order; y is the median of the timings that count, else the least disturbed one."""
    timings = run_rounds(
        [str(value) for value in x],
        lambda names: measure(int(names[0])),
        rounds=repeats,
        say=lambda line: say(f"growth with {x_name}, {line}"),
        repeat="timing",
        show=lambda seconds: f"{seconds:.3f} s",
        attempts=options.attempts,
        threshold=options.threshold,
    )
    y = []
    for value in x:
        own = [timing for timing in timings if timing.names == (str(value),)]
        y.append(median([timing.value for timing in own if timing.kept] or [min(own, key=lambda timing: timing.foreign).value]))
    return {"x_name": x_name, "x": list(x), "y_name": y_name, "y": y}


def _report_series(options: Options, variants: Sequence[int], repeats: int, say: Say) -> Series:
    """The report stage over copies of one trained variant."""
    with nested.repository() as directory:
        nested.write_params(directory, nested.many_variants(2), seeds=3, epochs=2)
        nested.dvc(directory, "repro", "--quiet")

        def report(count: int) -> Timed:
            nested.copy_results(directory, nested.write_params(directory, nested.many_variants(count), seeds=3, epochs=2))
            wait_until_quiet(options.threshold)
            with LoadMeter() as load:
                start = time.perf_counter()
                nested.call(directory, "pipeline.stages.report")
                seconds = time.perf_counter() - start
            return seconds, load.foreign

        return _series("variants", variants, "the report", report, repeats, options, say)


def draw(series: Sequence[Series], picture: Path) -> None:
    """PNG as wide as a page on a git host: a panel per series, both axes logarithmic, with the fitted power law."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(series) / _PANELS_A_ROW)
    figure = Figure(figsize=(8.3, 3.1 * rows), layout="constrained")
    panels = list(figure.subplots(rows, _PANELS_A_ROW, squeeze=False).flat)
    for place, (axes, one) in enumerate(zip(panels, series, strict=False)):
        fit = fit_power_law(one["x"], one["y"])
        axes.loglog(one["x"], [fit.factor * x**fit.exponent for x in one["x"]], color="0.55", linewidth=1.2)
        axes.loglog(one["x"], one["y"], "o", color="#0072B2", markersize=6)
        axes.text(0.05, 0.95, f"exponent {fit.exponent:.2f}", transform=axes.transAxes, va="top", fontsize=9.5, color="0.35")
        axes.set_xticks(one["x"], [_short(x) for x in one["x"]], fontsize=9.5)
        axes.minorticks_off()
        low, high = min(one["y"]), max(one["y"])
        axes.set_ylim(low / 1.5, high * 2.5)
        axes.set_yticks(_ticks(low, high), [f"{y:g}" for y in _ticks(low, high)], fontsize=9.5)
        axes.set_xlabel(one["x_name"], fontsize=10)
        axes.set_title(one["y_name"].replace("`", ""), fontsize=9.5, loc="left")
        if place % _PANELS_A_ROW == 0:
            axes.set_ylabel("seconds", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(series) :]:
        axes.set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=170, metadata={"Software": None})


def _short(x: float) -> str:
    """59904 as 60k, so that neighbouring numbers do not touch."""
    return f"{x:g}" if x < 1000 else f"{x / 1000:.2g}k"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers inside the axis: powers of ten if they are three or more, else finer ones."""
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [factor * 10.0**power for power in range(-4, 6) for factor in factors]
        inside = [tick for tick in ticks if low / 1.5 <= tick <= high * 1.5]
        if len(inside) >= 3:
            break
    return inside
