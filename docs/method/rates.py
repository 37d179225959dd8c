"""Whether an effect is one of the learning rate: networks compared at the common rate, and each at its best of three.

`python -m docs.method.rates` trains the networks of some claims (those named, or all of `CLAIMS`) at half, once and twice the study's rate
in build/rates, the last 10,000 training images held out, which takes hours of two cores. It writes what each reached into docs/rates.csv,
whose networks it does not train again, and docs/rates.md with its figure from that; `--page` writes the page alone. A network's best rate
is the one with the fewest errors on the held-out images; the effect is one of test errors.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from docs.method.judge_rates import table, write_with_picture
from pipeline import params
from pipeline.commands import profiles, repro
from pipeline.measures import MEASURES, late
from pipeline.measures.definitions import FloatArray
from pipeline.params import ClaimSettings, ComparisonSettings, Params
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, INK, Picture
from pipeline.report.figures.rows import Row
from pipeline.report.text import digits, estimate, listed
from pipeline.study import load
from pipeline.study.claims import region
from pipeline.study.effects import effect, mapped
from pipeline.study.statistics import LEVEL, Interval
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import replacing

DOCS = Path(__file__).parents[1]
TABLE, PAGE = DOCS / "rates.csv", DOCS / "rates.md"
CLAIMS = ("T1a", "T3", "T5a", "T11a", "T11b", "T11c", "T12b", "A1", "A2", "A3", "A4")
LEFT_OUT = {"patch-2"}  # ten times the base's arithmetic
FACTORS = {"half": 0.5, "common": 1.0, "double": 2.0}  # of the study's rate
SEEDS, HELD_OUT = 3, 10_000


@dataclass(frozen=True)
class Side:
    """A network at each rate.

    Attributes:
        errors: late test errors (seed,), by the rate's name.
        held_out: errors on the held-out images after the last epoch (seed,), by the rate's name.
    """

    name: str
    errors: dict[str, FloatArray]
    held_out: dict[str, FloatArray]

    @property
    def best(self) -> str:
        """The rate's name with the smallest mean error on the held-out images."""
        return min(FACTORS, key=lambda rate: float(self.held_out[rate].mean()))


@dataclass(frozen=True)
class Pair:
    """A comparison of a claim: what it finds at the common rate, and with each side at its best."""

    claim: str
    comparison: ComparisonSettings
    variant: Side
    reference: Side

    def _interval(self, measure: str, rates: Sequence[str], of: Callable[[FloatArray], FloatArray]) -> tuple[float, Interval]:
        sides = (of(side.errors[rate]) for side, rate in zip((self.variant, self.reference), rates, strict=True))
        found, show = effect(MEASURES[measure], *sides), math.exp if MEASURES[measure].ratio else float
        ends = found.interval(LEVEL)
        assert ends is not None  # seeds differ
        return show(found.mean), mapped(ends, show)

    def ratio(self, rates: Sequence[str]) -> tuple[float, Interval]:
        """Of late test errors with Welch's interval; `rates` of the variant and of the reference."""
        return self._interval("late test error", rates, lambda errors: errors)

    def place(self, rates: Sequence[str]) -> str:
        """Where the interval of the effect in the claim's own measure lies to the region in which the claim puts the effect."""
        of_errors = self.comparison.measure == "late test error"
        _, ends = self._interval(self.comparison.measure, rates, lambda errors: errors if of_errors else 1 - errors)
        low, high = region(self.comparison)
        return "inside" if low < ends.low and ends.high < high else "outside" if ends.high < low or ends.low > high else "across"

    @property
    def best(self) -> tuple[str, str]:
        return self.variant.best, self.reference.best


COMMON = ("common", "common")


def compared(study: Params, claims: Sequence[str] = CLAIMS) -> list[tuple[str, ComparisonSettings]]:
    found = [(id, one) for id in claims for one in study.claims[id].comparisons]
    return [(id, one) for id, one in found if not LEFT_OUT & {*one.variants}]


def variants(study: Params, name: str) -> dict[str, dict[str, object]]:
    """A network at each rate, as params.yaml has variants."""
    own = {key: value for key, value in study.difference(name).items() if key != "seeds"} | {"divergence": "record"}
    return {f"{name}-{rate}": own | {"learning_rate": factor * study.train.learning_rate} for rate, factor in FACTORS.items()}


def lay_out(name: str, train: Mapping[str, object], variants: Mapping[str, object], **changes: object) -> Path:
    """Makes the folder build/NAME of a study without claims and experiments.

    Args:
        train: options of `train` that differ from the study's.
        changes: other sections of params.yaml.
    """
    study = params.study.read_both(profiles.ROOT / "params.yaml")
    without = {"experiments": {}, "claims": {}, "ranking": {}, "timing": {"subjects": {}}, "profile": name}
    return profiles.lay_out(name, study | without | {"train": study["train"] | train, "variants": variants} | changes)


def run(name: str, train: Mapping[str, object], variants: Mapping[str, object], **changes: object) -> Path:
    """Trains and evaluates variants in build/NAME, without claims and experiments; gives that folder. Arguments as for `lay_out`."""
    directory = lay_out(name, train, variants, **changes)
    repro.reproduce(directory)
    return directory


def train(study: Params, name: str) -> pd.DataFrame:
    """A row for each rate and seed of a network."""
    directory = run("rates", {"seeds": SEEDS, "validation": HELD_OUT}, variants(study, name))
    found = []
    for variant, one in load(directory).trainings.items():
        rate = variant.rpartition("-")[2]
        held_out = MEASURES["validation accuracy"].per_seed(one)
        assert held_out is not None  # each of them is evaluated
        columns = zip(one.seeds, late(one.test_error), 1 - held_out, strict=True)
        found += [(name, rate, one.settings.train.learning_rate, seed, error, validation) for seed, error, validation in columns]
    return pd.DataFrame(found, columns=["variant", "rate", "learning_rate", "seed", "late_test_error", "validation_error"])


def pairs(study: Params, of: pd.DataFrame) -> list[Pair]:
    values = {
        (name, column): {rate: of.loc[(of["variant"] == name) & (of["rate"] == rate), column].to_numpy(np.float64) for rate in FACTORS}
        for name in of["variant"].unique()
        for column in ("late_test_error", "validation_error")
    }
    sides = {name: Side(name, values[name, "late_test_error"], values[name, "validation_error"]) for name, _ in values}
    return [Pair(id, one, *(sides[name] for name in one.variants)) for id, one in compared(study) if sides.keys() >= {*one.variants}]


def picture(found: Sequence[Pair]) -> Picture:
    caption = (
        "Test errors of two networks, as a ratio with its 95 % interval: both at the study's rate, and each at its best of three. Shaded: "
        "where the claim puts the ratio, if it speaks of one."
    )
    made, span = [], [end for pair in found for rates in (COMMON, pair.best) for end in astuple(pair.ratio(rates)[1])[:2]]
    ends = min(span) / 1.05, max(span) * 1.05
    for pair in found:
        of_ratio = MEASURES[pair.comparison.measure].ratio
        shaded = region(pair.comparison) if of_ratio else None
        for rates, colour, kind in ((COMMON, INK, "common rate"), (pair.best, COLOURS[1], "each at its best rate")):
            ratio, interval = pair.ratio(rates)
            label = f"{pair.claim}: {pair.variant.name}, {pair.reference.name}" * (rates is COMMON)
            made.append(Row(label, ratio, interval.low, interval.high, colour, kind, region=shaded, right=digits(ratio)))
    draw = partial(
        rows.draw, made, "", "ratio of test errors, log scale", inches=0.2, fontsize=8.5, logarithmic=True, ends=ends, solid=(1.0,)
    )
    return Picture(caption, draw, "rates")


def sentence(id: str, claim: ClaimSettings, found: Sequence[Pair], rate: float) -> str:
    parts = []
    for pair in found:
        best = [f"{side.name} at {FACTORS[side.best] * rate:g}" for side in (pair.variant, pair.reference)]
        before, after = (f"{estimate(*pair.ratio(rates), digits)}" for rates in (COMMON, pair.best))
        parts.append(f"{before} at the common rate ({pair.place(COMMON)}), {after} with {listed(best)} ({pair.place(pair.best)})")
    return f"- **{id}** {claim.sentence} {'; '.join(parts)}."


def page(study: Params, found: Sequence[Pair], made: Picture) -> str:
    rate = study.train.learning_rate
    rates = [f"{factor * rate:g}" for factor in FACTORS.values()]
    others = [pair for pair in found if pair.best != COMMON]
    places = [(pair.claim, pair.place(COMMON), pair.place(pair.best)) for pair in others]
    placed = [(id, {*both}) for id, *both in places if "across" not in both]
    turned = list(dict.fromkeys(id for id, both in placed if len(both) > 1))
    sides = {side.name: side for pair in found for side in (pair.variant, pair.reference)}
    all_names = {name for id in CLAIMS for one in study.claims[id].comparisons for name in one.variants}
    missing = [name + " (ten times the base's arithmetic)" * (name in LEFT_OUT) for name in sorted(all_names - sides.keys())]
    bests = [f"{sum(side.best == name for side in sides.values())} at {text}" for name, text in zip(FACTORS, rates, strict=True)]
    ends = sum(side.best != "common" for side in sides.values())
    cells = []
    for name, side in sides.items():
        held_out, errors = ([f"{100 * values[one].mean():.2f}" for one in FACTORS] for values in (side.held_out, side.errors))
        cells.append([name, *held_out, f"{FACTORS[side.best] * rate:g}", *errors])
    return "\n".join(
        [
            "# Does the learning rate decide the verdicts?",
            "",
            f"**With each network at the best of three rates, {len(turned) or 'none'} of the {len(placed)} effects that {SEEDS} seeds "
            f"place inside or outside of where their claim puts them {'turn' if len(turned) > 1 else 'turns'} to the opposite**"
            + f" ({listed(turned)})"
            * bool(turned)
            + f"; of {len(others) - len(placed)} others the interval crosses an edge of the claim's region at the common rate or at the "
            f"best, which decides nothing, and in {len(found) - len(others)} both networks are best at the common rate. In these claims "
            f"every network has the rate {rate:g}. Here each was trained at {listed(rates)}, and its best rate was chosen "
            f"on {HELD_OUT:,} training images that no training saw: {listed(bests)}. The best of {ends} of {len(sides)} networks is the "
            "lowest or the highest that was tried.",
            "",
            f"![{made.caption.split(':')[0]}](rates.png)",
            "",
            f"*{made.caption}*",
            "",
            *(
                sentence(id, study.claims[id], [pair for pair in found if pair.claim == id], rate)
                for id in dict.fromkeys(pair.claim for pair in found)
            ),
            "",
            f"These trainings explore: they decide no claim. Each has {SEEDS} seeds, the study's length and {HELD_OUT:,} images fewer "
            "than the study's, so ratios at the common rate differ a little from those of the claims' pages. Test errors are means over "
            "the last five epochs (of five epochs the last); where an effect lies is asked in the claim's own measure. A rate chosen on "
            "the networks that are compared flatters each side a little." + (f" Not trained here: {listed(missing)}." if missing else ""),
            "",
            *table(
                ["network", *(f"held-out error, % at {one}" for one in rates), "best rate", *(f"test error, % at {one}" for one in rates)],
                "l" + "r" * (2 * len(rates) + 1),
                cells,
            ),
            "",
            "[rates.csv](rates.csv) has every seed. `python -m docs.method.rates` trains what it lacks (hours of two cores) and writes "
            "this page; `--page` writes the page alone.",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.method.rates", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("claims", nargs="*", default=CLAIMS, metavar="CLAIM", help="whose networks are trained")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from docs/rates.csv")
    given, study = parser.parse_args(argv), params.load()
    if unknown := [id for id in given.claims if id not in CLAIMS]:
        raise UserError(f"{unknown[0]} is no claim whose networks are trained at other rates: name some of {listed(CLAIMS)}.")
    if not given.page:
        have = [pd.read_csv(TABLE)] if TABLE.exists() else []
        for name in dict.fromkeys(name for _, one in compared(study, given.claims) for name in one.variants):
            if not any((rows["variant"] == name).any() for rows in have):
                have.append(train(study, name))
                with replacing(TABLE) as file:
                    pd.concat(have).to_csv(file, index=False)
    if not TABLE.exists():
        raise UserError(f"There is no {TABLE.name} yet: run this command without --page, which trains what it has to hold.")
    found = pairs(study, pd.read_csv(TABLE))
    made = picture(found)
    write_with_picture(PAGE, page(study, found, made), made)


if __name__ == "__main__":
    run_command(main)
