"""What a claim's finding means, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.measures import MEASURES
from pipeline.params import ComparisonSettings
from pipeline.params.train import MAX_SEEDS
from pipeline.study.claims import Finding, Judgement, Why, is_ratio, region

MINUS = "\N{MINUS SIGN}"
_BECAUSE = {
    Why.NO_RESULTS: "there are no results of {lacking}",
    Why.NOT_MEASURED: "{fault}",
    Why.NOT_FORMED: "{fault}",
    Why.SEEN: "the seeds of {lacking} had been seen when the claim was made",
    Why.NOT_TIMED: "the timing stage has not run (`dvc repro timing`)",
    Why.OTHER_DEVICE: "it is not measured on a {device} yet{observed}",
    Why.NO_INTERVAL: "over {n} there is no interval at this level",
    Why.NO_SPREAD: "all {n} give the same value, so their spread is not known",
    Why.FEW_SEEDS: "it has {n}, fewer than the first look",
    Why.INSIDE: "the whole interval lies {where}",
    Why.OUTSIDE: "no part of the interval lies {where}",
    Why.ACROSS: "at the levels of the rule only a part of the interval lies {where}",
    Why.UNREACHED: "seeds that did not reach it could put the interval elsewhere",
    Why.SHORT: "{lacking} saw fewer training images than the claim speaks of",
    Why.ONE_EPOCH: "one epoch does not show whether the effect has settled",
    Why.SMALL: "a part of the interval lies {where}, and all of it between 0.8 and 1.25{apart}",
    Why.CHANCE: "the train losses of {sides} stayed at that of a guess",
    Why.MOVED: "it moves from the last but one fifth of the epochs to the late ones, at a pace at which it may not stay where it is",
}
_DECIDES = {
    Why.MOVED: "a longer training",
    Why.ONE_EPOCH: "a longer training",
    Why.SHORT: "trainings that are shown {images} images",
    Why.OTHER_DEVICE: "timings on a {device}",
    Why.FEW_SEEDS: "the look at {look} seeds",
}


def because(finding: Finding) -> str:
    """What led to the verdict, and the place of an observation's interval, as the end of a sentence."""
    ends, where = finding.interval, claimed(finding.comparison)
    words = {
        "lacking": listed(finding.lacking), "fault": finding.fault, "n": _values(finding, finding.n),
        "where": where, "apart": ", without 1" if ends and not ends.low <= 1 <= ends.high else "",
        "sides": listed(list(dict.fromkeys(finding.comparison.variants))), **_devices(finding),
    }  # fmt: skip
    said = _BECAUSE[finding.why].format(**words)
    if MEASURES[finding.comparison.measure].exact and finding.effect is not None:
        return f"an exact count, {'' if finding.verdict == 'supported' else 'not '}{where}"
    if finding.fault and finding.fault != said:
        said += f"; {finding.fault}"
    if finding.place and finding.why is not finding.place and finding.observed:
        said += f"; observed: {_BECAUSE[finding.place].format(**words)}"
    return said


def decides(finding: Finding, judgement: Judgement) -> str:
    """What would decide a comparison, in few words; empty where it is decided or nothing is known."""
    if finding.needed is not None:
        return f"about {_values(finding, finding.needed)}" if finding.needed <= MAX_SEEDS else f"more than {_values(finding, MAX_SEEDS)}"
    words = {"images": f"{judgement.images_shown or 0:,}", "look": (judgement.looks or (0,))[0], **_devices(finding)}
    return _DECIDES.get(finding.why, "").format(**words)


def _devices(finding: Finding) -> dict[str, str]:
    """Of a claim about time that was timed on another device, what it speaks of and that one."""
    device, other = ("GPU", "CPU") if finding.lacking == ("cuda",) else ("CPU", "GPU")
    size = "" if finding.effect is None else f"; on the {other} it is {finding.effect:.3g}{' times' * is_ratio(finding.comparison)}"
    return {"device": device, "observed": size}


def claimed(comparison: ComparisonSettings) -> str:
    """Where the claim puts the effect, as in "it lies ..."."""
    low, high = region(comparison)
    if comparison.between is not None or is_ratio(comparison):
        if math.isinf(high):
            return f"above {low:.4g}"
        return f"between {low:.4g} and {high:.4g}" if low > 0 else f"below {high:.4g}"
    measure = MEASURES[comparison.measure]
    bound = high if comparison.rule in ("less", "equivalent") else low
    size = f"{measure.factor * bound:.6g}".replace("-", MINUS)
    unit = measure.of_value if comparison.rule == "at least" else measure.of_difference if bound else ""
    return {"less": "below ", "equivalent": "within ±"}.get(comparison.rule, "above ") + with_unit(size, unit)


def rule(finding: Finding) -> str:
    """The rule of a comparison, the same whatever the data say."""
    where = claimed(finding.comparison)
    if MEASURES[finding.comparison.measure].exact:
        return f"supported if the exact figure lies {where}, contradicted if not"
    inside, outside = (f"{100 * level:.3g} %" for level in (finding.levels.inside, finding.levels.outside))
    of = "of it" if inside == outside else f"of the {outside} interval"
    return f"supported if the whole {inside} interval lies {where}; contradicted if no part {of} does"


def listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def counted(number: int, thing: str) -> str:
    """`1 seed`, `10 seeds`."""
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def with_unit(number: str, unit: str) -> str:
    """`+1 step`, `+2 steps`."""
    return f"{number} {unit.removesuffix('s') if number.lstrip(f'+{MINUS}') == '1' else unit}".rstrip()


def _values(finding: Finding, number: int) -> str:
    return counted(number, "round" if finding.comparison.rule in ("ratio", "exponent") else "seed")
