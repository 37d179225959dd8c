"""Claims that were fixed before their seeds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.data.datasets import load as load_arrays
from pipeline.params import ClaimSettings, Params, VariantSettings
from pipeline.runner import pool, seeds
from pipeline.study import claims, fixed
from pipeline.system.provenance import loaded_code
from tests.made_up import make_run


@pytest.fixture
def t1a(study: Params) -> ClaimSettings:
    """No position vectors are worse than the base's: one comparison."""
    return study.claims["T1a"].model_copy(update={"first_seed": 0})


def word(study: Params, claim: ClaimSettings, groups: list[dict[str, Any]], *variants: str) -> tuple[str, int, int]:
    """Of made-up trainings of six seeds, whose origins are these groups, of all that the claim compares or of these variants."""
    made = {name: make_run(study, name) for name in variants or claim.comparisons[0].variants}
    runs = {name: replace(one, record={**one.record, "trainings": groups}) for name, one in made.items()}
    found = fixed.fixed(claim.digest, claims.judge("X", claim, runs, images_shown=1, looks=(6,)).seeds, runs)
    return found.word, found.before, found.counted


def test_a_new_bound_changes_the_word_and_new_words_do_not(study: Params, t1a: ClaimSettings) -> None:
    groups = [{"seeds": [0, 1, 2, 3, 4, 5], "claims": ["another", t1a.digest]}]
    assert word(study, t1a, groups) == ("before", 12, 12)
    reworded = t1a.model_copy(update={"sentence": "Other words.", "margin": "Another reason.", "seen": True})
    assert word(study, reworded, groups)[0] == "before"
    (comparison,) = t1a.comparisons
    for change in ({"bound": 1.5}, {"measure": "late train loss"}, {"rule": "equivalent", "bound": 1.5}):
        assert word(study, t1a.model_copy(update={"comparisons": (comparison.model_copy(update=change),)}), groups) == ("after", 0, 12)
    assert word(study, t1a.model_copy(update={"first_seed": 3}), groups)[0] == "after"


def test_seeds_from_before_and_after_are_partly(study: Params, t1a: ClaimSettings) -> None:
    groups: list[dict[str, Any]] = [{"seeds": [0, 1, 2], "claims": []}, {"seeds": [3, 4, 5], "claims": [t1a.digest]}]
    assert word(study, t1a, groups) == ("partly", 6, 12)
    assert word(study, t1a, groups, "base")[0] == ""  # the other side is missing, so nothing counts


def test_older_seeds_are_known_by_their_commit(study: Params, t1a: ClaimSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "_commits", lambda: {t1a.digest: ["0123456789", "abcdef0123"]})
    groups: list[dict[str, Any]] = [{"seeds": [0, 1, 2, 3], "git_commit": "abcdef0123" + "4" * 30}, {"seeds": [4, 5], "git_commit": None}]
    assert word(study, t1a, groups) == ("partly", 8, 12)


def test_a_training_keeps_the_claims_of_its_start(tmp_path: Path, arrays: Path, tiny_settings: Callable[..., VariantSettings]) -> None:
    """A seed that goes on from a checkpoint has those of its first epoch, one that begins now has today's; a replay changes none."""
    code, data = loaded_code()["classification"], load_arrays(arrays)
    origin: dict[str, Any] = {"code_hash": code, "git_commit": None, "versions": {}}
    job = pool.Job(tiny_settings(epochs=2, batch_size=400), arrays, tmp_path, "cpu", origin, claims=("early",))

    def run(job: pool.Job, seed: int, until: str = "done") -> None:
        assert any(one.kind == until for one in pool.messages(pool.Assignment(job, pool.Task([seed])), lambda _: data))

    run(job, 0, "epoch")  # and is killed
    later = replace(job, claims=("early", "late"))
    run(later, 0)
    run(later, 1)
    parts, _ = seeds.read_all(tmp_path)
    assert {part.seed: part.origin["claims"] for part in parts} == {0: ["early"], 1: ["early", "late"]}
    grouped = seeds.origins([part.replayed({"code_hash": "f" * 64, "exact": True}, {}) for part in parts])
    assert {tuple(group["seeds"]): group["claims"] for group in grouped["trainings"]} == {(0,): ["early"], (1,): ["early", "late"]}
