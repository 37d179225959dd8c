"""How often verdicts are wrong, counted on simulated trainings whose truth is known.

`python -m docs.method.error_rates` counts them, and writes docs/method/error_rates.csv and the tables of docs/method.md. Every simulation
has a fixed start, so the table is the same on every machine. Each trial adds seeds as a study does that goes on until it is decided: both
sides six, one ten, both ten, and so on to a hundred. Which side is the first is not known beforehand, so all orders are counted, and the
table has the worst. The first verdict counts, whatever later looks would say. A study goes on after *no effect of more than a quarter*,
so that it can still err otherwise.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np

from docs.method.judge_rates import table, write_between
from pipeline.measures.definitions import FloatArray
from pipeline.params import ClaimSettings, ComparisonSettings
from pipeline.study.claims import judge
from pipeline.study.training import Training
from pipeline.system.errors import run_command
from pipeline.system.files import replacing
from pipeline.system.provenance import ROOT

TABLE = ROOT / "docs/method/error_rates.csv"
PAGE = ROOT / "docs" / "method.md"
MARKS = tuple(
    (f"<!-- {name}, counted by python -m docs.method.error_rates -->\n", f"<!-- end of the {name} -->\n") for name in ("errors", "power")
)
LOOKS = (6, 10, 20, 100)
TRIALS = 2000
_EPOCHS = 10
_MARGIN, _RELEVANT = 1.25, 1.05  # of "as well as", and of "better"
_ERROR = 0.025  # test error about which the trainings lie

Draw = Callable[[np.random.Generator, int], FloatArray]


@dataclass(frozen=True)
class Simulated:
    """Trainings with the same error in every epoch, as a claim sees a training."""

    seeds: tuple[int, ...]
    errors: FloatArray
    supervised_epochs: int = _EPOCHS
    is_captioner: bool = False

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(images_shown=1, num_outputs=10, train=SimpleNamespace(ends_at_zero=False))

    @property
    def train_loss(self) -> FloatArray:
        """Of networks that learn something."""
        return np.zeros((len(self.seeds), _EPOCHS))

    @property
    def test_error(self) -> FloatArray:
        return np.repeat(self.errors[:, None], _EPOCHS, axis=1)

    @property
    def test_accuracy(self) -> FloatArray:
        return 1 - self.test_error

    def first(self, n: int) -> Simulated:
        return replace(self, seeds=self.seeds[:n], errors=self.errors[:n])


@dataclass(frozen=True)
class Scenario:
    """A claim about two networks, and how their errors spread over seeds.

    Attributes:
        name: in words.
        rule, bound: of the claim.
        ratio: true ratio of the geometric means of the errors.
        variant, reference: draw logarithms of errors about 0.
        false: the verdicts that are wrong.
        right: the verdicts of which the power is the share.
    """

    name: str
    rule: str
    bound: float
    ratio: float
    variant: Draw
    reference: Draw
    false: tuple[str, ...]
    right: tuple[str, ...] = ("supported",)


def _normal(spread: float) -> Draw:
    return lambda rng, n: rng.normal(0, spread, n)


def _skewed(rng: np.random.Generator, n: int) -> FloatArray:
    """A long tail towards large errors: exponential, with the mean taken off."""
    return 0.15 * (rng.exponential(size=n) - 1)


def _collapsing(rng: np.random.Generator, n: int) -> FloatArray:
    """One seed in ten learns nothing: nine of ten images wrong."""
    return np.where(rng.uniform(size=n) < 0.1, math.log(0.9 / _ERROR), rng.normal(0, 0.15, n))


def _tests_collapse(rng: np.random.Generator, n: int) -> FloatArray:
    """One test in 56 has four times the errors or more, as those of the study's CNNs with batch norm; of the last five tests the mean
    counts."""
    tests = np.where(rng.uniform(size=(n, 5)) < 1 / 56, 4 * np.exp(rng.exponential(0.8, (n, 5))), 1.0)
    return rng.normal(0, 0.15, n) + np.log(tests.mean(1))


_SPREADS: dict[str, tuple[Draw, Draw]] = {
    "normal": (_normal(0.15), _normal(0.15)),
    "one side spreads three times as far": (_normal(0.3), _normal(0.1)),
    "skewed": (_skewed, _skewed),
    "one side skewed": (_skewed, _normal(0.15)),
    "one side skewed, the other spreads a third as far": (_skewed, _normal(0.05)),
    "one seed in ten collapses": (_collapsing, _collapsing),
    "one test in 56 collapses": (_tests_collapse, _tests_collapse),
    "one test in 56 of one side collapses": (_tests_collapse, _normal(0.15)),
    "one test in 56 of one side collapses, the other spreads a third as far": (_tests_collapse, _normal(0.05)),
}


def scenarios() -> Iterator[Scenario]:
    for spread, (variant, reference) in _SPREADS.items():
        of = f", {spread}"
        yield Scenario("similar; no difference" + of, "equivalent", _MARGIN, 1.0, variant, reference, ("contradicted",))
        yield Scenario("similar; on the margin" + of, "equivalent", _MARGIN, _MARGIN, variant, reference, ("supported", "contradicted"))
        yield Scenario("better; no difference" + of, "less", 1 / _RELEVANT, 1.0, variant, reference, ("supported",))
        effect = ("no effect of more than a quarter", "contradicted")
        yield Scenario("better; a fifth fewer errors" + of, "less", 1 / _RELEVANT, 1 / _MARGIN, variant, reference, effect)
        on_bound = ("supported", "contradicted")
        yield Scenario("better; on the bound" + of, "less", 1 / _RELEVANT, 1 / _RELEVANT, variant, reference, on_bound)


def power() -> Iterator[Scenario]:
    """Scenarios in which something is true, and in which nothing is; what is counted is the share that says so, so `false` is empty."""
    nothing = ("contradicted", "no effect of more than a quarter")
    for spread in (0.1, 0.2):
        draw = _normal(spread)
        of = f", spread {spread:g}"
        yield Scenario("similar; no difference" + of, "equivalent", _MARGIN, 1.0, draw, draw, ())
        yield Scenario("as well as; no difference" + of, "less", _MARGIN, 1.0, draw, draw, ())
        yield Scenario("better; a fifth fewer errors" + of, "less", 1 / _RELEVANT, 0.8, draw, draw, ())
        yield Scenario("better; nothing is true" + of, "less", 1 / _RELEVANT, 1.0, draw, draw, (), nothing)


@cache
def _claim(rule: str, bound: float) -> ClaimSettings:
    comparison = ComparisonSettings.model_validate(
        {"rule": rule, "measure": "late test error", "variant": "a", "reference": "b", "bound": bound}
    )
    return ClaimSettings(source="-", sentence="-", measured="-", margin="-", comparisons=(comparison,))


def look_orders(looks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Numbers of seeds of both sides, from the first look to the last: a side leads by one look at most, and it may be either.

    Returns:
        one list for each order. All have the same length, and at each step the same two numbers.
    """
    orders = [[(k, k) for k in looks[:1]]]
    for before, k in pairwise(looks):
        orders = [[*order, ahead, (k, k)] for order in orders for ahead in ((before, k), (k, before))]
    return orders


def verdicts(scenario: Scenario, rng: np.random.Generator) -> list[list[str]]:
    """The verdicts of one trial: of each of `look_orders`, at each step."""
    seeds = tuple(range(LOOKS[-1]))

    def side(draw: Draw, ratio: float) -> Simulated:
        return Simulated(seeds, np.minimum(_ERROR * ratio * np.exp(draw(rng, len(seeds))), 0.95))

    a, b = side(scenario.variant, scenario.ratio), side(scenario.reference, 1.0)

    @cache
    def verdict(n: int, m: int) -> str:
        evidence = {"a": cast(Training, a.first(n)), "b": cast(Training, b.first(m))}
        return judge("-", _claim(scenario.rule, scenario.bound), evidence, images_shown=1, looks=LOOKS).verdict

    return [[verdict(n, m) for n, m in order] for order in look_orders(LOOKS)]


def rates(scenario: Scenario, trials: int) -> tuple[float, float, float]:
    """Shares of trials: with a false verdict at some look, with a right one at the first look, with a right one at some look.

    Of the order in which sides go on that has the most false verdicts, and among equals the fewest right ones.
    """
    rng = np.random.default_rng(0)
    orders = len(look_orders(LOOKS))
    false, first, at_some = np.zeros(orders), np.zeros(orders), np.zeros(orders)
    for _ in range(trials):
        found = verdicts(scenario, rng)
        last = [next((i for i, verdict in enumerate(order) if verdict in ("supported", "contradicted")), len(order)) for order in found]
        seen = [{*order[: end + 1]} for order, end in zip(found, last, strict=True)]
        false += [not verdicts.isdisjoint(scenario.false) for verdicts in seen]
        first += [order[0] in scenario.right for order in found]
        at_some += [not verdicts.isdisjoint(scenario.right) for verdicts in seen]
    worst = max(range(orders), key=lambda order: (false[order], -at_some[order]))
    return float(false[worst]) / trials, float(first[worst]) / trials, float(at_some[worst]) / trials


def read() -> list[dict[str, str]]:
    """The table as last counted. Columns: kind (error or power), scenario, shares (false, first, decided; see `rates`), trials."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables(rows: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """The page's two, of `read`: the share of false verdicts by spread and claim, and the share of right ones by claim."""
    errors = [(*row["scenario"].split(", ", 1), row["false"]) for row in rows if row["kind"] == "error"]
    claims, spreads = (list(dict.fromkeys(column)) for column in list(zip(*errors, strict=True))[:2])
    shares = {(claim, spread): f"{100 * float(false):.1f}" for claim, spread, false in errors}
    power = [
        [row["scenario"], *(f"{100 * float(row[name]):.1f}" for name in ("first", "decided"))] for row in rows if row["kind"] == "power"
    ]
    first = table(["errors over seeds", *claims], "l" + "r" * len(claims), [[one, *(shares[of, one] for of in claims)] for one in spreads])
    return first, table(["claim", "with 6 seeds", "at some look"], "lrr", power)


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.error_rates", description="How often verdicts are wrong.").parse_args(argv)
    rows = []
    for kind, of in (("error", scenarios()), ("power", power())):
        for scenario in of:
            row = rates(scenario, TRIALS)
            rows.append([kind, scenario.name, *(f"{share:.4f}" for share in row), TRIALS])
            print(
                f"{kind:5}  {scenario.name:70} false {row[0]:.3f}, right at the first look {row[1]:.3f}, at some {row[2]:.3f}",
                flush=True,
            )
    with replacing(TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "scenario", "false", "first", "decided", "trials"])
        writer.writerows(rows)
    for marks, lines in zip(MARKS, tables(read()), strict=True):
        write_between(PAGE, marks, lines)


if __name__ == "__main__":
    run_command(main)
