"""Whether a claim was fixed before the trainings that it counts.

A seed keeps the digests of the claims that spoke of its variant when it began to train. Older seeds have none, or digests that lack the
first seed: for them `fixed.csv` has the commits at which a claim stood, which `docs/method/fixed_claims.py` takes from git's history.
"""

import csv
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.study.training import Training

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


def fixed(digest: str, counted: Collection[tuple[str, int]], trainings: Mapping[str, Training]) -> Fixed:
    """Of the seeds, each with its variant, that a claim of this digest counts."""
    before = 0
    for variant in {variant for variant, _ in counted}:
        for group in trainings[variant].trainings:
            commit = str(group.get("git_commit"))[:SHORT]
            stood = digest in group.get("claims", ()) or commit in _commits().get(digest, ())
            before += stood * sum((variant, seed) in counted for seed in group["seeds"])
    return Fixed(len(counted), before)


@cache
def _commits() -> dict[str, list[str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["digest"]: row["commits"].split() for row in csv.DictReader(file)}
