"""The catalogue: params.yaml and claims.yaml checked and listed, without training anything.

    python -m pipeline.commands.catalogue

lists the variants with their difference to the base or to the variant they start from, their experiments and parameters, then the
experiments.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cache

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.measures import TIMING_RULES
from pipeline.params import AnyModelSettings, Params, load, nearest
from pipeline.system.errors import run_command

_WIDTH = 120  # characters of a line that goes to a file or a pipe
_NAME = 30  # characters of a name that stands on one line


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.commands.catalogue", description="What params.yaml holds.").parse_args(argv)
    params = load()
    for section in sections(params):
        show(*section)
    counts = (f"{name} ({len(getattr(params, name))})" for name in ("variants", "experiments", "claims"))
    print(f"params.yaml is valid: {', '.join(counts)}.")
    for warning in oddities(params):
        print(f"warning: {warning}", file=sys.stderr)


def oddities(params: Params) -> list[str]:
    """What is valid but probably not meant, one sentence each."""
    found = []
    for claim, settings in params.claims.items():
        trained = {name for part in settings.comparisons if part.rule not in TIMING_RULES for name in part.variants}
        stepped = {name for part in settings.comparisons if part.rule == "ratio" for name in part.variants}
        for names, key, known in ((trained, "variants", params.variants), (stepped, "timing.subjects", params.timing.subjects)):
            found += [
                f'claim {claim} speaks of {name!r}, which {key} does not have{nearest(name, known)}; it will read "not run".'
                for name in sorted(names - known.keys())
            ]
    found += [
        f'timing.subjects.{name} is another network than variants.{name}; what claims say of its time will read "not run".'
        for name in params.timed_otherwise()
    ]
    own = params.difference("base").keys() - {"seeds"} if "base" in params.variants else set()
    if own:
        found.append(f"variants.base changes {', '.join(sorted(own))}, and the others start from `base:` itself, without that.")
    for row, (variant, reference) in params.ranking.items():
        if variant == reference:
            found.append(f"ranking {row!r} compares {variant!r} with itself.")
        for name in dict.fromkeys((variant, reference)):
            if name not in params.variants or params.resolve(name).task == "captioning":
                found.append(f"ranking {row!r} has no row: {name!r} is no classifier of variants{nearest(name, params.variants)}.")
    if unseen := without_experiment(params):
        found.append(f"no experiment has {', '.join(unseen)}: trained, and on no experiment's page.")
    return found


def without_experiment(params: Params) -> list[str]:
    """The variants that no experiment compares with a baseline."""
    on_pages = {variant for experiment in params.experiments.values() for variant in experiment.variants}
    return [variant for variant in params.variants if variant not in on_pages]


def sections(params: Params) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Title, header and lines of the two lists. A variant's difference is in the words of params.yaml."""
    variants: list[Sequence[str]] = [
        (
            variant, f"{_count(params.resolve(variant).model):,}",
            ", ".join(name for name, of in params.experiments.items() if variant in of.variants),
            yaml.safe_dump(change, default_flow_style=True, sort_keys=False, width=sys.maxsize).strip().strip("{}"),
        )
        for variant, change in params.variants.items()
    ]  # fmt: skip
    experiments: list[Sequence[str]] = [
        (name, str(len(of.variants)), of.baseline, of.measure, ", ".join(of.claims)) for name, of in params.experiments.items()
    ]
    return [
        ("Variants", ("variant", "parameters", "experiments", "difference"), variants),
        ("Experiments", ("experiment", "variants", "baseline", "measure", "claims"), experiments),
    ]


def show(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table, no wider than the terminal, or `_WIDTH` in a file or a pipe. Long cells wrap; columns with nothing are left out."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = [column for column in range(len(header)) if not lines or any(line[column] for line in lines)]
    for column in columns:
        number = bool(lines) and all(line[column].replace(",", "").isdigit() for line in lines)
        whole = column == 0 and all(len(line[0]) <= _NAME for line in lines)
        table.add_column(header[column], justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for line in lines:
        table.add_row(*(Text(line[column]) for column in columns))  # Text: a list in brackets is not markup
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table, "")


@cache
def _count(settings: AnyModelSettings) -> int:
    """Trained scalars of a model, which is built without memory for its weights. Many variants have the same."""
    import torch

    from pipeline.models import build, count_parameters

    with torch.device("meta"):
        return count_parameters(build(settings))


if __name__ == "__main__":
    run_command(main)
