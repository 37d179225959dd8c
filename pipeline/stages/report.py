"""DVC stage `report`: the pages of reports/ and their figures from what the other stages left; then MLflow's share."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import UserError, run_command
from pipeline.params import Params, load
from pipeline.report import pages
from pipeline.report.figures import curves
from pipeline.study.files import CHECKPOINTS, RUNS
from pipeline.study.results import load as load_study


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.report", description=__doc__).parse_args(argv)
    params = load()
    pages.write(params, Path())
    track(params)


def track(params: Params) -> None:
    """Completes the MLflow store: evaluations, pictures, and trainings that were over before it was worth opening it."""
    from pipeline.stages.sync import sync

    pictures = CHECKPOINTS / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    for variant, run in load_study(".", "").trainings.items():
        if variant in params.variants:
            curves.draw_variant(run, pictures / f"{variant}.png")
    try:
        sync(RUNS, figures=pictures)
    except UserError as error:  # tracking never stops the pages, which are written
        print(f"MLflow is not up to date: {error}", flush=True)


if __name__ == "__main__":
    run_command(main)
