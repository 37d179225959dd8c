"""How often `make judge` errs and how often it finds what is there, counted on this study's trainings.

`python -m docs.method.judge_rates` counts it on the test errors in tables/, and writes the tables of docs/judge.md. Every count has a
fixed start, so they are the same on every machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.measures import late
from pipeline.measures.definitions import FloatArray
from pipeline.params import load as load_params
from pipeline.report.figures.base import Picture
from pipeline.report.text import digits
from pipeline.study import load
from pipeline.study.effects import look_level
from pipeline.study.proposals import LOOKS, MARGIN, UNDECIDED, error_of, judge, looks_up_to
from pipeline.study.ranking import ranking
from pipeline.study.statistics import LEVEL
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import replacing, write_text

PAGE = Path(__file__).parents[1] / "judge.md"
BEGIN, END = "<!-- counted by python -m docs.method.judge_rates -->\n", "<!-- end of what is counted -->\n"
DRAWS = 200
_SEEDS, _OF_EFFECT = 20, 10  # the fewest of a variant that is split in two, and of either side of a known effect
_EFFECTS = 10
_RATIOS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.5)
_MEASURE = "late test error"

Draw = Callable[[np.random.Generator], tuple[FloatArray, FloatArray]]
Tally = list[tuple[str, int]]  # of each draw the answer, and the seeds a side that it took


def answer(change: FloatArray, against: FloatArray, looks: tuple[int, ...], error: float = 1 - LEVEL) -> tuple[str, int]:
    """What the command answers, and with how many seeds a side."""
    for n in looks:
        found = judge(_MEASURE, change[:n], against[:n], looks=looks, margin=MARGIN, error=error)
        if found.answer != UNDECIDED:
            return found.answer, n
    return UNDECIDED, looks[-1]


def splits(errors: FloatArray, ratio: float = 1.0) -> Draw:
    """Draws two halves of the seeds of one network, the first with its errors times `ratio`."""

    def draw(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        first, second = rng.permutation(errors)[: len(errors) // 2 * 2].reshape(2, -1)
        return first * ratio, second

    return draw


def resampled(change: FloatArray, against: FloatArray) -> Draw:
    """Draws as many seeds as the last look takes from each side's, with replacement."""
    return lambda rng: (rng.choice(change, LOOKS[-1]), rng.choice(against, LOOKS[-1]))


def tally(draw: Draw, looks: tuple[int, ...]) -> Tally:
    rng = np.random.default_rng(0)
    return [answer(*draw(rng), looks) for _ in range(DRAWS)]


def naive(draw: Draw, n: int) -> float:
    """Share of the same draws in which the mean of the change's first n seeds is better."""
    rng = np.random.default_rng(0)
    return float(np.mean([np.subtract(*(side[:n].mean() for side in draw(rng))) < 0 for _ in range(DRAWS)]))


def share(found: Tally, *answers: str, by: int = LOOKS[-1]) -> float:
    """Of the draws, those that had one of these answers by so many seeds a side."""
    return sum(one in answers and n <= by for one, n in found) / len(found)


def series(pools: Sequence[FloatArray], length: int = 200, number: int = DRAWS) -> tuple[float, float, float]:
    """Of series of proposals that do nothing, each a split of one of the variants.

    Returns:
        shares of series in which judge keeps a proposal with the levels of a series, and in which it answers any wrongly; how many
        "one run is better" keeps in a series, on average.
    """
    rng = np.random.default_rng(0)
    kept, wrong, greedy = 0, 0, 0
    for _ in range(number):
        drawn = [splits(pools[i])(rng) for i in rng.integers(len(pools), size=length)]
        answers = {answer(*sides, looks_up_to(len(sides[0])), error_of(k))[0] for k, sides in enumerate(drawn, 1)}
        kept += "better" in answers
        wrong += not answers.isdisjoint(("better", "worse"))
        greedy += sum(bool(change[0] < against[0]) for change, against in drawn)
    return kept / number, wrong / number, greedy / number


def null_table(pools: Mapping[str, FloatArray]) -> list[str]:
    rows, worst = [], np.zeros(5)
    for name, errors in pools.items():
        looks, draw = looks_up_to(len(errors) // 2), splits(errors)
        nothing = tally(draw, looks)
        edges = [tally(splits(errors, ratio), looks) for ratio in (1 + MARGIN, 1 / (1 + MARGIN))]
        shares = [share(nothing, "better", "worse"), share(nothing, "better")]
        shares += [max(share(edge, side, "the same") for edge, side in zip(edges, ("worse", "better"), strict=True))]
        shares += [naive(draw, 1), naive(draw, 3)]
        worst = np.maximum(worst, shares)
        rows.append([f"`{name}`", len(errors), ", ".join(map(str, looks)), *map(_percent, shares)])
    rows.append(["**the most of all**", "", "", *map(_percent, worst)])
    head = ["variant", "its seeds", "looks", "judge: better or worse", "judge: better", "on the margin: decided", "one run better"]
    return table([*head, "mean of three better"], "lrlrrrrr", rows)


def effect_table(trainings: Mapping[str, FloatArray], effects: Iterable[tuple[str, str, float]]) -> list[str]:
    rows = []
    for change, against, ratio in effects:
        draw = resampled(trainings[change], trainings[against])
        right, wrong = ("better", "worse") if ratio < 1 else ("worse", "better")
        found = tally(draw, LOOKS)
        needed = sorted(n if one == right else math.inf for one, n in found)[len(found) // 2]
        one, three = (naive(draw, n) if ratio > 1 else 1 - naive(draw, n) for n in (1, 3))
        counts = [_percent(share(found, right, by=n)) for n in (LOOKS[1], LOOKS[-1])]
        said = [needed if math.isfinite(needed) else f"over {LOOKS[-1]}", _percent(share(found, wrong)), _percent(one), _percent(three)]
        rows.append([f"`{change}` against `{against}`", digits(ratio), *counts, *said])
    head = [
        "change",
        "errors, times",
        f"found by {LOOKS[1]} seeds a side",
        f"by {LOOKS[-1]}",
        "seeds a side (median)",
        "judge wrong",
        "one run wrong",
    ]
    return table([*head, "mean of three wrong"], "lrrrrrrr", rows)


def power_table(errors: FloatArray) -> list[str]:
    """How often a change that leaves the spread as it is, and multiplies the errors, has been answered "better" by each look."""
    rows = []
    for ratio in _RATIOS:
        found = tally(resampled(errors * ratio, errors), LOOKS)
        rows.append([f"{ratio:g}", *(_percent(share(found, "better", by=look)) for look in LOOKS)])
    return table(["errors, times", *(f"by {look} seeds a side" for look in LOOKS)], "r" * (1 + len(LOOKS)), rows)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def table(head: Sequence[str], sides: str, rows: Sequence[Sequence[object]]) -> list[str]:
    marks = [{"l": ":---", "r": "---:"}[side] for side in sides]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, marks, *rows)]


def write_with_picture(page: Path, text: str, picture: Picture) -> None:
    """Writes a page, and beside it its figure."""
    with replacing(page.with_suffix(".png")) as file:
        file.write_bytes(picture.png())
    write_text(page, text)


def write_between(page: Path, marks: tuple[str, str], lines: Sequence[str]) -> None:
    """Writes lines of a page between two of its lines. Raises UserError where it has not both."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise UserError(f"{page} has no two lines between which the tables belong: `git checkout {page}` brings them back.")
    write_text(page, before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after)


def errors_of(root: Path) -> tuple[dict[str, FloatArray], list[tuple[str, str, float]]]:
    """The late test errors of each classifier, and the known effects.

    These are parts of the ranking with `_OF_EFFECT` seeds a side or more, whose interval over all seeds leaves out 1: of all, sorted by
    size, ten that are evenly spaced.
    """
    trainings, params = load(root).trainings, load_params(root / "params.yaml")
    errors = {name: late(run.test_error) for name, run in trainings.items() if run.settings.task == "classification"}
    parts = {name: pair for name, pair in params.ranking.items() if min(len(errors.get(side, ())) for side in pair) >= _OF_EFFECT}
    found = [part for part in ranking(parts, trainings, look_level(params.looks)) if not part.interval.low <= 1 <= part.interval.high]
    found.sort(key=lambda part: abs(math.log(part.ratio)))
    places = np.unique(np.linspace(0, len(found) - 1, min(_EFFECTS, len(found))).round().astype(int))
    return errors, [(found[i].variant, found[i].reference, found[i].ratio) for i in places]


def counted(root: Path = Path()) -> list[str]:
    errors, effects = errors_of(root)
    pools = {name: found for name, found in errors.items() if len(found) >= _SEEDS}
    kept, wrong, greedy = series(list(pools.values()))
    return [
        f"Counted on {sum(map(len, errors.values()))} trainings of {len(errors)} classifiers in tables/: {_MEASURE}, margin "
        f"{100 * MARGIN:g} %, looks at {', '.join(map(str, LOOKS))} seeds a side or as many as there are, {DRAWS} draws a row.",
        "",
        "### Changes that do nothing",
        "",
        f"Each of the {len(pools)} networks with {_SEEDS} seeds or more, split in two at random. *On the margin*: the errors of one half "
        f"are multiplied so that they lie just on the margin, above or below, whichever is decided more often.",
        "",
        *null_table(pools),
        "",
        "### Series of 200 changes that do nothing",
        "",
        f"Of {DRAWS} series, each of 200 such splits, judge with `SERIES=` kept a change in {_percent(kept)}, and answered better or worse "
        f"at all in {_percent(wrong)}. "
        f'"Keep if one run is better" kept {greedy:.0f} of the 200 on average.',
        "",
        f"### {len(effects)} known effects",
        "",
        f"Parts of the ranking with {_OF_EFFECT} seeds a side or more whose interval over all seeds leaves out 1, evenly spaced by size "
        f"where there are more than {_EFFECTS}; seeds are drawn from each side's with replacement. Found: answered with the right sign, by "
        "more than the margin.",
        "",
        *effect_table(errors, effects),
        "",
        "### Power",
        "",
        f'The share of changes that is answered "better", by the look, if the change multiplies the errors of `base` and leaves their '
        f"spread over its {len(errors['base'])} seeds as it is.",
        "",
        *power_table(errors["base"]),
    ]


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.judge_rates", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    write_between(PAGE, (BEGIN, END), counted())


if __name__ == "__main__":
    run_command(main)
