"""Whether memory slots help where pictures follow a rule that slots could hold, which MNIST's do not (claims C2 and C2-captions).

In pictures of pairs of digits the right one is the left one plus one, and one of the two is covered. `python -m docs.method.rule` trains
networks without and with memory slots to tell the left digit of one pair (in build/rule) and to describe scenes of one or two pairs (in
build/rule-captions), half an hour of two cores each. It writes docs/rule.csv, and docs/rule.md with its figure from that; a task named
after it is trained alone, and `--page` writes the page alone. The idea that slots hold what is known beforehand of how parts of a picture
go together is that of Cornia et al. 2020, section 3.1.
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
from docs.method.rates import lay_out, run
from pipeline import params
from pipeline.captioning import scenes
from pipeline.captioning.grammar import PHRASINGS, grammar_of
from pipeline.captioning.scenes import Scenes, Split, scene_of
from pipeline.commands import profiles, repro
from pipeline.data import datasets
from pipeline.measures import late
from pipeline.params import ScenesSettings
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
SLOTS = {"tell": (0, 4, 16), "describe": (0, 8)}  # of each block, by task
DOES = {"tell": "tells the left digit", "describe": "describes the scene"}
SEEDS, PATCH, EPOCHS = 6, 7, 7  # epochs of those that describe: half as many as in claim C2-captions
COVERED = 128  # grey of what covers a digit
ERRORS = {"error": "all pictures", "seen": "digit seen", "covered": "digit covered"}

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


def draw_scenes(data: datasets.Dataset, settings: ScenesSettings, random: np.random.Generator) -> Scenes:
    """Scenes with a pair in the upper row, the lower or both, equally likely. The cell of a covered digit is empty, not without label."""
    grammar, held_out = grammar_of(data.name), len(data.train_images) // scenes.VALIDATION_SHARE
    of_training = np.arange(len(data.train_images))
    pools = {"train": of_training[:-held_out], "validation": of_training[-held_out:], "test": np.arange(len(data.test_images))}
    splits = {}
    for split, pool in pools.items():
        of_images, count = data.test_labels if split == "test" else data.train_labels, getattr(settings, split)
        seen, side = random.choice(pool, (count, 2)), random.integers(2, size=(count, 2))  # (scene, row): an image, and where it is
        left_out = random.integers(3, size=(count, 1)) == np.arange(2)
        cells = np.where((side[..., None] == [0, 1]) & ~left_out[..., None], seen[..., None], -1)
        labels = np.where(left_out[..., None], -1, ((of_images[seen].astype(int) - side)[..., None] + [0, 1]) % 10)
        cells, labels = cells.reshape(-1, 4).astype(np.int32), labels.reshape(-1, 4).astype(np.int8)
        described = [[grammar.encode(grammar.describe(scene_of(scene), phrasing)) for phrasing in PHRASINGS] for scene in labels]
        splits[split] = Split(cells, labels, np.array(described, np.uint8))
    return Scenes(data.name, data.digest, grammar.words, **splits)


def train_to_tell(data: datasets.Dataset) -> pd.DataFrame:
    """A row for each number of slots and seed."""
    random, directory = np.random.default_rng(0), profiles.ROOT / "build" / "rule"
    images, labels, _ = draw(data.train_images, data.train_labels, random)
    test_images, test_labels, covered = draw(data.test_images, data.test_labels, random)
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / "rule.npz") as file, file.open("wb") as opened:
        np.savez(opened, train_images=images, train_labels=labels, test_images=test_images, test_labels=test_labels)
    here = {"dataset": "npz", "path": str(directory / "rule.npz"), "size": 28, "channels": 1, "classes": 10}
    run("rule", {"seeds": SEEDS}, {f"memory-{slots}": {"patch": PATCH, "memory": slots} for slots in SLOTS["tell"]}, data=here)
    found = []
    for slots in SLOTS["tell"]:
        one = load(directory).trainings[f"memory-{slots}"]
        assert one.predictions is not None  # each of them is evaluated
        wrong = one.predictions[0] != one.predictions[1]
        columns = zip(one.seeds, late(one.test_error), wrong[:, ~covered].mean(1), wrong[:, covered].mean(1), strict=True)
        found += [("tell", slots, one.parameters, *row) for row in columns]
    return pd.DataFrame(found, columns=["task", "slots", "parameters", "seed", *ERRORS])


def train_to_describe(data: datasets.Dataset) -> pd.DataFrame:
    """A row for each number of slots and seed. A digit is wrong where the caption names another, none or is no caption."""
    study = params.load()
    drawn = draw_scenes(data, study.scenes, np.random.default_rng(0))
    variant = {**study.difference("caption"), "seeds": SEEDS, "epochs": EPOCHS}
    names = {slots: f"caption-{slots}" for slots in SLOTS["describe"]}
    directory = lay_out("rule-captions", {}, {name: variant | {"memory": slots} for slots, name in names.items()})
    repro.reproduce(directory, ("code", "scenes", "resolve"))
    scenes.write(drawn, directory / scenes.SCENES)
    repro.run(directory, "dvc commit", "dvc", "commit", "--force", "scenes")  # for DVC these are the stage's
    repro.reproduce(directory)
    grammar, labels, seen = grammar_of(data.name), drawn.test.labels, drawn.test.cells >= 0
    covered, found = (labels >= 0) & ~seen, []
    for slots, name in names.items():
        one = load(directory).trainings[name]
        assert one.captions is not None  # each of them is evaluated
        for seed, captions in zip(one.seeds, one.captions.greedy.tolist(), strict=True):
            named = [grammar.parse(grammar.decode(caption)) or (None,) * 4 for caption in captions]
            wrong = np.array([[-1 if label is None else label for label in scene] for scene in named]) != labels
            found.append(("describe", slots, one.parameters, seed, wrong.any(1).mean(), wrong[seen].mean(), wrong[covered].mean()))
    return pd.DataFrame(found, columns=["task", "slots", "parameters", "seed", *ERRORS])


Ratios = dict[tuple[str, int, str], tuple[float, Interval]]


def errors(of: pd.DataFrame, task: str, slots: int, kind: str) -> npt.NDArray[np.float64]:
    """Of each seed."""
    return of.loc[(of["task"] == task) & (of["slots"] == slots), kind].to_numpy(np.float64)


def ratios(of: pd.DataFrame) -> Ratios:
    """By task, number of slots and kind of error: errors over those without slots."""
    found = {}
    for task, (none, *numbers) in SLOTS.items():
        for slots in numbers:
            for kind in ERRORS:
                ratio = contrast(*(np.log(errors(of, task, one, kind)) for one in (slots, none)))
                ends = ratio.interval(LEVEL)
                assert ends is not None  # six seeds differ
                found[task, slots, kind] = math.exp(ratio.mean), mapped(ends, math.exp)
    return found


def picture(of: pd.DataFrame) -> Picture:
    caption = "Errors with memory slots over those without, where a rule tells the covered digit: ratio with its 95 % interval."
    made = []
    for (task, slots, kind), (ratio, ends) in ratios(of).items():
        colour = INK if kind == "error" else COLOURS[1]
        made.append(Row(f"{DOES[task]}, {slots} slots: {ERRORS[kind]}", ratio, ends.low, ends.high, colour, right=digits(ratio)))
    place = "ratio of errors, log scale"
    return Picture(caption, partial(rows.draw, made, "", place, inches=0.2, fontsize=8.5, logarithmic=True, solid=(1.0,)), "rule")


def page(of: pd.DataFrame, made: Picture) -> str:
    found = ratios(of)
    told, described = (
        listed([f"{estimate(*found[task, slots, 'error'], digits)} ({slots} slots)" for slots in numbers])
        for task, (_, *numbers) in SLOTS.items()
    )
    main = [ends for (_, _, kind), (_, ends) in found.items() if kind == "error"]
    fewer, more = sum(ends.high < 1 for ends in main), sum(ends.low > 1 for ends in main)
    answer = (
        f"{fewer} of {len(main)} make fewer, {more} more" if fewer or more else "no interval leaves out 1, so nothing says that they help"
    )
    is_small = all(ends.low > 1 / SMALL and ends.high < SMALL for ends in main)
    hidden = listed([f"{estimate(*one, digits)}" for (_, _, kind), one in found.items() if kind == "covered"])
    wrong = {(task, kind): f"{100 * errors(of, task, 0, kind).mean():.1f} %" for task in SLOTS for kind in ERRORS}
    cells = []
    for task, slots in ((task, slots) for task, numbers in SLOTS.items() for slots in numbers):
        shares = [100 * errors(of, task, slots, kind) for kind in ERRORS]
        means, parameters = [f"{one.mean():.2f} ± {one.std(ddof=1):.2f}" for one in shares], errors(of, task, slots, "parameters")[0]
        cells.append([DOES[task], slots, f"{parameters:,.0f}", *means])
    return "\n".join(
        [
            "# Memory slots where pictures follow a rule",
            "",
            f"**With memory slots a network that tells the left digit makes {told} times the errors of one without, and one that describes "
            f"the scene {described}; {answer}.** "
            + "Any effect over all pictures is smaller than a quarter. " * is_small
            + f"Of covered digits alone the ratios are {hidden}.",
            "",
            "Digits come in pairs here: the right one is the left one plus one (after 9 comes 0), and one of the two is covered, either as "
            "often. So what a covered digit is follows from the rule alone, which slots could hold. MNIST and the study's scenes follow no "
            "such rule ([C2](../reports/experiments/memory.md), [C2-captions](../reports/experiments/captioning-memory.md)). "
            f"Of the network without slots that tells the left digit, {wrong['tell', 'seen']} of the answers are wrong where it sees the "
            f"digit and {wrong['tell', 'covered']} where it does not; of the one that describes the scene, {wrong['describe', 'seen']} and "
            f"{wrong['describe', 'covered']}. One that does not know the rule would err in 90 % of what it does not see.",
            "",
            f"![{made.caption.split(':')[0]}](rule.png)",
            "",
            f"*{made.caption}*",
            "",
            *table(
                ["network", "slots", "parameters", *(f"{text}: error, %" for text in ERRORS.values())], "l" + "r" * (2 + len(ERRORS)), cells
            ),
            "",
            f"Means and standard deviations over {SEEDS} seeds, ratios with 95 % intervals (Welch). Slots are learned keys and values that "
            "each token of every block of the encoder can attend to (Cornia et al. 2020, section 3.1). These trainings explore: they "
            "decide no claim.",
            "",
            f"*Tells the left digit*: digits of MNIST at half their size, side by side in 28 x 28 pixels, each on four patches of {PATCH} "
            "pixels, what is covered grey; each of MNIST's images is the left digit of one picture. Network, rate and length are otherwise "
            "the study's. Errors of *all pictures* are those of the last five epochs, the others those after the last.",
            "",
            "*Describes the scene*: one pair or two, each in a row of the scene's four cells; a covered digit's cell is empty, and the "
            f"captions name it all the same. Network and rate are those of C2-captions, at half the length ({EPOCHS} epochs of 30,000 "
            "scenes). *All pictures* are scenes whose greedy caption is not true and complete; a digit counts as wrong where the caption "
            "says another or none.",
            "",
            "`python -m docs.method.rule` trains all of it (an hour of two cores) and writes this page; `--page` writes it from "
            "[rule.csv](rule.csv).",
            "",
        ]
    )


TRAIN = {"tell": train_to_tell, "describe": train_to_describe}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.method.rule", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("task", nargs="?", choices=SLOTS, help="whose networks are trained; by default those of both")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from docs/rule.csv")
    given = parser.parse_args(argv)
    for task in () if given.page else [given.task] if given.task else SLOTS:
        trained = TRAIN[task](datasets.load())
        others = [pd.read_csv(TABLE).query("task != @task")] if TABLE.exists() else []
        with replacing(TABLE) as file:
            pd.concat([trained, *others]).sort_values(["task", "slots", "seed"], ascending=[False, True, True]).to_csv(file, index=False)
    of = pd.read_csv(TABLE)
    made = picture(of)
    write_with_picture(PAGE, page(of, made), made)


if __name__ == "__main__":
    run_command(main)
