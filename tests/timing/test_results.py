"""Reading and judging what the timing stage left, on made-up timings whose truth is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.params import Params, parse
from pipeline.report.text import because
from pipeline.study.claims import Judgement, Why, judge
from pipeline.system.errors import UserError
from pipeline.system.paths import TIMINGS
from pipeline.timing import results
from pipeline.timing.subjects import WORDS

TIMED = ("T4", "T6", "T7", "T9", "K3")

Make = Callable[..., results.Timings]


def judged(study: Params, id: str, found: results.Timings) -> Judgement:
    """On results that are taken for those of either kind of device."""
    return judge(id, study.claims[id], {}, {"cpu": found, "cuda": found}, images_shown=study.images_shown)


def verdicts(study: Params, found: results.Timings) -> dict[str, str]:
    return {id: judged(study, id, found).verdict for id in TIMED}


def test_verdicts_follow_the_interval_of_the_ratio(study: Params, make_timings: Make) -> None:
    assert verdicts(study, make_timings()) == {
        "T4": "supported", "T6": "contradicted", "T7": "supported", "T9": "supported", "K3": "supported",
    }  # fmt: skip
    changed = verdicts(study, make_timings(loop=1.05, patch_14=12.0, nested=40.0, exponent=1.0))
    assert changed == {"T4": "contradicted", "T6": "supported", "T7": "contradicted", "T9": "contradicted", "K3": "supported"}
    vague = verdicts(study, make_timings(loop=1.45, nested=17.0, exponent=1.8, noise=0.3))
    assert (vague["T4"], vague["T7"]) == ("not decided", "not decided")


def test_exponent_is_the_slope_from_49_tokens_on(make_timings: Make) -> None:
    found = make_timings(exponent=1.7)
    names = [f"attention/published/{tokens}" for tokens in (49, 196, 784)]
    lines = [np.polyfit(np.log([49, 196, 784]), np.log([times[name] for name in names]), 1)[0] for times in found.rounds]
    assert found.exponent("attention time", "attention") == pytest.approx(lines)
    assert np.mean(lines) == pytest.approx(1.7, abs=0.01)


def test_a_captions_time_is_fitted_to_its_words(study: Params, make_timings: Make) -> None:
    found = make_timings(writing=1.3)
    times = [[of[f"decoding/fast/caption/{words}"] for words in WORDS] for of in found.rounds]
    assert found.exponent("decoding time", "caption") == pytest.approx(np.polyfit(np.log(WORDS), np.log(times).T, 1)[0])
    assert found.exponent("decoding time", "caption").mean() == pytest.approx(1.3, abs=0.01)
    assert [judged(study, "S2", one).verdict for one in (found, make_timings())] == ["contradicted", "supported"]
    with pytest.raises(LookupError, match="no captions of base"):
        found.exponent("decoding time", "base")


def test_disturbed_rounds_judge_nothing(study: Params, make_timings: Make) -> None:
    found = make_timings(rounds=0, disturbed=6)
    for claim in ("T4", "T6", "T7"):
        judgement = judged(study, claim, found)
        assert judgement.verdict == "not decided"
        assert judgement.deciding.why is Why.NO_INTERVAL
    assert verdicts(study, make_timings(rounds=5))["T4"] == "not decided"


def test_other_settings_than_the_studys_are_not_judged(
    study: Params, tmp_path: Path, make_timings: Make, raw_params: dict[str, Any]
) -> None:
    make_timings()
    timing = raw_params["timing"]
    for change, undecided in (
        ({"base": raw_params["base"] | {"blocks": 2}}, TIMED),
        ({"train": raw_params["train"] | {"batch_size": 64}}, TIMED),
        ({"timing": timing | {"subjects": timing["subjects"] | {"cls-loop": {"cls_insert": "loop", "blocks": 2}}}}, ("T4", "T7")),
        ({"variants": raw_params["variants"] | {"first": {"pool": "mean"}}}, ("T4",)),
    ):
        found = results.load(parse(raw_params | change), tmp_path)["cpu"]
        assert found.relative("step/published/cls-loop", "step/published/first") is None
        judgements = {id: judged(study, id, found) for id in TIMED}
        assert {id for id, judgement in judgements.items() if judgement.deciding.why is Why.NOT_MEASURED} == set(undecided)
        assert {judgements[id].verdict for id in undecided} == {"not run"}


def test_damaged_results_are_one_sentence(study: Params, tmp_path: Path, make_timings: Make) -> None:
    raw = make_timings().raw
    less = raw["rounds"][0] | {"seconds": dict(list(raw["rounds"][0]["seconds"].items())[1:])}
    for damaged in ({}, raw | {"rounds": []}, raw | {"rounds": [*raw["rounds"], less]}):
        (tmp_path / TIMINGS / "cpu.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="damaged: run `dvc repro --force --single-item timing`"):
            results.load(study, tmp_path)


def test_a_claim_is_judged_on_the_device_that_its_source_timed(study: Params, make_timings: Make, tmp_path: Path) -> None:
    """T4 speaks of a GPU: a processor's times are an observation, and give way to a GPU's."""
    assert results.load(study, tmp_path) == {}
    make_timings(loop=1.3, noise=1e-5)
    alone = judge("T4", study.claims["T4"], {}, results.load(study, tmp_path), images_shown=study.images_shown)
    assert (alone.verdict, alone.deciding.why, alone.deciding.observed) == ("not run", Why.OTHER_DEVICE, True)
    assert alone.deciding.effect == pytest.approx(1.3, rel=0.02)
    assert because(alone.deciding) == "it is measured on a CPU, and on no GPU yet"
    make_timings(loop=1.05, device="cuda")
    both = results.load(study, tmp_path)
    judged = {id: judge(id, study.claims[id], {}, both, images_shown=study.images_shown) for id in ("T4", "K3")}
    assert (judged["T4"].verdict, judged["K3"].verdict) == ("contradicted", "supported")
    assert judged["T4"].deciding.effect == pytest.approx(1.05, rel=0.02)
    (tmp_path / TIMINGS / "cuda.json").rename(tmp_path / TIMINGS / "tpu.json")
    with pytest.raises(UserError, match="is damaged"):
        results.load(study, tmp_path)
