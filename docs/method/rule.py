"""Whether memory slots help where pictures follow a rule that slots could hold, which MNIST's do not (claim C2).

`python -m docs.method.rule` draws pictures of two digits, of which the right one is the left one plus one and one of the two is covered,
trains transformers without and with memory slots in build/rule to tell the left one (half an hour of two cores), and writes docs/rule.csv,
and docs/rule.md with its figure from that; `--page` writes the page alone. The idea that slots hold what is known beforehand of how parts
of a picture go together is that of Cornia et al. 2020, section 3.1.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from docs.method.judge_rates import table, write_with_picture
from docs.method.rates import run
from pipeline.commands import profiles
from pipeline.data import datasets
from pipeline.measures import late
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, INK, Picture
from pipeline.report.figures.rows import Row
from pipeline.report.text import digits, estimate, listed
from pipeline.study import load
from pipeline.study.effects import contrast, mapped
from pipeline.study.ranking import SMALL
from pipeline.study.statistics import LEVEL, Interval
from pipeline.system.errors import run_command
from pipeline.system.files import replacing

DOCS = Path(__file__).parents[1]
TABLE, PAGE = DOCS / "rule.csv", DOCS / "rule.md"
SLOTS, SEEDS, PATCH = (0, 4, 16), 6, 7
COVERED = 128  # grey of what covers a digit
ERRORS = {"late_test_error": "all pictures, last epochs", "seen": "left digit seen", "covered": "left digit covered"}

Pictures = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]


def draw(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], random: np.random.Generator) -> Pictures:
    """Pictures of two digits at half their size, the left one's class, and whether it is the one that is covered.

    Args:
        images: (image, 28, 28); each is the left digit of one picture.
    """
    halves = images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).round().astype(np.uint8)
    right = np.empty(len(labels), np.int64)
    for label in range(10):
        right[labels == label] = random.choice(np.flatnonzero(labels == (label + 1) % 10), (labels == label).sum())
    covered = random.random(len(labels)) < 0.5
    drawn = np.zeros_like(images)
    drawn[:, 7:21, :14], drawn[:, 7:21, 14:] = halves, halves[right]
    drawn[covered, 7:21, :14] = drawn[~covered, 7:21, 14:] = COVERED
    return drawn, labels, covered


def train(data: datasets.Dataset) -> pd.DataFrame:
    """A row for each number of slots and seed."""
    random, directory = np.random.default_rng(0), profiles.ROOT / "build" / "rule"
    images, labels, _ = draw(data.train_images, data.train_labels, random)
    test_images, test_labels, covered = draw(data.test_images, data.test_labels, random)
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / "rule.npz") as file, file.open("wb") as opened:
        np.savez(opened, train_images=images, train_labels=labels, test_images=test_images, test_labels=test_labels)
    here = {"dataset": "npz", "path": str(directory / "rule.npz"), "size": 28, "channels": 1, "classes": 10}
    run("rule", {"seeds": SEEDS}, {f"memory-{slots}": {"patch": PATCH, "memory": slots} for slots in SLOTS}, data=here)
    found = []
    for slots in SLOTS:
        one = load(directory).trainings[f"memory-{slots}"]
        assert one.predictions is not None  # each of them is evaluated
        wrong = one.predictions[0] != one.predictions[1]
        columns = zip(one.seeds, late(one.test_error), wrong[:, ~covered].mean(1), wrong[:, covered].mean(1), strict=True)
        found += [(slots, one.parameters, *row) for row in columns]
    return pd.DataFrame(found, columns=["slots", "parameters", "seed", *ERRORS])


def ratios(of: pd.DataFrame) -> dict[tuple[int, str], tuple[float, Interval]]:
    """By number of slots and kind of error: errors over those without slots."""
    found = {}
    for slots in SLOTS[1:]:
        for kind in ERRORS:
            ours, none = (np.log(of.loc[of["slots"] == number, kind].to_numpy(np.float64)) for number in (slots, 0))
            ratio = contrast(ours, none)
            ends = ratio.interval(LEVEL)
            assert ends is not None  # six seeds differ
            found[slots, kind] = math.exp(ratio.mean), mapped(ends, math.exp)
    return found


def picture(of: pd.DataFrame) -> Picture:
    caption = "Test errors with memory slots over those without, where a rule tells the covered digit: ratio with its 95 % interval."
    made = []
    for (slots, kind), (ratio, ends) in ratios(of).items():
        colour = INK if kind == "late_test_error" else COLOURS[1]
        made.append(Row(f"{slots} slots: {ERRORS[kind]}", ratio, ends.low, ends.high, colour, right=digits(ratio)))
    place = "ratio of test errors, log scale"
    return Picture(caption, partial(rows.draw, made, "", place, inches=0.2, fontsize=8.5, logarithmic=True, solid=(1.0,)), "rule")


def page(of: pd.DataFrame, made: Picture) -> str:
    found = ratios(of)
    said = [f"{estimate(*found[slots, 'late_test_error'], digits)} ({slots} slots)" for slots in SLOTS[1:]]
    main = [found[slots, "late_test_error"][1] for slots in SLOTS[1:]]
    fewer, more = sum(ends.high < 1 for ends in main), sum(ends.low > 1 for ends in main)
    answer = (
        f"{fewer} of {len(main)} make fewer, {more} more" if fewer or more else "no interval leaves out 1, so nothing says that they help"
    )
    hidden = [f"{estimate(*found[slots, 'covered'], digits)}" for slots in SLOTS[1:]]
    is_small = all(ends.low > 1 / SMALL and ends.high < SMALL for ends in main)
    small = "Over all pictures any effect is smaller than a quarter; where the left digit is covered the ratios are"
    seen, covered = (f"{100 * of.loc[of['slots'] == 0, kind].mean():.1f} %" for kind in ("seen", "covered"))
    cells = []
    for slots in SLOTS:
        own = of[of["slots"] == slots]
        errors = [f"{100 * own[kind].mean():.2f} ± {100 * own[kind].std():.2f}" for kind in ERRORS]
        cells.append([slots, f"{own['parameters'].iloc[0]:,}", *errors])
    return "\n".join(
        [
            "# Memory slots where pictures follow a rule",
            "",
            f"**With memory slots a transformer makes {listed(said)} times the errors of one without; {answer}.** "
            + f"{small} {listed(hidden)}. " * is_small
            + "The pictures have two digits, of which the right one is always the left one plus one (after 9 comes 0). "
            "One of the two is covered, either as often, and the left one is asked for. "
            "So in half of the pictures the answer follows from the rule alone, which slots could hold, and MNIST has none such "
            f"([C2](../reports/experiments/memory.md)). Without slots, {seen} are wrong where the left digit is seen, and {covered} "
            "where it is covered, where one that does not know the rule is wrong in 90 %.",
            "",
            f"![{made.caption.split(':')[0]}](rule.png)",
            "",
            f"*{made.caption}*",
            "",
            *table(["slots", "parameters", *(f"{text}: error, %" for text in ERRORS.values())], "rr" + "r" * len(ERRORS), cells),
            "",
            f"Means and standard deviations over {SEEDS} seeds, ratios with 95 % intervals (Welch). Digits of MNIST at half their size, "
            f"side by side in 28 x 28 pixels, each on four patches of {PATCH} pixels, what is covered grey; each of MNIST's images is the "
            "left digit of one picture. Network, rate and length are otherwise the study's. Slots are learned keys and values that each "
            "token of every block can attend to (Cornia et al. 2020, section 3.1). *Seen* and *covered* are after the last epoch. These "
            "trainings explore: they decide no claim.",
            "",
            "`python -m docs.method.rule` trains all of it (half an hour of two cores) and writes this page; `--page` writes it from "
            "[rule.csv](rule.csv).",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.method.rule", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from docs/rule.csv")
    if not parser.parse_args(argv).page:
        with replacing(TABLE) as file:
            train(datasets.load()).to_csv(file, index=False)
    of = pd.read_csv(TABLE)
    made = picture(of)
    write_with_picture(PAGE, page(of, made), made)


if __name__ == "__main__":
    run_command(main)
