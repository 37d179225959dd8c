"""What differs, against scipy; and a study compared with itself, in which nothing does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.compare.changes import Change, Comparison, compare
from pipeline.compare.page import render, verdict
from pipeline.compare.sides import read_revision, read_working_tree
from pipeline.study.git import Repository

if TYPE_CHECKING:
    from tests.compare.conftest import Study

BASE = [0.951, 0.962, 0.958, 0.949, 0.957, 0.960, 0.955]
HEAD = [0.961, 0.963, 0.967, 0.959, 0.956, 0.968, 0.966]


def both(study: Study, first: str, second: str = "HEAD") -> Comparison:
    repository = Repository(study.root)
    return compare(read_revision(repository, first), read_revision(repository, second))


def only(comparison: Comparison) -> Change:
    (change,) = comparison.common
    return change


def test_paired_numbers_are_scipys(study: Study) -> None:
    study.train("base", BASE)
    first = study.commit()
    study.train("base", HEAD)
    study.commit()
    change = only(both(study, first))
    theirs = stats.ttest_rel(HEAD, BASE)
    ends = theirs.confidence_interval(0.95)
    assert change.paired
    assert change.interval is not None
    assert change.difference == pytest.approx(np.mean(HEAD) - np.mean(BASE), abs=1e-15)
    assert (change.interval.low, change.interval.high) == pytest.approx((ends.low, ends.high), abs=1e-12)
    exact = stats.permutation_test(
        (HEAD, BASE), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert change.p == pytest.approx(exact.pvalue)
    assert change.adjusted == change.p
    assert [summary.mean for summary in change.accuracy] == pytest.approx([np.mean(BASE), np.mean(HEAD)])
    assert [summary.sd for summary in change.accuracy] == pytest.approx([np.std(BASE, ddof=1), np.std(HEAD, ddof=1)])


def test_pairs_go_by_seed_and_not_by_place(study: Study) -> None:
    study.train("base", BASE)
    first = study.commit()
    order = [5, 2, 6, 0, 3, 1, 4]
    study.train("base", {seed: HEAD[seed] for seed in order})
    study.commit()
    change = only(both(study, first))
    assert change.paired
    assert change.interval is not None
    assert change.interval.low == pytest.approx(stats.ttest_rel(HEAD, BASE).confidence_interval(0.95).low)


def test_other_seeds_are_compared_by_welch(study: Study) -> None:
    study.train("base", BASE[:4])
    first = study.commit()
    study.train("base", HEAD)
    study.commit()
    comparison = both(study, first)
    change = only(comparison)
    theirs = stats.ttest_ind(HEAD, BASE[:4], equal_var=False)
    ends = theirs.confidence_interval(0.95)
    assert not change.paired
    assert change.interval is not None
    assert change.p == pytest.approx(theirs.pvalue)
    assert (change.interval.low, change.interval.high) == pytest.approx((ends.low, ends.high))
    page = render(comparison)
    assert "† Other seeds on the two sides (`base`: 0 to 3 at base, 0 to 6 at head)" in page
    assert "sign-flip" not in page


def test_holm_is_over_the_variants_that_could_differ(study: Study) -> None:
    rng = np.random.default_rng(3)
    names = [f"v{i}" for i in range(4)]
    for name in (*names, "same", "kept"):
        study.train(name, BASE)
    first = study.commit()
    heads = {name: (np.array(BASE) + rng.normal(0.004, 0.004, 7)).tolist() for name in names}
    for name, values in heads.items():
        study.train(name, values)
    study.train("same", BASE)  # trained again with the same outcome
    study.commit()
    comparison = both(study, first)
    p = {change.variant: change.p for change in comparison.common}
    assert p["same"] is p["kept"] is None
    ranked = sorted(names, key=lambda name: p[name] or 0)
    expected, running = {}, 0.0
    for rank, name in enumerate(ranked):
        running = expected[name] = min(1.0, max(running, (4 - rank) * (p[name] or 0)))
    assert {change.variant: change.adjusted for change in comparison.common} == expected | {"same": None, "kept": None}
    assert comparison.smallest_adjusted_p == pytest.approx(4 * 2 / 2**7)


def test_few_seeds_cannot_show_a_difference_and_the_page_says_so(study: Study) -> None:
    study.train("base", [0.50, 0.51, 0.52])
    first = study.commit()
    study.train("base", [0.90, 0.91, 0.92])
    study.commit()
    comparison = both(study, first)
    assert only(comparison).p == 0.25
    assert verdict(comparison) == (
        "No variant differs at adjusted p < 0.05 (with so few seeds none can: the least possible is 0.25);"
        " largest change: `base` +40.00 points [+40.00\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+40.00]."
    )
    assert "it takes 6 seeds" in render(comparison)


def test_the_least_p_is_said_of_the_fewest_and_the_most_seeds(study: Study) -> None:
    study.train("base", BASE)
    study.train("mean", BASE[:6])
    first = study.commit()
    study.train("base", HEAD)
    study.train("mean", HEAD[:6])
    study.commit()
    assert f"at least {2 / 2**6:.2g} with 6 and {2 / 2**7:.2g} with 7 seeds" in render(both(study, first))


def test_one_seed_allows_no_test(study: Study) -> None:
    study.train("base", [0.5])
    first = study.commit()
    study.train("base", [0.6])
    study.commit()
    comparison = both(study, first)
    assert (only(comparison).p, only(comparison).interval) == (None, None)
    assert verdict(comparison).startswith(
        "One seed on a side, so no test can say whether variants differ; largest change: `base` +10.00 points"
    )


def test_seeds_without_spread_allow_no_interval(study: Study) -> None:
    """All trainings of both sides learn nothing, so that other seeds of them are unknown."""
    study.train("base", {0: 0.1135, 1: 0.1135, 2: 0.1135})
    first = study.commit()
    study.train("base", {3: 0.1135, 4: 0.1135, 5: 0.1135})
    study.commit()
    comparison = both(study, first)
    assert (only(comparison).p, only(comparison).interval) == (None, None)
    assert verdict(comparison).startswith("On each side all seeds are equal, so no test can say whether variants differ; ")
    assert verdict(comparison).endswith("(no interval).")


def test_what_a_captioner_is_tested_on_is_said(study: Study) -> None:
    change = {"model.architecture": "captioner"}
    study.train("base", BASE)
    study.train("caption", BASE, change=change)
    first = study.commit()
    study.train("base", HEAD)
    study.commit()
    assert "validation scenes" not in render(both(study, first))
    study.train("caption", HEAD, change=change)
    study.commit()
    assert "Of captioners it is the scene accuracy on validation scenes." in render(both(study, first))


def test_a_clear_change_is_found(study: Study) -> None:
    study.train("zeta", BASE)
    study.train("other", BASE)
    first = study.commit()
    study.train("zeta", [value + 0.02 + 0.001 * (i % 3) for i, value in enumerate(BASE)])
    study.train("other", [value + 0.001 * (-1) ** i for i, value in enumerate(BASE)])
    study.commit()
    comparison = both(study, first)
    assert [change.variant for change in comparison.compared] == ["zeta", "other"]
    assert verdict(comparison).startswith("1 of 2 variants differs at adjusted p < 0.05; largest change: `zeta` +2.09 points [")


def test_added_removed_and_changed_settings(study: Study) -> None:
    for variant in ("base", "gone", "changed"):
        study.train(variant, BASE)
    first = study.commit()
    study.remove("gone")
    study.train("new", BASE)
    study.train("changed", HEAD, change={"model.dim": 48, "train.clip_norm": 1.0}, parameters=20_000)
    study.commit()
    comparison = both(study, first)
    assert [training.variant for training in comparison.added] == ["new"]
    assert [training.variant for training in comparison.removed] == ["gone"]
    changes = {change.variant: change for change in comparison.common}
    assert changes["changed"].settings == (("train.clip_norm", None, 1.0), ("model.dim", 32, 48))
    assert (changes["base"].retrained, changes["changed"].retrained) == (False, True)
    page = render(comparison)
    assert "- Added: `new`." in page
    assert "- Removed: `gone`." in page
    assert "- Settings changed: `changed`." in page
    assert "| `model.dim` | `32` | `48` | `changed` |" in page
    assert "10,666 → 20,000" in page


@pytest.mark.parametrize(
    ("key", "value", "kind", "shown"),
    [
        ("code_hash", "e" * 64, "code", "| code hash | `cccccccccc` | `eeeeeeeeee` | `base` |"),
        ("data_digest", "e" * 64, "data", "| data digest | `dddddddddd` | `eeeeeeeeee` | `base` |"),
        ("versions", {"python": "3.11.7", "torch": "2.16.0"}, "versions", "| version of torch | `2.15.0` | `2.16.0` | `base` |"),
        ("device_name", "Another", "device", "| device name | `A processor (2 cores)` | `Another` | `base` |"),
        ("attention", "sdpa", "attention", "| attention | `fused-cpu` | `sdpa` | `base` |"),
        ("git_commit", "f" * 40, "nothing recorded", "Trained anew although nothing that is recorded differs: `base`."),
    ],
)
def test_why_a_variant_was_trained_anew(study: Study, key: str, value: object, kind: str, shown: str) -> None:
    study.train("base", BASE)
    study.train("kept", BASE)
    first = study.commit()
    study.train("base", HEAD, run={key: value})
    study.commit()
    page = render(both(study, first))
    assert f"- Trained anew: 1 of 2; what differs: {kind} (1)." in page
    assert shown in page
    assert "Not trained anew, the two sides hold the same training: `kept`." in page


def test_what_some_seeds_alone_were_trained_with_differs_too(study: Study) -> None:
    """Of seeds that were trained at different times the record of the whole has what the last ones were trained with."""

    def of(*devices: str) -> dict[str, Any]:
        return {"device_name": devices[-1], "trainings": [{"seeds": [seed], "device_name": name} for seed, name in enumerate(devices)]}

    study.train("base", BASE[:2], run=of("An Intel, old", "An AMD"))
    study.train("more", BASE[:1], run=of("An Intel, old"))
    first = study.commit()
    study.train("base", HEAD[:2], run=of("An AMD", "An AMD"))
    study.train("more", [HEAD[0], 0.9], run=of("An Intel, old", "An AMD"))
    study.commit()
    comparison = both(study, first)
    assert {change.variant: [cause.key for cause in change.causes] for change in comparison.common} == {"base": ["device_name"], "more": []}
    page = render(comparison)
    assert "| device name | `An AMD; An Intel, old` | `An AMD` | `base` |" in page
    assert "| device | `An AMD`, `An Intel, old` | `An AMD`, `An Intel, old` |" in page


def test_accuracies_of_other_test_images_are_marked(study: Study) -> None:
    study.train("base", BASE)
    first = study.commit()
    study.train("base", HEAD, run={"data_digest": "e" * 64}, change={"data.dataset": "mnist"})
    study.commit()
    assert "- **Other data, so the accuracies are not of the same test images: `base`.**" in render(both(study, first))
    study.train("base", BASE, run={"data_digest": "e" * 64}, change={"data.dataset": "mnist"})
    assert "Other data" not in render(both(study, "HEAD", "HEAD"))


def test_intervals_are_counted(study: Study) -> None:
    study.train("a", [0.50, 0.51, 0.52])
    study.train("b", [0.50, 0.51, 0.52])
    first = study.commit()
    study.train("a", [0.60, 0.61, 0.62])
    study.train("b", [0.52, 0.51, 0.50])
    study.commit()
    assert "- 95 % intervals, each alone: 1 of 2 exclude 0, and all lie within ±10.00 points." in render(both(study, first))


def test_a_repeated_training_is_identical(study: Study) -> None:
    study.train("base", BASE, seconds=10)
    first = study.commit()
    study.train("base", BASE, seconds=20)
    study.commit()
    comparison = both(study, first)
    change = only(comparison)
    assert (change.identical, change.retrained, change.seconds) == (True, True, (11.0, 21.0))
    page = render(comparison)
    assert "Trained anew, and identical to the last bit: `base`." in page
    same = "he one variant of both sides is identical, every loss and accuracy to the last bit"
    assert f"**Nothing differs: t{same}.**" in page
    base, head = comparison.base, comparison.head
    partly = replace(base, study=replace(base.study, left_out={"other": "not all of its epochs are in MLflow"}))
    assert f"**T{same}; 1 variant left out, so not compared.**" in render(compare(partly, head))
    assert verdict(compare(replace(partly, study=replace(partly.study, trainings={})), head)) == (
        "No variant is on both sides, in a whole record, so there is nothing to compare."
    )
    assert "| `base` | 11 | 21 | 1.91 |" in page
    assert "do not say which side is faster" in page


def test_added_seeds_are_no_change(study: Study) -> None:
    study.train("base", BASE[:5])
    study.train("other", BASE[:5])
    first = study.commit()
    study.train("base", BASE)
    study.train("other", [*BASE[:4], 0.5, *BASE[5:]])
    study.commit()
    comparison = both(study, first)
    base, other = comparison.common
    assert (base.identical, base.retrained, base.settings, base.p, base.adjusted) == (True, False, (), None, None)
    assert (other.identical, other.retrained, other.paired) == (False, True, False)
    assert comparison.tested == [other]
    shown = render(comparison)
    assert "- Seeds added or removed: `base` (5 → 7), `other` (5 → 7).\n" in shown
    assert "- Trained anew: 1 of 2; what differs: seeds (1).\n" in shown
    before, after = (f"{100 * np.mean(own):.2f}\xa0±\xa0{100 * np.std(own, ddof=1):.2f}" for own in (BASE[:5], BASE))
    assert f"| `base` | {before} (n = 5) → {after} (n = 7) | seeds |" in shown
    assert "Settings" not in shown


def test_added_seeds_alone_are_said_first(study: Study) -> None:
    study.train("base", BASE[:5])
    study.train("other", dict(enumerate(BASE[:5])))
    first = study.commit()
    study.train("base", BASE, run={"code_hash": "e" * 64, "device_name": "Another processor (2 cores)"})
    study.train("other", dict(enumerate(BASE[1:5], start=1)) | {9: 0.5})
    study.commit()
    shown = render(both(study, first))
    same = "The 2 variants of both sides are identical in the seeds of both, every loss and accuracy to the last bit; 2 with other seeds."
    assert f"**{same}**" in shown
    assert "- Seeds added or removed: `base` (5 → 7), `other` (0 to 4 → 1, 2, 3, 4, 9).\n" in shown
    assert "- Trained anew: none of 2.\n" in shown
    assert "Another processor" not in shown.partition("<details>")[2]


def test_a_bit_is_enough_to_differ(study: Study) -> None:
    study.train("base", BASE)
    first = study.commit()
    path = study.root / "tables" / "epochs.csv"
    path.write_text(path.read_text().replace(repr(BASE[0] / 2), repr(float(np.nextafter(BASE[0] / 2, 1)))))
    study.commit()
    comparison = both(study, first)
    assert not only(comparison).identical
    assert "The same training with other numbers, so a file was changed afterwards: `base`." in render(comparison)


def test_what_an_older_record_lacks_has_not_changed(study: Study) -> None:
    study.train("base", BASE, old=True)
    first = study.commit()
    study.train("base", BASE)
    study.commit()
    comparison = both(study, first)
    change = only(comparison)
    assert (change.settings, change.identical) == ((), True)
    assert set(change.unrecorded) == {"train.optimizer", "train.clip_norm", "model.architecture", "model.memory"}
    page = render(comparison)
    assert "so whether they changed is not known: `train.optimizer`, `train.clip_norm`, `model.architecture`, `model.memory`." in page


def test_another_architecture_has_other_options(study: Study) -> None:
    study.train("net", BASE)
    first = study.commit()
    study.train("net", HEAD)
    study.change("net", lambda record: record["config"].update(model={"architecture": "cnn", "widths": [12, 26]}))
    study.commit()
    change = only(both(study, first))
    assert change.unrecorded == ()
    assert ("model.architecture", "vit", "cnn") in change.settings
    assert ("model.dim", 32, None) in change.settings
    assert ("model.widths", None, [12, 26]) in change.settings


def test_no_common_variant_is_said(study: Study) -> None:
    study.train("a", BASE)
    first = study.commit()
    study.remove("a")
    study.train("b", BASE)
    study.commit()
    comparison = both(study, first)
    assert verdict(comparison) == "No variant is on both sides, so there is nothing to compare."
    assert "- Added: `b`." in render(comparison)


accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=5)


@given(trained=st.dictionaries(st.sampled_from(["base", "a", "b-2", "C_3"]), st.tuples(accuracies, st.booleans()), min_size=1))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_study_compared_with_itself_does_not_differ(
    make_study: Callable[..., Study], trained: dict[str, tuple[list[float], bool]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = make_study(Path(folder) / "study")
        for variant, (values, old) in trained.items():
            study.train(variant, values, old=old)
        study.commit()
        repository = Repository(study.root)
        for head in (read_revision(repository, "main"), read_working_tree(repository)):
            comparison = compare(read_revision(repository, "HEAD"), head)
            assert comparison.added == comparison.removed == ()
            assert [change.variant for change in comparison.common] == sorted(trained)
            for change in comparison.common:
                assert (change.identical, change.retrained, change.difference, change.p) == (True, False, 0, None)
                assert change.settings == change.causes == change.unrecorded == ()
            assert verdict(comparison).startswith("Nothing differs")


def test_the_order_of_the_sides_turns_the_sign(study: Study) -> None:
    for variant in ("a", "b"):
        study.train(variant, BASE)
    first = study.commit()
    study.train("a", HEAD)
    study.train("b", HEAD[:5])
    second = study.commit()
    there, back = both(study, first, second), both(study, second, first)
    for one, other in zip(there.common, back.common, strict=True):
        assert one.difference == pytest.approx(-other.difference)
        assert one.p == pytest.approx(other.p)
        assert one.interval is not None
        assert other.interval is not None
        assert (one.interval.low, one.interval.high) == pytest.approx((-other.interval.high, -other.interval.low))
