"""DVC stage `train@VARIANT`: a variant's seeds, from initial weights to its file in store/trainings; see `pipeline.runner.train`."""

import functools
from pathlib import Path

from pipeline.params import load, load_variant
from pipeline.runner import pool
from pipeline.runner.train import look_up, train
from pipeline.system.errors import UserError, run_command
from pipeline.system.paths import CONFIGS
from pipeline.system.processes import die_with_dvc


def main(argv: list[str]) -> None:
    if len(argv) != 1 or argv[0].startswith("-"):
        raise UserError("Usage: python -m pipeline.stages.train VARIANT")
    die_with_dvc()
    device, settings = pool.choose_device(), load_variant(CONFIGS / f"{argv[0]}.json")
    engine = functools.partial(pool.run_all, cards=pool.choose_cards(device, None if device == "cpu" else 1))
    claims = load().claims_of(argv[0]) if Path("params.yaml").exists() else ()
    train(look_up({argv[0]: settings}, device), device, engine, assemble=True, claims={argv[0]: claims})


if __name__ == "__main__":
    run_command(main)
