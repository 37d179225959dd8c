"""`make compare`: against scipy, on studies in real git repositories; and the same numbers from MLflow."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pipeline.commands.compare import LIMIT, Change, Comparison, code, compare, main, read, render
from pipeline.evaluation.records import Evaluation, Records
from pipeline.runner import seeds
from pipeline.study import load, tables
from pipeline.system.errors import UserError
from pipeline.training.records import EpochRow
from tests.helpers import commit_all, git, stored
from tests.tracking.trainings import make_run

BASE = [0.951, 0.962, 0.958, 0.949, 0.957, 0.960, 0.955]
HEAD = [0.961, 0.963, 0.967, 0.959, 0.956, 0.968, 0.966]
CONFIG: dict[str, Any] = {
    "data": {"dataset": "digits"},
    "train": {"seeds": [0], "epochs": 2, "batch_size": 128, "learning_rate": 0.005, "optimizer": "adam", "clip_norm": None},
    "model": {"architecture": "vit", "patch": 4, "dim": 32, "final_norm": False, "memory": 0},
}


class Repository:
    """A git repository with the results of trainings; those that come next lie in `place`."""

    def __init__(self, root: Path) -> None:
        self.root, self.place, self.trained = root, root, 0
        self.records: dict[str, dict[str, Any]] = {}
        git(root, "init", "--quiet", "--initial-branch", "main")

    def train(
        self, variant: str, accuracy: Mapping[int, float] | Sequence[float], change: Mapping[str, Any] | None = None, **run: Any
    ) -> None:
        """Writes what a training leaves, and the tables of all; `accuracy` is that of each seed after the last epoch."""
        self.trained += 1
        final = dict(accuracy) if isinstance(accuracy, Mapping) else dict(enumerate(accuracy))
        config = {section: {**options} for section, options in CONFIG.items()}
        for key, value in {"train.seeds": list(final), **(change or {})}.items():
            section, name = key.split(".")
            config[section][name] = value
        rows = [
            list(EpochRow(seed, epoch, 2.3 / epoch + seed / 7, 2.1 / epoch, value * epoch / 2, 1.5 / epoch, 12.5 + seed / 3))
            for seed, value in final.items()
            for epoch in (1, 2)
        ]
        record = make_run(variant, f"{self.trained:032x}") | {"config": config, "seeds": list(final), "epochs": rows}
        metrics = {"n": len(final), "parameters": 10_666, "flops": 1_738_558}
        record |= {"git_commit": None, "git_dirty": None, "finished": "2026-01-02T03:14:05+00:00", "metrics": metrics} | run
        path = stored(self.place, variant)
        seeds.write_record(path, record | {"outputs": {"weights": {str(seed): variant for seed in final}}}, {})
        self.records[variant] = seeds.read_record(path)
        (self.place / "tables").mkdir(exist_ok=True)
        for name, content in tables.render([tables.training(record, None) for _, record in sorted(self.records.items())]).items():
            (self.place / "tables" / name).write_text(content)

    def commit(self) -> str:
        return commit_all(self.root)

    def both(self, first: str, second: str = "HEAD") -> Comparison:
        return compare(read(first), read(second))

    def changed(self, base: Sequence[float], head: Mapping[int, float] | Sequence[float], **run: Any) -> Change:
        """What `base` trained again is, at two commits."""
        self.train("base", base)
        self.commit()
        self.train("base", head, **run)
        self.commit()
        (change,) = self.both("HEAD~1").changes
        return change


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow itself sets it where a network is registered
    return Repository(tmp_path)


# --- numbers ---


@pytest.mark.parametrize("base", [BASE, BASE[:4]], ids=["the same seeds", "other seeds"])
def test_numbers_are_scipys_and_pairs_go_by_seed(study: Repository, base: Sequence[float]) -> None:
    change = study.changed(base, {seed: HEAD[seed] for seed in (5, 2, 6, 0, 3, 1, 4)})
    theirs = stats.ttest_rel(HEAD, base) if base == BASE else stats.ttest_ind(HEAD, base, equal_var=False)
    ends = theirs.confidence_interval(0.95)
    assert change.paired is (base == BASE)
    assert change.interval is not None
    assert change.difference == pytest.approx(np.mean(HEAD) - np.mean(base), abs=1e-15)
    assert (change.interval.low, change.interval.high) == pytest.approx((ends.low, ends.high), abs=1e-12)
    assert change.p == change.adjusted == pytest.approx(theirs.pvalue)


def test_holm_is_over_the_variants_that_could_differ(study: Repository) -> None:
    """Not over those that are the same to the last bit: kept, trained again with the same outcome, with seeds added."""
    bit = [*BASE[:4], float(np.nextafter(BASE[4], 1)), *BASE[5:]]
    heads = {"one": HEAD, "two": HEAD, "bit": bit, "same": BASE, "more": BASE}
    study.train("kept", BASE)
    for name in heads:
        study.train(name, BASE[:5] if name in ("more", "bit") else BASE)
    study.commit()
    for name, head in heads.items():
        study.train(name, head)
    changes = {change.variant: change for change in study.both("HEAD", "").changes}
    identical = {name for name, change in changes.items() if change.identical}
    assert identical == {name for name, change in changes.items() if change.p is change.adjusted is None} == {"kept", "same", "more"}
    assert changes["same"].base.id != changes["same"].head.id
    assert (changes["more"].settings, changes["bit"].paired) == ((), False)
    for one in (changes["one"], changes["two"]):
        assert one.p is not None
        assert one.adjusted == pytest.approx(3 * one.p)
    assert {name for name, change in changes.items() if change.differs} == {"one", "two"}


def test_where_there_is_no_spread_there_is_no_test(study: Repository) -> None:
    change = study.changed([0.5, 0.5], {3: 0.5, 4: 0.5})
    assert (change.p, change.interval) == (None, None)
    assert "nan" not in render(study.both("HEAD~1"))


# --- what differs ---


def test_added_removed_and_changed_settings(study: Repository) -> None:
    for variant in ("base", "gone", "changed"):
        study.train(variant, BASE)
    (study.root / "params.yaml").write_text("images_shown: 9000\nlooks: [6]\n")
    study.commit()
    (study.root / "params.yaml").write_text("images_shown: 600\nlooks: [6]\n")
    del study.records["gone"]
    study.train("new", BASE)
    later = {"model.later": 3, "model.mlp": "none", "model.norm_kind": "layer"}  # of which the last two had known values before
    study.train("changed", HEAD, {"model.dim": 48, "train.clip_norm": 1.0, **later})
    comparison = study.both("HEAD", "")
    assert (comparison.added, comparison.removed) == (["new"], ["gone"])
    changes = {change.variant: change for change in comparison.changes}
    assert changes["changed"].settings == ("train.clip_norm: none → 1.0", "model.mlp: full → none", "model.dim: 32 → 48")
    assert changes["base"].settings == ()
    page = render(comparison)
    assert f"- Added: `new` ({100 * np.mean(BASE):.2f}\u00a0±\u00a0{100 * np.std(BASE, ddof=1):.2f}), accuracy" in page
    assert "- Settings changed: `changed`.\n- When claims are judged changed: images_shown: 9000 → 600.\n" in page


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        ({"code_hash": "e" * 64}, "code_hash: dddddddddd → eeeeeeeeee"),
        ({"device_name": "a | `b` <i> @you"}, "device_name: A processor (2 cores) → a | `b` <i> @you"),
    ],
)
def test_why_a_variant_was_trained_anew(study: Repository, run: dict[str, Any], shown: str) -> None:
    """Text of a repository stays text, in a table's cell."""
    assert study.changed(BASE, HEAD, **run).causes == (shown,)
    page = render(study.both("HEAD~1"))
    assert code(shown) in page
    assert shown not in re.sub(r"`[^`]*`", "", page)
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in page.splitlines() if line.startswith("|")}) == 1


def test_verdicts_that_changed(study: Repository) -> None:
    header, later = "claim,verdict,comparison,n,effect,low,high,level,shown", ",fixed,digest"
    (study.root / "reports").mkdir()
    study.train("base", BASE)
    for verdict, more, digest in (("contradicted", "", ""), ("not decided", later, ",,1e4"), ("supported", later, ",,1e5")):
        (study.root / "reports/claims.csv").write_text(
            f"{header}{more}\nT1,{verdict},a / b,6,0.5,0.4,0.6,0.95,0.5 times{digest}\nT2,supported,c,6,1,,,,1 | x{digest and ',,'}\n"
        )
        study.commit()
    page = render(study.both("HEAD~1"))
    assert "- Verdicts changed: not decided → supported (1).\n" in page
    assert "| `T1` | **not decided**, `0.5 times` | **supported**, `0.5 times` | `a / b`; the claim was changed |" in page
    assert "the claim was changed" not in render(study.both("HEAD~2"))  # which does not say what its claims were
    assert "T2" not in page


# --- the page ---


def test_any_number_of_variants_fits_into_a_comment(study: Repository) -> None:
    change = replace(study.changed(BASE, HEAD), settings=("model.dim: 32 → 48",) * 12)
    page = render(study.both("HEAD~1")._replace(changes=[replace(change, variant=f"{'v' * 70}{i}") for i in range(300)]))
    assert len(page) <= LIMIT
    assert "rows left out" in page


# --- the command ---


@pytest.fixture
def two(study: Repository) -> Repository:
    git(study.root, "branch", "empty", study.commit())
    study.train("base", [0.9, 0.8])
    study.commit()
    git(study.root, "tag", "v1")
    study.train("base", [0.8, 0.6])
    study.commit()
    return study


def test_the_page_is_written_and_printed_of_commits_and_folders(two: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    main(["v1", "main"])
    out, err = capsys.readouterr()
    assert (out, err) == ((two.root / "build/compare.md").read_text(), "Written to build/compare.md.\n")
    two.train("base", [0.5, 0.3])
    main(["v1"])
    assert "\N{MINUS SIGN}45.00" in capsys.readouterr().out  # the working tree
    two.place = two.root / "build/demo"  # which git does not keep
    two.train("base", [0.9, 0.7])
    main(["main", "build/demo"])
    assert "| +10.00 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["", "main"], "Say which commit to compare with"),
        (["v2"], "There is no commit 'v2' here; the nearest is 'v1'."),
        (["v1", "--source", "mlfow"], "There is no source 'mlfow'"),
        (["v1", "--in", "build/demo"], "git does not keep build/demo"),
        (["empty"], "The commit empty holds no results in tables/."),
        (["v1", "--source", "mlflow"], "There is no MLflow store mlflow.db"),
    ],
)
def test_a_wrong_use_is_answered_in_one_sentence(two: Repository, argv: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        main(argv)
    assert str(caught.value).startswith(sentence)
    assert not {"build", "mlflow.db"} & {path.name for path in two.root.iterdir()}


# --- MLflow ---


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_mlflow_has_the_numbers_of_the_tables(study: Repository, empty_database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.stages.sync import sync

    (study.root / "mlflow.db").write_bytes(empty_database.read_bytes())
    (study.root / ".gitignore").write_text("/mlflow.db*\n/mlartifacts/\n/.checkpoints/\n/build/\n/store/\n")
    (study.root / "params.yaml").write_text("data: {dataset: digits}\nvariants: {base: {}, kept: {}, new: {}}\n")
    records = Records(study.root)
    columns = {"shift_1": [0.1 + 0.2, 2 / 3, 0.7], "attention_entropy": [float("inf"), 1.0, 1e-300]}
    found = {"base": columns, "kept": {"shift_1": [1 / 3, 0.2, 0.1]}}

    def commit() -> str:
        runs = {name: seeds.read_record(stored(study.root, name)) for name in study.records}
        paths = {name: run["outputs"]["weights"] for name, run in runs.items()}
        for name in found:
            inputs = {"weights": paths[name], "data": runs[name]["data_digest"]}
            records.write(name, {}, Evaluation(inputs, found[name], {"test_accuracy": 0.5}))
        records.write_tables({name: {"weights": weights} for name, weights in paths.items()})
        return study.commit()

    for name, accuracies in (("base", {7: 0.1 + 0.2, 0: 0.9, 2: 1 / 3}), ("kept", {7: 0.4, 0: 0.8, 2: 0.2})):
        study.train(name, accuracies)
    first = commit()
    sync()
    study.train("base", {7: 0.5, 0: 0.95, 2: 2 / 3}, {"model.dim": 64})
    commit()
    sync()
    for revision in (first, "HEAD"):
        files, store = load(revision), load(revision, store="mlflow.db")
        for frame in ("epochs", "seeds", "variants"):
            pd.testing.assert_frame_equal(getattr(store, frame), getattr(files, frame), check_exact=True, check_like=True)
    capsys.readouterr()
    main([first, "HEAD"])
    page = capsys.readouterr().out
    main([first, "HEAD", "--source", "mlflow"])
    assert capsys.readouterr().out == page
    study.train("new", {7: 0.3})
    commit()
    main([first, "HEAD", "--source", "mlflow"])
    assert "- Not whole in MLflow, so left out: `new`.\n" in capsys.readouterr().out
