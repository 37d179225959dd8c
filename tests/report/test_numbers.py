"""The committed pages against the committed tables, by scipy and by hand; `tests/test_study.py` has today's code make these pages."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pipeline.params import Params
from pipeline.study.claims import DECIDED
from pipeline.study.effects import look_level
from tests.helpers import ROOT
from tests.made_up import check_links, check_tables, check_text, read, table

Curves = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def curve() -> Curves:
    """(seeds, epochs) of a variant's column of epochs.csv, all epochs or some."""
    epochs = pd.read_csv(ROOT / "tables/epochs.csv")
    return lambda variant, name="test_accuracy": (
        epochs[epochs.variant == variant].pivot(index="seed", columns="epoch", values=name).to_numpy()
    )


def late(curve: Curves, variant: str) -> np.ndarray:
    """(seeds,): the accuracy over the last five of thirty epochs."""
    return curve(variant)[:, -5:].mean(1)


def welch(study: Params, ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Difference and interval at the level of the looks."""
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(look_level(study.looks))
    return [ours.mean() - theirs.mean(), interval.low, interval.high]


def numbers(cell: str) -> list[float]:
    """`1.27 [1.25 to 1.29]` as three numbers."""
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell.replace(",", ""))]


def test_numbers_of_an_experiment_are_those_of_the_tables(study: Params, curve: Curves) -> None:
    page = read(ROOT, "experiments/positions.md")
    rows, baseline = table(page, "| accuracy (%) | sd |"), late(curve, "base")
    assert [label.split(" ")[0].strip(",") for label in rows] == list(study.experiments["positions"].variants)
    for label, (n, mean, sd, points, ratio) in rows.items():
        variant = label.split(" ")[0].strip(",")
        accuracy = late(curve, variant)
        assert (n, mean, sd) == (str(len(accuracy)), f"{100 * accuracy.mean():.2f}", f"{100 * accuracy.std(ddof=1):.2f}")
        if variant == "base":
            assert (points, ratio) == ("", "")
            continue
        assert numbers(points) == pytest.approx([100 * value for value in welch(study, accuracy, baseline)], abs=0.00501)
        assert numbers(ratio) == pytest.approx(np.exp(welch(study, np.log(1 - accuracy), np.log(1 - baseline))), rel=0.006)


def test_an_experiment_has_its_own_measure_and_other_variants_to_stand_beside(study: Params, curve: Curves) -> None:
    page = read(ROOT, "experiments/schedules.md")
    _, mean, _, ratio = table(page, "| unsteadiness (points) |")["linear (pre, linear)"]
    squares = {
        name: np.array([np.polyfit(np.arange(10), row[-10:], 1, full=True)[1][0] for row in curve(name)]) for name in ("linear", "base")
    }
    values = {name: np.sqrt(found / 8) for name, found in squares.items()}  # of the residuals
    assert float(mean) == pytest.approx(100 * values["linear"].mean(), abs=5.1e-4)
    assert numbers(ratio) == pytest.approx(np.exp(welch(study, np.log(values["linear"]), np.log(values["base"]))), rel=0.006)
    rows = table(page, "| variant | beside |")
    beside, points, ratio = rows["warmup (pre, warm-up and linear)"]
    ours, theirs = late(curve, "warmup"), late(curve, "linear")
    assert beside == "linear"
    assert numbers(points) == pytest.approx([100 * value for value in welch(study, ours, theirs)], abs=0.00501)
    assert numbers(ratio)[0] == pytest.approx(stats.gmean(1 - ours) / stats.gmean(1 - theirs), rel=0.006)
    assert "linear (pre, linear)" not in rows  # it stands beside the baseline, in Table 1


def test_numbers_of_captioners_are_those_of_the_evaluation(study: Params) -> None:
    page, evaluation = read(ROOT, "experiments/captioning.md"), pd.read_csv(ROOT / "tables/seeds.csv").groupby("variant")
    scores, compared, contents = (table(page, head) for head in ("greedy (%)", "| CIDEr-D |", "4 digits"))
    variants = [label.split(" ")[0] for label in scores]
    assert variants == list(study.experiments["captioning"].variants)
    baseline = evaluation.get_group(variants[0]).greedy_scene_accuracy
    for (label, (n, *cells)), variant in zip(scores.items(), variants, strict=True):
        found = evaluation.get_group(variant)
        expected = []
        for column in (found.greedy_scene_accuracy, found.beam_scene_accuracy):
            expected += [column.mean(), *stats.t.interval(0.95, len(found) - 1, loc=column.mean(), scale=stats.sem(column))]
        points = [] if variant == variants[0] else welch(study, found.greedy_scene_accuracy, baseline)
        assert int(n) == len(found)
        assert numbers(" ".join(cells)) == pytest.approx([100 * value for value in expected[:3] + points + expected[3:]], abs=0.00501)
        exact, of_cells, *scored = numbers(" ".join(compared[label]))
        assert scored == pytest.approx(found[["greedy_edit_distance", "greedy_bleu_4", "greedy_cider_d"]].mean().tolist(), abs=5.1e-4)
        columns = ["exact_match", "cell_accuracy", "scene_accuracy_1_digit", "scene_accuracy_repeats"]
        shown = [exact, of_cells, *numbers(f"{contents[label][0]} {contents[label][-1]}")]
        assert shown == pytest.approx([100 * found[f"greedy_{name}"].mean() for name in columns], abs=0.00501)


def test_every_variant_stands_once_by_its_mean(study: Params, curve: Curves) -> None:
    rows = table(read(ROOT, "README.md"), "| variant | differs from the base")
    assert sorted(rows) == sorted(study.variants)
    first = study.experiments["positions"].variants
    for variant in first:
        values = late(curve, variant)
        expected = [values.mean(), *stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values))]
        assert numbers(rows[variant][2]) == pytest.approx([100 * value for value in expected], abs=0.00501)
    means = [numbers(cells[2])[0] for name, cells in rows.items() if study.resolve(name).task == "classification" and cells[1] != "not run"]
    assert means == sorted(means, reverse=True)


def test_the_first_page_counts_all_verdicts(study: Params) -> None:
    readme = read(ROOT, "README.md")
    rows = table(readme, "deciding comparison: effect")
    assert [first[1 : first.index("]")] for first in rows] == list(study.claims)
    verdicts = [cells[1].strip("*") for cells in rows.values()]
    (tally,) = re.findall(rf"^{len(verdicts)} claims: ([^.]+)\.", readme, re.MULTILINE)
    assert sorted(tally.split(", ")) == sorted(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())
    (said,) = re.findall(r" (\d+) claims had the seeds .*? at most a twentieth of them \(([\d.]+)\)", readme)
    tried = 0
    for claim, verdict in zip(study.claims.values(), verdicts, strict=True):
        seeds = [study.resolve(name).train.seeds for part in claim.comparisons for name in part.variants if name in study.variants]
        counted = [sum(seed >= (claim.first_seed or 0) for seed in own) for own in seeds]
        tried += verdict in DECIDED or (verdict == "not decided" and min(counted) >= study.looks[0])
    assert (int(said[0]), float(said[1])) == (tried, pytest.approx(0.05 * tried, abs=0.051))


@pytest.mark.parametrize("check", [check_links, check_tables, check_text])
def test_links_lead_somewhere_and_tables_are_whole(check: Callable[[Path], None]) -> None:
    check(ROOT)
