"""Whether a change is better: a variant against another one, or the working tree's code and settings against a commit's.

    python -m pipeline.commands.judge VARIANT [--against NAME] [--margin P] [--measure M] [--seeds N] [--series NAME] [--json]
    python -m pipeline.commands.judge [VARIANT] --base REVISION

It trains what is missing of both sides, look by look (6, 10, 20, 50 and 100 seeds a side), and ends at the first look that decides.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.commands import profiles, repro, worktree
from pipeline.errors import UserError, run_command
from pipeline.evaluation import inference
from pipeline.files import DamagedError, read_sealed_json, replacing, sealed_json, write_json
from pipeline.measures import MEASURES, NotFormed, NotMeasured
from pipeline.measures.definitions import FloatArray
from pipeline.params import Params, VariantSettings, load, nearest, shown
from pipeline.provenance import training_code
from pipeline.report import text
from pipeline.report.figures import judged
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import Finished
from pipeline.runner.train import survey, train
from pipeline.study import Training, tables
from pipeline.study.claims import measure_values
from pipeline.study.files import ARRAYS, CHECKPOINTS
from pipeline.study.proposals import LOOKS, MARGIN, STATUS, UNDECIDED, Look, error_of, judge, looks_up_to
from pipeline.study.results import load as load_study
from pipeline.training.tasks import data_digest

_MEASURES = {"classification": "late test error", "captioning": "scene error"}  # by task, where none is given
_HELP = (
    "Exit status: 0 better (larger), 3 worse (smaller), 4 the same, 5 not decided; 2 bad input, 1 a fault of the machine."
    " After a kill the same command goes on, and nothing is trained twice. REPLAY=0 in the environment trains anew what other code"
    " trained, where a replay of the first 50 steps would keep it."
)


@dataclass
class Side:
    """One of the two networks, and its seeds so far.

    Attributes:
        params: of the study, or of the commit.
        tree: of a commit's own code; None for that of the working tree.
        parts: by seed.
        evaluated: by seed, the columns and arrays of its evaluation.
        trained, replayed: how many seeds this command trained and replayed.
    """

    name: str
    variant: str
    params: Params
    tree: worktree.Worktree | None = None
    parts: dict[int, Finished] = field(default_factory=dict)
    evaluated: dict[int, tuple[dict[str, float], dict[str, Any]]] = field(default_factory=dict)
    trained: int = 0
    replayed: int = 0

    @functools.cached_property
    def settings(self) -> VariantSettings:
        return self.params.resolve(self.variant)

    @functools.cached_property
    def code(self) -> str:
        return self.tree.code(self.settings.task) if self.tree else training_code(self.settings.task)

    def of(self, chosen: Sequence[int]) -> VariantSettings:
        return self.settings.model_copy(update={"train": self.settings.train.model_copy(update={"seeds": tuple(chosen)})})

    def key(self) -> tuple[str, str]:
        """What it trains, and by which code."""
        return self.settings.training_hash, self.code

    def training(self, n: int) -> Training:
        """The first seeds, with what is known of their evaluation."""
        parts = [self.parts[seed] for seed in range(n)]
        run = {**seeds.origins(parts), "variant": self.variant, "config": self.of(range(n)).model_dump(mode="json")}
        run |= {"seeds": list(range(n)), "epochs": [row for part in parts for row in part.rows]}
        run["metrics"] = {name: parts[0].origin[name] for name in ("parameters", "flops")}
        found = [self.evaluated[seed] for seed in range(n) if seed in self.evaluated]
        if len(found) < n:
            return tables.training(run, None)
        shared = found[0][1]["shared"]
        arrays = {name: np.stack([one[1][name] for one in found]) for name in found[0][1] if name != "shared"}
        columns = {name: [one[0][name] for one in found] for name in found[0][0]}
        return replace(tables.training(run, columns), stored=lambda: {**arrays, **shared, "seeds": np.arange(n)} if shared else None)


@dataclass(frozen=True)
class Judged:
    """All that one command found. `number`: of the proposal in its series; None without one."""

    change: Side
    against: Side
    measure: str
    margin: float
    looks: tuple[int, ...]
    taken: Sequence[tuple[Look, int, float]]  # each with the seeds that had been trained and the seconds that had passed by then
    identical: bool
    series: str
    number: int | None

    @property
    def last(self) -> Look:
        return self.taken[-1][0]

    @property
    def seconds(self) -> float:
        return self.taken[-1][2]

    @property
    def shown(self) -> str:
        """The effect and its interval, with the unit."""
        measure, last = MEASURES[self.measure], self.last
        unit = "times" if measure.ratio else measure.of_difference
        return f"{text.estimate(last.effect, last.interval, functools.partial(text.change, measure))} {unit}".rstrip()

    @property
    def sentence(self) -> str:
        measure, last = MEASURES[self.measure], self.last
        of = measure.phrase or self.measure
        if self.identical:
            return (
                f"{self.change.name} is the same as {self.against.name}: {last.n} seeds a side are equal to the last bit, in every epoch."
                + " What other code trained was replayed: its first 50 steps, its tables and the test of its weights."
                * bool(self.against.tree)
            )
        verb = {"the same": "is the same as", UNDECIDED: "against"}.get(last.answer, f"is {last.answer} than")
        bound = (
            f"{text.digits(100 * self.margin)} %" if measure.ratio else f"{text.value(measure, self.margin)} {measure.of_value}".rstrip()
        )
        said = f"{self.change.name} {verb} {self.against.name}: {of} {self.shown}, {last.n} seeds a side, margin {bound}"
        if last.answer == UNDECIDED:
            enough = f"about {last.needed:,} seeds a side would decide it, if mean and spread stay as they are"
            said += f": not decided; {enough if last.needed else 'no number of seeds would decide it as it looks now'}"
        return f"{said}."

    def table(self) -> list[list[str]]:
        measure = MEASURES[self.measure]
        show = functools.partial(text.change, measure)
        return [
            [str(look.n), text.estimate(look.effect, look.interval, show), look.answer, str(trained), f"{seconds:.1f}"]
            for look, trained, seconds in self.taken
        ]

    def to_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "answer": last.answer, "status": STATUS[last.answer], "sentence": self.sentence,
            "change": self.change.name, "against": self.against.name, "measure": self.measure, "margin": self.margin,
            "effect": last.effect, "interval": last.interval and [last.interval.low, last.interval.high],
            "level": last.interval and last.interval.level, "identical": self.identical, "seeds": last.n, "looks": list(self.looks),
            "needed": last.needed, "trained": self.change.trained + self.against.trained,
            "replayed": self.change.replayed + self.against.replayed, "seconds": round(self.seconds, 1),
            "series": self.series or None, "proposal": self.number,
        }  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.judge", description=__doc__.split("\n\n")[0], epilog=_HELP)
    parser.add_argument("variant", nargs="?", default="", help="the variant to judge; with --base by default base")
    parser.add_argument("--against", default="", metavar="NAME", help="the variant to set it beside (default: base)")
    parser.add_argument("--base", default="", metavar="REVISION", help="the commit whose own code and settings to set it beside instead")
    parser.add_argument("--margin", default="", metavar="P", help="what is still the same: a ratio in %% (default: 5), else in the unit")
    parser.add_argument("--measure", default="", metavar="M", help="any measure of a seed that claims know (default: the test error)")
    parser.add_argument("--seeds", default="", metavar="N", help=f"the most seeds a side (default: {LOOKS[-1]})")
    parser.add_argument("--series", default="", metavar="NAME", help="of the proposals that share one error rate of 5 %%")
    parser.add_argument("--in", dest="folder", default="", metavar="FOLDER", help="of a profile, such as build/demo (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and all else to the standard error")
    given = parser.parse_args(argv)
    kept = os.dup(1) if given.json else None
    if kept is not None:
        sys.stdout.flush()
        os.dup2(2, 1)
    try:
        found = _judged(given, time.monotonic())
    finally:
        if kept is not None:
            sys.stdout.flush()
            os.dup2(kept, 1)
    page = _write(found, shlex.join(argv))
    if given.json:
        print(json.dumps(found.to_json()))
    else:
        trained = found.change.trained + found.against.trained
        print(f"{found.last.answer}\n{found.sentence}")
        print(f"{trained} seeds trained in {found.seconds:.1f} s. This explores: it is no claim of the study. The page: {page}")
    return STATUS[found.last.answer]


def _judged(given: argparse.Namespace, start: float) -> Judged:
    _enter(given.folder)
    repro.check_place()
    change, against = _sides(given)
    measure = given.measure or _MEASURES[change.settings.task]
    margin, most = _numbers(given, measure, change.settings.task, against.settings.task)
    if change.key() == against.key():
        raise UserError(f"{change.name} and {against.name} are trained with the same settings by the same code: there is nothing to judge.")
    looks, device = looks_up_to(most), pool.choose_device()
    number = _number(given.series, [*change.key(), *against.key(), measure, str(margin)])
    error = error_of(number) if number else error_of(1) * math.pi**2 / 6
    taken: list[tuple[Look, int, float]] = []
    for n in looks:
        for sides in [[against], [change]] if against.tree else [[against, change]]:  # what a commit trained may be replayed
            _grow(sides, n, device)
        trained = change.trained + against.trained
        if identical := _identical(change, against, n):
            taken.append((Look(n, float(MEASURES[measure].ratio), None, "the same"), trained, time.monotonic() - start))
            break
        ours, theirs = (_values(side, measure, n, device) for side in (change, against))
        look = judge(measure, ours, theirs, looks=looks, margin=margin, error=error)
        taken.append((look, trained, time.monotonic() - start))
        if look.answer != UNDECIDED:
            break
        if n < looks[-1]:
            print(f"{n} seeds a side do not decide: {text.estimate(look.effect, look.interval, text.digits)}", flush=True)
    return Judged(change, against, measure, margin, looks, taken, identical, given.series, number)


# --- what is asked for ---


def _enter(folder: str) -> None:
    """Goes into the folder; that of a profile is laid out anew, or made."""
    place = Path(folder or ".")
    name = place.resolve().name
    if place.resolve() == profiles.ROOT / "build" / name and (profiles.ROOT / "profiles" / f"{name}.yaml").is_file():
        profiles.lay_out(name)
    if not (place / "params.yaml").is_file():
        raise UserError(f"{place} holds no params.yaml: name the folder of a study or of a profile, such as build/demo.")
    os.chdir(place)
    profiles.refresh()


def _sides(given: argparse.Namespace) -> tuple[Side, Side]:
    params = load()
    variant = given.variant or ("base" if given.base else "")
    if not variant:
        raise UserError("Say which variant to judge: make judge VARIANT=name, or which commit to judge by: make judge BASE=HEAD~1.")
    if given.base and given.against:
        raise UserError("AGAINST names a variant of this study and BASE a commit: give one of them.")
    other = variant if given.base else given.against or "base"
    params.resolve(variant)
    if not given.base:
        params.resolve(other)
        return Side(variant, variant, params), Side(other, other, params)
    tree = worktree.checked_out(given.base)
    theirs = tree.params()
    if variant not in theirs.variants:
        raise UserError(f"{tree.name} has no variant {shown(variant)}{nearest(variant, theirs.variants)}.")
    if (theirs.data, theirs.scenes) != (params.data, params.scenes):
        raise UserError(f"{tree.name} has other data in params.yaml: errors on other images cannot be compared.")
    return Side(f"{variant} as it is", variant, params), Side(f"{variant} of {tree.name}", variant, theirs, tree)


def _numbers(given: argparse.Namespace, name: str, *tasks: str) -> tuple[float, int]:
    """The margin, in the measure's own unit, and the most seeds. Raises UserError where they, or the measure, cannot be."""
    if name not in MEASURES:
        raise UserError(f"There is no measure {shown(name)}{nearest(name, MEASURES)}.")
    measure = MEASURES[name]
    if measure.values is None:
        raise UserError(f"{name} is not a measure of each seed, so seeds cannot judge by it: name another.")
    if len({*tasks}) > 1:
        raise UserError("A classifier and a captioner do different things: name two of one kind.")
    unit = "%" if measure.ratio else measure.of_difference or "the measure's own unit"
    try:
        margin = float(given.margin) if given.margin else 100 * MARGIN if measure.ratio else math.nan
    except ValueError:
        margin = -1.0
    if math.isnan(margin):
        raise UserError(f"Differences of {name} are in {unit}: say by MARGIN which of them is still the same.")
    if not 0 < margin < math.inf:
        raise UserError(f"MARGIN is {shown(given.margin)}, but has to be a number above 0, in {unit}.")
    if (given.seeds and not re.fullmatch("[1-9][0-9]{0,3}", given.seeds)) or int(given.seeds or LOOKS[-1]) < LOOKS[0]:
        raise UserError(f"SEEDS is {shown(given.seeds)}, but has to be a whole number from {LOOKS[0]}, the first look, on.")
    return margin / (100 if measure.ratio else measure.factor), int(given.seeds or LOOKS[-1])


def _number(series: str, key: Sequence[str]) -> int | None:
    """Which proposal of its series this is: the same one keeps its number, so that a command may go on. It counts from here on."""
    if not series:
        return None
    if not re.fullmatch(r"\w[\w-]{0,99}", series, re.ASCII):
        raise UserError(f"SERIES is {shown(series)}, but a series is called by letters, digits, - and _.")
    path = CHECKPOINTS / "series" / f"{series}.json"
    try:
        proposals = read_sealed_json(path)["proposals"] if path.exists() else []
    except DamagedError as fault:
        raise UserError(f"{fault}: how many proposals the series has had is lost; begin another one, under a new name.") from None
    if list(key) not in proposals:
        proposals.append(list(key))
        write_json(path, sealed_json({"proposals": proposals}))
    return int(proposals.index(list(key))) + 1


# --- seeds and their values ---


def _grow(sides: Sequence[Side], n: int, device: str) -> None:
    """Finishes the first n seeds of each side: what the study, its store or an earlier command has counts."""
    if all(_take(side, n, device) for side in sides):
        return
    repro.reproduce(Path(), ("code", repro.data_stage(), "resolve"))  # what trainings read
    for side in [side for side in sides if side.tree and not _take(side, n, device)]:
        assert side.tree is not None
        before = {*side.parts}
        side.tree.train(side.variant, [seed for seed in range(n) if seed not in side.parts])
        _take(side, n, device)
        side.trained += sum(side.parts[seed].origin["code_hash"] == side.code for seed in side.parts.keys() - before)
    entries = {}
    for side in [side for side in sides if not side.tree]:
        (entry,) = survey(_asked(side, n), device)
        if entry.tasks:
            entries[side.variant] = replace(entry, settings=side.of([seed for task in entry.tasks for seed in task.seeds if seed < n]))
            side.trained, side.replayed = side.trained + len(entry.trained), side.replayed + len(entry.replayed)
    if entries:
        engine = functools.partial(pool.run_all, cards=pool.choose_cards(device))
        wanted = {variant: entry.settings for variant, entry in entries.items()}
        claims = {side.variant: side.params.claims_of(side.variant) for side in sides}
        train(wanted, device, engine, entries=list(entries.values()), claims=claims)
    for side in sides:
        if not _take(side, n, device):
            raise UserError(f"Not all of the first {n} seeds of {side.name} are there: run the same command again.", status=1)


def _asked(side: Side, n: int) -> Params:
    """The study as if it had this variant alone, with the first n seeds."""
    own = {side.variant: side.params.difference(side.variant) | {"seeds": n}}
    return side.params.model_copy(update={"variants": own})


def _take(side: Side, n: int, device: str) -> bool:
    """Whether all of the first n seeds are there, as this side's code computes them. Takes those that are."""
    if not {*range(n)} <= side.parts.keys():
        (entry,) = survey(_asked(side, n), device)
        best = seeds.best(entry.found, side.code, side.settings)
        kept = {seed for seed, part in best.items() if side.code in part.codes} if side.tree else {*entry.kept}
        side.parts |= {seed: best[seed] for seed in kept if seed in best}
    return {*range(n)} <= side.parts.keys()


def _identical(change: Side, against: Side, n: int) -> bool:
    """Whether every number of every epoch is the same on both sides, but for the seconds."""

    def rows(side: Side) -> list[tuple[Any, ...]]:
        return [tuple(map(repr, row[:-1])) for seed in range(n) for row in side.parts[seed].rows]

    return rows(change) == rows(against)


def _values(side: Side, measure: str, n: int, device: str) -> FloatArray:
    """(n,), evaluated where the measure asks for more than the training recorded. Raises UserError where a value is not to be had."""
    try:
        try:
            return measure_values(measure, side.training(n))
        except NotMeasured:
            _evaluate(side, measure, n, device)
            return measure_values(measure, side.training(n))
    except NotFormed as error:
        raise UserError(f"{side.name}: {error}; judge by another measure.") from None


def _evaluate(side: Side, measure: str, n: int, device: str) -> None:
    """Evaluates seeds, but for those whose columns the study's tables have."""
    if side.tree:
        raise UserError(f"{measure} takes an evaluation, and a commit's networks are known by their epochs alone: name another measure.")
    try:
        stored = load_study(".").trainings.get(side.variant)
    except UserError:  # nothing is evaluated yet
        stored = None
    if stored and stored.evaluation:
        try:
            measure_values(measure, stored)
        except NotFormed:
            stored = None
    if stored and stored.evaluation:
        for i, seed in enumerate(stored.seeds):
            if seed < n and side.parts[seed].rows[-1].test_loss == stored.test_loss[i, -1]:
                columns = {name: float(column[i]) for name, column in stored.evaluation.items()}
                side.evaluated.setdefault(seed, (columns, {"shared": {}}))
    missing = [seed for seed in range(n) if seed not in side.evaluated]
    if lost := [str(seed) for seed in missing if not side.parts[seed].has_weights]:
        raise UserError(f"The weights of {side.name}'s seeds {', '.join(lost)} are not here, which {measure} takes: name another measure.")
    with tempfile.TemporaryDirectory(prefix="judge-") as folder:
        path, settings = Path(folder) / f"{side.variant}{seeds.SUFFIX}", side.of(missing)
        about = {"variant": side.variant, "seeds": missing, "config": settings.model_dump(mode="json")}
        about["data_digest"] = data_digest(settings.task, ARRAYS)
        seeds.assemble(path, settings, [side.parts[seed] for seed in missing], about)
        probe = MEASURES[measure].probe
        groups = pool.make_groups(missing, device, stackable=settings.stackable)
        jobs = [inference.Task(side.variant, settings, tuple(one), (probe,) if probe else (), device, path, ARRAYS) for one in groups]
        for task, result in inference.run(jobs, min(len(jobs), pool.choose_processes() if device == "cpu" else 1)):
            if isinstance(result, UserError):
                raise result
            for i, seed in enumerate(task.seeds):
                own = {name: float(column[i]) for name, column in result.columns.items()}
                side.evaluated[seed] = own, {name: array[i] for name, array in result.arrays.items()} | {"shared": result.shared}


# --- the page ---


def _write(found: Judged, asked: str) -> Path:
    """build/judge.md with its picture; in a profile's folder judge.md."""
    place = Path() if Path.cwd().parent == profiles.ROOT / "build" else Path("build")
    n = found.last.n
    sides = [(side.name, side.training(n).test_error, _shown_values(side, found.measure, n)) for side in (found.against, found.change)]
    measure = MEASURES[found.measure]
    unit = f" ({measure.of_value})" if measure.of_value else ""
    picture = judged.picture(sides, f"{measure.title}{unit}", [look.n for look, _, _ in found.taken])
    error = found.number and 100 * error_of(found.number)
    page = text.page("judge.md.j2", found=found, asked=asked, picture=picture, measure=measure, error=error)
    for path, content in ((place / "judge.png", picture.png()), (place / "judge.md", page)):
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    return place / "judge.md"


def _shown_values(side: Side, measure: str, n: int) -> FloatArray:
    """(n,), in the unit that pages print."""
    values = MEASURES[measure].per_seed(side.training(n))
    return np.full(n, np.nan) if values is None else np.asarray(values) * MEASURES[measure].factor


if __name__ == "__main__":
    run_command(main)
