"""The report stage on files as the earlier stages leave them: every number on a page against the files themselves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from pipeline.errors import UserError
from pipeline.params import load, read_both
from pipeline.report import pages
from pipeline.report.figures import base
from pipeline.study.claims import DECIDED
from pipeline.study.effects import look_level
from pipeline.study.results import load_current
from tests.helpers import ROOT, STUDY, flip_bit, stored
from tests.made_up import (
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

LOOKS = (6, 10, 20, 100)  # of params.yaml
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
def full_study(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], drawn_once: Callable[..., bytes]) -> Path:
    """Half of the real experiments, ten seeds and twelve epochs of their variants but one, and their report. Not to be changed."""

    def make(root: Path) -> str:
        root.mkdir()
        raw = read_both(STUDY / "params.yaml")
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


def numbers(cell: str) -> list[float]:
    """`1.27 [1.25 to 1.29]` as three numbers."""
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


# --- experiments ---


def test_patches_are_told_from_the_class_token(full_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(full_study)
    run = load_current(load()).trainings["base"]  # three blocks of eight heads, 49 patches after the class token
    assert run.attention is not None
    with np.load("store/predictions/base.npz") as stored:
        assert np.array_equal(run.patch_positions, stored["positions"][:, 1:])
        assert np.array_equal(run.attention.maps.reshape(10, 3, 8, 49), stored["maps"][..., 1:50])
        assert np.array_equal(run.attention.rollout.reshape(10, 10, 49), stored["rollout"][..., 1:50])


LABELS = {
    "base": "base (learned), baseline", "position-std": "position-std (learned, started small)", "sinusoidal": "sinusoidal",
    "sincos2d": "sincos2d (2-D sinusoidal)", "no-position": "no-position (none)",
}  # fmt: skip


def test_numbers_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    page = read(full_study, "experiments/positions.md")
    rows, lasts = table(page, "| accuracy (%) | sd |"), table(page, "min to max")
    assert list(rows) == list(LABELS.values())
    baseline, base_loss = late(full_study, "base"), column(full_study, "base", "test_loss")
    for variant, label in LABELS.items():
        accuracy = late(full_study, variant)
        n, mean, sd, points, ratio = rows[label]
        assert (n, mean, sd) == ("10", f"{100 * accuracy.mean():.2f}", f"{100 * accuracy.std(ddof=1):.2f}")
        last, train, test = (column(full_study, variant, name) for name in ("test_accuracy", "train_loss", "test_loss"))
        ends = f"{100 * last.min():.2f} to {100 * last.max():.2f}"
        assert lasts[label][:4] == [f"{100 * last.mean():.2f}", ends, f"{train.mean():.4f}", f"{test.mean():.4f}"]
        if variant == "base":
            assert (points, ratio, lasts[label][4]) == ("", "", "")
            continue
        expected = [accuracy.mean() - baseline.mean(), *welch(accuracy, baseline)]
        assert numbers(points) == pytest.approx([100 * value for value in expected], abs=0.00501)
        ratios = [stats.gmean(1 - accuracy) / stats.gmean(1 - baseline), *np.exp(welch(np.log(1 - accuracy), np.log(1 - baseline)))]
        assert numbers(ratio) == pytest.approx(ratios, rel=0.006)
        assert numbers(lasts[label][4]) == pytest.approx([test.mean() - base_loss.mean(), *welch(test, base_loss)], abs=5.1e-5)
    means = {variant: 100 * late(full_study, variant).mean() for variant in LABELS}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    said = f"from {means[least]:.2f} % with {least} to {means[most]:.2f} % with {most}; the baseline, base, has {means['base']:.2f} %."
    assert said in page[: page.index("![")]


def test_a_verdict_rests_on_the_ratio_and_its_interval(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/schedules.md"), "| claim | verdict |", key=2)
    _, verdict, effect = rows["linear / warmup, test error"]
    ours, theirs = late(full_study, "linear"), late(full_study, "warmup")
    low, high = np.exp(welch(np.log(1 - ours), np.log(1 - theirs)))
    assert verdict == ("**supported**" if high < 1.25 else "**contradicted**" if low > 1.25 else "**not decided**")
    assert numbers(effect)[:3] == pytest.approx([stats.gmean(1 - ours) / stats.gmean(1 - theirs), low, high], rel=0.006)
    points = 100 * (theirs.mean() - ours.mean())
    assert float(effect.rsplit(", ")[-1].removesuffix(" points")) == pytest.approx(points, abs=0.00501)


def test_an_experiments_own_measure_has_a_table(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/schedules.md"), "| unsteadiness (points) |")
    values, epochs = {}, np.arange(10)
    for variant in ("base", "linear"):
        accuracy = np.array([float(row["test_accuracy"]) for row in rows_of(full_study, "epochs.csv", variant)]).reshape(10, 12)
        squares = [np.polyfit(epochs, row[-10:], 1, full=True)[1][0] for row in accuracy]  # of the residuals
        values[variant] = np.sqrt(np.array(squares) / 8)
    shown = rows["linear (pre, linear)"]
    assert shown[0] == "10"
    assert float(shown[1]) == pytest.approx(100 * values["linear"].mean(), abs=5.1e-4)
    ratio = stats.gmean(values["linear"]) / stats.gmean(values["base"])
    expected = [ratio, *np.exp(welch(*(np.log(values[variant]) for variant in ("linear", "base"))))]
    assert numbers(shown[3]) == pytest.approx(expected, rel=0.006)


def test_a_variant_stands_beside_the_one_that_the_experiment_names(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/schedules.md"), "| variant | beside |")
    beside, points, ratio = rows["warmup (pre, warm-up and linear)"]
    ours, theirs = late(full_study, "warmup"), late(full_study, "linear")
    assert beside == "linear"
    assert numbers(points) == pytest.approx([100 * value for value in (ours.mean() - theirs.mean(), *welch(ours, theirs))], abs=0.00501)
    assert numbers(ratio)[0] == pytest.approx(stats.gmean(1 - ours) / stats.gmean(1 - theirs), rel=0.006)
    assert "linear (pre, linear)" not in rows  # it stands beside the baseline, in Table 1


def test_what_was_not_run_is_said_and_stops_nothing(full_study: Path) -> None:
    page, readme = read(full_study, "experiments/networks.md"), read(full_study, "README.md")
    assert "**Not run: rnn.**" in page
    assert table(page, "| accuracy (%) | sd |")["rnn"] == ["not run", "-", "-", "-", "-"]
    missing = {first[1 : first.index("]")]: cells for first, cells in table(readme, "what is missing").items()}
    assert missing["K5"][1] == missing["T3"][1] == "**not run**"  # of no variant of this study
    assert table(readme, "| variant | differs from the base")["rnn"][1] == "not run"


def test_without_its_baseline_an_experiment_shows_what_there_is(small_study: Path) -> None:
    stored(small_study, "base").unlink()
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "**Not run: base.**" in page
    assert table(page, "| accuracy (%) | sd |")["sinusoidal (a \\| b)"][3:] == ["-", "-"]  # nothing to compare it with
    assert "one-position-similarity.png" in page
    assert "### T1a: not run" in page
    check_tables(small_study)
    stored(small_study, "sinusoidal").unlink()
    write_tables(small_study)
    write_pages()
    page = read(small_study, "experiments/one.md")
    assert "None of its variants was run yet." in page
    assert "![" not in page


def test_settings_tell_what_differs_and_no_more(full_study: Path) -> None:
    rows = table(read(full_study, "experiments/networks.md"), "| differs by |")
    assert rows["cnn"][:3] == ["architecture: cnn, widths: [12, 26]", "720,000", "-"]  # no tokens
    assert rows["base (ViT), baseline"][:3] == ["the base itself", "720,000", "50"]
    best = table(read(full_study, "experiments/best.md"), "| differs by |")["best"][0]
    assert {"epochs: 24", "schedule: cosine", "augment: affine", "dim: 64"} <= set(best.split(", "))
    assert "heads: 8" not in best  # the base has as many
    stability = table(read(full_study, "experiments/stability.md"), "| differs by |")
    assert stability["no-norm"][0] == "norm: none"  # not that its divergence is recorded


# --- the first page ---


def test_every_variant_stands_once_by_its_mean(full_study: Path) -> None:
    raw = yaml.safe_load((full_study / "params.yaml").read_text())
    readme = read(full_study, "README.md")
    rows = table(readme, "| variant | differs from the base")
    assert sorted(rows) == sorted(raw["variants"])
    for variant, cells in rows.items():
        if variant not in ("rnn", "best"):
            values = late(full_study, variant)
            low, high = stats.t.interval(0.95, 9, loc=values.mean(), scale=stats.sem(values))
            assert numbers(cells[2]) == pytest.approx([100 * values.mean(), 100 * low, min(100.0, 100 * high)], abs=0.00501)
    assert rows["base"][3:] == ["22,500", "450 k"]
    of_one = [variant for variant in rows if variant in raw["experiments"]["positions"]["variants"]]
    assert of_one == sorted(of_one, key=lambda variant: -late(full_study, variant).mean())


def test_the_first_page_counts_all_verdicts(full_study: Path) -> None:
    readme = read(full_study, "README.md")
    rows, missing = table(readme, "deciding comparison: effect"), table(readme, "what is missing")
    claims = yaml.safe_load((full_study / "params.yaml").read_text())["claims"]
    assert sorted(first[1 : first.index("]")] for first in (*rows, *missing)) == sorted(claims)
    verdicts = [cells[1].strip("*") for cells in rows.values()]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in (*DECIDED, "not decided") if verdict in verdicts]
    assert f"\n{len(claims)} claims: {', '.join(counts)}" in readme
    (said,) = re.findall(r"Of the (\d+) that were judged at most ([\d.]+) verdicts are expected to be false", readme)
    judged = sum(verdict in DECIDED for verdict in verdicts)
    assert (int(said[0]), float(said[1])) == (judged, pytest.approx(0.05 * (judged + verdicts.count("not decided")), abs=0.051))


def test_a_claim_follows_the_files(full_study: Path) -> None:
    """T10 by hand: fewer errors by a twentieth at most, from the interval of the ratio."""
    ours, theirs = (np.log(1 - late(full_study, variant)) for variant in ("sincos2d", "sinusoidal"))
    low, high = np.exp(welch(ours, theirs))
    expected = "supported" if low > 0.952 else "contradicted" if high < 0.952 else "not decided"
    if expected == "not decided" and low > 0.8 and high < 1.25:
        expected = "no effect of more than a quarter"
    assert f"### T10: {expected}" in read(full_study, "experiments/positions.md")
    (cells,) = (cells for first, cells in table(read(full_study, "README.md"), "deciding comparison: effect").items() if "T10" in first)
    assert cells[1] == f"**{expected}**"
    assert numbers(cells[2].partition("[")[2])[:2] == pytest.approx([low, high], rel=0.006)


def test_a_new_bound_is_judged_without_a_training(small_study: Path) -> None:
    before = {path: path.read_bytes() for path in (small_study / "store").rglob("*") if path.is_file()}
    edit(small_study, lambda raw: raw.update(images_shown=1, looks=[]))
    for bound, supported in ((50.0, True), (1.0001, False)):
        edit(small_study, lambda raw, bound=bound: raw["claims"]["T3"]["comparisons"][0].update(variant="sinusoidal", bound=bound))
        write_pages()
        assert ("### T3: supported" in read(small_study, "README.md")) == supported  # no experiment of this study has it
        check_links(small_study)
    assert before == {path: path.read_bytes() for path in (small_study / "store").rglob("*") if path.is_file()}


# --- all pages ---


@pytest.mark.parametrize("check", [check_links, check_tables, check_text])
def test_links_lead_somewhere_and_tables_are_whole(full_study: Path, check: Callable[[Path], None]) -> None:
    check(full_study)
    check(ROOT)


def test_no_table_is_wider_than_a_page() -> None:
    """A browser breaks lines at spaces alone: the widest words of all columns have to fit into 820 pixels, at 8 a letter and 27 a gap."""
    for page in (ROOT / "reports").rglob("*.md"):
        for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE):
            cells = [
                re.split(r"(?<!\\)\|", re.sub(r"\]\([^)]*\)|[`*\[]", "", line))[1:-1] for line in block.splitlines() if "|:--" not in line
            ]
            columns = zip(*cells, strict=True)
            widest = [max(len(word) for cell in column for word in re.split(r"[ -]|<br>", cell)) for column in columns]
            assert sum(8 * letters + 27 for letters in widest) <= 820, block.splitlines()[0]


def test_provenance_and_hardware_name_commit_digest_device_and_kernel(full_study: Path) -> None:
    readme, hardware = read(full_study, "README.md"), read(full_study, "hardware.md")
    assert f"MNIST, digest `{'d' * 64}`" in readme
    assert "60,000 train and 10,000 test images" in readme
    for text in ("`0123456789ab`", f"`{'c' * 12}`", "Some Processor (2 cores)", "torch 2.15.0", "2026-01-02T03:09:05Z"):
        assert text in hardware
    base, recorded = table(hardware, "finished (UTC)")["base"], [float(row["seconds"]) for row in rows_of(full_study, "epochs.csv", "base")]
    assert base[1] == "fused-cpu"
    assert [float(cell.replace(",", "")) for cell in base[3:]] == pytest.approx([np.median(recorded), sum(recorded)], rel=0.005)


def test_a_second_report_draws_and_writes_nothing_anew(
    small_study: Path, monkeypatch: pytest.MonkeyPatch, drawn_once: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(base, "png", drawn_once)
    write_pages()
    first = contents(small_study)
    times = {path: path.stat().st_mtime_ns for path in (small_study / "reports").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(base, "png", lambda draw, digest: pytest.fail("drawn anew"))
        write_pages()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    shutil.rmtree(small_study / "reports")
    write_pages()
    assert contents(small_study) == first


def test_removed_experiment_and_variant_vanish(small_study: Path) -> None:
    write_pages()
    (small_study / "reports/experiments/kept.txt").write_text("not ours")

    def remove(raw: dict[str, Any]) -> None:
        del raw["experiments"]["two"], raw["variants"]["patch-7"]

    edit(small_study, remove)  # its training is still there: the report reads what params.yaml names
    write_pages()
    after = contents(small_study)
    assert {name for name in after if "/experiments/" in name and "/figures/" not in name} == {
        f"reports/experiments/{name}" for name in ("one.md", "kept.txt")
    }
    assert not [name for name in after if "two-" in name]
    assert b"\n| patch-7 |" not in after["reports/README.md"]


def test_preview_stands_at_the_top_of_every_page(small_study: Path) -> None:
    edit(small_study, lambda raw: raw.update(preview="PREVIEW. Few seeds.\nToo little to settle a claim."))
    write_pages()
    tops = [page.read_text().splitlines()[2:4] for page in (small_study / "reports").rglob("*.md")]
    assert tops == [["> PREVIEW. Few seeds.", "> Too little to settle a claim."]] * 7


# --- faults ---


def _arrays(**changes: Any) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "store/predictions/sinusoidal.npz"
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
            lambda root: flip_bit(root / "store/predictions/sinusoidal.npz"),
            "sinusoidal.npz is damaged: run `dvc repro --force --single-item evaluate`.",
        ),
        (_arrays(seeds=np.array([4, 5, 6])), "is of another training than the record: run `dvc repro evaluate`."),
        (
            lambda root: edit(root, lambda raw: raw["train"].update(epochs=9)),
            "base was trained with other settings than params.yaml now has: run `dvc repro`.",
        ),
        (lambda root: edit(root, lambda raw: raw["experiments"]["one"].update(claims=["T99"])), "there is no 'T99'"),
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
