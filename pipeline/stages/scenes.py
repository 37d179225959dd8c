"""Stage `scenes`: captioning's scenes from data/arrays into data/scenes."""

from pipeline import params
from pipeline.captioning.scenes import SCENES, SPLITS, draw, write
from pipeline.data.datasets import load
from pipeline.stages import settled
from pipeline.system.errors import run_command


def main(_: list[str]) -> None:
    settings = params.load()
    if settings.data.source.nouns:
        scenes = draw(load(), settings.scenes)
        write(scenes)
        numbers = ", ".join(f"{len(getattr(scenes, split)):,} {split}" for split in SPLITS)
        print(f"{numbers} scenes, digest {scenes.digest[:12]}")
    else:
        SCENES.mkdir(parents=True, exist_ok=True)  # DVC asks for it
        print(f"{settings.data.label} has no captions: its classes have no nouns")


if __name__ == "__main__":
    run_command(settled(main))
