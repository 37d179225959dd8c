"""report: reports/README.md, one page per experiment and their figures, from runs/ and params.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import run_command
from pipeline.params import load
from pipeline.report import pages


def main(argv: list[str]) -> int | None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.report", description=__doc__).parse_args(argv)
    pages.write(load(), Path())
    return None


if __name__ == "__main__":
    run_command(main)
