"""Which parts matter on other images: the rows of the ranking on Fashion-MNIST beside the same rows on MNIST.

`python -m docs.method.fashion` takes the results of `python -m pipeline.commands.profiles fashion`, where build/ has them, into
docs/fashion/, and writes docs/fashion.md and its figure from what lies there and in tables/.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from docs.method.judge_rates import table, write_with_picture
from pipeline.measures import late
from pipeline.params import Params
from pipeline.params import load as load_params
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, INK, Picture
from pipeline.report.figures.rows import Row
from pipeline.report.text import claimed, digits, estimate, listed
from pipeline.study import Training, load
from pipeline.study.effects import contrast, look_level, mapped
from pipeline.study.ranking import SMALL, Part, ranking
from pipeline.study.statistics import Interval
from pipeline.system.errors import run_command

DOCS = Path(__file__).parents[1]
KEPT, PAGE, BUILT = DOCS / "fashion", DOCS / "fashion.md", DOCS.parent / "build" / "fashion"
_FILES = ("params.yaml", "claims.yaml", "tables/epochs.csv", "tables/seeds.csv", "tables/variants.csv", "reports/claims.csv")


@dataclass(frozen=True)
class Pair:
    """A part on both data sets.

    Attributes:
        change: Fashion-MNIST's ratio over MNIST's, with Welch's interval over the four sides.
    """

    mnist: Part
    fashion: Part
    change: float
    interval: Interval

    @property
    def keeps(self) -> bool:
        return self.mnist.kind == self.fashion.kind and self.interval.low <= 1 <= self.interval.high


def pairs(params: Params, mnist: Mapping[str, Training], fashion: Mapping[str, Training]) -> list[Pair]:
    """The rows of `params.ranking` that both have, in MNIST's order. Both are compared with the same networks on each side."""
    level = look_level(params.looks)
    there = {part.name: part for part in ranking(params.ranking, fashion, level)}
    made = []
    for part in ranking(params.ranking, mnist, level):
        if part.name in there:
            sides = [np.log(late(runs[name].test_error)) for runs in (fashion, mnist) for name in (part.variant, part.reference)]
            found = contrast(*sides)
            ends = found.interval(level)
            assert ends is not None  # `ranking` leaves out a side of one seed
            made.append(Pair(part, there[part.name], math.exp(found.mean), mapped(ends, math.exp)))
    return made


def picture(found: list[Pair]) -> Picture:
    caption = (
        "What the removal or exchange of a part does to the test error, on MNIST and on Fashion-MNIST: ratio of the errors after it to "
        f"those before, and its interval. Dotted lines: {SMALL:g} and {1 / SMALL:g}."
    )
    made = [
        Row(part.name * first, part.ratio, part.interval.low, part.interval.high, colour, kind, right=digits(part.ratio))
        for pair in found
        for first, part, colour, kind in ((True, pair.mnist, INK, "MNIST"), (False, pair.fashion, COLOURS[1], "Fashion-MNIST"))
    ]
    place, dotted = "test errors after the change over those before, log scale", (1 / SMALL, SMALL)
    draw = partial(rows.draw, made, "", place, inches=0.2, fontsize=8.5, logarithmic=True, solid=(1.0,), dotted=dotted)
    return Picture(caption, draw, "fashion")


def page(params: Params, found: list[Pair], made: Picture) -> str:
    """The page. params: Fashion-MNIST's."""
    fashion = load(KEPT)
    both = fashion.trainings, load(DOCS.parent).trainings
    base = fashion.trainings["base"]
    rank = stats.spearmanr([pair.mnist.ratio for pair in found], [pair.fashion.ratio for pair in found]).statistic
    places = {pair.fashion.name: i for i, pair in enumerate(sorted(found, key=lambda pair: -pair.fashion.ratio), 1)}
    kept = [pair for pair in found if pair.keeps]
    apart = [pair for pair in found if not pair.interval.low <= 1 <= pair.interval.high]
    points = [
        [float(np.diff([late(runs[name].test_error).mean() for name in (pair.mnist.reference, pair.mnist.variant)])[0]) for runs in both]
        for pair in found
    ]
    grown = sum(abs(ours) > abs(theirs) for ours, theirs in points)
    errors = [late(runs["base"].test_error).mean() for runs in both]
    small = sum(pair.mnist.interval.low > 1 / SMALL and pair.mnist.interval.high < SMALL for pair in kept)
    count = sum(abs(math.log(pair.fashion.ratio)) < abs(math.log(pair.mnist.ratio)) for pair in found)
    smaller = "all" if count == len(found) else f"{count} of the"
    neither = [pair.fashion.name for pair in found if pair not in kept and pair not in apart]
    lines = [
        f"- {pair.fashion.name}: {digits(pair.fashion.ratio)} times the errors, where MNIST has {digits(pair.mnist.ratio)}"
        for pair in apart
    ]
    found_of = {
        row.claim: (estimate(row.effect, Interval(row.low, row.high, row.level), "{:.3f}".format), row.verdict)
        for row in fashion.claims.itertuples()
    }
    missing = [name for name in params.ranking if name not in places]
    numbers = sorted({len(fashion.trainings[name].seeds) for pair in found for name in (pair.fashion.variant, pair.fashion.reference)})
    return "\n".join(
        [
            "# Which parts matter on Fashion-MNIST",
            "",
            f"**Of {len(found)} parts of the network and of its training, {len(kept)} do on Fashion-MNIST what they do on MNIST**; {small} "
            f"of these change the errors by less than a quarter on both. The order of all has a rank correlation of {rank:.2f} (Spearman), "
            f"and {smaller} {len(found)} ratios lie nearer to 1 than on MNIST. But the base errs {digits(errors[0] / errors[1])} times as "
            f"often there, and in points {grown} of the {len(found)} effects are larger. "
            f"A part does the same where the ratio of both ratios may be 1, and both intervals lie above {SMALL:g}, "
            f"both below {1 / SMALL:g}, both between these, or both across one of them.",
            "",
            f"![{made.caption.split(':')[0]}](fashion.png)",
            "",
            f"*{made.caption}*",
            "",
            *(
                [
                    f"The effect differs between the two in {len(apart)} of them (the interval of the ratio of both ratios leaves out 1):",
                    "",
                    *lines,
                    *(["", f"Neither can be said of *{listed(neither)}*."] if neither else []),
                ]
                if apart
                else ["In none does the effect differ between the two by more than chance allows."]
            ),
            "",
            f"The base reaches {100 * (1 - late(base.test_error).mean()):.2f} % on Fashion-MNIST. Settings, lengths and networks are "
            f"MNIST's; nothing was chosen on Fashion-MNIST. Each of its networks has {listed([str(n) for n in numbers])} seeds, MNIST's "
            "have as many as [its ranking](../reports/README.md#which-parts-matter). "
            f"Intervals of {100 * look_level(params.looks):.3g} % (Welch)."
            + (f" Not trained yet on Fashion-MNIST: {'; '.join(missing)}." if missing else ""),
            "",
            *table(
                ["taken away or exchanged", "MNIST", "Fashion-MNIST", "Fashion-MNIST's over MNIST's", "place on MNIST", "on Fashion-MNIST"],
                "lrrrrr",
                [
                    [
                        pair.mnist.name + f", beside `{pair.mnist.reference}`" * (pair.mnist.reference != "base"),
                        estimate(pair.mnist.ratio, pair.mnist.interval, digits),
                        estimate(pair.fashion.ratio, pair.fashion.interval, digits),
                        estimate(pair.change, pair.interval, digits),
                        i,
                        places[pair.fashion.name],
                    ]
                    for i, pair in enumerate(found, 1)
                ],
            ),
            "",
            "## The claims",
            "",
            "Each says of Fashion-MNIST what had been found on MNIST, and was written before the first training on Fashion-MNIST. "
            "Fewer is any ratio below 1 here.",
            "",
            *table(
                ["claim", "", "claimed", "found", "verdict"],
                "lllrl",
                [
                    [id, claim.sentence, claimed(claim.comparisons[0]), *found_of.get(id, ("-", "not run"))]
                    for id, claim in params.claims.items()
                ],
            ),
            "",
            "`python -m pipeline.commands.profiles fashion` trains all of it into build/fashion (hours of two cores), and "
            "`python -m docs.method.fashion` takes its tables into [fashion/](fashion/) and writes this page.",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.fashion", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    if (BUILT / "reports" / "claims.csv").exists():
        for file in _FILES:
            (KEPT / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(BUILT / file, KEPT / file)
    params = load_params(KEPT / "params.yaml")
    found = pairs(params, load(DOCS.parent).trainings, load(KEPT).trainings)
    made = picture(found)
    write_with_picture(PAGE, page(params, found, made), made)


if __name__ == "__main__":
    run_command(main)
