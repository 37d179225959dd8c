"""Keeps trained networks in store/pretrained/, for other trainings to start from.

python -m pipeline.commands.pretrained --variant=base
"""

import argparse

import torch

from pipeline.commands.caption import current_record
from pipeline.models import build
from pipeline.params import load
from pipeline.runner import seeds
from pipeline.system.errors import UserError, run_command
from pipeline.system.paths import FINISHED, TRAININGS
from pipeline.system.provenance import ROOT
from pipeline.training import pretrained


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.pretrained", description="Keeps networks to start from.")
    parser.add_argument("--variant", default="", help="whose seeds to keep: all whose weights are here; base unless said otherwise")
    params, variant = load(), parser.parse_args(argv).variant or "base"
    settings, path = params.resolve(variant), TRAININGS / f"{variant}{seeds.SUFFIX}"
    found = [part for part in seeds.load(path, FINISHED) if part.has_weights] if path.exists() else []
    if not found:
        raise UserError(f"No weights of {variant} are here: `make repro` trains them.")
    network = build(settings.model)
    if [*network.parameters()][-1].shape[:1] != (settings.model.shape.classes,):
        raise UserError(f"The last layer that {variant}'s network defines is not its head, which others have to leave out: define it last.")
    weights = [{name: torch.tensor(value) for name, value in part.weights.items()} for part in found]
    name = pretrained.write(f"{current_record(settings, path)['dataset']}-{variant}", network, weights, ROOT)
    print(f"A variant with `pretrained: {name}` starts from these {len(found)} networks, but for their head.")


if __name__ == "__main__":
    run_command(main)
