"""What trained networks say of a picture of one digit, and where they attend to.

python -m pipeline.commands.classify --image=digit.png
"""

import argparse
from pathlib import Path

import numpy as np

from pipeline.commands.caption import MIN_BRIGHTNESS, networks, number, read
from pipeline.commands.profiles import from_root
from pipeline.measures.definitions import FloatArray
from pipeline.params import ModelSettings, VariantSettings, load, nearest, shown
from pipeline.runner import seeds
from pipeline.study.results import load_dataset
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_bytes
from pipeline.system.paths import FINISHED, TRAININGS

PICTURE = Path("build/classify.png")
_SHOWN = 8  # seeds whose maps the picture has


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.classify", description="What trained networks say of a digit.")
    parser.add_argument("--image", default="", metavar="FILE", help="a picture of one digit")
    parser.add_argument("--variant", default="", help="a classifier of params.yaml; base unless said otherwise")
    parser.add_argument("--seed", default="", help="one of its seeds; all that are here unless said otherwise")
    arguments = parser.parse_args(argv)
    params, variant = load(), arguments.variant or "base"
    if not arguments.image:
        raise UserError("Give a picture of a digit: `make classify IMAGE=digit.png`.")
    choices = [name for name in params.variants if params.resolve(name).task == "classification"]
    if variant not in choices:
        raise UserError(f"{shown(variant)} is no classifier of params.yaml{nearest(variant, choices)}.")
    settings = params.resolve(variant)
    shape = settings.model.shape
    chosen = [number("SEED", arguments.seed, settings.train.seeds)] if arguments.seed else []
    picture = read(Path(arguments.image), shape.size, shape.channels)
    border = np.concatenate([picture[..., [0, -1], :].ravel(), picture[..., :, [0, -1]].ravel()])
    if settings.data.dataset in ("mnist", "digits", "kmnist", "fashion_mnist") and np.median(border) > 127:
        picture = 255 - picture
        if picture.max() < MIN_BRIGHTNESS:
            raise UserError(f"{arguments.image} holds no digit that is dark on light.")
        print("The picture is dark on light, and the networks know light on dark: it is inverted.")
    chosen, probabilities, maps = answers(settings, TRAININGS / f"{variant}{seeds.SUFFIX}", chosen, picture)
    classes = (load_dataset() or {}).get("classes") or range(shape.classes)  # a folder's have names
    print(variant)
    for seed, row in zip(chosen, probabilities, strict=True):
        first, second = np.argsort(-row, kind="stable")[:2]
        print(f"  seed {seed:<4}{classes[first]}  (probability {row[first]:.3f}; next {classes[second]}, {row[second]:.3f})")
    if len(chosen) > 1:
        mean = probabilities.mean(0)
        print(f"  mean     {classes[mean.argmax()]}  (probability {mean.max():.3f})")
    if maps is None:
        print(f"\n{variant} has no attention weights to draw.")
        return
    from pipeline.report.figures.attention import rollouts
    from pipeline.report.figures.base import png

    grey = (picture if picture.ndim == 2 else picture.mean(0)) / 255
    maps = maps[:_SHOWN]
    content = png(rollouts(np.stack([grey] * len(maps)), [("attention rollout", maps)], [f"seed {one}" for one in chosen]))
    write_bytes(PICTURE, content)
    print(f"\nWhere attention goes: {from_root(PICTURE)}")


def answers(
    settings: VariantSettings, training: Path, chosen: list[int], picture: np.ndarray
) -> tuple[list[int], FloatArray, FloatArray | None]:
    """The seeds, (seed, class) probabilities, and (seed, grid, grid) attention rollout to the patches; None without attention weights.

    `chosen` are seeds; none: all whose weights are here. Raises UserError as `networks`.
    """
    import torch

    from pipeline.evaluation.attention import rollout, source_row
    from pipeline.models import attention_maps
    from pipeline.training.classification import pixels

    chosen = chosen or [part.seed for part in seeds.load(training, FINISHED) if part.has_weights]
    images, model = pixels(torch.from_numpy(picture.copy())[None], 1), settings.model
    rows: list[FloatArray] = []
    maps: list[FloatArray] = []
    with torch.no_grad():
        for network in networks(settings, training, chosen):
            rows.append(torch.softmax(network(images).double(), -1).numpy()[0])
            if isinstance(model, ModelSettings) and model.has_attention_weights:
                rolled = rollout(attention_maps(network, images).double().numpy(), residual=model.residual != "none")
                maps.append(source_row(rolled, model)[0, int(model.has_cls) :].reshape(model.grid, model.grid))
    return chosen, np.stack(rows), np.stack(maps) if maps else None


if __name__ == "__main__":
    run_command(main)
