"""Tables of any age, wherever a commit has them; damaged ones are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.compare.sides import read_revision, read_working_tree
from pipeline.errors import UserError
from pipeline.study.git import Repository

if TYPE_CHECKING:
    from tests.compare.conftest import Study


def test_a_commit_is_read_as_it_was_written(study: Study) -> None:
    study.train("base", {3: 0.9, 0: 0.85}, change={"model.dim": 48}, run={"versions": {"torch": "2.14"}}, seconds=10)
    side = read_revision(Repository(study.root), study.commit("some results"))
    assert (side.study.place, side.study.prefix, side.dirty, side.study.preview) == ("tables", "", None, None)
    assert side.commit is not None
    assert side.commit.subject == "some results"
    training = side.study.trainings["base"]
    assert training.seeds == (3, 0)
    assert training.accuracy.tolist() == [0.9, 0.85]
    assert training.curves["test_accuracy"].tolist() == [[0.45, 0.9], [0.425, 0.85]]
    assert training.curves["gradient_norm"].tolist() == [[1.5, 0.75]] * 2
    assert training.curves["seconds"][1].tolist() == [10.0, 10.0]
    assert (training.options["model.dim"], training.options["train.seeds"], training.options["train.clip_norm"]) == (48, [3, 0], None)
    assert (training.origin["versions.torch"], training.origin["device"]) == ("2.14", "cpu")
    assert training.id == f"{1:032x}"
    assert (training.parameters, training.flops) == (10_666, 163 * 10_666)


def test_what_older_records_lack_is_absent(study: Study) -> None:
    study.train("base", [0.9, 0.8, 0.7], old=True)
    training = read_revision(Repository(study.root), study.commit()).study.trainings["base"]
    assert "model.memory" not in training.options
    assert training.accuracy.tolist() == [0.9, 0.8, 0.7]


def test_losses_that_diverged_are_read(study: Study) -> None:
    study.train("base", [0.1])
    study.change("base", lambda record: record.update(epochs=[[0, 1, math.nan, math.inf, 0.098, math.nan, 1.5]]))
    curves = read_revision(Repository(study.root), study.commit()).study.trainings["base"].curves
    assert np.isnan(curves["train_loss"]).all()
    assert np.isinf(curves["test_loss"]).all()


def test_the_working_tree_is_read_as_it_lies(study: Study) -> None:
    study.train("base", [0.9])
    study.commit("results")
    repository = Repository(study.root)
    assert read_working_tree(repository).dirty is False
    study.train("other", [0.5])
    side = read_working_tree(repository)
    assert list(side.study.trainings) == ["base", "other"]
    assert (side.dirty, side.revision) == (True, "working tree")
    assert list(read_revision(repository, "HEAD").study.trainings) == ["base"]


def test_before_the_first_commit_there_is_a_working_tree(study: Study) -> None:
    study.train("base", [0.9])
    side = read_working_tree(Repository(study.root))
    assert (side.commit, side.dirty, list(side.study.trainings)) == (None, True, ["base"])


def test_reading_leaves_everything_as_it_is(study: Study) -> None:
    study.train("base", [0.9])
    study.commit()
    study.train("base", [0.8])
    study.git("branch", "other")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in study.root.rglob("*") if path.is_file()}
    repository = Repository(study.root)
    read_revision(repository, "other")
    read_working_tree(repository)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in study.root.rglob("*") if path.is_file()} == before


def test_a_published_profile_is_read_where_it_is_asked_for(make_study: Callable[..., Study]) -> None:
    study = make_study(prefix="reports/preview")
    (study.root / "profiles" / "preview").mkdir(parents=True)
    (study.root / "params.yaml").write_text("data: {dataset: mnist}\nvariants: {zeta: {}, base: {}, gone: {}}\n")
    (study.root / "profiles" / "preview" / "params.yaml").write_text("preview: Later.\nvariants: {base: {dim: 8}, extra: {}}\n")
    for variant in ("alpha", "base", "extra", "zeta"):
        study.train(variant, [0.9])
    (study.root / "reports" / "preview" / "README.md").write_text("# Results\n\n> Small.\n\nText.\n\n> Another quotation.\n")
    side = read_revision(Repository(study.root), study.commit(), "reports/preview")
    assert (side.study.place, side.study.preview) == ("reports/preview/tables", "Small.")
    assert list(side.study.trainings) == ["zeta", "base", "extra", "alpha"]  # as the two files name them, others after


@pytest.mark.parametrize("content", ["", "[", "- a", "variants: [a]\npreview: 3\ndata: mnist\n", "\0"])
def test_an_unreadable_params_yaml_takes_nothing_away(study: Study, content: str) -> None:
    study.train("b", [0.9])
    study.train("a", [0.9])
    (study.root / "params.yaml").write_text(content)
    (study.root / "reports").mkdir()
    (study.root / "reports" / "README.md").write_text("# Results\n\nA full study.\n\n> Another quotation.\n")
    side = read_revision(Repository(study.root), study.commit())
    assert (list(side.study.trainings), side.study.preview) == (["a", "b"], None)


def test_no_other_place_is_read_than_the_one_that_was_asked_for(make_study: Callable[..., Study]) -> None:
    study = make_study(prefix="reports/preview")
    study.train("small", [0.9])
    study.prefix = "reports/gpu"
    study.train("fast", [0.9])
    repository = Repository(study.root)
    two = study.commit()
    said = "holds no results in tables/, only in reports/gpu, reports/preview: say which, for example with `IN=reports/gpu`"
    for read, arguments in ((read_revision, (two,)), (read_working_tree, ())):
        with pytest.raises(UserError, match=said):
            read(repository, *arguments)
    assert list(read_revision(repository, two, "reports/preview").study.trainings) == ["small"]
    study.prefix = ""
    study.train("large", [0.9])
    assert list(read_revision(repository, study.commit()).study.trainings) == ["large"]
    assert list(read_revision(repository, "HEAD", "reports/gpu").study.trainings) == ["fast"]


def test_a_side_without_results_names_a_commit_that_has_some(study: Study) -> None:
    empty = study.commit("nothing yet")
    repository = Repository(study.root)
    with pytest.raises(UserError, match=r"holds no results in tables/\.$"):
        read_revision(repository, empty)
    study.train("base", [0.9])
    full = study.commit()
    with pytest.raises(UserError, match=f"The commit {empty} holds no results .*; the newest commit that wrote some is {full[:7]}"):
        read_revision(repository, empty)
    with pytest.raises(
        UserError, match=r"The working tree holds no results in reports/demo/tables/, only in the top folder: say so with `IN=\.`\.$"
    ):
        read_working_tree(repository, "reports/demo")


def test_a_damaged_table_is_one_sentence_with_what_to_do(study: Study) -> None:
    study.train("base", [0.9])
    (study.root / "tables" / "epochs.csv").write_text("")
    study.commit()
    fault = r"epochs\.csv is not a table with a row per variant"
    with pytest.raises(UserError, match=rf"^tables/ of the commit main is damaged, {fault}: compare another commit\.$"):
        read_revision(Repository(study.root), "main")
    with pytest.raises(UserError, match=rf"^tables/ is damaged, {fault}: run `dvc repro --force --single-item evaluate`\.$"):
        read_working_tree(Repository(study.root))
