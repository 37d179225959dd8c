"""Whether a change is better: a variant against another one, or the working tree's code and settings against a commit's.

    python -m pipeline.commands.judge VARIANT [--against NAME] [--margin P] [--measure M] [--seeds N] [--series NAME] [--json]
    python -m pipeline.commands.judge [VARIANT] --base REVISION

It trains what is missing of both sides, look by look (6, 10, 20, 50 and 100 seeds a side), and ends at the first look that decides.
"""

import argparse
import functools
import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.commands import profiles, repro, worktree
from pipeline.evaluation.evaluate import evaluate
from pipeline.evaluation.records import Records
from pipeline.measures import MEASURES, Measure, NotFormed, NotMeasured
from pipeline.measures.definitions import FloatArray
from pipeline.params import Params, VariantSettings, load, nearest, shown
from pipeline.params.study import has_probe
from pipeline.params.train import MAX_SEEDS
from pipeline.report import text
from pipeline.report.figures import Picture, panels
from pipeline.report.figures.panels import Panel, of_epochs
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import Finished
from pipeline.runner.train import replays, survey, train
from pipeline.study import Training, tables
from pipeline.study.claims import measure_values
from pipeline.study.proposals import LOOKS, MARGIN, STATUS, UNDECIDED, Look, error_of, judge, looks_up_to
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import DamagedError, read_sealed_json, sealed_json, write_bytes, write_json
from pipeline.system.paths import CHECKPOINTS
from pipeline.system.provenance import PACKAGE, code_hash, training_code
from pipeline.training.tasks import data_digest

PAGE = Path("build/judge.md")
_MEASURES = {"classification": "late test error", "captioning": "scene error"}  # by task, where none is given
_HELP = (
    "Exit status: 0 better, 3 worse, 4 the same, 5 not decided, 6 larger, 7 smaller; 2 bad input, 1 a fault of the machine."
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
        trained, replayed: how many seeds this command trained and replayed.
    """

    name: str
    variant: str
    params: Params
    tree: worktree.Worktree | None = None
    parts: dict[int, Finished] = field(default_factory=dict)
    trained: int = 0
    replayed: int = 0

    @functools.cached_property
    def settings(self) -> VariantSettings:
        return self.params.resolve(self.variant)

    @functools.cached_property
    def code(self) -> str:
        return self.tree.code(self.settings.task) if self.tree else training_code(self.settings.task)

    def asked(self, n: int) -> Params:
        """The study as if it had this variant alone, with the first n seeds."""
        return self.params.model_copy(update={"variants": {self.variant: self.params.difference(self.variant) | {"seeds": n}}})

    def training(self, n: int, probe: str | None = None, *, evaluated: bool = False) -> Training:
        """The first n seeds; evaluated, where that is asked for, with this probe. Raises UserError where weights for that are not here."""
        params, own, records = self.asked(n), Records(), Records(CHECKPOINTS / "judge")
        settings, path = params.resolve(self.variant), records.training(self.variant)
        about = {"variant": self.variant, "seeds": list(range(n)), "config": settings.model_dump(mode="json")}
        about["data_digest"] = data_digest(settings.task, own.arrays)
        seeds.assemble(path, settings, [self.parts[seed] for seed in range(n)], about)
        run = seeds.read_record(path)
        if not evaluated:
            return tables.training(run, None)
        if not self.parts[0].has_weights:
            raise UserError(f"The weights of {self.name} are not here: name a measure that trainings record.")
        records.arrays, records.finished = own.arrays, own.finished
        known = own.predictions / f"{self.variant}.npz"  # which has what was found of the study's seeds
        if known.exists() and not (records.predictions / known.name).exists():
            records.predictions.mkdir(parents=True, exist_ok=True)
            shutil.copy(known, records.predictions)
        wanted = records.wanted(params)
        asked = wanted[self.variant]["probes"]
        asked += [probe] if probe and probe not in asked else []
        for fault in evaluate(params, records, wanted).values():
            raise fault
        found = records.stored(self.variant)
        assert found
        return replace(tables.training(run, found[0].columns), stored=lambda: found[1])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.judge", description=__doc__.split("\n\n")[0], epilog=_HELP)
    parser.add_argument("variant", nargs="?", default="", help="the variant to judge; with --base by default base")
    parser.add_argument("--against", default="", metavar="NAME", help="the variant to set it beside (default: base)")
    parser.add_argument("--base", default="", metavar="REVISION", help="the commit whose own code and settings to set it beside instead")
    parser.add_argument("--margin", type=float, metavar="P", help="what is still the same: a ratio in %% (default: 5), else in the unit")
    parser.add_argument("--measure", default="", metavar="M", help="any measure of a seed that claims know (default: the test error)")
    parser.add_argument("--seeds", type=int, default=LOOKS[-1], metavar="N", help="the most seeds a side (default: %(default)s)")
    parser.add_argument("--series", default="", metavar="NAME", help="of the proposals that share one error rate of 5 %%")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and all else to the standard error")
    given = parser.parse_args(argv)
    if given.json:
        output = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # also for the processes that train
    found = _judged(given, shlex.join(word for word in argv if word.rstrip("-") and not word.endswith("=")))
    if given.json:
        print(json.dumps(found), file=output, flush=True)
    else:
        print(f"{found['answer']}\n{found['sentence']}")
        print(f"{text.counted(found['trained'], 'seed')} trained in {found['seconds']} s. This explores: it is no claim of the study.")
        print(f"The page: {profiles.from_root(PAGE)}")
    return int(found["status"])


def _judged(given: argparse.Namespace, asked: str) -> dict[str, Any]:
    """What `--json` prints. Writes the page."""
    start = time.monotonic()
    profiles.refresh()
    repro.check_place()
    change, against = _sides(given)
    key = [change.settings.training_hash, change.code], [against.settings.training_hash, against.code]
    if key[0] == key[1]:
        raise UserError(f"{change.name} and {against.name} are trained with the same settings by the same code: there is nothing to judge.")
    measure = given.measure or _MEASURES[change.settings.task]
    margin = _margin(given, measure, change.settings.task, against.settings.task)
    looks, device = looks_up_to(given.seeds), pool.choose_device()
    number = _number(given.series, [*key[0], *key[1], measure, str(margin)])
    error = error_of(number) if number else error_of(1) * math.pi**2 / 6
    repro.reproduce(Path(), ("-q", "code", repro.data_stage(), "resolve"), wait=True)  # what trainings read; later edits do not count
    taken = []
    for n in looks:
        _grow([against, change], n, device)
        if identical := _rows(change, n) == _rows(against, n):
            look = Look(n, float(MEASURES[measure].ratio), None, "the same")
        else:
            look = judge(measure, *(_values(side, measure, n) for side in (change, against)), looks=looks, margin=margin, error=error)
        lost = {one.name: int(measure_values("diverged", one.training(n)).sum()) for one in (change, against)}
        # Networks that stay at the loss of a guess say nothing of the change.
        if stuck := not (identical or MEASURES[measure].share) and {*lost.values()} == {n}:
            look = replace(look, answer=UNDECIDED, needed=None)
        trained, seconds = change.trained + against.trained, round(time.monotonic() - start, 1)
        taken.append((look, trained, seconds))
        if stuck or look.answer != UNDECIDED:
            break
        print(f"{n} seeds a side do not decide: {_estimate(MEASURES[measure], look)}")
    found = {
        "answer": look.answer, "status": STATUS[look.answer],
        "sentence": _sentence(look, change, against, measure, margin, identical, lost),
        "change": change.name, "against": against.name, "measure": measure, "margin": margin, "effect": look.effect,
        "interval": look.interval and [look.interval.low, look.interval.high], "level": look.interval and look.interval.level,
        "identical": identical, "seeds": look.n, "looks": looks, "needed": look.needed, "trained": trained,
        "replayed": change.replayed + against.replayed, "seconds": seconds, "series": given.series or None, "proposal": number,
    }  # fmt: skip
    _write(found, asked, taken, [against, change])
    return found


def _sentence(last: Look, change: Side, against: Side, name: str, margin: float, identical: bool, lost: Mapping[str, int]) -> str:
    if identical:
        replayed = " What other code trained was replayed: its first 50 steps, its tables and the test of its weights."
        said = f"{change.name} is the same as {against.name}: {last.n} seeds a side are equal to the last bit, in every epoch."
        return said + replayed * bool(against.tree)
    measure = MEASURES[name]
    verbs = {"the same": "is the same as", UNDECIDED: "against", "larger": "lies above", "smaller": "lies below"}
    verb = verbs.get(last.answer, f"is {last.answer} than")
    within = f"{text.digits(100 * margin)} %" if measure.ratio else f"{text.value(measure, margin)} {measure.of_difference}"
    effect = f"{_estimate(measure, last)} {'times' if measure.ratio else measure.of_difference}"
    said = f"{change.name} {verb} {against.name}: {measure.phrase or name} {effect.rstrip()}, {last.n} seeds a side, margin {within}"
    if last.answer == UNDECIDED:
        many = f"about {last.needed or 0:,}" if (last.needed or 0) <= MAX_SEEDS else f"more than {MAX_SEEDS:,}"
        enough = f"{many} seeds a side would decide it, if mean and spread stay as they are"
        said = f"{said.rstrip()}: not decided; {enough if last.needed else 'no number of seeds would decide it as it looks now'}"
    nothing = " and ".join(f"{count} of {last.n} seeds of {name}" for name, count in lost.items() if count)
    return f"{said.rstrip()}.{f' {nothing} learned nothing: their last train loss is no better than of a guess.' * bool(nothing)}"


def _estimate(measure: Measure, look: Look) -> str:
    return text.estimate(look.effect, look.interval, functools.partial(text.change, measure))


# --- what is asked for ---


def _sides(given: argparse.Namespace) -> tuple[Side, Side]:
    params = load()
    variant = given.variant or ("base" if given.base else "")
    if not variant:
        raise UserError("Say which variant to judge: make judge VARIANT=name, or which commit to judge by: make judge BASE=HEAD~1.")
    if given.base and given.against:
        raise UserError("AGAINST names a variant of this study and BASE a commit: give one of them.")
    params.resolve(variant)
    if not given.base:
        other = given.against or "base"
        params.resolve(other)
        return Side(variant, variant, params), Side(other, other, params)
    tree = worktree.checked_out(given.base)
    theirs = tree.params()
    if variant not in theirs.variants:
        raise UserError(f"{tree.name} has no variant {shown(variant)}{nearest(variant, theirs.variants)}.")
    before, now = (one.resolve(variant) for one in (theirs, params))  # without where the data lie, and without scenes that it does not read
    if (before.data, before.scenes) != (now.data, now.scenes):
        raise UserError(f"{tree.name} has other data in params.yaml: errors on other images cannot be compared.")
    reader = f"{now.data.source.reader.partition(':')[0].removeprefix('pipeline.').replace('.', '/')}.py"
    reads = ("data/datasets.py", reader, *(("captioning/grammar.py", "captioning/scenes.py") if now.scenes else ()))
    if code_hash(reads, tree.top / PACKAGE.name) != code_hash(reads):
        raise UserError(
            f"{tree.name} makes its data by other code ({', '.join(sorted({*reads}))}): errors on other images cannot be compared."
            " Commit that change, and judge what else you change by that commit."
        )
    return Side(f"{variant} as it is", variant, params), Side(f"{variant} of {tree.name}", variant, theirs, tree)


def _margin(given: argparse.Namespace, name: str, *tasks: str) -> float:
    """In the measure's own unit. Raises UserError where it, the measure or the number of seeds cannot be."""
    if name not in MEASURES:
        raise UserError(f"There is no measure {shown(name)}{nearest(name, MEASURES)}.")
    measure = MEASURES[name]
    if measure.values is None or measure.exact or measure.per_step:
        raise UserError(f"{name} is nothing that seeds alone can judge by: name another measure, or make a claim of it.")
    if len({*tasks}) > 1:
        raise UserError("A classifier and a captioner do different things: name two of one kind.")
    margin = 100 * MARGIN if given.margin is None and measure.ratio else given.margin
    if margin is None or not 0 < margin < math.inf:
        unit = "%" if measure.ratio else measure.of_difference or "the measure's own unit"
        raise UserError(f"MARGIN says which difference of {name} is still the same: give a number above 0, in {unit}.")
    if not LOOKS[0] <= given.seeds <= MAX_SEEDS:
        raise UserError(f"SEEDS is {given.seeds}, but has to be a whole number from {LOOKS[0]}, the first look, to {MAX_SEEDS:,}.")
    return float(margin) / (100 if measure.ratio else measure.factor)


def _number(series: str, key: list[str]) -> int | None:
    """Which proposal of its series this is: the same one keeps its number, so that a command may go on. It counts from here on."""
    if not series:
        return None
    if not re.fullmatch(r"\w[\w-]{0,99}", series, re.ASCII):
        raise UserError(f"SERIES is {shown(series)}, but a series is called by letters, digits, - and _.")
    path = CHECKPOINTS / "series" / f"{series}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        try:
            proposals = read_sealed_json(path)["proposals"] if path.exists() else []
        except DamagedError as fault:
            raise UserError(f"{fault}: how many proposals the series has had is lost; begin another one, under a new name.") from None
        if key not in proposals:
            proposals.append(key)
            write_json(path, sealed_json({"proposals": proposals}))
    return int(proposals.index(key)) + 1


# --- seeds and their values ---


def _grow(sides: Sequence[Side], n: int, device: str) -> None:
    """Finishes the first n seeds of each side: what the study, its store or an earlier command has counts."""
    if all(tuple(_take(side, n, device) for side in sides)):  # of both, also where the first lacks some
        return
    for side in sides:  # first, because what a commit trained may be replayed
        if side.tree and (missing := [seed for seed in range(n) if seed not in side.parts]):
            side.tree.train(side.variant, missing)
            _take(side, n, device)
            side.trained += sum(side.parts[seed].origin["code_hash"] == side.code for seed in missing if seed in side.parts)
    own = [side for side in sides if not side.tree]
    entries = [entry for side in own for entry in survey(side.asked(n), device) if entry.tasks]
    for side, entry in ((side, entry) for side in own for entry in entries if entry.variant == side.variant):
        side.trained, side.replayed = side.trained + len(entry.trained), side.replayed + len(entry.replayed)
    if entries:
        claims = {entry.variant: own[0].params.claims_of(entry.variant) for entry in entries}
        engine = functools.partial(pool.run_all, cards=pool.choose_cards(device))
        train(entries, device, engine, claims=claims)
    for side in sides:
        if not _take(side, n, device):
            raise UserError(f"Not all of the first {n} seeds of {side.name} are there: run the same command again.", status=1)


def _take(side: Side, n: int, device: str) -> bool:
    """Whether all of the first n seeds are there, as this side's code computes them. Takes those that are."""
    if not {*range(n)} <= side.parts.keys():
        (entry,) = survey(side.asked(n), device)
        best = seeds.best(entry.found, side.code, side.settings)
        codes = {seed: part.codes if replays() else [part.origin["code_hash"]] for seed, part in best.items()}
        kept = [seed for seed in best if side.code in codes[seed]] if side.tree else entry.kept
        side.parts |= {seed: best[seed] for seed in kept}
    return {*range(n)} <= side.parts.keys()


def _rows(side: Side, n: int) -> list[tuple[str, ...]]:
    """Every number of every epoch, but for the seconds."""
    return [tuple(map(repr, row[:-1])) for seed in range(n) for row in side.parts[seed].rows]


def _values(side: Side, measure: str, n: int) -> FloatArray:
    """(n,), evaluated where the measure asks for more than the training recorded. Raises UserError where a value is not to be had."""
    try:
        try:
            values = measure_values(measure, side.training(n))
        except NotMeasured as error:
            probe = MEASURES[measure].probe
            if side.tree or (probe and not has_probe(side.settings, probe)):  # a commit's networks are known by their epochs alone
                raise NotFormed(f"{error}, and cannot be") from None
            try:
                values = measure_values(measure, side.training(n, probe, evaluated=True))
            except NotMeasured:
                raise NotFormed(f"{error}, or not with these settings") from None
        if (limit := MEASURES[measure].unreached) and (values >= limit(side.training(n)) - 0.5).any():
            raise NotFormed(f"some seeds never reach what {measure} measures")
        if MEASURES[measure].ratio and (values <= 0).any():
            raise NotFormed(f"{measure} is not above 0 of each seed, so it has no ratio")
        return values
    except NotFormed as error:
        raise UserError(f"{side.name}: {error}; judge by another measure.") from None


# --- the page ---


def _write(found: dict[str, Any], asked: str, taken: Sequence[tuple[Look, int, float]], sides: Sequence[Side]) -> None:
    """The page with its picture. `taken`: the looks, each with the seeds that were trained and the seconds that had passed by then."""
    measure = MEASURES[found["measure"]]
    lines = [of_epochs(one.name, one.training(found["seeds"]).test_error, not place) for place, one in enumerate(sides)]
    error = "Scene error on validation scenes" if sides[0].settings.task == "captioning" else "Test error"
    panel = Panel(f"{error} (%, log scale)", "epoch", lines, "errors", "epochs")
    said = f"{error} after each epoch, mean over the seeds, with its 95 % interval as a band."
    picture = Picture(said, functools.partial(panels.draw, [panel]), "judge")
    rate, estimate = found["proposal"] and 100 * error_of(found["proposal"]), functools.partial(_estimate, measure)
    page = text.page("judge.md.j2", found=found, asked=asked, taken=taken, picture=picture, measure=measure, error=rate, estimate=estimate)
    for path, content in ((PAGE.with_suffix(".png"), picture.png()), (PAGE, page)):
        write_bytes(path, content)


if __name__ == "__main__":
    run_command(main)
