"""The timing page: what the timing stage measured, and what it says of the thesis's two open questions.

Reads timing/results.json. Its fields: "machine", "dataset", "settings"; "measurements": what was timed, each with "name", "kind"
(step, growth, attention), "way" (published, fast, nested loops), "subject" (a variant, or a token count), "tokens", "batch", "steps",
"model", where known "saved_bytes" and "peak_bytes"; "rounds": each with "foreign" (share of the machine that others used), "kept"
and "seconds" (of one step, by name); "profiles": by name, "seconds", "groups", "operators" of one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.report import figures, text
from pipeline.report.text import digits as _digits
from pipeline.study.claims import FEWEST_ROUNDS, Judgement
from pipeline.study.statistics import FloatArray, Summary, summarize

RESULTS = Path("timing/results.json")
WAYS = ("published", "fast")
WAY_LABELS = {"published": "as published", "fast": "fast path", "nested loops": "nested loops"}
SPOKEN = {"published": "As published", "fast": "On the fast path"}
INSERTIONS = {"cls-loop": "class token by loop", "base": "class token by expand", "first": "no class token"}
PATCHES = {"patch-14": "14 x 14", "patch-7": "7 x 7", "base": "4 x 4", "patch-2": "2 x 2"}
LEAST_TOKENS = 49  # with fewer, calling the operators costs more than what they compute


@dataclass(frozen=True)
class Ratio:
    """Geometric mean over the rounds, and its interval: Student's t on the logarithms; None with one round."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Timings:
    """What the timing stage left; satisfies `pipeline.study.claims.Timings`.

    Attributes:
        rounds: seconds a step by name, of the rounds that count; of all of them where none does.
        quiet: whether those rounds count.
        changed: subjects that were timed with other settings than the study's.
    """

    raw: dict[str, Any]
    measurements: dict[str, dict[str, Any]]
    rounds: list[dict[str, float]]
    quiet: bool
    changed: frozenset[str]

    def seconds(self, name: str) -> FloatArray:
        """(rounds,): seconds a step. Raises LookupError where nothing of that name was timed."""
        if name not in self.measurements:
            raise LookupError(f"`{name}` was not timed")
        return np.array([entry[name] for entry in self.rounds])

    def ratio(self, slower: str, faster: str) -> FloatArray:
        """(rounds,): of the step times as published; `nested loops` is the base in that way. No rounds where none counts."""
        for subject in (slower, faster):
            if subject in self.changed:
                raise LookupError(f"{subject} was timed with other settings than the study's; run `dvc repro timing`")
        return self._judged(self.seconds(self._step(slower)) / self.seconds(self._step(faster)))

    def exponent(self, measure: str, way: str = "published") -> FloatArray:
        """(rounds,) of "attention time" and "step time", (1,) of "saved bytes": least squares on logarithms, from 49 tokens on."""
        if "base" in self.changed:
            raise LookupError("it was timed with other settings than the study's; run `dvc repro timing`")
        kind = "growth" if measure == "step time" else "attention"
        entries = [entry for entry in self.growth(kind, way) if entry["tokens"] >= LEAST_TOKENS]
        if len(entries) < 2:
            raise LookupError(f"fewer than two token counts of {LEAST_TOKENS} and more were timed; see timing.tokens in params.yaml")
        if measure == "saved bytes":
            values = np.array([[entry["saved_bytes"]] for entry in entries], dtype=np.float64)  # (count, 1)
        else:
            values = self._judged(np.stack([self.seconds(entry["name"]) for entry in entries]))  # (count, round)
        x = np.log([entry["tokens"] for entry in entries])
        x -= x.mean()
        slopes: FloatArray = x @ np.log(values) / (x @ x)
        return slopes

    def growth(self, kind: str, way: str) -> list[dict[str, Any]]:
        """The measurements against tokens, by rising token count."""
        found = [entry for entry in self.measurements.values() if (entry["kind"], entry["way"]) == (kind, way)]
        return sorted(found, key=lambda entry: entry["tokens"])

    def _judged(self, values: FloatArray) -> FloatArray:
        return values if self.quiet else values[..., :0]

    @staticmethod
    def _step(subject: str) -> str:
        return "step/nested loops/cls-loop" if subject == "nested loops" else f"step/published/{subject}"


def load(params: Params, root: Path = Path()) -> Timings | None:
    """Reads timing/results.json; None where it is not there.

    Raises:
        UserError: it is damaged.
    """
    path = root / RESULTS
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        measurements = {entry["name"]: entry for entry in raw["measurements"]}
        kept = [entry["seconds"] for entry in raw["rounds"] if entry["kept"]]
        rounds = kept or [entry["seconds"] for entry in raw["rounds"]]
        complete = bool(rounds) and all(seconds[name] > 0 for seconds in rounds for name in measurements)
        profiled = all(profile["groups"] for profile in raw["profiles"].values())
        models: dict[str, dict[str, Any]] = {e["subject"]: e["model"] for e in measurements.values() if e["kind"] == "step"}
        steps = {f"step/{way}/{subject}" for way in WAYS for subject in {**INSERTIONS, **PATCHES}}
        most = max((entry["tokens"] for entry in measurements.values() if entry["kind"] == "growth"), default=0)
        steps |= {f"growth/{way}/{most}" for way in WAYS}
        if not complete or not profiled or not steps <= measurements.keys() & raw["profiles"].keys():
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: run `dvc repro --force --single-item timing`.") from None
    base = params.base.model_dump(mode="json")
    own = {name: params.resolve(name).model.model_dump(mode="json") for name in params.variants} | {"base": base}
    changed = frozenset(name for name, model in models.items() if models["base"] != base or own.get(name, model) != model)
    return Timings(raw, measurements, rounds, bool(kept), changed)


# --- the page ---


def render(
    timings: Timings, judgements: Sequence[Judgement], environment: jinja2.Environment, preview: str | None, profile: str | None
) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`. A pure function of timing/results.json and the template."""
    drawings = {"profile": _profile_figure(timings), "growth": _growth_figure(timings)}
    files: dict[str, bytes] = {}
    shown = {}
    for name, (alt, caption, draw) in drawings.items():
        shown[name] = text.Picture(name, alt, caption)
        for theme in figures.THEMES:
            files[text.picture_path("timing", name, theme)] = draw(theme)
    rounds = timings.raw["rounds"]
    page = text.page(
        environment,
        "timing.md.j2",
        preview=preview,
        profile=profile,
        raw=timings.raw,
        machine=timings.raw["machine"],
        settings=timings.raw["settings"],
        timings=timings,
        counted=sum(entry["kept"] for entry in rounds),
        discarded=[entry["foreign"] for entry in rounds if not entry["kept"]],
        fewest=FEWEST_ROUNDS,
        judgements=judgements,
        adjusted={},
        figures=shown,
        ways=WAYS,
        way_labels=WAY_LABELS,
        insertions=INSERTIONS,
        patches=PATCHES,
        subjects={**INSERTIONS, **{name: f"patches of {label}" for name, label in PATCHES.items() if name != "base"}},
        groups=list(next(iter(timings.raw["profiles"].values()))["groups"]),
        tokens=[entry["tokens"] for entry in timings.growth("growth", "published")],
        class_token=_class_token(timings),
        patch_14=_patch_14(timings),
        token_growth=_token_growth(timings),
        ratio=lambda slower, faster: show_ratio(_ratio(timings, slower, faster)),
        milliseconds=lambda name: _milliseconds(timings.seconds(name)),
        exponents=[(label, [_exponent(timings, measure, way) for way in WAYS]) for label, measure in _EXPONENTS.items()],
        label=lambda name: {**INSERTIONS, **PATCHES, "base": "4 x 4 and class token by expand"}.get(name, name),
        commits=[timings.raw["git_commit"]] if timings.raw.get("git_commit") else [],
        dirty=bool(timings.raw.get("git_dirty")),
    )
    return files | {"timing.md": page}


_EXPONENTS = {"time of a step": "step time", "time of attention alone": "attention time", "bytes that attention keeps": "saved bytes"}


def _ratio(timings: Timings, slower: str, faster: str) -> Ratio:
    """Of two measurements' names."""
    summary = summarize(np.log(timings.seconds(slower) / timings.seconds(faster)))
    if summary.interval is None:
        return Ratio(float(np.exp(summary.mean)), None, None)
    return Ratio(*(float(np.exp(value)) for value in (summary.mean, summary.interval.low, summary.interval.high)))


def show_ratio(ratio: Ratio) -> str:
    """`1.27 [1.25 to 1.29]`: three digits."""
    ends = "" if ratio.low is None or ratio.high is None else f" [{_digits(ratio.low)} to {_digits(ratio.high)}]"
    return f"{_digits(ratio.value)}{ends}".replace(" ", "\N{NO-BREAK SPACE}")


def _milliseconds(seconds: FloatArray) -> str:
    """Median and range over the rounds."""
    low, middle, high = (_digits(1e3 * float(value)) for value in (seconds.min(), np.median(seconds), seconds.max()))
    return f"{middle} ({low} to {high})".replace(" ", "\N{NO-BREAK SPACE}")


def _exponent(timings: Timings, measure: str, way: str) -> str:
    try:
        values = timings.exponent(measure, way)
    except LookupError:
        return "-"
    if not len(values):
        return "-"
    summary: Summary = summarize(values)
    ends = "" if summary.interval is None else f" [{summary.interval.low:.2f} to {summary.interval.high:.2f}]"
    return f"{summary.mean:.2f}{ends}".replace(" ", "\N{NO-BREAK SPACE}")


# --- the answers, sentence by sentence, each chosen by the numbers ---


def _class_token(timings: Timings) -> list[str]:
    """What makes the class token cost what it does."""
    sentences = []
    for way in WAYS:
        loop, expand, none = (f"step/{way}/{name}" for name in INSERTIONS)
        by_loop, by_expand, price = _ratio(timings, loop, none), _ratio(timings, expand, none), _ratio(timings, loop, expand)
        sentences.append(
            f"{SPOKEN[way]}, a step with the class token added image by image takes {show_ratio(by_loop)} times as "
            f"long as one without it, and with the token added by one expand {show_ratio(by_expand)} times. {_cause(price, by_expand)}"
        )
        profiles = timings.raw["profiles"]
        calls = [profiles[name]["operators"]["class token"] for name in (loop, expand)]
        shares = [profiles[name]["groups"]["class token"] for name in (loop, expand)]
        batch = timings.measurements[loop]["batch"]
        sentences.append(
            f"In the profile of that way the loop calls {calls[0]} operators for a batch of {batch}, forward and backward, and takes "
            f"{_digits(1e3 * shares[0])} ms of a step; the expand calls {calls[1]} and takes {_digits(1e3 * shares[1])} ms."
        )
    published, fast = (_ratio(timings, f"step/{way}/cls-loop", f"step/{way}/first").value for way in WAYS)
    off = published / 1.3
    much = "as the thesis says" if abs(off - 1) < 0.05 else f"{abs(off - 1):.0%} {'more' if off > 1 else 'less'} than the thesis's 1.3"
    sentences.append(
        f"So the factor as published is {_digits(published)} here, {much}. The loop makes the same calls whatever the rest of the step "
        f"does, so its factor depends on how long the rest takes: {_digits(published)} as published, {_digits(fast)} on the fast path. "
        "A single figure such as 1.3 belongs to one machine and one implementation."
    )
    return sentences


def _cause(loop_over_expand: Ratio, expand_over_none: Ratio) -> str:
    if loop_over_expand.low is None or loop_over_expand.high is None or expand_over_none.low is None or expand_over_none.high is None:
        return "One round cannot tell more."
    if loop_over_expand.low > 1:
        rest = (
            "the token itself costs nothing that could be seen."
            if expand_over_none.low <= 1 <= expand_over_none.high
            else f"the token itself changes the time by a factor of {_digits(expand_over_none.value)}."
        )
        return f"The loop is what costs ({show_ratio(loop_over_expand)} times the expand); {rest}"
    if loop_over_expand.high < 1:
        return f"The loop is not what costs: it takes {show_ratio(loop_over_expand)} times the expand's time."
    return f"Whether the loop costs more than the expand ({show_ratio(loop_over_expand)} times) these rounds cannot tell."


def _patch_14(timings: Timings) -> list[str]:
    """Whether patches of 14 pixels are slowest, and what their step consists of."""
    sentences = []
    for way in WAYS:
        names = {label: f"step/{way}/{name}" for name, label in PATCHES.items()}
        slowest = max(names, key=lambda label: float(np.median(timings.seconds(names[label]))))
        ratios = [f"{show_ratio(_ratio(timings, names['14 x 14'], names[label]))} of {label}" for label in names if label != "14 x 14"]
        is_it = "the slowest" if slowest == "14 x 14" else f"not the slowest (that is {slowest})"
        sentences.append(f"{SPOKEN[way]}, 14 x 14 is {is_it}: its step takes {', '.join(ratios[:-1])} and {ratios[-1]} of the time.")
        sentences.append(_embedding(timings, names))
    operators = [sum(timings.raw["profiles"][f"step/published/{name}"]["operators"].values()) for name in PATCHES]
    low, high = min(operators), max(operators)
    if high <= 1.1 * low:
        calls = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        sentences.append(
            f"As published a step calls {calls} operators, whatever the patch: only how much each computes changes with it. So where "
            "calling an operator takes longer than its arithmetic, all patch sizes take nearly the same time, and what orders them is "
            "something else: a first training that warms the machine up, a loader that keeps up or not. Timings in random order, as "
            "these are, cannot be misled by that; epochs of one training after another can."
        )
    return sentences


def _embedding(timings: Timings, names: dict[str, str]) -> str:
    shares = []
    for label, name in names.items():
        profile = timings.raw["profiles"][name]
        part = profile["groups"]["patches and embedding"]
        shares.append(f"{_digits(1e3 * part)} ms ({part / profile['seconds']:.0%}) with {label}")
    return f"Cutting patches and the linear embedding take {', '.join(shares[:-1])} and {shares[-1]} of the profiled step."


def _token_growth(timings: Timings) -> list[str]:
    """How step time and memory grow with the tokens."""
    sentences = []
    for way in WAYS:
        steps, alone = timings.growth("growth", way), timings.growth("attention", way)
        first, last = steps[0], steps[-1]
        times = [float(np.median(timings.seconds(entry["name"]))) for entry in (first, last)]
        kept = [entry["saved_bytes"] for entry in (alone[0], alone[-1])]
        growth = last["tokens"] / first["tokens"]
        profile = timings.raw["profiles"][last["name"]]
        sentences.append(
            f"{SPOKEN[way]}, from {first['tokens']} to {last['tokens']} tokens ({growth:g} times as many, "
            f"{growth**2:,.0f} times the pairs) a step takes {_digits(times[1] / times[0])} times as long, and attention keeps "
            f"{_digits(kept[1] / kept[0])} times the bytes for its backward pass. With {last['tokens']} tokens attention is "
            f"{profile['groups']['attention'] / profile['seconds']:.0%} of the profiled step."
        )
    return sentences


# --- figures ---

_Drawn = tuple[str, str, Callable[[figures.Theme], bytes]]


def _profile_figure(timings: Timings) -> _Drawn:
    names = {**INSERTIONS, **{name: f"patches {label}" for name, label in PATCHES.items() if name != "base"}}
    names["base"] += ", 4 x 4"
    profiles = timings.raw["profiles"]
    panels = [(SPOKEN[way], [(label, profiles[f"step/{way}/{name}"]["groups"]) for name, label in names.items()]) for way in WAYS]
    totals = {label: [1e3 * profiles[f"step/{way}/{name}"]["seconds"] for way in WAYS] for name, label in names.items()}
    spoken = "; ".join(f"{label} {_digits(published)} and {_digits(fast)}" for label, (published, fast) in totals.items())
    alt = f"Bars of each part's share of a profiled step. Milliseconds of a step as published and on the fast path: {spoken}."
    caption = (
        "Where the time of a training step goes, in % of the profiled step, whose milliseconds stand at the end of its bar. The profiler "
        "adds to every operator and so makes what calls many of them look slower than it is; Tables 1 and 2 are taken without it."
    )
    return alt, caption, lambda theme: figures.shares(panels, theme)


def _growth_figure(timings: Timings) -> _Drawn:
    time_lines, byte_lines = [], []
    for way in WAYS:
        for kind, what in (("growth", "step"), ("attention", "attention alone")):
            entries = timings.growth(kind, way)
            x = [entry["tokens"] for entry in entries]
            label = f"{what}, {WAY_LABELS[way]}"
            milliseconds = [1e3 * float(np.median(timings.seconds(entry["name"]))) / entry["batch"] for entry in entries]
            time_lines.append((label, x, milliseconds))
            byte_lines.append((label, x, [entry["saved_bytes"] / entry["batch"] / 1e6 for entry in entries]))
    spoken = "; ".join(f"{label} from {_digits(y[0])} to {_digits(y[-1])} ms" for label, _, y in time_lines)
    alt = f"Time and memory an image against the number of tokens, both axes logarithmic. {spoken}."
    caption = (
        "Left: time of a training step and of one block's attention, divided by the "
        f"{timings.growth('growth', 'published')[0]['batch']} images of a batch, median over the rounds. Right: bytes kept for the "
        "backward pass. The dotted lines grow with the square of the tokens."
    )
    panels = [("Time (ms an image)", time_lines), ("Kept for backward (MB an image)", byte_lines)]
    return alt, caption, lambda theme: figures.growth(panels, theme)
