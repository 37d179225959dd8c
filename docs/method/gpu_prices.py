"""What it would cost on a GPU to decide the thesis's claims that want seeds.

`python -m docs.method.gpu_prices` writes the table of docs/machines.md: the seeds of the look at which a claim would be decided, if mean
and spread stay as they are, less those that are there, at the time that a seed of the base took there, times the network's arithmetic
where that is more than the base's.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from docs.method.judge_rates import table, write_between
from pipeline.params import load as load_params
from pipeline.study.claims import judge
from pipeline.study.results import load_current
from pipeline.system.errors import run_command

PAGE = Path(__file__).parents[1] / "machines.md"
MARKS = ("<!-- counted by python -m docs.method.gpu_prices -->\n", "<!-- end of what is counted -->\n")
_SECONDS = 0.257  # an epoch of 60,000 images and a seed of the base, in a stack of ten on one NVIDIA H200 (docs/machines.md)


def prices() -> list[list[object]]:
    """A row for each claim: id, deciding comparison's networks, seeds that are there and that it would take, seconds."""
    params = load_params()
    trainings = load_current(params).trainings
    rows: list[list[object]] = []
    for id, claim in params.claims.items():
        found = judge(id, claim, trainings, images_shown=params.images_shown, looks=params.looks)
        if "thesis" not in claim.source or "beside thesis" in claim.source or found.verdict != "not decided" or not found.deciding.needed:
            continue
        one, base = found.deciding, trainings["base"]
        names = one.comparison.variants
        look = next((look for look in params.looks if look >= (one.needed or math.inf)), None)
        asked = look or 0
        epochs = [params.resolve(name).train.epochs * max(1.0, trainings[name].flops / base.flops) for name in names]
        more = [max(asked - sum(seed >= claim.first_seed for seed in trainings[name].seeds), 0) for name in names]
        seconds = sum(_SECONDS * number * length for number, length in zip(more, epochs, strict=True))
        there = " and ".join(str(sum(seed >= claim.first_seed for seed in trainings[name].seeds)) for name in names)
        rows.append(
            [
                id,
                ", ".join(f"`{name}`" for name in names),
                there,
                asked or "beyond the last look",
                f"{float(f'{seconds:.2g}'):,.0f} s" if look else "-",
            ]
        )
    return rows


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.gpu_prices", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    head = ["claim", "networks", "seeds that count", "look that would decide, seeds a side", "of one H200"]
    said = "What it would take to decide the claims of the thesis that want seeds, by torch's engine at the third line's time:"
    write_between(PAGE, MARKS, [said, "", *table(head, "llrrr", prices())])


if __name__ == "__main__":
    run_command(main)
