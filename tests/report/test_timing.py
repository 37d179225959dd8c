"""The timing page: its numbers against the results file, its verdicts on made-up timings whose truth is known."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from pipeline.errors import UserError
from pipeline.params import ModelSettings, Params, parse
from pipeline.report import pages, text, timing
from pipeline.study.claims import Judgement, judge

pytestmark = pytest.mark.usefixtures("drawn_once")

TIMED = ("T4", "T6", "T7", "T9")
LOOP = {"cls_insert": "loop"}
VARIANTS = ("base", "first", "patch-14", "patch-7", "patch-2")
TOKENS = (4, 16, 49, 196, 784)
GROUPS = ("attention", "linear layers", "layer norm", "activation", "patches and embedding", "class token", "optimizer", "rest")


def make_results(
    study: Params,
    *,
    rounds: int = 12,
    loop: float = 1.3,
    expand: float = 1.02,
    patch_14: float = 0.2,
    nested: float = 13.0,
    exponent: float = 2.0,
    noise: float = 0.01,
    disturbed: int = 0,
) -> dict[str, Any]:
    """What the timing stage writes, with the given ratios as published; the fast path takes a fifth of the time."""
    rng = np.random.default_rng(0)
    factors = {"first": 1.0, "base": expand, "cls-loop": loop, "conv-embed": expand, "patch-14": patch_14, "patch-7": 0.4, "patch-2": 9.0}
    measurements, seconds = [], {}

    def add(kind: str, way: str, subject: str, model: ModelSettings, time: float, **more: Any) -> None:
        name = f"{kind}/{way}/{subject}"
        kernel = ("fused-cpu" if model.num_tokens <= 256 else "sdpa") if way == "fast" else "loop over heads"
        measurements.append(
            {"name": name, "kind": kind, "way": way, "subject": subject, "tokens": model.num_tokens,
             "batch": 128 if kind == "step" else 16, "steps": 5, "attention": kernel, "model": model.model_dump(mode="json"), **more}
        )  # fmt: skip
        seconds[name] = time

    for way, pace in (("published", 0.05), ("fast", 0.01)):
        for variant in VARIANTS:
            add("step", way, variant, study.resolve(variant).model, pace * factors[variant])
        add("step", way, "cls-loop", study.base.model_copy(update=LOOP), pace * factors["cls-loop"])
        add("step", way, "conv-embed", study.base.model_copy(update={"embed": "conv"}), pace * factors["conv-embed"])
    add("step", "nested loops", "cls-loop", study.base.model_copy(update=LOOP), 0.05 * loop * nested)
    for tokens in TOKENS:
        side = round(28 / tokens**0.5)
        model = ModelSettings.model_validate(study.base.model_dump() | {"patch": side, "pool": "first", "cls_insert": "none"})
        for way, pace, power in (("published", 1e-6, exponent), ("fast", 2e-7, exponent)):
            alone = pace * tokens**power
            kept = 4 * 16 * (8 * tokens**2 + 96 * tokens) if way == "published" else 4 * 16 * 130 * tokens
            add("growth", way, str(tokens), model, 0.002 + 3.3 * alone, saved_bytes=4 * kept)
            add("attention", way, str(tokens), model, alone, saved_bytes=kept)
    listed = []
    for i in range(rounds + disturbed):
        pace = rng.lognormal(0, 0.05)  # a slow round is slow for all
        kept = i >= disturbed
        times = {name: time * pace * rng.lognormal(0, noise) * (1 if kept else 3) for name, time in seconds.items()}
        listed.append({"foreign": 0.002 if kept else 0.4, "kept": kept, "seconds": times})
    profiles = {}
    for entry in measurements:
        if (entry["kind"] == "step" and entry["way"] != "nested loops") or (entry["kind"], entry["subject"]) == ("growth", "784"):
            shares = rng.dirichlet(np.ones(len(GROUPS)))
            total = 1.2 * seconds[str(entry["name"])]
            profiles[entry["name"]] = {
                "seconds": total,
                "groups": {group: float(total * share) for group, share in zip(GROUPS, shares, strict=True)},
                "operators": {group: int(rng.integers(10, 900)) for group in GROUPS},
            }
    return {
        "started": "2026-01-02T03:04:05+00:00", "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False,
        "machine": {"device": "cpu", "name": "Some Processor (2 cores)", "cores": 2, "threads": 1,
                    "versions": {"python": "3.11.2", "torch": "2.15.0"}},
        "dataset": {"name": "mnist", "digest": "d" * 64, "images": 60000},
        "settings": {"rounds": rounds, "steps": 20, "seconds": 240.0, "tokens": list(TOKENS), "batch_size": 128,
                     "learning_rate": 0.005, "threshold": 0.05, "order_seed": 0},
        "measurements": measurements, "rounds": listed, "profiles": profiles,
    }  # fmt: skip


def timings(study: Params, root: Path, **changes: Any) -> timing.Timings:
    write(root, make_results(study, **changes))
    loaded = timing.load(study, root)
    assert loaded is not None
    return loaded


def write(root: Path, results: dict[str, Any]) -> None:
    (root / "timing").mkdir(exist_ok=True)
    (root / timing.RESULTS).write_text(json.dumps(results))


def judged(study: Params, id: str, found: timing.Timings | None) -> Judgement:
    return judge(id, study.claims[id], {}, found, images_shown=study.images_shown)


def verdicts(study: Params, root: Path, **changes: Any) -> dict[str, str]:
    found = timings(study, root, **changes)
    return {id: judged(study, id, found).verdict for id in TIMED}


def page(study: Params, root: Path, **changes: Any) -> tuple[str, dict[str, bytes]]:
    found = timings(study, root, **changes)
    files = timing.render(found, [judged(study, id, found) for id in TIMED], text.environment(), None, None)
    return files["timing.md"].decode().replace("\N{NO-BREAK SPACE}", " "), files


def test_verdicts_follow_the_interval_of_the_ratio(study: Params, tmp_path: Path) -> None:
    assert verdicts(study, tmp_path) == {"T4": "supported", "T6": "contradicted", "T7": "supported", "T9": "supported"}
    changed = verdicts(study, tmp_path, loop=1.05, patch_14=12.0, nested=40.0, exponent=1.0)
    assert changed == {"T4": "contradicted", "T6": "supported", "T7": "contradicted", "T9": "contradicted"}
    vague = verdicts(study, tmp_path, loop=1.45, nested=17.0, exponent=1.8, noise=0.3)
    assert (vague["T4"], vague["T7"]) == ("not decided", "not decided")


def test_patch_14_has_to_be_slower_than_each_other(study: Params, tmp_path: Path) -> None:
    """Slower than 7 and 4, but faster than 2: one comparison is enough against the claim."""
    findings = judged(study, "T6", timings(study, tmp_path, patch_14=3.0)).findings
    assert [finding.verdict for finding in findings] == ["supported", "supported", "contradicted"]


def test_interval_of_a_ratio_is_students_on_the_logarithms(study: Params, tmp_path: Path) -> None:
    found = timings(study, tmp_path)
    kept = [entry["seconds"] for entry in found.raw["rounds"]]
    logs = np.log([entry["step/published/cls-loop"] / entry["step/published/first"] for entry in kept])
    low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs)))
    finding = judged(study, "T4", found).findings[0]
    assert finding.interval is not None
    assert (finding.effect, finding.interval.low, finding.interval.high) == pytest.approx((np.exp(logs.mean()), low, high))
    assert low < 1.3 < high


def test_a_slow_round_does_not_change_a_ratio(study: Params, tmp_path: Path) -> None:
    results = make_results(study)
    write(tmp_path, results)
    before = timing.load(study, tmp_path)
    for name in results["rounds"][3]["seconds"]:
        results["rounds"][3]["seconds"][name] *= 7
    write(tmp_path, results)
    after = timing.load(study, tmp_path)
    assert before is not None
    assert after is not None
    assert after.ratio("cls-loop", "first") == pytest.approx(before.ratio("cls-loop", "first"))
    assert after.exponent("attention time") == pytest.approx(before.exponent("attention time"))


@pytest.mark.parametrize("exponent", [1.0, 1.7, 2.0])
def test_exponent_is_the_slope_from_49_tokens_on(study: Params, tmp_path: Path, exponent: float) -> None:
    found = timings(study, tmp_path, exponent=exponent, noise=1e-6)
    slopes = found.exponent("attention time")
    assert slopes.shape == (12,)
    assert slopes == pytest.approx(exponent, abs=1e-4)
    names = [f"attention/published/{tokens}" for tokens in (49, 196, 784)]
    line = np.polyfit(np.log([49, 196, 784]), np.log([found.rounds[5][name] for name in names]), 1)
    assert slopes[5] == pytest.approx(line[0])
    assert found.exponent("saved bytes", "fast") == pytest.approx(1.0)
    assert found.exponent("saved bytes").shape == (1,)


def test_disturbed_rounds_judge_nothing_and_are_told(study: Params, tmp_path: Path) -> None:
    shown, _ = page(study, tmp_path, disturbed=3)
    assert "12 rounds count; 3 more were discarded, because other processes used more than 5 % of the machine (up to 40 %)" in shown
    quiet, _ = page(study, tmp_path)
    assert "none had to be discarded" in quiet

    results = make_results(study, rounds=0, disturbed=6)
    write(tmp_path, results)
    found = timing.load(study, tmp_path)
    assert found is not None
    for claim in ("T4", "T6", "T7"):
        judgement = judged(study, claim, found)
        assert judgement.verdict == "not decided"
        assert "0 undisturbed rounds" in judgement.deciding.why
    shown, _ = page(study, tmp_path, rounds=0, disturbed=6)
    assert "No round counts" in shown


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_show_times_and_judge_nothing(study: Params, tmp_path: Path, rounds: int) -> None:
    shown, _ = page(study, tmp_path, rounds=rounds)
    assert "Fewer than 3 rounds count" in shown
    assert "**T4" not in shown
    assert verdicts(study, tmp_path, rounds=rounds)["T4"] == "not decided"


def test_numbers_of_the_page_are_those_of_the_file(study: Params, tmp_path: Path) -> None:
    shown, _ = page(study, tmp_path)
    raw = json.loads((tmp_path / timing.RESULTS).read_text())
    (line,) = (line for line in shown.splitlines() if line.startswith("| class token by loop | 50 |"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    for cell, way in ((cells[2], "published"), (cells[3], "fast")):
        times = np.array([1e3 * entry["seconds"][f"step/{way}/cls-loop"] for entry in raw["rounds"]])
        numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
        assert numbers == pytest.approx([np.median(times), times.min(), times.max()], rel=0.006)
    profile = raw["profiles"]["step/published/base"]
    part, calls = profile["groups"]["attention"], profile["operators"]["attention"]
    assert f"{1e3 * part:.2f} ({100 * part / profile['seconds']:.0f} %)<br>{calls}" in shown
    for tokens in TOKENS:
        assert any(line.startswith(f"| {tokens} |") for line in shown.splitlines())
    for claim in ("T4", "T6", "T7", "T9"):
        assert f"### {claim}: " in shown
        assert study.claims[claim].sentence in shown


def test_answers_follow_the_numbers(study: Params, tmp_path: Path) -> None:
    shown, _ = page(study, tmp_path, loop=1.3, expand=1.0, noise=0.002)
    assert "The loop is what costs (1.3" in shown
    shown, _ = page(study, tmp_path, loop=1.3, expand=1.5)
    assert "The loop is not what costs" in shown
    shown, _ = page(study, tmp_path, loop=1.3, expand=1.3, noise=0.2)
    assert "Whether the loop costs more" in shown
    shown, _ = page(study, tmp_path, rounds=1)
    assert "One round cannot tell more" in shown
    shown, _ = page(study, tmp_path, patch_14=0.2)
    assert "As published, 14 x 14 is not the slowest (that is 2 x 2)" in shown
    shown, _ = page(study, tmp_path, patch_14=20.0)
    assert "As published, 14 x 14 is the slowest" in shown
    shown, _ = page(study, tmp_path, loop=1.04, noise=1e-4)
    assert "20% less than the thesis's 1.3" in shown


def test_equal_results_give_equal_bytes(study: Params, tmp_path: Path, drawn_once: dict[tuple[str, str, bool], bytes]) -> None:
    drawn_once.clear()
    first = page(study, tmp_path)[1]
    drawn_once.clear()
    second = page(study, tmp_path)[1]
    assert first == second
    assert set(first) == {"timing.md", *(f"timing/{name}{theme}.png" for name in ("profile", "growth") for theme in ("", "-dark"))}
    for name, content in first.items():
        if name.endswith(".png"):
            assert Image.open(io.BytesIO(content)).size[0] > 800
            assert f"]({name}" in first["timing.md"].decode() or f'"{name}"' in first["timing.md"].decode()


def test_other_settings_than_the_studys_are_not_judged(study: Params, tmp_path: Path, raw_params: dict[str, Any]) -> None:
    write(tmp_path, make_results(study))
    for change, undecided in (
        ({"base": raw_params["base"] | {"blocks": 2}}, ("T4", "T6", "T7", "T9")),
        ({"variants": raw_params["variants"] | {"cls-loop": {"cls_insert": "loop", "blocks": 2}}}, ("T4", "T7")),
    ):
        found = timing.load(parse(raw_params | change), tmp_path)
        judgements = {id: judged(study, id, found) for id in TIMED}
        assert {id for id, judgement in judgements.items() if "other settings" in judgement.deciding.why} == set(undecided)
        assert {judgements[id].verdict for id in undecided} == {"not run"}


@pytest.mark.parametrize("damage", ["{", "{}", "[]", "no rounds", "no step", "no groups", "a missing time"])
def test_damaged_results_are_one_sentence(study: Params, tmp_path: Path, damage: str) -> None:
    results = make_results(study)
    write(tmp_path, results)
    if damage == "no rounds":
        results["rounds"] = []
    elif damage == "no step":
        results["measurements"] = [entry for entry in results["measurements"] if entry["name"] != "step/fast/base"]
    elif damage == "no groups":
        results["profiles"]["step/fast/base"]["groups"] = {}
    elif damage == "a missing time":
        del results["rounds"][4]["seconds"]["growth/fast/49"]
    else:
        (tmp_path / timing.RESULTS).write_text(damage)
    if len(damage) > 2:
        write(tmp_path, results)
    with pytest.raises(UserError, match="damaged: run `dvc repro --force --single-item timing`"):
        timing.load(study, tmp_path)


def test_without_timings_there_is_nothing(study: Params, tmp_path: Path) -> None:
    assert timing.load(study, tmp_path) is None
    for claim in ("T4", "T6"):
        judgement = judged(study, claim, None)
        assert judgement.verdict == "not run"
        assert judgement.deciding.why.startswith("not timed")


def _stage_helpers() -> Any:
    spec = importlib.util.spec_from_file_location("report_helpers", Path(__file__).parents[1] / "stages/test_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_report_has_the_page_links_it_and_removes_it_with_its_results(
    study: Params, raw_params: dict[str, Any], tmp_path: Path
) -> None:
    helpers = _stage_helpers()
    experiments = {name: raw_params["experiments"][name] | {"figures": []} for name in ("positions", "cls-token", "patch-size")}
    named = {variant for experiment in experiments.values() for variant in experiment["variants"]}
    variants = {name: change for name, change in raw_params["variants"].items() if name in named}
    raw = helpers.write_study(tmp_path, seeds=2, epochs=4, experiments=experiments, variants=variants)
    params = parse(raw)
    write(tmp_path, make_results(study))
    pages.write(params, tmp_path)
    readme = (tmp_path / "reports/README.md").read_text()
    for claim, place, verdict in (
        ("T4", "experiments/cls-token.md#what-it-means", "supported"), ("T6", "experiments/patch-size.md#what-it-means", "contradicted"),
        ("T7", "timing.md#claims", "supported"), ("T9", "timing.md#claims", "supported"),
    ):  # fmt: skip
        (line,) = (line for line in readme.splitlines() if line.startswith(f"| [{claim}]"))
        assert f"]({place})" in line
        assert f"**{verdict}**" in line
    assert "[Where the time goes](timing.md)" in readme
    assert "[the timings](../timing.md)" in (tmp_path / "reports/experiments/patch-size.md").read_text()
    assert "../timing.md" not in (tmp_path / "reports/experiments/positions.md").read_text()
    assert "Some Processor (2 cores) (cpu), with python 3.11.2, torch 2.15.0" in (tmp_path / "reports/hardware.md").read_text()
    assert (tmp_path / "reports/timing/growth-dark.png").exists()

    (tmp_path / timing.RESULTS).unlink()
    pages.write(params, tmp_path)
    assert not list((tmp_path / "reports").glob("timing*/*.png"))
    assert not (tmp_path / "reports/timing.md").exists()
    readme = (tmp_path / "reports/README.md").read_text()
    assert "timing.md" not in readme
    (line,) = (line for line in readme.splitlines() if line.startswith("| [T7]"))
    assert "](#claims-of-no-experiment)" in line
    assert "**not run**" in line
    assert "not timed" in line
