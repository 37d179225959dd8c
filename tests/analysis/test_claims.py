"""Verdicts on made-up runs whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy import stats

from pipeline.analysis.claims import ACCURACY_MARGIN, CLAIMS, RULES, TIMING_RULES, Claim, Comparison, judge, unsteadiness
from pipeline.analysis.positions import nearness_correlation
from pipeline.params import load

GRID = 5


@dataclass(frozen=True)
class Runs:
    """Hand-made evidence: the last epoch's values are given, the epochs before climb to them."""

    accuracy: np.ndarray
    loss: np.ndarray
    seeds: tuple[int, ...]
    jitter: np.ndarray
    patch_positions: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 8)))
    grid: int = GRID

    @property
    def test_accuracy(self) -> np.ndarray:
        epochs = np.arange(12)[::-1]
        wave = np.where(epochs % 2 == 0, 0.0, 1.0) * self.jitter[:, None]
        return self.accuracy[:, None] - 0.001 * epochs - wave

    @property
    def test_loss(self) -> np.ndarray:
        return self.loss[:, None] + 0.01 * np.arange(12)[::-1]

    @property
    def seconds(self) -> np.ndarray:
        return np.full((len(self.seeds), 12), 5.0)


def runs(mean: float, *, n: int = 10, noise: float = 0.001, loss: float = 0.1, jitter: float = 0.002, seed: int = 0) -> Runs:
    rng = np.random.default_rng(seed)
    luck = rng.normal(size=n)
    return Runs(
        accuracy=mean + noise * (luck - luck.mean()),
        loss=loss + noise * rng.normal(size=n),
        seeds=tuple(range(n)),
        jitter=jitter * (1 + 0.05 * rng.normal(size=n)),
    )


def verdict(rule: str, variant: Runs, reference: Runs, *, bound: float | None = None, measure: str = "accuracy") -> str:
    claim = Claim("X", "", "", "", "", (Comparison(rule, measure, "a", "b", bound),))  # type: ignore[arg-type]
    return judge(claim, {"a": variant, "b": reference}).verdict


@pytest.mark.parametrize(
    ("mean", "noise", "expected"),
    [(0.970, 0.001, "supported"), (0.971, 0.001, "supported"), (0.960, 0.001, "contradicted"), (0.980, 0.001, "contradicted"),
     (0.9655, 0.003, "not decided"), (0.970, 0.03, "not decided")],
)  # fmt: skip
def test_equivalence_is_read_off_the_interval(mean: float, noise: float, expected: str) -> None:
    assert verdict("equivalent", runs(mean, noise=noise, seed=1), runs(0.970, seed=2), bound=ACCURACY_MARGIN) == expected


def test_equivalence_at_the_edge_of_the_interval() -> None:
    """Supported exactly when both ends of scipy's paired interval lie inside the bound."""
    variant, reference = runs(0.972, seed=1), runs(0.970, seed=2)
    interval = stats.ttest_rel(variant.accuracy, reference.accuracy).confidence_interval(0.95)
    reach = max(abs(interval.low), abs(interval.high))
    assert verdict("equivalent", variant, reference, bound=reach * 1.001) == "supported"
    assert verdict("equivalent", variant, reference, bound=reach * 0.999) == "not decided"


@pytest.mark.parametrize(("rule", "lower", "higher"), [("less", "supported", "contradicted"), ("more", "contradicted", "supported")])
def test_direction(rule: str, lower: str, higher: str) -> None:
    assert verdict(rule, runs(0.95, seed=1), runs(0.97, seed=2)) == lower
    assert verdict(rule, runs(0.99, seed=1), runs(0.97, seed=2)) == higher
    assert verdict(rule, runs(0.97, seed=1), runs(0.97, seed=2)) == "not decided"


def test_one_seed_decides_nothing() -> None:
    assert verdict("equivalent", runs(0.97, n=1), runs(0.97, n=1, seed=3), bound=ACCURACY_MARGIN) == "not decided"


def test_equal_values_of_all_seeds_decide_nothing() -> None:
    """On a small test set accuracies can coincide by rounding; an interval of width zero would then say too much."""
    assert verdict("equivalent", runs(0.97, noise=0), runs(0.97, noise=0), bound=ACCURACY_MARGIN) == "not decided"


def test_seeds_that_do_not_pair_decide_nothing() -> None:
    other = replace(runs(0.97, seed=1), seeds=tuple(range(1, 11)))
    assert verdict("equivalent", runs(0.97), other, bound=ACCURACY_MARGIN) == "not decided"


def test_a_missing_variant_decides_nothing_and_is_named() -> None:
    judgement = judge(CLAIMS["T3"], {"base": runs(0.97)})
    assert judgement.verdict == "not decided"
    assert "first" in judgement.deciding.why


def test_contradiction_of_one_of_many_comparisons_needs_the_wider_interval() -> None:
    """An effect that a 95 % interval sets apart from zero, but not the Bonferroni interval over four comparisons."""
    reference = runs(0.97, seed=2)
    pattern = np.random.default_rng(4).normal(size=10)
    pattern = (pattern - pattern.mean()) / pattern.std(ddof=1)  # mean 0, sd 1: t = 10^0.5 * shift
    shift = stats.t.ppf(0.98, 9) / 10**0.5
    variant = replace(reference, accuracy=reference.accuracy + 0.001 * (pattern + shift))
    assert stats.ttest_rel(variant.accuracy, reference.accuracy).pvalue == pytest.approx(0.04)
    parts = tuple(Comparison("less", "accuracy", "a", "b") for _ in range(4))
    alone = Claim("X", "", "", "", "", parts[:1])
    together = Claim("X", "", "", "", "", parts)
    evidence = {"a": variant, "b": reference}
    assert judge(alone, evidence).verdict == "contradicted"
    assert judge(together, evidence).verdict == "not decided"
    assert "wider" in judge(together, evidence).deciding.why


def test_a_claim_is_contradicted_by_one_comparison_and_supported_by_all_only() -> None:
    similar = {name: runs(0.97, seed=i) for i, name in enumerate(("base", "patch-7", "patch-2"))}
    worse = runs(0.93, loss=0.2, seed=9)
    assert judge(CLAIMS["T5"], similar | {"patch-14": worse}).verdict == "supported"
    assert judge(CLAIMS["T5"], similar | {"patch-14": runs(0.99, loss=0.05, seed=9)}).verdict == "contradicted"
    noisy = judge(CLAIMS["T5"], similar | {"patch-14": worse, "patch-2": runs(0.966, noise=0.004, loss=0.1, seed=5)})
    assert noisy.verdict == "not decided"
    assert noisy.deciding.verdict == "not decided"


def test_unsteadiness_is_the_deviation_of_the_last_ten_epochs_changes() -> None:
    accuracy = np.random.default_rng(0).uniform(0.9, 1.0, size=(3, 30))
    expected = [np.std([row[i + 1] - row[i] for i in range(20, 29)], ddof=1) for row in accuracy]
    assert unsteadiness(accuracy) == pytest.approx(expected)
    short = accuracy[:, :5]  # all but the first epoch: three changes
    assert unsteadiness(short) == pytest.approx([np.std(np.diff(row[1:]), ddof=1) for row in short])
    with pytest.raises(ValueError, match="four epochs"):
        unsteadiness(accuracy[:, :3])


def test_t1_holds_where_learned_is_steadier_and_fails_where_it_is_not() -> None:
    calm, wild = runs(0.970, jitter=0.001, seed=1), runs(0.970, jitter=0.004, seed=2)
    assert judge(CLAIMS["T1"], {"base": calm, "sinusoidal": wild}).verdict == "supported"
    assert judge(CLAIMS["T1"], {"base": wild, "sinusoidal": calm}).verdict == "contradicted"


def _vectors(n: int, noise: float, seed: int) -> np.ndarray:
    """(n, GRID^2, dim): sums of waves over the grid, near patches alike, and noise of its own for each seed."""
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(GRID**2), GRID)
    waves = np.stack([f(k * axis / GRID) for k in (1, 2) for axis in (row, column) for f in (np.sin, np.cos)], axis=1)
    return waves + noise * rng.normal(size=(n, *waves.shape))


def test_t2_needs_half_of_the_fixed_tables_correlation() -> None:
    def evidence(noise: float) -> dict[str, Runs]:
        table = replace(runs(0.97), patch_positions=np.repeat(_vectors(1, 0.0, 0), 10, axis=0))
        return {
            "base": replace(runs(0.97), patch_positions=_vectors(10, noise, 1)), "sinusoidal": table, "sincos2d": table,
        }  # fmt: skip

    near = judge(CLAIMS["T2"], evidence(0.2))
    assert near.verdict == "supported"
    assert near.findings[0].effect == pytest.approx(np.mean([nearness_correlation(v, GRID) for v in _vectors(10, 0.2, 1)]))
    assert judge(CLAIMS["T2"], evidence(8.0)).verdict == "contradicted"


def test_t2_without_vectors_is_not_decided() -> None:
    assert judge(CLAIMS["T2"], {name: runs(0.97) for name in ("base", "sinusoidal", "sincos2d")}).verdict == "not decided"


@pytest.mark.parametrize("claim", ["T4", "T6"])
def test_recorded_epoch_times_never_decide(claim: str) -> None:
    evidence = {name: runs(0.97, seed=i) for i, name in enumerate(("base", "first", "cls-loop", "patch-14", "patch-7", "patch-2"))}
    judgement = judge(CLAIMS[claim], evidence)
    assert judgement.verdict == "not decided"
    assert all("interleaved" in finding.why for finding in judgement.findings)
    assert all(finding.effect is None for finding in judgement.findings)


def test_the_claims_speak_of_variants_that_the_study_has(request: pytest.FixtureRequest) -> None:
    params = load(request.config.rootpath / "params.yaml")
    for claim in CLAIMS.values():
        for comparison in claim.comparisons:
            if comparison.rule in TIMING_RULES:
                assert comparison.between is not None
            else:
                assert {comparison.variant, comparison.reference} <= params.variants.keys()
                assert comparison.rule in RULES
    assert {claim for experiment in params.experiments.values() for claim in experiment.claims} <= CLAIMS.keys()
