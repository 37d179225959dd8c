"""DVC stage `report`: the pages of reports/ with their figures; then what the MLflow store lacks."""

from pipeline.params import load
from pipeline.report import pages
from pipeline.stages import settled
from pipeline.study.results import load_current
from pipeline.system.errors import UserError, run_command


def main(_: list[str]) -> None:
    params = load()
    trainings = load_current(params).trainings
    pages.write(params, trainings)
    track()


def track() -> None:
    """Completes the MLflow store: evaluations, and trainings that were too short to open it."""
    from pipeline.stages.sync import sync

    try:
        sync(register=False)
    except UserError as error:  # tracking never stops the pages, which are written
        print(f"MLflow is not up to date: {error}")


if __name__ == "__main__":
    run_command(settled(main))
