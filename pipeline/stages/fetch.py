"""Stage `fetch`: the data set's verified archives into data/raw, or a list of one's own files."""

from pathlib import Path

from pipeline import params
from pipeline.data.fetch import fetch, note, source
from pipeline.stages import settled
from pipeline.system.errors import run_command


def main(_: list[str]) -> None:
    data = params.load().data
    if data.source.shape is None:
        note(data, Path("data/raw"))
    else:
        fetch(source(data.dataset, data.path), Path("data/raw"))


if __name__ == "__main__":
    run_command(settled(main))
