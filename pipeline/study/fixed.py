"""Whether a claim was fixed before the trainings that it counts.

A seed keeps the digests of the claims that spoke of its variant when it began to train. Of seeds that are older than this, `fixed.csv` has
by digest the commits at which a claim of that digest stood; `docs/method/fixed_claims.py` filled it in from git's history.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.study.training import Training

if TYPE_CHECKING:
    from pipeline.study.claims import Judgement

TABLE = Path(__file__).with_suffix(".csv")
SHORT = 10  # characters of a commit there


class Fixed(NamedTuple):
    """How many seeds a claim counts, each of a variant once, and how many of them began to train when it stood as it stands."""

    counted: int
    before: int

    @property
    def word(self) -> str:
        """ "before", "partly" or "after"; empty where no seed counts."""
        return "" if not self.counted else "before" if self.before == self.counted else "partly" if self.before else "after"


def fixed(judgement: Judgement, trainings: Mapping[str, Training]) -> Fixed:
    """Of the seeds that its findings count."""
    seeds = {(variant, seed) for finding in judgement.findings for variant, own in finding.counted.items() for seed in own}
    digest, group_of = judgement.claim.digest, dict[tuple[str, int], Mapping[str, Any]]()
    for variant in {variant for variant, _ in seeds}:
        group_of |= {(variant, seed): group for group in trainings[variant].trainings for seed in group["seeds"]}
    return Fixed(len(seeds), sum(_stood(digest, group_of[one]) for one in seeds))


def _stood(digest: str, group: Mapping[str, Any]) -> bool:
    """Whether a claim stood when these seeds began to train."""
    if "claims" in group:
        return digest in group["claims"]
    return str(group.get("git_commit"))[:SHORT] in _commits().get(digest, ())


@cache
def _commits() -> dict[str, list[str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["digest"]: row["commits"].split() for row in csv.DictReader(file)}
