"""The comparison as a Markdown page that fits into a comment on a pull request. The details are folded."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pipeline.compare.changes import ALPHA, Change, Comparison, Verdict
from pipeline.compare.sides import Side
from pipeline.params import ARCHITECTURES
from pipeline.report import text
from pipeline.study import Training, statistics
from pipeline.study.statistics import Interval, Summary

LIMIT = 60_000  # characters; GitHub refuses comments above 65,536
_ROWS = (1000, 200, 100, 50, 25, 10)  # of a table: the first number with which the page is short enough
_OPEN_ROWS = 12  # of the accuracy table that is not folded
_KINDS = {"code_hash": "code", "data_digest": "data", "versions": "versions", "device": "device", "device_name": "device"}


class Table(NamedTuple):
    """Columns with their alignment, cells as Markdown; `left` rows are not shown."""

    columns: Mapping[str, str]
    shown: Sequence[Sequence[str]]
    left: int


class Section(NamedTuple):
    """A folded part of the page: a table, a paragraph below it, or both."""

    title: str
    table: Table | None
    text: str


def render(comparison: Comparison) -> str:
    """The page, at most `LIMIT` characters long. Equal comparisons give equal pages."""
    template = text.environment("pipeline.compare").get_template("page.md.j2")
    for rows in _ROWS:
        page = re.sub(r"\n{3,}", "\n\n", template.render(_content(comparison, rows))).strip() + "\n"
        if len(page) <= LIMIT:
            break
    return page


def _content(comparison: Comparison, rows: int) -> dict[str, Any]:
    compared = comparison.compared
    opened = min(_OPEN_ROWS, rows)
    sections = [
        _claims(comparison, rows),
        _accuracy_section(comparison, compared[opened:], rows),
        _identical(comparison, rows),
        _one_sided(comparison, rows),
        _settings(comparison, rows),
        _causes(comparison, rows),
        _cost(comparison, rows),
    ]
    return {
        "base": _name(comparison.base),
        "head": _name(comparison.head),
        "places": list(dict.fromkeys(code(side.study.place) for side in (comparison.base, comparison.head))),
        "previews": _previews(comparison),
        "verdict": verdict(comparison),
        "summary": _summary(comparison, rows),
        "header": _header(comparison),
        "accuracy": _accuracy(comparison, compared[:opened], opened),
        "caption": _accuracy_caption(comparison) if compared else "",
        "sections": [section for section in sections if section],
    }


# --- text ---


def code(value: object) -> str:
    """Text from a repository as inline code, so that none of it is read as markup or as a mention."""
    line = " ".join(str(value).split()).replace("`", "'") or "-"
    return f"`{line if len(line) <= 80 else line[:79] + '…'}`"


def _cell(content: str) -> str:
    return content.replace("|", "\\|")


def _names(variants: Iterable[str], most: int) -> str:
    return _named(map(code, variants), most)


def _named(texts: Iterable[str], most: int) -> str:
    names = list(texts)
    shown = names if len(names) <= most else names[: most - 1]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _interval(interval: Interval | None) -> str:
    return f"[{text.interval(interval, text.points)}]" if interval else "(no interval)"


def _mean_sd(summary: Summary) -> str:
    return text.percent(summary.mean) + (f"{text.NBSP}±{text.NBSP}{text.percent(summary.sd)}" if summary.n > 1 else "")


def _range(numbers: Iterable[int]) -> str:
    values = sorted(numbers)
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _name(side: Side) -> str:
    if side.commit is None or side.dirty is not None:
        return "the working tree"
    return code(side.revision) if side.commit.id.startswith(side.revision) else f"{code(side.revision)} ({side.commit.short})"


# --- what is said first ---


def verdict(comparison: Comparison) -> str:
    """One sentence: how many variants differ, and the largest change."""
    changes = comparison.compared
    left_out = {**comparison.base.study.left_out, **comparison.head.study.left_out}
    if not comparison.common:
        whole = ", in a whole record" if left_out else ""
        return f"No variant is on both sides{whole}, so there is nothing to compare."
    if not changes:
        news = [f"{len(other)} with other seeds"] if (other := _with_other_seeds(comparison)) else []
        news += [f"{text.counted(len(comparison.claims), 'verdict')} changed"] if comparison.claims else []
        news += [f"{text.counted(len(left_out), 'variant')} left out, so not compared"] if left_out else []
        kept = " in the seeds of both" if other else ""
        same = f"{_of(len(comparison.common))} identical{kept}, every loss and accuracy to the last bit"
        return f"{same[0].upper()}{same[1:]}; {', '.join(news)}." if news else f"Nothing differs: {same}."
    largest = max(changes, key=lambda change: abs(change.difference))
    change = f"largest change: {code(largest.variant)} {text.points(largest.difference)} points {_interval(largest.interval)}"
    differing = sum(change.differs for change in changes)
    if not comparison.tested:
        alone = any(1 in (len(one.base.seeds), len(one.head.seeds)) for one in changes)
        why = "One seed on a side" if alone else "On each side all seeds are equal"
        return f"{why}, so no test can say whether variants differ; {change}."
    if differing:
        counted = f"{differing} of {text.counted(len(comparison.tested), 'variant')} {'differ' if differing > 1 else 'differs'}"
        return f"{counted} at adjusted p < {ALPHA}; {change}."
    least = comparison.smallest_adjusted_p
    why = f" (with so few seeds none can: the least possible is {least:.2g})" if least is not None and least >= ALPHA else ""
    return f"No variant differs at adjusted p < {ALPHA}{why}; {change}."


def _of(number: int) -> str:
    return "the one variant of both sides is" if number == 1 else f"the {number} variants of both sides are"


def _summary(comparison: Comparison, rows: int) -> list[str]:
    most = min(rows, 12)
    common, lines = comparison.common, []
    for word, trainings in (("Added", comparison.added), ("Removed", comparison.removed)):
        if trainings:
            lines.append(f"{word}: {_names((training.variant for training in trainings), most)}.")
    if comparison.claims is not None:
        lines.append(f"Verdicts changed: {_verdicts(comparison)}.")
    if grown := _with_other_seeds(comparison):
        lines.append(f"Seeds added or removed: {_named((f'{code(change.variant)} ({_seeds(change)})' for change in grown), most)}.")
    if changed := [change.variant for change in common if change.settings]:
        lines.append(f"Settings changed: {_group(comparison, changed)}.")
    retrained = [change for change in common if change.retrained]
    if retrained:
        counts = Counter(kind for change in retrained for kind in _kinds(change))
        because = ", ".join(f"{kind} ({number})" for kind, number in counts.items())
        lines.append(f"Trained anew: {len(retrained)} of {len(common)}; what differs: {because}.")
        if same := [change.variant for change in retrained if change.identical]:
            lines.append(f"Trained anew, and identical to the last bit: {_group(comparison, same)}.")
    elif common:
        lines.append(f"Trained anew: none of {len(common)}.")
    if other := [change.variant for change in common if change.other_data]:
        lines.append(f"**Other data, so the accuracies are not of the same test images: {_group(comparison, other)}.**")
    if intervals := [change.interval for change in comparison.compared if change.interval]:
        reach = text.at_least(max(interval.reach for interval in intervals))
        apart = sum(interval.excludes_zero for interval in intervals)
        lines.append(f"95 % intervals, each alone: {apart} of {len(intervals)} exclude 0, and all lie within ±{reach} points.")
    if edited := [change.variant for change in common if not change.retrained and not change.identical]:
        lines.append(f"**The same training with other numbers, so a file was changed afterwards: {_names(edited, most)}.**")
    for word, side in (("base", comparison.base), ("head", comparison.head)):
        if side.study.left_out:
            why = "; ".join(sorted(set(side.study.left_out.values())))
            lines.append(f"Left out at {word}, not a whole record ({why}): {_names(side.study.left_out, most)}.")
    return lines


def _verdicts(comparison: Comparison) -> str:
    """How many claims' verdicts changed, and from what to what."""
    assert comparison.claims is not None
    kinds = Counter((_verdict(one.base), _verdict(one.head)) for one in comparison.claims)
    changes = ", ".join(f"{before} → {after} ({number})" for (before, after), number in kinds.most_common())
    return f"{len(comparison.claims) or 'none'} of {comparison.num_claims}" + (f"; {changes}" if changes else "")


def _verdict(found: Verdict | None) -> str:
    return plain(found.verdict) if found else "no claim"


def _previews(comparison: Comparison) -> list[str]:
    notes = {word: plain(side.study.preview) for word, side in (("Base", comparison.base), ("Head", comparison.head)) if side.study.preview}
    if len(notes) == 2 and notes["Base"] == notes["Head"]:
        return [notes["Base"]]
    return [f"{word}: {note}" for word, note in notes.items()]


def plain(sentence: str) -> str:
    """A sentence from params.yaml as plain text: one line, without markup or mentions."""
    line = " ".join(sentence.split())[:500]
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#~" else "@\N{ZERO WIDTH SPACE}" if sign == "@" else sign for sign in line)


def _header(comparison: Comparison) -> list[tuple[str, str, str]]:
    sides = comparison.base, comparison.head
    trainings = [list(side.study.trainings.values()) for side in sides]
    rows = [
        ("revision", *(code(side.revision) if side.dirty is None else _name(side) for side in sides)),
        ("commit", *map(_commit, sides)),
        ("subject", *(code(side.commit.subject) if side.commit else "-" for side in sides)),
        ("results in", *(code(side.study.place) for side in sides)),
        ("variants", *(str(len(own)) for own in trainings)),
        ("seeds", *(_range(len(one.seeds) for one in own) for own in trainings)),
        ("epochs", *(_range(one.seconds.shape[1] for one in own) for own in trainings)),
        ("device", *(_names(sorted({name for one in own for name in _devices(one)}), 3) for own in trainings)),
    ]
    return [(label, _cell(before), _cell(after)) for label, before, after in rows]


def _devices(training: Training) -> list[str]:
    return [training.origin_of(group["seeds"]).get("device_name", "not recorded") for group in training.trainings]


def _commit(side: Side) -> str:
    if side.commit is None:
        return "none yet"
    date = datetime.fromisoformat(side.commit.date).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    state = {None: "", True: ", and changes", False: ", unchanged"}[side.dirty]
    return f"{side.commit.short}, {date}{state}"


# --- tables ---


def _accuracy(comparison: Comparison, changes: Sequence[Change], most: int) -> Table:
    with_images = any(change.images for change in comparison.common)
    same_n = len({len(seeds) for change in comparison.compared for seeds in (change.base.seeds, change.head.seeds)}) == 1
    columns = {"variant": ":---"} | dict.fromkeys(["base (%)", "head (%)", f"head {text.MINUS} base (points)"], ":---:")
    columns |= {"adjusted p": "---:"} | ({"with other test images": ":---:"} if with_images else {}) | {"what differs": ":---"}
    rows = []
    for change in changes[:most]:
        summaries = [_mean_sd(summary) + ("" if same_n else f" (n = {summary.n})") for summary in change.accuracy]
        difference = f"{text.points(change.difference)} {_interval(change.interval)}{'' if change.paired else ' †'}"
        bold = "**" if change.differs else ""
        row = [
            code(change.variant),
            *summaries,
            f"{bold}{difference}{bold}",
            "-" if change.adjusted is None else text.p_value(change.adjusted),
        ]
        if with_images:
            row.append(_interval(change.images) if change.images else "-")
        rows.append([*row, ", ".join(_kinds(change))])
    return _table(columns, rows, len(changes))


def _accuracy_caption(comparison: Comparison) -> str:
    changes, tested = comparison.compared, comparison.tested
    sentences = [
        "Test accuracy after the last epoch: mean ± standard deviation over the seeds, and the difference of the means "
        "with its own 95 % interval (Student's t)."
    ]
    architectures = {str(side.options.get("model.architecture")) for change in changes for side in (change.base, change.head)}
    if any(name in ARCHITECTURES and ARCHITECTURES[name].task == "captioning" for name in architectures):
        sentences.append("Of captioners it is the scene accuracy on validation scenes.")
    if paired := [change for change in tested if change.paired]:
        fewest, most = (extreme(len(change.base.seeds) for change in paired) for extreme in (min, max))
        least = " and ".join(f"{statistics.smallest_p(n):.2g} with {n}" for n in dict.fromkeys((fewest, most)))
        test = f"exact sign-flip test, at least {least} seeds"
        if most > statistics.EXACT_SIGN_FLIPS:
            test = f"sign-flip test, with more than {statistics.EXACT_SIGN_FLIPS} seeds of a sample of the patterns of signs"
        sentences.append(f"Paired on the seeds, which both sides share; p: {test}.")
    if tested:
        sentence = f"Adjusted p: Holm's, over {text.counted(len(tested), 'variant')}; identical ones are no test."
        least_adjusted = comparison.smallest_adjusted_p
        if least_adjusted is not None and least_adjusted >= ALPHA:
            needed = statistics.seeds_for_p(ALPHA, len(tested))
            sentence += f" No change can reach {ALPHA} here, however large; it takes {needed} seeds."
        sentences.append(sentence)
    if unpaired := [change for change in changes if not change.paired]:
        first = unpaired[0]
        which = f"{code(first.variant)}: {text.seed_list(first.base.seeds)} at base, {text.seed_list(first.head.seeds)} at head"
        others = f", and {len(unpaired) - 1} more" if len(unpaired) > 1 else ""
        sentences.append(f"† Other seeds on the two sides ({which}{others}): not paired, interval and p are Welch's.")
    if any(change.images for change in changes):
        sentences.append(
            "With other test images: the interval if the test images, too, are a sample (both resampled; predictions from DVC's cache)."
        )
    return "*" + " ".join(sentences) + "*"


def _claims(comparison: Comparison, rows: int) -> Section | None:
    if not comparison.claims:
        return None
    cells = []
    for claim, *sides in comparison.claims[:rows]:
        said = [f"**{_verdict(found)}**" + (f", {plain(found.effect)}" if found and found.effect else "") for found in sides]
        places = list(dict.fromkeys(plain(found.comparison) for found in sides if found))
        cells.append([code(claim), *said, "; then ".join(places)])
    columns = dict.fromkeys(["claim", "base", "head", "comparison that decides"], ":---")
    title = f"{text.counted(len(comparison.claims), 'verdict')} changed"
    note = "The report says why. A verdict may change with the seeds that were added, the timings, the claim or the rules."
    return Section(title, _table(columns, cells, len(comparison.claims)), note)


def _accuracy_section(comparison: Comparison, changes: Sequence[Change], rows: int) -> Section | None:
    if not changes:
        return None
    return Section(f"Accuracy of {text.counted(len(changes), 'more variant')}", _accuracy(comparison, changes, rows), "")


def _identical(comparison: Comparison, rows: int) -> Section | None:
    changes = [change for change in comparison.common if change.identical]
    if not changes:
        return None
    cells = [[code(change.variant), _accuracies(change), ", ".join(_kinds(change))] for change in changes[:rows]]
    table = _table({"variant": ":---", "accuracy (%)": ":---:", "what differs": ":---"}, cells, len(changes))
    note = (
        "Every loss and accuracy that both sides record is the same to the last bit, epoch by epoch and seed by seed. "
        "Where seeds were added or removed, this is so of those that both sides have."
    )
    return Section(f"{text.counted(len(changes), 'identical variant')}", table, note)


def _seeds(change: Change) -> str:
    """The numbers of seeds at base and head, and which they are where the numbers are the same."""
    before, after = change.base.seeds, change.head.seeds
    both = (str(len(before)), str(len(after))) if len(before) != len(after) else (text.seed_list(before), text.seed_list(after))
    return " → ".join(both)


def _accuracies(change: Change) -> str:
    """Of identical trainings, at base and at head where the seeds differ."""
    shown = [f"{_mean_sd(summary)} (n = {summary.n})" for summary in change.accuracy]
    return shown[1] if change.paired else " → ".join(shown)


def _with_other_seeds(comparison: Comparison) -> list[Change]:
    return [change for change in comparison.common if not change.paired]


def _one_sided(comparison: Comparison, rows: int) -> Section | None:
    trainings = [("added", training) for training in comparison.added] + [("removed", training) for training in comparison.removed]
    if not trainings:
        return None
    cells = []
    for word, training in trainings[:rows]:
        summary = statistics.summarize(training.accuracy)
        size = [_number(training.parameters), _number(training.flops)]
        cells.append([code(training.variant), word, f"{_mean_sd(summary)} (n = {summary.n})", *size])
    columns = {"variant": ":---", "": ":---", "accuracy (%)": ":---:", "parameters": "---:", "FLOPs": "---:"}
    return Section(f"{text.counted(len(trainings), 'variant')} added or removed", _table(columns, cells, len(trainings)), "")


def _differing(what: str, found: Iterable[tuple[tuple[str, str, str], str]], comparison: Comparison, rows: int) -> Table | None:
    """A row with all variants for each (what differs, at base, at head), from pairs of that and a variant; None without any."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for differs, variant in found:
        groups[differs].append(variant)
    cells = [[*differs, _group(comparison, variants)] for differs, variants in list(groups.items())[:rows]]
    return _table(dict.fromkeys([what, "base", "head", "variants"], ":---"), cells, len(groups)) if groups else None


def _settings(comparison: Comparison, rows: int) -> Section | None:
    found = (
        ((code(key), code(_value(before)), code(_value(after))), change.variant)
        for change in comparison.common
        for key, before, after in change.settings
    )
    table = _differing("setting", found, comparison, rows)
    alone = list(dict.fromkeys(key for change in comparison.common for key in change.unrecorded))
    if table is None and not alone:
        return None
    note = f"Recorded on one side only, so whether they changed is not known: {_names(alone, min(rows, 40))}." if alone else ""
    changed = sum(bool(change.settings) for change in comparison.common)
    title = f"Settings of {text.counted(changed, 'variant')} changed" if changed else "Settings that only one side records"
    return Section(title, table, note)


def _causes(comparison: Comparison, rows: int) -> Section | None:
    retrained = [change for change in comparison.common if change.retrained]
    if not retrained:
        return None
    found = []
    for change in retrained:
        if change.settings:
            found.append((("settings", "see above", "see above"), change.variant))
        for key, before, after in change.causes:
            label = key.replace("_", " ").replace("versions.", "version of ")
            found.append(((label, code(_short(key, before)), code(_short(key, after))), change.variant))
    sentences = []
    if nothing := [change.variant for change in retrained if not change.settings and not change.causes]:
        sentences.append(f"Trained anew although nothing that is recorded differs: {_group(comparison, nothing)}.")
    if kept := [change.variant for change in comparison.common if not change.retrained and change.paired]:
        sentences.append(f"Not trained anew, the two sides hold the same training: {_group(comparison, kept)}.")
    title = (
        f"Why {len(retrained)} of {text.counted(len(comparison.common), 'variant')} {'was' if len(retrained) == 1 else 'were'} trained anew"
    )
    return Section(title, _differing("what differs", found, comparison, rows), " ".join(sentences))


def _cost(comparison: Comparison, rows: int) -> Section | None:
    if not comparison.common:
        return None
    cells = []
    for change in comparison.common[:rows]:
        before, after = change.seconds
        times = [f"{before:.3g}", f"{after:.3g}", f"{after / before:.2f}" if before > 0 and change.retrained else "-"]
        sizes = [_pair(change.base.parameters, change.head.parameters), _pair(change.base.flops, change.head.flops)]
        cells.append([code(change.variant), *times, *sizes])
    columns = {"variant": ":---"} | dict.fromkeys(["base (s)", "head (s)", "head / base", "parameters", "FLOPs"], "---:")
    note = (
        "Seconds: median over seeds and epochs of an epoch's training as each run recorded it. **The two runs were not interleaved**: "
        "other work on the machine, or another machine, shows in them as much as a change of the code, so they do not say which side "
        "is faster; the timing stage and `make bench` do. FLOPs: forward pass of one image."
    )
    return Section("Recorded time, parameters, FLOPs", _table(columns, cells, len(comparison.common)), note)


def _table(columns: Mapping[str, str], cells: Sequence[Sequence[str]], total: int) -> Table:
    return Table(columns, [[_cell(cell) for cell in row] for row in cells], total - len(cells))


def _group(comparison: Comparison, variants: Sequence[str]) -> str:
    if len(variants) == len(comparison.common) > 3:
        return f"all {len(variants)} of both sides"
    return _names(variants, 12)


def _kinds(change: Change) -> list[str]:
    """What differs between two trainings, in single words."""
    if not change.retrained:
        return ["same training" if change.paired else "seeds"]
    kinds = (
        ["seeds"] * (not change.paired)
        + ["settings"] * bool(change.settings)
        + [_KINDS.get(key.partition(".")[0], key) for key, _, _ in change.causes]
    )
    return list(dict.fromkeys(kinds)) or ["nothing recorded"]


def _short(key: str, value: str) -> str:
    return "; ".join(one[:10] for one in value.split("; ")) if key in ("code_hash", "data_digest") else value


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: int | None) -> str:
    return "not recorded" if value is None else f"{value:,}"


def _pair(before: int | None, after: int | None) -> str:
    return _number(after) if before == after else f"{_number(before)} → {_number(after)}"
