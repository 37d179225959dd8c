"""Stage `fetch`: the data set's verified archives into data/raw."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import params
from pipeline.data.fetch import fetch, source
from pipeline.errors import run_command


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.fetch", description=__doc__).parse_args(argv)
    fetch(source(params.load().data.dataset), Path("data/raw"))


if __name__ == "__main__":
    run_command(main)
