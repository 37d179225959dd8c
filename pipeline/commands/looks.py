"""What the next look at each undecided claim takes, for `make plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.errors import UserError
from pipeline.measures import TIMING_RULES
from pipeline.params import Params
from pipeline.runner.progress import duration
from pipeline.runner.schedule import makespan
from pipeline.study import Training, load
from pipeline.study.claims import judge


def evaluated(params: Params) -> dict[str, Training]:
    """The variants whose results the tables have with the settings of params.yaml; none without tables, or with damaged ones.

    Predictions are read when a claim is judged.
    """
    try:
        found = load(".").trainings
    except UserError:
        return {}
    return {
        variant: found[variant]
        for variant in params.variants
        if variant in found and found[variant].record.get("config") == params.resolve(variant).model_dump(mode="json")
    }


def prices(params: Params, trainings: Mapping[str, Training], costs: Mapping[str, float], processes: int) -> list[Sequence[str]]:
    """Of each claim that is not decided and that more seeds may decide: how many would, and what it takes to look at the next number.

    A line says which claims cannot be judged, because predictions are damaged.

    Args:
        trainings: what is evaluated.
        costs: by variant, the seconds of a process for a seed; empty where nothing is known of any, and then no time is given.
    """
    ended = [variant for variant in params.variants if params.resolve(variant).train.ends_at_zero]
    found = []
    for id, claim in params.claims.items():
        try:
            judged = judge(id, claim, trainings, images_shown=params.images_shown, looks=params.looks, ended=ended)
        except UserError as error:
            print(f"{id} is not judged: {error}")
            continue
        # Of what has not settled, more seeds may help only where a movement can be chance.
        waiting = [finding for finding in judged.findings if finding.verdict in ("not decided", "not settled")]
        if judged.verdict not in ("not decided", "not settled") or any(one.missing == "a longer training" for one in waiting):
            continue
        if judged.verdict == "not decided" and judged.deciding.is_hopeless:
            continue
        waiting = [finding for finding in waiting if not finding.is_hopeless]
        missing: dict[str, int] = {}
        looks = set()
        for names in (finding.comparison.variants for finding in waiting if finding.comparison.rule not in TIMING_RULES):
            counts = {name: sum(seed >= claim.first_seed for seed in trainings[name].seeds) for name in names}
            look = next((look for look in params.looks if look > min(counts.values())), None)
            if look is not None:
                looks.add(look)
                for name, count in counts.items():
                    missing[name] = max(missing.get(name, 0), look - count)
        missing = {name: count for name, count in missing.items() if count > 0}
        if missing:
            time = makespan([costs[name] for name, count in missing.items() for _ in range(count)], processes) if costs else 0.0
            takes = judged.deciding.seeds_note.partition(";")[0].partition(" would probably")[0] or judged.deciding.missing
            to_train = ", ".join(f"{count} of {name}" for name, count in missing.items())
            shown = duration(time) if costs else ""
            found.append((time, (id, judged.verdict, takes, " and ".join(map(str, sorted(looks))), to_train, shown)))
    return [line for _, line in sorted(found)]
