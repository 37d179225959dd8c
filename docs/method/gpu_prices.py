"""What it would cost on a GPU to decide the thesis's claims that want seeds.

`python -m docs.method.gpu_prices` writes the table of docs/machines.md: the seeds that a claim's page asks for, less those that are
there, at the time that a seed of the base took there, times the network's arithmetic where that is more than the base's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.method.judge_rates import table, write_between
from pipeline.params import load as load_params
from pipeline.study.claims import judge
from pipeline.study.results import load_current
from pipeline.system.errors import run_command

PAGE = Path(__file__).parents[1] / "machines.md"
MARKS = ("<!-- counted by python -m docs.method.gpu_prices -->\n", "<!-- end of what is counted -->\n")
_SECONDS = 0.257  # an epoch of 60,000 images and a seed of the base, in a stack of ten on one NVIDIA H200 (docs/machines.md)
_MOST = 1000  # seeds; beyond that a page says "more than 1,000"


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
        asked = min(one.needed or _MOST, _MOST)
        epochs = [params.resolve(name).train.epochs * max(1.0, trainings[name].flops / base.flops) for name in names]
        more = [max(asked - sum(seed >= claim.first_seed for seed in trainings[name].seeds), 0) for name in names]
        seconds = sum(_SECONDS * number * length for number, length in zip(more, epochs, strict=True))
        over = "over " * ((one.needed or 0) > _MOST)
        there = " and ".join(str(sum(seed >= claim.first_seed for seed in trainings[name].seeds)) for name in names)
        rows.append([id, ", ".join(f"`{name}`" for name in names), there, f"{over}{asked:,}", f"{over}{float(f'{seconds:.2g}'):,.0f} s"])
    return rows


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.gpu_prices", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    head = ["claim", "networks", "seeds that count", "seeds a side that would decide", "of one H200"]
    said = "What it would take to decide the claims of the thesis that want seeds, by torch's engine at the third line's time:"
    write_between(PAGE, MARKS, [said, "", *table(head, "llrrr", prices())])


if __name__ == "__main__":
    run_command(main)
