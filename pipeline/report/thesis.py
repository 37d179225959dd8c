"""The page that compares the results of the thesis (V. Kovinić, Računarski fakultet, Belgrade, 2024) with those of the study."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report import text
from pipeline.report.figures.verdicts import forest
from pipeline.report.text import digits, estimate, listed, without_machine
from pipeline.study import Training
from pipeline.study.claims import OBSERVATIONS, Judgement, is_timed
from pipeline.study.effects import RankEstimate
from pipeline.study.statistics import LEVEL, Interval, Summary, student, summarize
from pipeline.timing.results import Timings

# Of its own configuration, which is the base. The author reports it; the thesis itself shows curves only.
PUBLISHED_ACCURACY = 0.977
_SMALL_SHARE = 0.05  # of a step's time: a part below it cannot explain a difference between steps
_OPEN, _NOT_RUN, _HERE = "stays open", "was not run", " on this machine"


@dataclass(frozen=True)
class Chapter:
    """One or several chapters of the thesis. `variants`: the networks that its figures compare."""

    title: str
    sections: tuple[str, ...]
    figures: str = ""
    experiment: str = ""
    variants: tuple[str, ...] = ()


CHAPTERS = (
    Chapter("4.1: how fast it is", ("4.1",)),
    Chapter("4.2: fixed and learned position vectors", ("4.2",), "19 and 20", "positions", ("base", "sinusoidal")),
    Chapter("4.3: the class token", ("4.3",), "21 and 22", "cls-token", ("base", "first")),
    Chapter("4.4: the size of a patch", ("4.4",), "23 and 24", "patch-size", ("patch-14", "patch-7", "base", "patch-2")),
    Chapter("5: conclusion and future work", ("5",)),
    Chapter("2 and 3: what it says of transformers", ("2", "3")),
)


def render(
    params: Params, runs: Mapping[str, Training], judgements: Sequence[Judgement], places: Mapping[str, str], timings: Timings | None
) -> dict[str, bytes]:
    """The page and its figure, by their path inside `reports/`. A pure function of its arguments and the template.

    Args:
        judgements: of all claims; those of other sources are left out.
        places: by claim, the link to its section inside `reports/`; an anchor alone is on the first page.
    """
    by_chapter = [(chapter, [judgement for judgement in judgements if _is_of(judgement, chapter)]) for chapter in CHAPTERS]
    own = [judgement for _, found in by_chapter for judgement in found]
    fourth = [one for one in own if section(one).startswith("4") and one.claim.quote]
    said = [one for one in fourth if not _of_another(one)]
    drawn = forest(said, sentences=True)
    verdicts = drawn and replace(drawn, name="thesis")
    accuracies = {variant: _Accuracy.of(run) for variant, run in runs.items()}
    page = text.page(
        "thesis.md.j2",
        preview=params.preview,
        dataset=params.data.source.label,
        chapters=[
            (chapter, found, [(v, accuracies[v]) for v in chapter.variants if v in accuracies]) for chapter, found in by_chapter if found
        ],
        claims=len(said),
        tally=_tally(said) if said else None,
        not_counted=[one.id for one in fourth if one not in said],
        verdicts=verdicts,
        levels=text.interval_levels(own),
        places={id: f"README.md{place}" if place.startswith("#") else place for id, place in places.items()},
        timed=timings is not None,
        machine=timings and timings.raw["machine"],
        params=params,
        base=accuracies.get("base"),
        published=PUBLISHED_ACCURACY,
        questions=_questions(timings),
        sentences=_sentences(own),
        became=_verdict,
        without_machine=without_machine,
        of_another=_of_another,
    )
    return {"thesis.md": page, **(verdicts.files("figures") if verdicts else {})}


def section(judgement: Judgement) -> str:
    """The (first) section of the thesis that a claim is from; empty for a claim of another source."""
    found = re.search(r"\bthesis, (\d+(?:\.\d+)*)", judgement.claim.source)
    return found[1] if found else ""


def _is_of(judgement: Judgement, chapter: Chapter) -> bool:
    number = section(judgement)
    return any(number == own or number.startswith(f"{own}.") for own in chapter.sections)


def _tally(judgements: Sequence[Judgement]) -> str:
    """`3 hold, 1 does not hold, 5 stay open and 1 was not run`. What was timed is said of this machine."""
    several = {"holds": "hold", "does not hold": "do not hold", _OPEN: "stay open", _NOT_RUN: "were not run"}
    order = [said + where for said in several for where in ("", _HERE)]
    counts = Counter(map(_verdict, judgements))
    return listed(
        [
            f"{counts[said]} {said if counts[said] == 1 else several[said.removesuffix(_HERE)] + _HERE * said.endswith(_HERE)}"
            for said in order
            if counts[said]
        ]
    )


def _sentences(judgements: Sequence[Judgement]) -> dict[str, list[list[Judgement]]]:
    """The sentences of which a claim was judged, by what a reader should do with them; of each the judgements of its claims."""
    found: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.claim.quote:
            found.setdefault(judgement.claim.quote, []).append(judgement)
    groups: dict[str, list[list[Judgement]]] = {"correct": [], "elsewhere": [], "qualify": [], "leave open": [], "keep": []}
    for claims in found.values():
        verdicts = {claim.verdict for claim in claims}
        if verdicts <= {*OBSERVATIONS, "not run"}:
            continue
        if "supported" in verdicts:
            group = "keep" if len(verdicts) == 1 else "qualify"
        else:
            against = [claim for claim in claims if claim.verdict == "contradicted"]
            # The thesis speaks of its own machine, which another cannot correct.
            group = "leave open" if not against else "elsewhere" if all(is_timed(one.claim) for one in against) else "correct"
        groups[group].append(claims)
    return {group: sentences for group, sentences in groups.items() if sentences}


def _of_another(judgement: Judgement) -> bool:
    """Whether the claim is judged on another network than the thesis's: `thesis, 4.2, with ...`."""
    return ", with " in judgement.claim.source


def _verdict(judgement: Judgement) -> str:
    said = {"supported": "holds", "contradicted": "does not hold", "not run": _NOT_RUN}.get(judgement.verdict, _OPEN)
    return f"{said}{_HERE}" if is_timed(judgement.claim) and said not in (_OPEN, _NOT_RUN) else said


# --- accuracies ---


@dataclass(frozen=True)
class _Accuracy:
    """Test accuracy after the last epoch, over seeds. `single`: 95 % prediction interval of a training with another seed."""

    summary: Summary
    epochs: int
    single: Interval | None

    @classmethod
    def of(cls, run: Training) -> _Accuracy:
        last = run.test_accuracy[:, -1]
        return cls(summarize(last), run.test_accuracy.shape[1], _next_value(summarize(last)))


def _next_value(of: Summary) -> Interval | None:
    """Where one more value lies in 95 % of cases: mean ± t(n - 1) sd √(1 + 1/n) (Fisher 1935). None from one value."""
    if of.n == 1:
        return None
    reach = float(student((1 + LEVEL) / 2, of.n - 1)) * of.sd * (1 + 1 / of.n) ** 0.5
    return Interval(of.mean - reach, of.mean + reach)


# --- the two questions that it leaves open ---

_ASKED = ("cls-loop", "first", "base", "patch-14", "patch-7", "patch-2")  # subjects that answer them


@dataclass(frozen=True)
class Question:
    """A question of the thesis. `short`: the answer in one clause; `answer`: what the timing stage found, in sentences."""

    asked: str
    section: str
    guess: str
    short: str
    answer: str


def _questions(timings: Timings | None) -> list[Question]:
    """None of them where the timings cannot be judged: no round was undisturbed, or other settings than the study's were timed."""
    if timings is None or not timings.quiet or any(f"step/published/{subject}" in timings.changed for subject in _ASKED):
        return []
    return [_class_token(timings), _largest_patch(timings)]


def _class_token(timings: Timings) -> Question:
    loop, expand = _ratio(timings, "cls-loop", "first"), _ratio(timings, "base", "first")
    between = timings.relative("step/published/cls-loop", "step/published/base")
    sentences = []
    short = "not measured here"
    if loop and expand and between:
        sentences.append(
            f"With the token added image by image, as published, a step takes {estimate(*loop, digits)} times as long as without one;"
            f" with the token added to the whole batch at once, {estimate(*expand, digits)} times."
        )
        alone, added = (ends.low if ends else -math.inf for ends in (between[1], expand[1]))
        if alone > 1 and added > 1:
            part = _larger(timings)
            short = f"the guess is right for {part}"
            so = f", so the way in which the token is added is {part} of what it costs"
            so += "; which part is larger is not decided." if part == "a part" else "."
        elif alone > 1:
            short, so = "the guess is right", ", so what costs is how the token is added, not the token."
        else:
            short, so = "the guess is not decided", ", which may be nothing."
        sentences.append(f"The loop alone makes it {estimate(*between, digits)} times as long{so}")
    if contrast := timings.contrast("published", "cls-loop", "base"):
        slow, fast = (_part(profile, "class token") for profile in contrast.profiles)
        sentences.append(f"In a profiled step adding the token takes {slow} by the loop and {fast} at once.")
    return Question(
        "Why is an epoch shorter without the class token?", "4.3", "the way in which the token is implemented", short, " ".join(sentences)
    )


def _larger(timings: Timings) -> str:
    """How large a part of the class token's cost the loop is: that of the loop alone against that of a token that is added at once."""
    loop, expand, without = (np.log(timings.seconds(f"step/published/{name}")) for name in ("cls-loop", "base", "first"))
    ends = RankEstimate((loop - expand) - (expand - without)).interval()
    return "the larger part" if ends and ends.low > 0 else "the smaller part" if ends and ends.high < 0 else "a part"


def _largest_patch(timings: Timings) -> Question:
    sizes = [name for name in ("patch-7", "base", "patch-2") if name in timings.subjects()]
    ratios = {name: found for name in sizes if (found := _ratio(timings, "patch-14", name))}
    sentences = []
    short = "not measured here"
    if ratios:
        label = {"patch-7": "7", "base": "4", "patch-2": "2"}
        said = listed([f"{estimate(*ratio, digits)} times that of patches of {label[name]}" for name, ratio in ratios.items()])
        fastest = all(ends and ends.high < 1 for _, ends in ratios.values())
        slowest = all(ends and ends.low > 1 for _, ends in ratios.values())
        short = "it is the fastest here" if fastest else "it is the slowest here, too" if slowest else "not decided here"
        sentences.append(f"The step of a network with patches of 14 pixels takes {said}.")
    if "patch-7" in sizes and (contrast := timings.contrast("published", "patch-14", "patch-7")):
        large, small = (_part(profile, "patches and embedding") for profile in contrast.profiles)
        groups = contrast.profiles[0]["groups"]
        share = groups.get("patches and embedding", 0.0) / sum(groups.values())
        sentences.append(
            f"Cutting and embedding the patches takes {large} of the profiled step with patches of 14, {100 * share:.0f} % of it, and"
            f" {small} with patches of 7{': the embedding is not what orders the sizes' if share < _SMALL_SHARE else ''}."
        )
        calls = [sum(profile["operators"].values()) for profile in contrast.profiles]
        if calls[0] == calls[1]:
            sentences.append(
                f"Both steps call {calls[0]:,} operators. Where calling them takes longer than what they compute, all sizes need nearly the"
                " same time, and what else the machine does orders them. That may be so on the author's GPU; it was not measured here."
            )
    return Question("Why is an epoch with patches of 14 pixels the slowest?", "4.4", "the linear embedding", short, " ".join(sentences))


def _ratio(timings: Timings, slower: str, faster: str) -> tuple[float, Interval | None] | None:
    return timings.relative(f"step/published/{slower}", f"step/published/{faster}")


def _part(profile: Mapping[str, Any], part: str) -> str:
    """`23.2 ms (1,023 operators)`."""
    return f"{digits(1e3 * profile['groups'].get(part, 0.0))} ms ({profile['operators'].get(part, 0):,} operators)"
