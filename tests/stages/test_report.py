"""The report stage on files as the earlier stages leave them: every number on a page against the files themselves."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from scipy import stats

from pipeline.errors import UserError
from pipeline.measures import MEASURES
from pipeline.measures.positions import nearness_correlation
from pipeline.params import load
from pipeline.report import pages
from pipeline.runner import results
from pipeline.stages import report
from pipeline.study.claims import PRECEDENCE
from pipeline.study.effects import look_level
from pipeline.study.results import load_current
from tests.helpers import ROOT, flip_bit
from tests.made_up import (
    IMAGES,
    check_links,
    check_tables,
    check_text,
    read,
    rows_of,
    table,
    write_dataset,
    write_study,
    write_tables,
)

pytestmark = pytest.mark.usefixtures("drawn_once")

LOOKS = (6, 10, 20)  # of params.yaml
SMALL: dict[str, Any] = {
    "variants": {"base": {}, "sinusoidal": {"position": "sinusoidal"}, "patch-7": {"patch": 7}},
    "experiments": {
        "one": {
            "title": "One", "question": "Is it?", "source": "thesis, 4.2", "baseline": "base", "variants": ["base", "sinusoidal"],
            "labels": {"sinusoidal": "a | b"}, "figures": ["position_similarity"], "claims": ["T1a", "T1b", "T2a"],
        },
        "two": {"title": "Two", "question": "Is it?", "source": "code", "baseline": "base",
                "variants": ["patch-7", "base"], "figures": []},
    },
}  # fmt: skip

SMALL_OTHER: dict[str, Any] = {"variants": {"other": {}, "another": {"dropout": 0.1}}, "experiments": {}, "claims": {}}

# Every kind of figure; variants with epochs and networks of their own, seeds that diverge, one that was not trained.
_FIGURES = {
    "positions": ["position_similarity"], "stability": ["curves"], "schedules": ["measure"], "networks": ["shifts"],
    "lengths": ["sizes"], "data-size": ["data_size"], "attention-maps": ["attention_maps"], "best": ["curves"],
}  # fmt: skip


def _chosen(raw: dict[str, Any]) -> dict[str, Any]:
    experiments = {name: raw["experiments"][name] | {"figures": figures} for name, figures in _FIGURES.items()}
    experiments["attention-maps"] |= {"variants": ["base", "heads-1"], "labels": {"heads-1": "1 head"}}
    named = {variant for experiment in experiments.values() for variant in experiment["variants"]}
    variants = {name: change for name, change in raw["variants"].items() if name in named}
    variants["best"] = variants["best"] | {"epochs": 24}
    return {"experiments": experiments, "variants": {**variants, "nowhere": {"blocks": 2}}}


@pytest.fixture(scope="module")
def full_study(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], drawn_once: dict[tuple[str, str, bool], bytes]) -> Path:
    """Half of the real experiments, ten seeds and twelve epochs of their variants but one, and their report. Not to be changed."""

    def make(root: Path) -> str:
        root.mkdir()
        raw = yaml.safe_load((ROOT / "params.yaml").read_text())
        for difference in raw["variants"].values():
            difference.pop("seeds", None)
        write_study(root, seeds=10, epochs=12, left_out=("rnn",), images_shown=12 * 60_000, **_chosen(raw))
        write_dataset(root)
        with chdir(root):
            write_pages()
        return ""

    return once("full study", make)[0]


@pytest.fixture(scope="module")
def written_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds and four epochs of three variants, without a report. To be copied, not to be changed."""
    root = tmp_path_factory.mktemp("small")
    write_study(root, seeds=3, epochs=4, **SMALL)
    return root


@pytest.fixture
def small_study(written_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(written_study, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pages() -> None:
    """What the stage does before it completes MLflow, which would take most of the time."""
    params = load()
    pages.write(params, load_current(params).trainings)


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / "reports").rglob("*")) if path.is_file()}


def edit(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))


def column(root: Path, variant: str, name: str, epoch: int | None = None) -> np.ndarray:
    """(seeds,) of an epoch, the last if none is given."""
    rows = rows_of(root, "epochs.csv", variant)
    wanted = epoch or max(int(row["epoch"]) for row in rows)
    return np.array([float(row[name]) for row in rows if int(row["epoch"]) == wanted])


def late(root: Path, variant: str, name: str = "test_accuracy") -> np.ndarray:
    """(seeds,): the mean of the last two of twelve epochs, which are their last fifth."""
    return (column(root, variant, name, 11) + column(root, variant, name, 12)) / 2


def welch(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The interval of the difference, at the level of the looks."""
    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(look_level(LOOKS))
    return float(low), float(high)


def ends(cell: str) -> list[float]:
    return [float(end) for end in cell.split(" to ")]


# --- experiments ---


def test_patches_are_told_from_the_class_token(full_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(full_study)
    run = load_current(load()).trainings["base"]  # three blocks of eight heads, 49 patches after the class token
    assert run.attention is not None
    with np.load("predictions/base.npz") as stored:
        assert np.array_equal(run.patch_positions, stored["positions"][:, 1:])
        assert np.array_equal(run.attention.maps.reshape(10, 3, 8, 49), stored["maps"][..., 1:50])
        assert np.array_equal(run.attention.rollout.reshape(10, 10, 49), stored["rollout"][..., 1:50])
    nearness = [nearness_correlation(vectors, 7) for vectors in run.patch_positions]
    row = table(read(full_study, "experiments/positions.md"), "| position vectors |")["learned"]
    assert row[0] == "10"
    assert row[3].startswith(f"{np.mean(nearness):+.3f} [")


def test_numbers_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    page = read(full_study, "experiments/positions.md")
    rows = table(page, "| differs by |")
    labels = {
        "base": "learned (baseline)", "position-std": "learned, started small", "sinusoidal": "sinusoidal", "sincos2d": "2-D sinusoidal",
        "no-position": "none",
    }  # fmt: skip
    assert list(rows) == list(labels.values())
    baseline = late(full_study, "base")
    for variant, label in labels.items():
        accuracy = late(full_study, variant)
        n, mean, sd, points, interval, ratio, ratios = rows[label][1:]
        assert (n, mean, sd) == ("10", f"{100 * accuracy.mean():.2f}", f"{100 * accuracy.std(ddof=1):.2f}")
        if variant == "base":
            assert (points, interval, ratio, ratios) == ("baseline", "", "", "")
            continue
        assert float(points) == pytest.approx(100 * (accuracy.mean() - baseline.mean()), abs=0.00501)
        assert ends(interval) == pytest.approx([100 * end for end in welch(accuracy, baseline)], abs=0.00501)
        assert float(ratio) == pytest.approx(stats.gmean(1 - accuracy) / stats.gmean(1 - baseline), rel=0.006)
        assert ends(ratios) == pytest.approx(np.exp(welch(np.log(1 - accuracy), np.log(1 - baseline))), rel=0.006)
    assert "with 98.8 % intervals over seeds (Welch)" in page


def test_the_answer_stands_first_then_a_figure_then_a_verdict_for_each_comparison(full_study: Path) -> None:
    page = read(full_study, "experiments/positions.md")
    base, none = (100 * late(full_study, variant).mean() for variant in ("base", "no-position"))
    (answer,) = re.findall(r"^\*\*(.+)\*\*$", page, flags=re.MULTILINE)
    assert answer.startswith(f"*learned* reaches {base:.2f} %; *none* ({none - base:+.2f} points) reaches less; *learned, started small*, ")
    places = [page.index(part) for part in (answer, "<picture>", "| claim | verdict |", "## What came out", "<details>", "### T1a: ")]
    assert places == sorted(places)

    page = read(full_study, "experiments/schedules.md")
    claims = yaml.safe_load((full_study / "params.yaml").read_text())["claims"]
    rows = table(page, "| claim | verdict |", key=2)
    assert len(rows) == sum(len(claims[id]["comparisons"]) for id in ("K1a", "K1b", "K1c", "K1d", "K1e"))
    first, verdict, effect = rows["pre, linear / pre, warm-up and linear, test error"]
    assert first == f"[K1a](#k1a-not-run) {claims['K1a']['sentence']}"
    ours, theirs = late(full_study, "linear"), late(full_study, "warmup")
    low, high = np.exp(welch(np.log(1 - ours), np.log(1 - theirs)))
    assert verdict == ("**supported**" if high < 1.25 else "**contradicted**" if low > 1.25 else "**not decided**")
    ratio, *interval = (float(number) for number in re.findall(r"[\d.]+", effect)[:3])
    assert [ratio, *interval] == pytest.approx([stats.gmean(1 - ours) / stats.gmean(1 - theirs), low, high], rel=0.006)
    points = 100 * (theirs.mean() - ours.mean())
    assert float(effect.rsplit(", ")[-1].removesuffix(" points")) == pytest.approx(points, abs=0.00501)
    assert rows["linear-low-rate / warmup-low-rate, test error"] == ["", "**not run**", "-"]  # its other half


def test_what_is_not_the_answer_is_folded(full_study: Path) -> None:
    for path in (full_study / "reports/experiments").glob("*.md"):
        page = path.read_text()
        opened = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
        folded = "".join(re.findall(r"<details>.*?</details>", page, flags=re.DOTALL))
        assert opened.count("<picture>") == 1
        for part in ("| tokens |", "| train loss |", "*The margin:*"):
            assert part not in opened
            assert part in folded or "### " not in page
        assert "| accuracy (%) |" in opened


def test_the_last_epoch_and_the_losses_are_those_of_the_files(full_study: Path) -> None:
    row = table(read(full_study, "experiments/positions.md"), "min to max")["none"]
    accuracy, train, test = (column(full_study, "no-position", name) for name in ("test_accuracy", "train_loss", "test_loss"))
    base, base_loss = column(full_study, "base", "test_accuracy"), column(full_study, "base", "test_loss")
    assert row[0] == f"{100 * accuracy.mean():.2f}"
    assert row[1] == f"{100 * accuracy.min():.2f} to {100 * accuracy.max():.2f}"
    assert float(row[2]) == pytest.approx(100 * (accuracy.mean() - base.mean()), abs=0.00501)
    assert ends(row[3]) == pytest.approx([100 * end for end in welch(accuracy, base)], abs=0.00501)
    expected = [train.mean(), test.mean(), test.mean() - base_loss.mean()]
    assert [float(cell) for cell in row[4:7]] == pytest.approx(expected, abs=5.1e-5)
    assert ends(row[7]) == pytest.approx(welch(test, base_loss), abs=5.1e-5)


def test_an_experiments_own_measure_has_a_table(full_study: Path) -> None:
    page = read(full_study, "experiments/schedules.md")
    rows = table(page, "| unsteadiness (points) |")
    values, epochs = {}, np.arange(10)
    for variant in ("base", "linear"):
        accuracy = np.array([float(row["test_accuracy"]) for row in rows_of(full_study, "epochs.csv", variant)]).reshape(10, 12)
        squares = [np.polyfit(epochs, row[-10:], 1, full=True)[1][0] for row in accuracy]  # of the residuals
        values[variant] = np.sqrt(np.array(squares) / 8)
    shown = rows["pre, linear"]
    assert shown[0] == "10"
    assert float(shown[1]) == pytest.approx(100 * values["linear"].mean(), abs=5.1e-4)
    assert float(shown[3]) == pytest.approx(stats.gmean(values["linear"]) / stats.gmean(values["base"]), rel=0.006)
    assert ends(shown[4]) == pytest.approx(np.exp(welch(*(np.log(values[variant]) for variant in ("linear", "base")))), rel=0.006)
    assert rows["pre, constant (baseline)"][3:] == ["baseline", ""]
    assert "its last 10 epochs" in page


def test_seeds_that_diverged_are_counted_and_left_out_where_they_have_no_number(full_study: Path) -> None:
    page = read(full_study, "experiments/stability.md")
    assert table(page, "| differs by |")["no norm"][1] == "10, 3 diverged"
    assert table(page, "| differs by |")["base (baseline)"][1] == "10"
    row = table(page, "min to max")["no norm"]
    finite = column(full_study, "no-norm", "test_loss")
    assert np.isnan(finite).sum() == 3
    assert float(row[5]) == pytest.approx(np.nanmean(finite), abs=5.1e-5)
    assert row[6:] == ["-", "-"]
    assert "The loss of some seeds of no norm is not finite" in page
    assert "Seeds whose losses are not finite in the end: no norm, 3 of 10 seeds." in page
    rows = table(read(full_study, "README.md"), "| place |", key=1)
    assert (rows["no-norm"][2], rows["base"][2]) == ("10, 3 diverged", "10")


def test_what_was_not_run_is_said_and_stops_nothing(full_study: Path) -> None:
    page = read(full_study, "experiments/networks.md")
    assert "**Not run: rnn.**" in page
    assert table(page, "| differs by |")["RNN"][1:] == ["not run", *["-"] * 6]
    assert "RNN" not in table(page, "min to max")
    assert "RNN" not in page[page.index(")*\n") : page.index("*What this cannot show:*")]  # not among the answers
    readme = read(full_study, "README.md")
    missing = {first[1 : first.index("]")]: cells for first, cells in table(readme, "what is missing").items()}
    assert missing["K5"][1:] == ["**not run**", "base / rnn, test error", "there are no results of rnn"]
    assert missing["T3"][1] == "**not run**"  # of no variant of this study
    assert not missing.keys() & {first[1 : first.index("]")] for first in table(readme, "what would decide it")}
    assert f"<summary>Not run: {len(missing)} claims</summary>" in readme
    assert re.search(rf"^\d+ claims: .*, {len(missing)} not run\.", readme, flags=re.MULTILINE)
    variants = len(yaml.safe_load((full_study / "params.yaml").read_text())["variants"])
    assert f"Of {variants} variants {variants - 1} were trained" in readme
    rows = table(readme, "| place |", key=1)
    assert rows["rnn"][0] == "-"
    assert rows["rnn"][2] == "not run"


def test_without_its_baseline_an_experiment_shows_what_there_is(small_study: Path) -> None:
    shutil.rmtree(small_study / "runs/base")
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Not run: base.**" in page
    assert "***base* was not run, so the others have nothing to be compared with.**" in page
    assert "interval | error" not in page
    assert len(table(page, "| differs by |")["a \\| b"]) == 4  # nothing to compare it with
    assert "one-position-similarity.png" in page
    assert "### T1a: not run" in page
    check_tables(small_study)
    shutil.rmtree(small_study / "runs/sinusoidal")
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "None of its variants was run yet." in page
    assert "<picture>" not in page


def test_without_predictions_position_figures_are_missing(small_study: Path) -> None:
    write_pages()
    shutil.rmtree(small_study / "predictions")
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "one-position-similarity" not in page
    assert "a \\| b" in table(page, "min to max")
    check_tables(small_study)


def test_settings_tell_what_differs_and_no_more(full_study: Path) -> None:
    page = read(full_study, "experiments/networks.md")
    rows, sizes = table(page, "differs by"), table(page, "images shown |")
    assert rows["CNN"][0] == "architecture: cnn, widths: [12, 26]"
    assert sizes["CNN"][:2] == ["720,000", "-"]  # no tokens
    assert rows["ViT (baseline)"][0] == "the base itself"
    assert sizes["ViT (baseline)"][:2] == ["720,000", "50"]
    best = table(read(full_study, "experiments/best.md"), "differs by")["best"][0]
    assert {"epochs: 24", "schedule: cosine", "augment: affine", "dim: 64"} <= set(best.split(", "))
    assert "heads: 8" not in best  # the base has as many
    assert "for 12 epochs unless the table says otherwise" in read(full_study, "experiments/best.md")
    stability = read(full_study, "experiments/stability.md")
    assert "for 12 epochs. A seed" in stability
    assert table(stability, "differs by")["no norm"][0] == "norm: none"  # not that its divergence is recorded


def test_a_shorter_difference_to_the_baseline_is_the_one_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    lab = raw["experiments"]["lab"]
    write_study(tmp_path, seeds=2, epochs=4, experiments={"lab": lab}, variants={name: raw["variants"][name] for name in lab["variants"]})
    monkeypatch.chdir(tmp_path)
    write_pages()
    rows = table(read(tmp_path, "experiments/lab.md"), "differs by")
    assert rows["16 patches"][0] == "as lab, but patch: 7"
    assert rows["base, ReLU"][0] == "activation: relu"
    assert "patch: 14" in rows["4 patches (baseline)"][0]


def test_claims_show_every_comparison_its_rule_and_what_would_decide_it(full_study: Path) -> None:
    page = read(full_study, "experiments/schedules.md")
    claims = yaml.safe_load((full_study / "params.yaml").read_text())["claims"]
    section = page.split("### K1c: ")[1].split("\n### ")[0].split("\n## ")[0]
    rows = table(section, "effect [interval]")
    assert len(rows) == len(claims["K1c"]["comparisons"])
    assert next(iter(rows)) == "pre, linear / pre, constant, test error"
    means, effect, n, verdict, because = rows["pre, linear / pre, constant, test error"]
    ours, theirs = late(full_study, "linear"), late(full_study, "base")
    of_linear, of_base = (f"{100 * stats.gmean(1 - side):.2f}" for side in (ours, theirs))
    assert means.replace("\N{NO-BREAK SPACE}", " ") == f"pre, linear {of_linear} %; pre, constant {of_base} %"
    low, high = np.exp(welch(np.log(1 - ours), np.log(1 - theirs)))
    assert ends(re.findall(r"\[(.+)\]", effect)[0]) == pytest.approx([low, high], rel=0.006)
    assert (n, verdict) == ("10", "not decided")
    assert re.search(r"only a part of the interval lies below 0\.952; about \d+ seeds would decide it, ", because)
    assert "*Rule:* supported if the whole 98.8 % interval lies below 0.952; contradicted if no part of it does." in section
    several = page.split("### K1a: ")[1].split("\n### ")[0]
    assert len(claims["K1a"]["comparisons"]) == 2
    assert "contradicted if no part of the 99.4 % interval does." in several
    for part in ("measured", "margin", "sentence"):
        assert claims["K1c"][part] in section
    assert f"\n> {claims['K1c']['quote']}\n>\n> In English: {claims['K1c']['translation']}\n" in section
    assert "at 6, 10 and 20 seeds per side" in section
    rules = read(full_study, "experiments/best.md").split("### B1: ")[1]
    assert re.search(r"^- rule a: .*above 99\.5 %", rules, flags=re.MULTILINE)
    assert re.search(r"^- rule b: .*above 99\.7 %", rules, flags=re.MULTILINE)
    assert {cells[2] for cells in table(rules, "| rule |").values()} == {"a", "b"}


# --- the first page ---


def test_every_variant_stands_once_with_its_place_by_mean(full_study: Path) -> None:
    raw = yaml.safe_load((full_study / "params.yaml").read_text())
    readme = read(full_study, "README.md")
    lines = re.findall(r"^\| (\d+|-) \| ([\w-]+) \|", readme, flags=re.MULTILINE)
    assert sorted(variant for _, variant in lines) == sorted(raw["variants"])
    rows = table(readme, "| place |", key=1)
    accuracy = {variant: late(full_study, variant) for place, variant in lines if place != "-" and variant != "best"}
    for variant, values in accuracy.items():
        low, high = stats.t.interval(0.95, 9, loc=values.mean(), scale=stats.sem(values))
        assert float(rows[variant][3]) == pytest.approx(100 * values.mean(), abs=0.00501)
        assert ends(rows[variant][5]) == pytest.approx([100 * low, 100 * high], abs=0.00501)
    order = [variant for _, variant in sorted((int(place), variant) for place, variant in lines if variant in accuracy)]
    assert order == sorted(order, key=lambda variant: -accuracy[variant].mean())
    assert rows["base"][6:] == ["22,500", "450 k"]
    headings = [readme.index(f"<summary>{title}: ") for title in ("Experiment 1: fixed or learned positions", "What keeps training stable")]
    assert headings[0] < readme.index("| sincos2d |") < headings[1] < readme.index("<summary>In no experiment: 1 of 1 variant trained")
    assert readme.index("<summary>In no experiment") < readme.index("| nowhere |")
    assert "<summary>Positions for more and fewer patches than were trained: its variants stand above</summary>" in readme


def test_claims_come_first_with_verdict_interval_and_link(full_study: Path) -> None:
    readme = read(full_study, "README.md")
    order = ("## The claims", "figures/verdicts.png", "## The variants", "## The data", "## Provenance")
    assert [readme.index(part) for part in order] == sorted(readme.index(part) for part in order)
    raw = yaml.safe_load((full_study / "params.yaml").read_text())
    rows, missing = table(readme, "what would decide it"), table(readme, "what is missing")
    named = [first[1 : first.index("]")] for first in (*rows, *missing)]
    assert sorted(named) == sorted(raw["claims"])
    assert named[: len(rows)] == [id for id in raw["claims"] if id in named[: len(rows)]]
    for first, (sentence, verdict, effect, decides) in rows.items():
        id = first[1 : first.index("]")]
        assert raw["claims"][id]["sentence"] in sentence
        assert verdict in {f"**{one}**" for one in PRECEDENCE} - {"**not run**"}
        assert "[" in effect
        assert effect.startswith("observed: ") == (verdict in ("**short run**", "**not settled**"))
        if verdict in ("**short run**", "**not settled**"):
            assert decides in ("a longer training", "more seeds or a longer training", "trainings that are shown 3,600,000 images")
        elif verdict == "**not decided**":
            assert re.search(r"^(about|more than) [\d,]+ seeds$|^$", decides), decides
        else:
            assert decides == ""
    verdicts = [cells[1].strip("*") for cells in rows.values()]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("supported", "contradicted", "not decided") if verdict in verdicts]
    assert f"\n{len(raw['claims'])} claims: {', '.join(counts)}" in readme
    assert next(first for first in rows if "K4" in first) == "[K4](experiments/networks.md#k4-contradicted)"


def test_the_first_page_says_how_many_false_verdicts_to_expect(full_study: Path) -> None:
    readme = read(full_study, "README.md")
    verdicts = [cells[1].strip("*") for cells in table(readme, "what would decide it").values()]
    judged = sum(verdict in ("supported", "contradicted", "not decided") for verdict in verdicts)
    assert judged > 5
    (said,) = re.findall(r"Of (\d+) that were judged, .* at most ([\d.]+) false verdicts are to be expected", readme)
    assert int(said[0]) == judged
    assert float(said[1]) == pytest.approx(0.05 * judged, abs=0.051)


def test_claims_that_count_what_had_been_seen_are_named(small_study: Path) -> None:
    edit(small_study, lambda raw: raw.update(images_shown=240_000, looks=[2]))
    edit(small_study, lambda raw: [claim.update(seen=id == "T1a") for id, claim in raw["claims"].items()])
    write_pages()
    readme = read(small_study, "README.md")
    assert (
        "not promised where one side alone is strongly skewed, nor for T1a: data count there that had been seen when" in readme
    )  # T14b is not run
    sections = {id: read(small_study, "experiments/one.md").split(f"### {id}: ")[1].split("\n### ")[0] for id in ("T1a", "T1b")}
    assert "*Seen before:* trainings count here that had been seen" in sections["T1a"]
    assert "*Seen before:*" not in sections["T1b"]
    edit(small_study, lambda raw: raw["claims"]["T1a"].update(seen=False))
    write_pages()
    assert "not promised where one side alone is strongly skewed ([method](method.md))." in read(small_study, "README.md")


def test_a_variant_stands_beside_the_one_that_the_experiment_names(full_study: Path) -> None:
    page = read(full_study, "experiments/schedules.md")
    row = table(page, "| variant | beside |")["pre, warm-up and linear"]
    ours, theirs = late(full_study, "warmup"), late(full_study, "linear")
    assert row[:2] == ["pre, linear", f"{100 * (ours.mean() - theirs.mean()):+.2f}".replace("-", "\N{MINUS SIGN}")]
    assert ends(row[2].replace("\N{MINUS SIGN}", "-")) == pytest.approx([100 * end for end in welch(ours, theirs)], abs=0.006)
    assert float(row[3]) == pytest.approx(stats.gmean(1 - ours) / stats.gmean(1 - theirs), rel=0.006)
    assert "pre, linear" not in table(page, "| variant | beside |")  # it stands beside the baseline, in Table 1
    assert f" Beside *pre, linear* ({100 * theirs.mean():.2f} %), " in page[: page.index("<picture>")]


def test_a_claim_follows_the_files(full_study: Path) -> None:
    """T10 by hand: fewer errors by a twentieth at most, from the interval of the ratio."""
    ours, theirs = (np.log(1 - late(full_study, variant)) for variant in ("sincos2d", "sinusoidal"))
    low, high = np.exp(welch(ours, theirs))
    expected = "supported" if low > 0.952 else "contradicted" if high < 0.952 else "not decided"
    assert f"### T10: {expected}" in read(full_study, "experiments/positions.md")
    (cells,) = (cells for first, cells in table(read(full_study, "README.md"), "what would decide it").items() if "T10" in first)
    assert cells[1] == f"**{expected}**"
    assert ends(re.findall(r"\[(.+)\]", cells[2])[0]) == pytest.approx([low, high], rel=0.006)


def test_a_new_bound_is_judged_without_a_training(small_study: Path) -> None:
    before = {path: path.read_bytes() for path in (small_study / "runs").rglob("*") if path.is_file()}
    edit(small_study, lambda raw: raw.update(images_shown=1, looks=[]))
    for bound, verdict, decides in (
        (50.0, "supported", ""), (1.25, "supported", ""), (1.0001, "not settled", "a longer training"),
    ):  # fmt: skip
        edit(small_study, lambda raw, bound=bound: raw["claims"]["T3"]["comparisons"][0].update(variant="sinusoidal", bound=bound))
        write_pages()
        page = read(small_study, "README.md")
        assert f"### T3: {verdict}" in page  # no experiment of this study has it
        cells = table(page, "what would decide it")[f"[T3](#t3-{verdict.replace(' ', '-')})"]
        assert cells[3] == decides
        check_links(small_study)
    assert before == {path: path.read_bytes() for path in (small_study / "runs").rglob("*") if path.is_file()}


def test_a_short_run_is_observed_and_not_judged(small_study: Path) -> None:
    """Four epochs of 60,000 images, where the claims speak of 1,800,000."""
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Short runs.** *base* and *a | b* were shown fewer than the 1,800,000 training images" in page
    verdicts = table(page, "| claim | verdict |", key=2)
    assert verdicts["a \\| b / base, test error"][1] == "**short run**"
    for id, end in (("T1a", ""), ("T1b", "base: it was trained for fewer than the 12 epochs that unsteadiness takes")):
        (cells,) = table(page.split(f"### {id}: short run")[1].split("\n### ")[0], "effect [interval]").values()
        assert cells[-2] == "short run"
        assert f"saw fewer training images than the claim speaks of{f'; {end}' * bool(end)}." in cells[-1]
    assert "shown at least 1,800,000 training images each, once the effect has settled, at 6, 10 and 20 seeds per side." in page
    assert "**Short trainings.**" not in page
    readme = read(small_study, "README.md")
    number, shown = len(load().claims), table(readme, "what would decide it")
    assert f"\n{number} claims: {len(shown)} observed on short runs, {number - len(shown)} not run.\n" in readme
    assert {cells[1] for cells in shown.values()} == {"**short run**"}
    assert "false verdicts" not in readme  # as none was given
    (cells,) = (cells for first, cells in shown.items() if "[T1a]" in first)
    assert cells[2].startswith("observed: sinusoidal / base, test error: ")
    assert cells[3] == "trainings that are shown 1,800,000 images"
    for written in (small_study / "reports").rglob("*.md"):
        assert not re.search(
            r"^### \S+: (supported|contradicted|not decided)|\*\*(supported|contradicted|not decided)\*\* \|",
            written.read_text(),
            re.MULTILINE,
        )
    check_tables(small_study)
    check_text(small_study)

    edit(small_study, lambda raw: raw.update(images_shown=240_000, looks=[2]))
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "hort run" not in page
    (cells,) = table(page.split("### T1a: ")[1].split("\n### ")[0], "effect [interval]").values()
    assert cells[2] == "2"  # three seeds, a look at two


# --- all pages ---


def test_links_and_pictures_point_to_files_and_headings(full_study: Path) -> None:
    check_links(full_study)


def test_tables_have_as_many_cells_as_their_header(full_study: Path) -> None:
    check_tables(full_study)


def test_pages_hold_no_leftovers_and_number_their_tables(full_study: Path) -> None:
    check_text(full_study)


def test_every_kind_of_figure_is_there_in_both_themes(full_study: Path) -> None:
    folder = full_study / "reports/experiments/figures"
    for name in (
        "stability-curves", "best-curves", "positions-position-similarity", "schedules-measure",
        "networks-shifts", "lengths-sizes",
        "data-size-data-size", "attention-maps-attention-maps", "attention-maps-attention-maps-heads-base",
        "attention-maps-attention-maps-heads-heads-1",
    ):  # fmt: skip
        light, dark = (np.asarray(Image.open(folder / f"{name}{theme}.png").convert("RGB")) for theme in ("", "-dark"))
        assert light.shape == dark.shape
        assert light.shape[1] > 1000  # some 1.7 times the width of the page
        assert tuple(light[1, 1]) == (255, 255, 255)
        assert tuple(dark[1, 1]) == (13, 17, 23)
        assert light.std() > 5
        assert dark.std() > 5


def test_captions_say_n_and_alternatives_say_numbers(full_study: Path) -> None:
    for page in (full_study / "reports/experiments").glob("*.md"):
        text = page.read_text()
        captions = re.findall(r"^\*Figure \d+\. (.+)\*$", text, flags=re.MULTILINE)
        alternatives = re.findall(r'alt="([^"]+)"', text)
        assert len(captions) == len(alternatives)
        for caption, alternative in zip(captions, alternatives, strict=True):
            assert re.search(r"n = 10|seed 0|mean over 10|Learned vectors", caption), caption
            assert re.search(r"\d", alternative), alternative
            assert len(alternative) > 40
    page = read(full_study, "experiments/data-size.md")
    error = 100 - 100 * late(full_study, "vit-100").mean()
    assert f"ViT from {error:.2f} % with 100 images" in page
    assert "with 60,000 images" in page
    shifts = read(full_study, "experiments/networks.md")
    shifted = 100 * np.mean([float(row["shift_4"]) for row in rows_of(full_study, "seeds.csv", "cnn")])
    assert f"CNN from {100 * column(full_study, 'cnn', 'test_accuracy').mean():.2f} to {shifted:.2f} %" in shifts


def test_provenance_and_hardware_name_commit_digest_device_kernel_and_command(full_study: Path) -> None:
    readme, hardware = read(full_study, "README.md"), read(full_study, "hardware.md")
    for text in (f"MNIST, digest `{'d' * 64}`", "dvc repro"):
        assert text in readme
    for text in ("`0123456789ab`", f"`{'c' * 12}`", "Some Processor (2 cores)", "torch 2.15.0", "2026-01-02T03:04:05Z"):
        assert text in hardware
        assert text not in readme
    trainings = table(hardware, "started (UTC)")
    assert (trainings["base"][2], trainings["cnn"][2]) == ("fused-cpu", "none")
    assert "rnn" not in trainings
    recorded = [float(row["seconds"]) for row in rows_of(full_study, "epochs.csv", "base")]
    assert float(trainings["base"][5]) == pytest.approx(np.median(recorded), rel=0.005)
    assert float(trainings["base"][6].replace(",", "")) == pytest.approx(sum(recorded), rel=0.005)
    assert "60,000 train and 10,000 test images" in readme
    assert "These are not the data" not in readme
    assert "data/samples.png" in readme


def test_the_glossary_has_the_words_that_the_pages_use(full_study: Path) -> None:
    glossary = read(full_study, "glossary.md").lower().replace("-", " ")
    written = [path for path in (full_study / "reports").rglob("*.md") if path.name != "glossary.md"]
    used = " ".join(path.read_text() for path in written).lower().replace("-", " ")
    for word in (
        "short run", "observed", "not decided", "looks", "Welch", "98.8 % interval", "test error", "margin",
        "what would decide it", "unsteadiness", "rollout", "nats", "points", "diverged", "ink correlation", "one case is enough",
    ):  # fmt: skip
        if word != "one case is enough":  # no claim of that kind is in an experiment of this study
            assert word.lower().replace("-", " ") in used, word
        assert word.lower().replace("98.8 % interval", "98.8 %").replace("-", " ") in glossary, word
    for measure in MEASURES:
        name = measure.removesuffix(" at the start").replace("of repeats", "").replace("-", " ").lower().strip()
        assert name in glossary, measure
    for section in ("## Runs", "## Measures", "## Captions", "## Statistics", "## Claims"):
        assert section.lower() in glossary
    terms = re.findall(r"^- \*\*([^*]+)\*\*", read(full_study, "glossary.md"), flags=re.MULTILINE)
    assert len(terms) == len(set(terms)) > 25


def test_same_inputs_give_equal_bytes(small_study: Path, drawn_once: dict[tuple[str, str, bool], bytes]) -> None:
    drawn_once.clear()
    write_pages()
    first = contents(small_study)
    assert {name for name in first if name.endswith(".md")} == {
        f"reports/{page}.md" for page in ("README", "thesis", "method", "hardware", "glossary", "experiments/one", "experiments/two")
    }
    shutil.rmtree(small_study / "reports")
    drawn_once.clear()
    write_pages()
    assert contents(small_study) == first


def test_removed_experiment_and_variant_vanish(small_study: Path) -> None:
    write_pages()
    (small_study / "reports/experiments/kept.txt").write_text("not ours")

    def remove(raw: dict[str, Any]) -> None:
        del raw["experiments"]["two"], raw["variants"]["patch-7"]

    edit(small_study, remove)  # runs/patch-7 is still there: the report reads what params.yaml names
    write_pages()
    after = contents(small_study)
    assert {name for name in after if not name.endswith(".png")} == {
        f"reports/{page}"
        for page in (
            "README.md",
            "thesis.md",
            "method.md",
            "hardware.md",
            "glossary.md",
            "claims.csv",
            "curves.csv",
            "experiments/one.md",
            "experiments/kept.txt",
        )
    }
    assert all(re.search(r"/(one-|verdicts|thesis)", name) for name in after if name.endswith(".png"))
    assert not re.search(rb"^\| \d+ \| patch-7 \|", after["reports/README.md"], flags=re.MULTILINE)


def test_preview_stands_at_the_top_of_every_page(small_study: Path) -> None:
    write_pages()
    assert not any(line.startswith(">") for page in small_study.rglob("*.md") for line in page.read_text().splitlines()[:5])
    edit(small_study, lambda raw: raw.update(preview="PREVIEW. Few seeds.\nToo little to settle a claim."))
    write_pages()
    written = list((small_study / "reports").rglob("*.md"))
    assert len(written) == 7
    for page in written:
        lines = page.read_text().splitlines()
        assert lines[0].startswith("# ")
        assert lines[2:4] == ["> PREVIEW. Few seeds.", "> Too little to settle a claim."]


def test_a_profile_is_reproduced_by_its_own_command(small_study: Path) -> None:
    write_pages()
    assert "\ndvc repro                  # trains only what has no results yet" in read(small_study, "README.md")
    edit(small_study, lambda raw: raw.update(profile="preview"))
    write_pages()
    for page in ("README.md", "experiments/one.md"):
        text = read(small_study, page)
        assert "```sh\nmake preview\n```" in text
        assert "git checkout" not in text


def test_one_seed_and_one_epoch_have_neither_interval_nor_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path, seeds=1, epochs=1, images_shown=60_000, **SMALL)
    monkeypatch.chdir(tmp_path)
    write_pages()
    page = (tmp_path / "reports/experiments/one.md").read_text()
    (cells,) = (cells for label, cells in table(page, "| differs by |").items() if label != "base (baseline)")
    assert (cells[3], cells[5], cells[7]) == ("-", "-", "-")  # neither spread nor intervals
    assert "### T1a: not decided" in page
    assert "over 1 seed there is no interval at this level" in page
    assert "one seed per variant does not tell whether the others reach another accuracy" in page
    check_tables(tmp_path)
    check_text(tmp_path)


def test_runs_of_several_commits_or_of_none_are_told_and_each_page_names_one_commit(small_study: Path) -> None:
    directory = small_study / "runs/sinusoidal"
    record = results.read_run(directory) | {"git_commit": "f" * 40, "git_dirty": True}
    for edits, told in ((None, "how was not recorded"), (["base.dim: 32 -> 48"], "`base.dim: 32 -> 48`")):
        results.write_run(directory, record | ({"git_edits": edits} if edits else {}))
        write_tables(small_study)
        write_pages()
        origins = table(read(small_study, "hardware.md"), "trained at")
        assert origins["sinusoidal"][1] == f"`{'f' * 12}`, edited{'; ' if edits is None else ': '}{told}"
        assert origins["base"][1] == "`0123456789ab`"
    for page in ("README.md", "experiments/one.md", "experiments/two.md"):
        (line,) = (line for line in read(small_study, page).splitlines() if line.startswith("git checkout"))
        assert line.startswith(f"git checkout $(git log -n1 --format=%H -- reports/{page}) ")


def test_where_seeds_were_trained_and_replayed_is_told(small_study: Path) -> None:
    directory = small_study / "runs/sinusoidal"
    replay = {"git_commit": "b" * 40, "date": "2026-03-04T05:06:07+00:00", "exact": True}
    trainings = [
        {
            "seeds": [0, 1],
            "git_commit": "a" * 40,
            "device_name": "One",
            "replays": [replay, replay | {"git_commit": "c" * 40, "exact": False}],
        },
        {"seeds": [2], "git_commit": "b" * 40, "device_name": "Another", "replays": []},
    ]
    results.write_run(directory, results.read_run(directory) | {"trainings": trainings})
    write_tables(small_study)
    write_pages()
    first, second = (line for line in read(small_study, "hardware.md").splitlines() if "`aaaa" in line or "`bbbb" in line)
    assert first.startswith(f"| sinusoidal | 0, 1 | `{'a' * 12}` |")
    assert first.endswith(f"| One | 2 times, 1 of them up to rounding, last by `{'c' * 12}` on 2026-03-04 |")
    assert second.startswith(f"| sinusoidal | 2 | `{'b' * 12}` |")
    assert second.endswith("| Another |  |")


# --- faults ---


def _arrays(**changes: Any) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "predictions/sinusoidal.npz"
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        arrays |= changes
        np.savez(path, **{name: value for name, value in arrays.items() if value is not None})

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: shutil.rmtree(root / "tables"), "`dvc repro evaluate` writes tables/ of what is trained."),
        (lambda root: edit(root, lambda raw: raw.update(SMALL_OTHER)), "tables/ has no results of any variant that params.yaml names"),
        (lambda root: (root / "tables/epochs.csv").unlink(), "tables/ is damaged, epochs.csv is missing: run `dvc repro --force"),
        (
            lambda root: flip_bit(root / "predictions/sinusoidal.npz"),
            "sinusoidal.npz is damaged: run `dvc repro --force --single-item evaluate`.",
        ),
        (
            lambda root: (path := root / "tables/variants.csv").write_text(path.read_text().replace("flops", "flips")),
            "base lacks `parameters` or `flops`",
        ),
        (_arrays(predictions=None), "it lacks predictions: run `dvc repro --force --single-item evaluate`"),
        (_arrays(positions=np.zeros((3, 7, 5), np.float32)), "`positions` has the shape (3, 7, 5)"),
        (_arrays(seeds=np.array([4, 5, 6])), "do not fit the seeds of the training"),
        (_arrays(labels=np.full(IMAGES, 9, np.uint8)), "is of another training than runs/sinusoidal: run `dvc repro evaluate`."),
        (
            lambda root: edit(root, lambda raw: raw["train"].update(epochs=9)),
            "runs/base was trained with other settings than params.yaml now has: run `dvc repro`.",
        ),
        (lambda root: edit(root, lambda raw: raw["experiments"]["one"].update(claims=["T99"])), "names 'T99', which claims does not have"),
    ],
)
def test_stale_or_damaged_inputs_are_one_sentence_and_lose_nothing(
    small_study: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    for page in ("README.md", "experiments/one.md", "experiments/gone.md"):
        (small_study / "reports" / page).parent.mkdir(parents=True, exist_ok=True)
        (small_study / "reports" / page).write_text("the last good report")
    before = contents(small_study)
    damage(small_study)
    with pytest.raises(UserError, match=re.escape(sentence)):
        write_pages()
    assert contents(small_study) == before


def test_pictures_for_tracking_are_of_the_variants_that_ran(small_study: Path) -> None:
    shutil.rmtree(small_study / "runs/patch-7")
    write_tables(small_study)
    report.main([])
    assert (small_study / "reports/README.md").exists()
    pictures = small_study / ".checkpoints/figures"
    assert {path.stem for path in pictures.iterdir()} == {"base", "sinusoidal"}
    assert Image.open(io.BytesIO((pictures / "base.png").read_bytes())).size[0] > 800


@pytest.mark.long
def test_the_whole_catalogue_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_study(tmp_path, seeds=6, epochs=5)
    write_dataset(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_pages()
    assert {path.stem for path in (tmp_path / "reports/experiments").glob("*.md")} == set(raw["experiments"])
    check_links(tmp_path)
    check_tables(tmp_path)
    check_text(tmp_path)
