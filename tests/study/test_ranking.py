"""Which parts matter, what choosing by the test images adds, and how often few runs err: by hand, by counting, beside scipy."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.study.ranking import misordered, orders, ranking, select
from tests.helpers import ends


def trained(errors: np.ndarray, task: str = "classification") -> Any:
    """A training with these test errors, (seeds, epochs)."""
    return SimpleNamespace(test_error=errors, is_captioner=task == "captioning", settings=SimpleNamespace(task=task))


def test_the_best_epoch_and_the_best_seed_by_hand() -> None:
    # Five late epochs, of which a seed's second is its best; the first epoch, which is late for nobody, is better still in seed 0.
    errors = np.array([[0.01, *[0.01 * (seed + 4)] * 4] + [0.01 * (seed + 2)] + [0.01 * (seed + 4)] * 20 for seed in range(6)])
    (found,) = select({"a": trained(errors), "few": trained(errors[:5])})
    assert found.variant == "a"
    assert found.typical == pytest.approx(0.065)  # the mean of 4 to 9 %
    assert found.gains == pytest.approx((1 - 1 / 6.5, 1 - 4 / 6.5, 1 - 1 / 6.5))


@pytest.mark.parametrize("n", [1, 3])
def test_wrong_orders_are_counted_over_all_draws(n: int) -> None:
    rng = np.random.default_rng(0)
    more, fewer = rng.integers(3, 9, 7) / 100, rng.integers(2, 8, 6) / 100  # with ties
    means = [[sum(drawn) for drawn in itertools.combinations(side, n)] for side in (more, fewer)]
    wrong = [1.0 if a < b - 1e-9 else 0.5 if abs(a - b) < 1e-9 else 0.0 for a in means[0] for b in means[1]]
    assert misordered(more, fewer, n) == pytest.approx(float(np.mean(wrong)))


def test_only_networks_that_differ_are_put_in_order() -> None:
    rng = np.random.default_rng(1)
    made = {
        name: trained(level * np.exp(rng.normal(0, 0.1, (10, 30)))) for name, level in (("base", 0.03), ("same", 0.03), ("worse", 0.04))
    }
    experiments: Any = {
        "one": SimpleNamespace(baseline="base", variants=("base", "same", "worse")),
        "other": SimpleNamespace(baseline="worse", variants=("worse", "base")),
    }
    worse, same = orders(select(made), experiments, made, 0.99)
    assert (worse.apart, same.apart) == (True, False)
    assert 0 <= worse.three <= worse.one < 0.5


def test_parts_are_sorted_by_ratio_with_welchs_interval() -> None:
    errors = {"base": [0.02, 0.022, 0.021], "worse": [0.04, 0.05, 0.043, 0.041], "near": [0.0205, 0.0211, 0.0216], "alone": [0.1]}
    trainings = {name: trained(np.array(of)[:, None]) for name, of in errors.items()}
    trainings["words"] = trained(np.array([[0.1], [0.2]]), "captioning")
    pairs = {f"no {name}": (name, "base") for name in ("near", "worse", "alone", "words", "absent")}
    pairs["base, not worse"] = ("base", "worse")
    parts = ranking(pairs, trainings, 0.9)
    assert [(part.name, part.kind) for part in parts] == [("no worse", "more"), ("no near", "small"), ("base, not worse", "fewer")]
    logs = [np.log(errors[name]) for name in ("worse", "base")]
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.9)
    found = (parts[0].ratio, *ends(parts[0].interval))
    assert found == pytest.approx(np.exp([logs[0].mean() - logs[1].mean(), *expected]))
    (wide,) = ranking({"no worse": ("worse", "base")}, trainings, 0.9999)
    assert wide.kind == "open"
