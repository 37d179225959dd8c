"""Trains all that `make plan` lists, over all variants at once, on this machine or a cluster; `dvc repro` then only assembles.

    python -m pipeline.commands.train [--jobs N] [--on here|ray]

DVC runs one stage after another, and a stage trains one variant. Here a free process takes the longest training that waits, of any
variant. Finished seeds go to .checkpoints/seeds, where the train stages look for them.
"""

import argparse
import functools
from pathlib import Path

from pipeline.commands import profiles, repro
from pipeline.params import Params, load, shown
from pipeline.runner import pool, ray
from pipeline.runner.train import survey, train
from pipeline.system.errors import UserError, run_command


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.train", description="Trains all that `make plan` lists.")
    parser.add_argument("--jobs", default="", metavar="N", help="processes; by default LAB_PROCESSES, else one per core or GPU")
    parser.add_argument("--on", default="", metavar="ENGINE", help="here: processes of this machine (default); ray: a Ray cluster")
    given = parser.parse_args(argv)
    repro.check_place()
    jobs = pool.count_of(given.jobs) if given.jobs else None
    device = pool.choose_device()
    engine: pool.Engine
    if given.on == "ray":
        ray.require()
        engine = functools.partial(ray.run_all, device=device, jobs=jobs)
    elif given.on in ("", "here"):
        engine = functools.partial(pool.run_all, cards=pool.choose_cards(device, jobs))
    else:
        raise UserError(f"ON is {shown(given.on)}; the choices are here and ray.")
    profiles.refresh()
    params = load()
    if repro.own_data_changed(params) or any(entry.tasks for entry in survey(params, device)):
        repro.reproduce(Path(), ("code", repro.data_stage(), "resolve"))
    train_all(load(), device, engine)


def train_all(params: Params, device: str, engine: pool.Engine) -> None:
    """Finishes all seeds that are missing; the stages before train have run. Raises UserError as `pipeline.runner.train.train` does."""
    entries = [entry for entry in survey(params, device) if entry.tasks]
    if entries:
        claims = {entry.variant: params.claims_of(entry.variant) for entry in entries}
        train(entries, device, engine, claims=claims)
    else:
        print("Nothing is to be trained.")


if __name__ == "__main__":
    run_command(main)
