"""Stage `scenes`: captioning's scenes from data/arrays into data/scenes, and a page about them into reports/scenes."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import params
from pipeline.captioning.scenes import SCENES, SPLITS, draw, write
from pipeline.data.datasets import load
from pipeline.errors import run_command
from pipeline.files import replacing
from pipeline.report.scenes import render

PAGE = Path("reports/scenes")


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.scenes", description=__doc__).parse_args(argv)
    settings = params.load()
    drawn = None
    if settings.data.source.nouns:
        dataset = load()
        scenes = draw(dataset, settings.scenes)
        write(scenes)
        drawn = scenes, dataset
        numbers = ", ".join(f"{len(getattr(scenes, split)):,} {split}" for split in SPLITS)
        print(f"{numbers} scenes, digest {scenes.digest[:12]}")
    else:
        SCENES.mkdir(parents=True, exist_ok=True)  # DVC asks for it
        print(f"{settings.data.source.label} has no captions: its classes have no nouns")
    for name, content in render(settings.data.dataset, drawn, settings.preview).items():
        with replacing(PAGE / name) as temporary:
            temporary.write_bytes(content)


if __name__ == "__main__":
    run_command(main)
