"""Fills in, from git's history, which claims were fixed when a seed was trained that does not say so itself, or in an older form.

`python -m docs.method.fixed_claims` reads the claims at the commit of every training, and writes `pipeline/study/fixed.csv`:
a digest of today's claims, and the commits among those at which a claim of that digest stood. What a claim was called there, or how its
sentence read, makes no difference. A commit that is not in the history any more, and a claim in a form that is not read any more, count
as not fixed. Trainings record the digests themselves since 27 November 2026, and with a claim's first seed since the 29th.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

from pydantic import ValidationError

from pipeline.params import ClaimSettings, load
from pipeline.params.study import DECISIVE
from pipeline.study.fixed import SHORT, TABLE
from pipeline.study.git import root_of
from pipeline.study.results import load as load_study
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import replacing
from pipeline.system.paths import Files
from pipeline.system.provenance import mapping

_WORDS = dict.fromkeys(("source", "sentence", "measured", "margin"), "-")  # which no digest has


def digests_at(root: Path, commit: str) -> set[str]:
    """Of all claims of a commit that today's settings can say."""
    contents = Files(root, commit).read("*.yaml")
    found = set()
    for claim in ({} | mapping(contents.get("params.yaml", b"")) | mapping(contents.get("claims.yaml", b""))).get("claims", {}).values():
        decisive = {name: claim[name] for name in DECISIVE if name in claim}
        try:
            found.add(ClaimSettings.model_validate({**decisive, **_WORDS}).digest)
        except ValidationError:
            continue
    return found


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.fixed_claims", description="Which claims older trainings found fixed.").parse_args(
        argv
    )
    root, claims, trainings = root_of(Path()), load().claims.values(), load_study(".").trainings
    commits = defaultdict[str, set[str]](set)  # by variant, those of its trainings
    for variant, training in trainings.items():
        commits[variant] |= {group["git_commit"] for group in training.trainings if group.get("git_commit")}
    at: dict[str, set[str]] = {}
    for commit in sorted(set().union(*commits.values())):
        try:
            at[commit] = digests_at(root, commit)
        except UserError:
            print(f"{commit[:SHORT]} is not in the history here: what was trained at it counts as trained before any claim.")
    rows = {}
    for claim in claims:
        asked = {commit for part in claim.comparisons for variant in part.variants for commit in commits[variant]}
        rows[claim.digest] = " ".join(sorted(commit[:SHORT] for commit in asked if claim.digest in at.get(commit, ())))
    with replacing(TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["digest", "commits"])
        writer.writerows(sorted((digest, held) for digest, held in rows.items() if held))
    print(f"{TABLE.name}: {sum(map(bool, rows.values()))} of {len(rows)} claims stood at the commit of some training that does not say so.")


if __name__ == "__main__":
    run_command(main)
