"""Numbers in words."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import params
from pipeline.params import ComparisonSettings
from pipeline.report import text
from pipeline.report.text import NBSP
from pipeline.study.claims import Finding, Why
from pipeline.study.statistics import Interval


def shown(low: float, high: float, region: tuple[float, float]) -> str:
    rule: Any = "equivalent" if region[0] else "less"
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule=rule, bound=region[1])
    finding = Finding(comparison, "not decided", Why.ACROSS, effect=(low * high) ** 0.5, interval=Interval(low, high, 0.95))
    return text.effect(finding).split(" times ")[1].replace(NBSP, " ")


@pytest.mark.parametrize(
    ("low", "high", "region", "expected"),
    [
        (0.79996, 0.947, (0.8, 1.25), "[0.79996 to 0.947]"),
        (0.80004, 1.2499, (0.8, 1.25), "[0.80004 to 1.2499]"),
        (0.8, 1.25, (0.8, 1.25), "[0.800 to 1.25]"),
        (0.795, 0.947, (0.8, 1.25), "[0.795 to 0.947]"),
        (0.7, 1.0000001, (0.0, 1.0), "[0.700 to 1.0000001]"),
    ],
)
def test_a_bound_that_looks_like_an_end_of_the_region_says_on_which_side_it_lies(
    low: float, high: float, region: tuple[float, float], expected: str
) -> None:
    assert shown(low, high, region) == expected


def test_an_effect_that_is_a_bound_says_so() -> None:
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule="less", bound=1.25)
    said = {
        may_be: text.effect(Finding(comparison, "supported", Why.INSIDE, effect=2.0, may_be=may_be)).replace(NBSP, " ")
        for may_be in ("larger", "smaller", "")
    }
    assert said == {"larger": "2.00 times or more", "smaller": "2.00 times or less", "": "2.00 times"}


def test_other_numbers_of_seeds_are_named_once(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    for variant, seeds in (("first", 6), ("max", 6), ("base", 10), ("concat", 10), ("mean", 20)):
        raw["variants"][variant] = {**raw["variants"][variant], "seeds": seeds}
    study = params.parse(raw)
    assert text.other_seeds(study, ["first", "max"]) == ""
    assert text.other_seeds(study, ["base", "first"]) == "base has 10"
    assert text.other_seeds(study, ["base", "first", "concat", "mean"]) == "base and concat have 10 and mean has 20"


def test_what_a_gpu_trained_is_named_where_processors_trained_the_rest() -> None:
    def run(variant: str, **seeds: list[int]) -> Any:
        name = {"cpu": "A processor (2 cores)", "cuda": "NVIDIA H200"}
        groups: list[dict[str, Any]] = [
            {"device": device, "device_name": name[device], "seeds": own, "versions": {"torch": "2.11.0"}} for device, own in seeds.items()
        ]
        return SimpleNamespace(variant=variant, trainings=groups)

    here, there, both = run("a", cpu=[0, 1]), run("b", cuda=[0, 1]), run("c", cpu=[0, 1, 2], cuda=[3, 4, 5])
    assert text.on_gpu([here, here]) == text.on_gpu([there, there]) == text.on_gpu([]) == ""
    said = "A GPU (NVIDIA H200) trained {}, processors the rest; both compute in float32, and round differently."
    assert text.on_gpu([here, there]) == said.format("b")
    assert text.on_gpu([here, there, both]) == said.format("b and c (seeds 3 to 5)")
    assert text.on_gpu([run("d", cpu=[0], cuda=[1])]) == said.format("d (seed 1)")
    # Seeds that a GPU trained in two trainings are one entry.
    more = {"device": "cuda", "device_name": "NVIDIA H200", "versions": {"torch": "2.11.0"}}
    there.trainings.append(more | {"seeds": [4]})
    both.trainings.append(more | {"seeds": [6]})
    assert text.on_gpu([here, there, both]) == said.format("b and c (seeds 3 to 6)")
    here.trainings[0]["versions"] = {"torch": "2.15.0"}
    newer = said.replace("the rest;", "the rest (with torch 2.11.0, and 2.15.0 there);")
    assert text.on_gpu([here, there]) == newer.format("b")


def test_an_anchor_keeps_what_a_git_host_keeps() -> None:
    judgement = SimpleNamespace(id="my_claim-2", verdict="not decided")
    assert text.anchor(judgement) == "my_claim-2-not-decided"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "expected"), [((), "-"), ((10, 10), "10"), ((10, 6), "10 and 6"), ((10, 10, 20, 10), "10, 10, 20 and 10"), ((6,) * 4, "6")]
)
def test_each_side_of_a_comparison_has_its_number_of_seeds(sizes: tuple[int, ...], expected: str) -> None:
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule="equivalent", bound=1.25)
    assert text.sizes(Finding(comparison, "not decided", Why.ACROSS, sizes=sizes)) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(999, "999"), (999_499, "999 k"), (999_600, "1 M"), (999_960_000, "1 G"), (1_234_567, "1.23 M")]
)
def test_a_large_count_never_has_four_digits_before_its_unit(number: int, expected: str) -> None:
    assert text.count(number) == expected
