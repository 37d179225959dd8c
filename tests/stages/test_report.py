"""The report stage on run directories as the training leaves them: every figure in a page against the files themselves."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from pipeline.errors import UserError
from pipeline.params import ModelSettings, parse
from pipeline.stages import report

REPOSITORY = Path(__file__).parents[2]


def _positions(model: ModelSettings, rng: np.random.Generator) -> np.ndarray:
    """(tokens, dim): what the model adds; a learned table is drawn at random and smoothed a little over the grid."""
    grid, dim = model.grid, model.dim
    if model.position == "none":
        return np.zeros((0, dim))
    if model.position == "sinusoidal":
        angle = np.arange(model.num_tokens)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
        return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(model.num_tokens, dim)
    if model.position == "sincos2d":
        angle = np.arange(grid)[:, None] / 10000 ** (np.arange(dim // 4) / (dim // 4))
        half = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
        table = np.concatenate([np.repeat(half, grid, axis=0), np.tile(half, (grid, 1))], axis=1)
    else:
        noise = rng.normal(size=(grid + 2, grid + 2, dim))
        table = (noise[1:-1, 1:-1] + 0.5 * (noise[:-2, 1:-1] + noise[2:, 1:-1] + noise[1:-1, :-2] + noise[1:-1, 2:])).reshape(-1, dim)
    return np.concatenate([np.zeros((int(model.has_cls), dim)), table])


def write_run(root: Path, raw: dict[str, Any], variant: str) -> None:
    """`runs/VARIANT/` with made-up results, drawn from the variant's name."""
    params = parse(raw)
    settings = params.resolve(variant)
    rng = np.random.default_rng(list(hashlib.sha256(variant.encode()).digest()))
    seeds, epochs = settings.train.seeds, settings.train.epochs
    directory = root / "runs" / variant
    directory.mkdir(parents=True)
    floor = {"patch-14": 0.06, "no-position": 0.045, "patch-2": 0.03}.get(variant, 0.026)
    pace = {"patch-14": 2.0, "patch-7": 3.0, "patch-2": 21.0, "cls-loop": 8.0}.get(variant, 6.5)
    rows = []
    for seed in seeds:
        luck = rng.normal(0, 0.001)
        for epoch in range(1, epochs + 1):
            error = floor + luck + 0.09 / epoch**1.3 + abs(rng.normal(0, 0.0025))
            correct = round((1 - error) * 10000) / 10000
            rows.append((
                seed, epoch, 3.2 * (floor * 0.9 / epoch**0.35 + 0.12 / epoch), 3.3 * (1 - correct) * rng.uniform(0.95, 1.05), correct,
                pace * rng.uniform(0.97, 1.06),
            ))  # fmt: skip
    with (directory / "epochs.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("seed", "epoch", "train_loss", "test_loss", "test_accuracy", "seconds"))
        writer.writerows(rows)
    model = settings.model
    (directory / "metrics.json").write_text(
        json.dumps({"n": len(seeds), "parameters": 20000 + 50 * model.num_tokens, "flops": 9000 * model.num_tokens})
    )
    (directory / "run.json").write_text(
        json.dumps({
            "training_id": "0" * 32, "variant": variant, "stage": f"train@{variant}", "config": settings.model_dump(mode="json"),
            "config_hash": settings.config_hash, "code_hash": "c" * 64, "data_digest": "d" * 64, "dataset": settings.data.dataset,
            "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False, "device": "cpu",
            "device_name": "Some Processor (2 cores)", "attention": "fused-cpu",
            "versions": {"python": "3.11.2", "torch": "2.15.0", "numpy": "2.4.0", "numba": "0.61"}, "seeds": list(seeds),
            "started": "2026-01-02T03:04:05Z", "finished": "2026-01-02T03:09:05Z",
        })
    )  # fmt: skip
    np.savez(
        directory / "predictions.npz",
        labels=np.zeros(3, np.uint8), predictions=np.zeros((len(seeds), 3), np.uint8), seeds=np.array(seeds),
        positions=np.stack([_positions(model, rng) for _ in seeds]).astype(np.float32),
    )  # fmt: skip


def write_study(root: Path, seeds: int, epochs: int, **changes: Any) -> dict[str, Any]:
    """The real params.yaml with other seeds and epochs, and a run of every variant. Returns the raw parameters."""
    raw: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    raw["train"] |= {"seeds": list(range(seeds)), "epochs": epochs}
    raw |= changes
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    for variant in raw["variants"]:
        write_run(root, raw, variant)
    return raw


SMALL = {
    "variants": {"base": {}, "sinusoidal": {"position": "sinusoidal"}, "patch-7": {"patch": 7}},
    "experiments": {
        "one": {
            "title": "One", "question": "Is it?", "source": "thesis, 4.2", "baseline": "base", "variants": ["base", "sinusoidal"],
            "labels": {"sinusoidal": "a | b"}, "figures": ["curves", "position_similarity"], "claims": ["T1", "T2"],
        },
        "two": {"title": "Two", "question": "Is it?", "source": "code", "baseline": "base",
                "variants": ["patch-7", "base"], "figures": ["curves"]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def full_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seeds and thirty epochs of every variant of the real params.yaml, and their report."""
    root = tmp_path_factory.mktemp("full")
    write_study(root, seeds=10, epochs=30)
    (root / "data/arrays").mkdir(parents=True)
    shape = {"shape": [60000, 28, 28]}
    (root / "data/arrays/dataset.json").write_text(
        json.dumps({
            "name": "mnist", "arrays": {"train_images": shape, "test_images": {"shape": [10000, 28, 28]}},
            "class_counts": {"train": [6000 + i for i in range(10)], "test": [1000 + i for i in range(10)]},
            "pixel_mean": 0.13066, "pixel_std": 0.30811, "digest": "d" * 64,
        })
    )  # fmt: skip
    (root / "reports/data").mkdir(parents=True)
    (root / "reports/data/samples.png").write_bytes(b"a picture")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        report.main([])
    return root


@pytest.fixture
def small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_study(tmp_path, seeds=3, epochs=4, **SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / "reports").rglob("*")) if path.is_file()}


def edit(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))


def last_epoch(root: Path, variant: str, column: str) -> np.ndarray:
    """(seeds,): read anew with the csv module, apart from the code under test."""
    with (root / "runs" / variant / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    final = max(int(row["epoch"]) for row in rows)
    return np.array([float(row[column]) for row in rows if int(row["epoch"]) == final])


def table(page: str, header: str) -> dict[str, list[str]]:
    """The rows of the table whose header line holds `header`, by their first cell; numbers with an ASCII minus."""
    lines = page.replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and header in line)
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        rows[cells[0]] = cells[1:]
    return rows


def test_numbers_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    page = (full_study / "reports/experiments/positions.md").read_text()
    rows = table(page, "min to max")
    labels = {"base": "learned", "sinusoidal": "sinusoidal", "sincos2d": "2-D sinusoidal", "no-position": "none"}
    baseline = last_epoch(full_study, "base", "test_accuracy")
    raw = {}
    for variant, label in labels.items():
        accuracy = last_epoch(full_study, variant, "test_accuracy")
        low, high = stats.t.interval(0.95, 9, loc=accuracy.mean(), scale=stats.sem(accuracy))
        shown = rows[label]
        assert shown[:5] == [
            "10", f"{100 * accuracy.mean():.2f}", f"{100 * accuracy.std(ddof=1):.2f}",
            f"{100 * accuracy.min():.2f} to {100 * accuracy.max():.2f}", f"{100 * low:.2f} to {100 * high:.2f}",
        ]  # fmt: skip
        if variant == "base":
            assert shown[5] == "baseline"
            continue
        test = stats.ttest_rel(accuracy, baseline)
        interval = test.confidence_interval(0.95)
        assert float(shown[5]) == pytest.approx(100 * (accuracy - baseline).mean(), abs=0.00501)
        assert [float(x) for x in shown[6].split(" to ")] == pytest.approx([100 * interval.low, 100 * interval.high], abs=0.00501)
        raw[label] = stats.permutation_test(
            (accuracy, baseline),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            n_resamples=np.inf,
            vectorized=True,
        ).pvalue
    running = 0.0
    for rank, label in enumerate(sorted(raw, key=lambda name: raw[name])):
        running = max(running, min(1.0, (3 - rank) * raw[label]))
        assert float(rows[label][7]) == pytest.approx(running, abs=0.000501)


def test_losses_of_an_experiment_are_those_of_the_files(full_study: Path) -> None:
    rows = table((full_study / "reports/experiments/patch-size.md").read_text(), "train loss")
    train, test, base = (
        last_epoch(full_study, v, c) for v, c in (("patch-14", "train_loss"), ("patch-14", "test_loss"), ("base", "test_loss"))
    )
    low, high = stats.ttest_rel(test, base).confidence_interval(0.95)
    assert [float(cell) for cell in rows["14 x 14"][:5]] == pytest.approx(
        [train.mean(), train.std(ddof=1), test.mean(), test.std(ddof=1), (test - base).mean()], abs=5.1e-5
    )
    assert [float(x) for x in rows["14 x 14"][5].split(" to ")] == pytest.approx([low, high], abs=5.1e-5)


def test_leaderboard_has_every_variant_by_its_mean(full_study: Path) -> None:
    rows = table((full_study / "reports/README.md").read_text(), "parameters")
    means = {variant: last_epoch(full_study, variant, "test_accuracy").mean() for variant in rows}
    assert len(rows) == 13
    assert list(rows) == sorted(rows, key=lambda v: -means[v])
    assert {variant: float(cells[1]) for variant, cells in rows.items()} == pytest.approx(
        {v: 100 * m for v, m in means.items()}, abs=0.00501
    )
    assert rows["patch-2"][5:] == ["29,850", "1.77 M"]


def test_a_difference_is_denied_with_its_bound_only(full_study: Path) -> None:
    seen = 0
    for page in (full_study / "reports/experiments").glob("*.md"):
        text = page.read_text().replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")
        assert text.count("no detectable difference") == len(re.findall(r"no detectable difference of \d+\.\d\d points or more", text))
        for bound, low, high in re.findall(
            r"no detectable difference of ([\d.]+) points or more from [^(]+\([^,]+ points, 95 % interval (\S+) to (\S+)\)", text
        ):
            assert float(low) < 0 < float(high)
            assert float(bound) == pytest.approx(max(abs(float(low)), float(high)), abs=0.0101)
            assert float(bound) >= max(abs(float(low)), float(high)) - 1e-9
            seen += 1
    assert seen > 3


def test_claims_come_first_with_verdict_interval_and_link(full_study: Path) -> None:
    readme = (full_study / "reports/README.md").read_text()
    assert readme.index("## The claims") < readme.index("## The variants") < readme.index("## Provenance")
    rows = table(readme, "verdict")
    assert [re.match(r"\[(T\d)\]", first).group(1) for first in rows] == ["T1", "T2", "T3", "T4", "T5", "T6"]  # type: ignore[union-attr]
    verdicts = {first[1:3]: cells[1] for first, cells in rows.items()}
    assert set(verdicts.values()) <= {"**supported**", "**contradicted**", "**not decided**"}
    assert verdicts["T4"] == verdicts["T6"] == "**not decided**"
    difference = stats.ttest_rel(last_epoch(full_study, "first", "test_accuracy"), last_epoch(full_study, "base", "test_accuracy"))
    low, high = (100 * end for end in difference.confidence_interval(0.95))
    assert f"[{low:+.2f} to {high:+.2f}]" in next(cells[2] for first, cells in rows.items() if "T3" in first)
    assert verdicts["T3"] == ("**supported**" if max(-low, high) < 0.5 else "**not decided**")


def test_links_and_pictures_point_to_files_and_headings(full_study: Path) -> None:
    pages = list((full_study / "reports").rglob("*.md"))
    assert len(pages) == 5
    for page in pages:
        text = page.read_text()
        targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
        assert targets
        for target in targets:
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve()
            assert other.is_file(), target
            assert other.is_relative_to((full_study / "reports").resolve())
            if anchor:
                headings = re.findall(r"^#+ (.+)$", other.read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target
    used = {Path(name).name for page in pages for name in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text())}
    assert used == {path.name for path in (full_study / "reports/experiments/figures").iterdir()}


def test_tables_have_as_many_cells_as_their_header(full_study: Path) -> None:
    for page in (full_study / "reports").rglob("*.md"):
        for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE):
            widths = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
            assert re.fullmatch(r"(\|:?-+:?)+\|", block.splitlines()[1]), block


def test_provenance_names_commit_digest_device_and_command(full_study: Path) -> None:
    readme = (full_study / "reports/README.md").read_text()
    for text in (
        "0123456789abcdef0123456789abcdef01234567",
        "d" * 64,
        "c" * 64,
        "Some Processor (2 cores)",
        "torch 2.15.0",
        "fused-cpu",
        "dvc repro",
    ):
        assert text in readme
    assert "60,000 train and 10,000 test images" in readme
    assert "These are not the data" not in readme
    assert "data/samples.png" in readme


def test_same_inputs_give_equal_bytes(small_study: Path) -> None:
    report.main([])
    first = contents(small_study)
    assert {name for name in first if name.endswith(".md")} == {
        "reports/README.md",
        "reports/experiments/one.md",
        "reports/experiments/two.md",
    }
    shutil.rmtree(small_study / "reports")
    report.main([])
    assert contents(small_study) == first


def test_removed_experiment_and_variant_vanish(small_study: Path) -> None:
    report.main([])
    (small_study / "reports/experiments/kept.txt").write_text("not ours")

    def remove(raw: dict[str, Any]) -> None:
        del raw["experiments"]["two"], raw["variants"]["patch-7"]

    edit(small_study, remove)  # runs/patch-7 is still there: the report reads what params.yaml names
    report.main([])
    after = contents(small_study)
    assert {name for name in after if not name.endswith(".png")} == {
        "reports/README.md",
        "reports/experiments/one.md",
        "reports/experiments/kept.txt",
    }
    assert all("/one-" in name for name in after if name.endswith(".png"))
    assert b"patch-7" not in after["reports/README.md"]


def test_preview_stands_at_the_top_of_every_page(small_study: Path) -> None:
    report.main([])
    assert not any(line.startswith(">") for page in small_study.rglob("*.md") for line in page.read_text().splitlines())
    edit(small_study, lambda raw: raw.update(preview="PREVIEW. Few seeds.\nToo little to settle a claim."))
    report.main([])
    pages = list((small_study / "reports").rglob("*.md"))
    assert len(pages) == 3
    for page in pages:
        lines = page.read_text().splitlines()
        assert lines[0].startswith("# ")
        assert lines[2:4] == ["> PREVIEW. Few seeds.", "> Too little to settle a claim."]


def test_few_seeds_get_no_p_but_are_told_why(small_study: Path) -> None:
    report.main([])
    page = (small_study / "reports/experiments/two.md").read_text()
    assert "cannot fall below 0.25" in page
    assert not re.search(r"\| p \|", page)


def test_one_seed_and_one_epoch_have_neither_interval_nor_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path, seeds=1, epochs=1, **SMALL)
    monkeypatch.chdir(tmp_path)
    report.main([])
    page = (tmp_path / "reports/experiments/one.md").read_text()
    assert table(page, "min to max")["base"][4] == "-"
    assert "T1: not decided" in page
    assert "One seed has neither interval nor test" in page


def test_equal_runs_are_called_equal(small_study: Path) -> None:
    shutil.copy(small_study / "runs/base/epochs.csv", small_study / "runs/patch-7/epochs.csv")
    report.main([])
    assert "**patch-7**: every seed ends at the same accuracy as base." in (small_study / "reports/experiments/two.md").read_text()


def test_bars_in_labels_do_not_break_tables(small_study: Path) -> None:
    report.main([])
    assert "a \\| b" in table((small_study / "reports/experiments/one.md").read_text(), "min to max")


def test_runs_with_uncommitted_changes_or_several_commits_are_told(small_study: Path) -> None:
    path = small_study / "runs/sinusoidal/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"git_commit": "f" * 40, "git_dirty": True}))
    report.main([])
    readme = (small_study / "reports/README.md").read_text()
    assert f"`{'f' * 40}` (sinusoidal)" in readme
    assert "**yes**: the commit alone does not say what ran (sinusoidal)" in readme
    assert "one of several commits" in readme
    assert "no commit holds" in readme
    assert "no commit holds" not in (small_study / "reports/experiments/two.md").read_text()


def _drop(name: str) -> Callable[[Path], None]:
    return lambda root: (root / "runs/sinusoidal" / name).unlink()


def _write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "runs/sinusoidal" / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def _cut(root: Path) -> None:
    path = root / "runs/sinusoidal/epochs.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def _not_a_number(root: Path) -> None:
    path = root / "runs/sinusoidal/epochs.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], re.sub(r",[^,]+,([^,]+)$", r",nan,\1", lines[-1])]) + "\n")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_drop("epochs.csv"), "runs/ has no results of sinusoidal: run `dvc repro train@sinusoidal`."),
        (_drop("run.json"), "runs/ has no results of sinusoidal: run `dvc repro train@sinusoidal`."),
        (
            lambda root: shutil.rmtree(root / "runs"),
            "has no results of base, sinusoidal, patch-7: run `dvc repro train@base train@sinusoidal",
        ),
        (_drop("predictions.npz"), "dvc repro evaluate@sinusoidal"),
        (_write("predictions.npz", b"PK\x03\x04 cut off"), "--single-item evaluate@sinusoidal"),
        (_write("run.json", "{"), "--single-item train@sinusoidal"),
        (_write("metrics.json", "{}"), "lacks `parameters` or `flops`"),
        (_write("epochs.csv", "seed,epoch\n0,one\n"), "epochs.csv is damaged"),
        (_cut, "not one row for every seed and epoch"),
        (_not_a_number, "not a finite number"),
        (
            lambda root: edit(root, lambda raw: raw["train"].update(epochs=9)),
            "other settings than params.yaml now has: run `dvc repro train@base`",
        ),
        (lambda root: edit(root, lambda raw: raw["experiments"]["one"].update(claims=["T99"])), "names 'T99', but the claims are T1"),
    ],
)
def test_missing_stale_or_damaged_inputs_are_one_sentence_and_lose_nothing(
    small_study: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    for page in ("README.md", "experiments/one.md", "experiments/gone.md"):
        (small_study / "reports" / page).parent.mkdir(parents=True, exist_ok=True)
        (small_study / "reports" / page).write_text("the last good report")
    before = contents(small_study)
    damage(small_study)
    with pytest.raises(UserError, match=re.escape(sentence)):
        report.main([])
    assert contents(small_study) == before
