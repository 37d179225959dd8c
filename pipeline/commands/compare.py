"""`python -m pipeline.commands.compare BASE [HEAD]`: what changed between two commits, DVC experiments or folders, as a page for a comment.

Everything is read from the text files that a study commits (or from MLflow); nothing is checked out and nothing trained.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.params import flatten
from pipeline.params.variant import completed
from pipeline.report import text
from pipeline.study import Study, Training, load
from pipeline.study.effects import contrast, limited
from pipeline.study.git import commit_of, root_of
from pipeline.study.statistics import Interval, holm
from pipeline.study.training import CAUSES
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_text
from pipeline.system.provenance import mapping

ALPHA = 0.05
LIMIT = 60_000  # characters; a comment on a git host holds 65,536
_COMPUTED = ("train_loss", "test_loss", "test_accuracy", "gradient_norm")  # curves that a repeated training repeats
_ROWS = (200, 60, 15)  # of a table; the first number with which the page is short enough
_NAMED = 12  # variants in a list


class Side(NamedTuple):
    name: str
    study: Study


@dataclass(frozen=True)
class Change:
    """A variant that both sides have trained.

    Attributes:
        identical: whether every loss and accuracy of the seeds of both is the same to the last bit.
        settings: those that differ, as `key: base → head`, without the seeds; options that came later have the value that they had before.
        causes: what else differs, of the same form: code, data, versions, device, attention.
        paired: whether both have the same seeds, so that the difference is taken seed by seed; else the sides are independent (Welch).
        difference: of the mean accuracies after the last epoch, head - base, with its 95 % interval.
        p, adjusted: two-sided p of the interval's test, alone and Holm-adjusted over all variants that are not identical.
    """

    variant: str
    base: Training
    head: Training
    identical: bool
    settings: tuple[str, ...]
    causes: tuple[str, ...]
    paired: bool
    difference: float
    interval: Interval | None
    p: float | None
    adjusted: float | None = None

    @property
    def differs(self) -> bool:
        return self.adjusted is not None and self.adjusted < ALPHA

    @property
    def seconds(self) -> tuple[float, float]:
        """Median seconds of an epoch as recorded, at base and head."""
        return float(np.median(self.base.curves["seconds"])), float(np.median(self.head.curves["seconds"]))

    @property
    def reasons(self) -> str:
        """What differs, for a table's cell."""
        reasons: Sequence[str] = [*self.settings, *self.causes]
        if not self.paired:
            counts = len(self.base.seeds), len(self.head.seeds)
            sides = counts if counts[0] != counts[1] else (text.seed_list(self.base.seeds), text.seed_list(self.head.seeds))
            reasons = ["seeds: {} → {}".format(*sides), *reasons]
        if not reasons:
            reasons = [
                "the same training" if self.base.id and self.base.id == self.head.id else "trained anew, nothing that is recorded differs"
            ]
        return ", ".join(code(reason) if ":" in reason else reason for reason in reasons)


class Comparison(NamedTuple):
    """`verdicts`: by claim, at base and head; "" where a side lacks the claim."""

    base: Side
    head: Side
    changes: list[Change]
    added: list[str]
    removed: list[str]
    verdicts: dict[str, tuple[str, str]]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.compare", description=__doc__)
    parser.add_argument("base", nargs="?", default="", help="commit, branch, tag, DVC experiment or folder to compare with")
    parser.add_argument("head", nargs="?", default="", help="the other one (default: the working tree)")
    parser.add_argument("--source", default="", help="files: the tables (default); mlflow: the runs of the same trainings in MLflow")
    parser.add_argument("--in", dest="folder", default="", help=argparse.SUPPRESS)  # which other commands take
    parser.add_argument("--out", type=Path, default=Path("build/compare.md"), help="the page (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.base:
        raise UserError("Say which commit to compare with: make compare BASE=main~1, or python -m pipeline.commands.compare main~1.")
    if arguments.source not in ("", "files", "mlflow"):
        raise UserError(f"There is no source {arguments.source!r}; the choices are files and mlflow.")
    if folder := arguments.folder:
        raise UserError(f"git does not keep {folder}: keep a copy of it, and name both: `make compare BASE=build/before HEAD={folder}`.")
    sides = [read(one, mlflow=arguments.source == "mlflow") for one in (arguments.base, arguments.head)]
    page = render(compare(*sides))
    print(page, end="")
    write_text(arguments.out, page)
    print(f"Written to {arguments.out}.", file=sys.stderr)


def read(source: str, *, mlflow: bool = False) -> Side:
    """A side of the comparison: a commit, a folder, or for "" the working tree.

    Raises:
        UserError: no such commit, no results there, a damaged file, or a store that cannot be read.
    """
    if Path(source or ".").is_dir():
        name, source = (code(source), source) if source else ("the working tree", str(root_of(Path.cwd())))
    else:
        commit = commit_of(root_of(Path.cwd()), source)
        name = code(source) + ("" if commit.startswith(source) else f" ({commit[:10]})")
    return Side(name, load(source, store="" if mlflow else None))


def compare(base: Side, head: Side) -> Comparison:
    before, after = base.study.trainings, head.study.trainings
    changes = [_change(before[name], after[name]) for name in after if name in before]
    p = {one.variant: one.p for one in changes if one.p is not None}
    adjusted = dict(zip(p, holm(list(p.values())), strict=True))
    told = [{str(row.claim): str(row.verdict) for row in side.study.claims.itertuples()} for side in (base, head)]
    return Comparison(
        base,
        head,
        [replace(one, adjusted=adjusted.get(one.variant)) for one in changes],
        [name for name in after if name not in {*before, *base.study.left_out}],
        [name for name in before if name not in {*after, *head.study.left_out}],
        {id: (told[0].get(id, ""), told[1].get(id, "")) for id in {**told[1], **told[0]}} if any(told) else {},
    )


def _change(base: Training, head: Training) -> Change:
    common = [seed for seed in base.seeds if seed in head.seeds]
    rows, others = ([side.seeds.index(seed) for seed in common] for side in (base, head))
    curves = [name for name in _COMPUTED if name in base.curves and name in head.curves]
    identical = bool(common) and all(np.array_equal(base.curves[n][rows], head.curves[n][others], equal_nan=True) for n in curves)
    # Of the seeds of both, because what others were trained with is no reason for a change of these.
    causes = [side.origin_of(common or side.seeds) for side in (base, head)]
    keys = sorted(causes[0].keys() & causes[1].keys(), key=lambda key: (CAUSES.index(key) if key in CAUSES else len(CAUSES), key))
    paired = {*base.seeds} == {*head.seeds}
    ours, theirs = (head.accuracy[others], base.accuracy[rows]) if paired else (head.accuracy, base.accuracy)
    estimate = limited(contrast(ours, theirs, paired=paired), 2)
    why = tuple(_arrow(key, causes[0][key], causes[1][key]) for key in keys if causes[0][key] != causes[1][key])
    interval = estimate.interval() if estimate.error else None  # without a spread nothing is known of other seeds
    p = None if identical else estimate.p  # two trainings that are the same to the last bit are no sample
    return Change(head.variant, base, head, identical, _differing(base, head), why, paired, estimate.mean, interval, p)


def _differing(base: Training, head: Training) -> tuple[str, ...]:
    before, after = (dict(flatten(completed(side.record.get("config", {})))) for side in (base, head))  # with options that came later
    other_network = before.get("model.architecture") != after.get("model.architecture") and "model.architecture" in {*before} & {*after}
    keys = [key for key in {**before, **after} if (key in before and key in after) or (other_network and key.startswith("model."))]
    return tuple(_arrow(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key) and key != "train.seeds")


def _rules(*sides: Side) -> list[str]:
    """What differs in when a claim is judged."""
    before, after = (mapping(b"".join(side.study.files.read("params.yaml").values())) for side in sides)
    return [_arrow(key, before.get(key), after.get(key)) for key in ("images_shown", "looks") if before.get(key) != after.get(key)]


def _arrow(key: str, base: Any, head: Any) -> str:
    short = (lambda value: text.plain(value)[:10]) if key in ("code_hash", "data_digest") else text.plain
    return f"{key}: {short(base)} → {short(head)}"


# --- the page ---


def render(comparison: Comparison) -> str:
    """The page, at most `LIMIT` characters long. Equal comparisons give equal pages."""
    moved = [one for one in comparison.changes if not one.identical]
    moved.sort(key=lambda one: (not one.differs, -abs(one.difference)))
    changed = {id: pair for id, pair in comparison.verdicts.items() if pair[0] != pair[1]}
    told = [{row["claim"]: row for row in side.study.claims.to_dict("records")} for side in (comparison.base, comparison.head)]
    digests = {id: {side[id]["digest"] for side in told if id in side} - {""} for id in changed}
    altered, changed_rules = [id for id, of in digests.items() if len(of) > 1], _rules(comparison.base, comparison.head)
    for rows in _ROWS:
        page = text.page(
            "compare.md.j2", **comparison._asdict(), moved=moved, same=[one for one in comparison.changes if one.identical], told=told,
            changed=changed, altered=altered, changed_rules=changed_rules,
            kinds=Counter(changed.values()).most_common(), rows=rows, code=code, named=named, mean_sd=_mean_sd,
            p_value=text.p_value, ALPHA=ALPHA,
        ).decode()  # fmt: skip
        if len(page) <= LIMIT:
            break
    return page


def code(value: object) -> str:
    """Text from a repository as inline code in a table's cell, so that none of it is read as markup or as a mention."""
    line = " ".join(str(value).split()).replace("`", "'") or "-"
    return f"`{line if len(line) <= 80 else line[:79] + '…'}`".replace("|", "\\|")


def named(variants: Iterable[str], trainings: Mapping[str, Training] | None = None) -> str:
    """Variants as code, with their accuracy where their trainings are given."""
    names = [code(name) + (f" ({_mean_sd(trainings[name])})" if trainings else "") for name in variants]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _mean_sd(training: Training) -> str:
    accuracy = training.accuracy
    return text.percent(accuracy.mean()) + (f"{text.NBSP}±{text.NBSP}{text.percent(accuracy.std(ddof=1))}" if len(accuracy) > 1 else "")


if __name__ == "__main__":
    run_command(main)
