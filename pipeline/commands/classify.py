"""What trained networks say of a picture of one digit, and where they attend to.

python -m pipeline.commands.classify --image=digit.png
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.commands.profiles import from_root
from pipeline.measures.definitions import FloatArray
from pipeline.params import ModelSettings, VariantSettings, load, nearest, shown
from pipeline.runner import seeds
from pipeline.system.errors import UserError, first_line, run_command
from pipeline.system.files import replacing
from pipeline.system.paths import FINISHED, TRAININGS

if TYPE_CHECKING:
    from torch import nn

PICTURE = Path("build/classify.png")
_SHOWN = 8  # seeds whose maps the picture has
_MIN_BRIGHTNESS = 64  # of 255; the brightest pixel of any digit is far above it


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
    if arguments.seed not in ("", *map(str, settings.train.seeds)):
        raise UserError(f"There is no SEED={shown(arguments.seed)} of {variant}.")
    chosen = [int(arguments.seed)] if arguments.seed else []
    picture = read(Path(arguments.image), shape.size, shape.channels)
    border = np.concatenate([picture[..., [0, -1], :].ravel(), picture[..., :, [0, -1]].ravel()])
    if settings.data.dataset in ("mnist", "digits", "kmnist", "fashion_mnist") and np.median(border) > 127:
        picture = 255 - picture
        print("The picture is dark on light, and the networks know light on dark: it is inverted.")
    chosen, probabilities, maps = answers(settings, TRAININGS / f"{variant}{seeds.SUFFIX}", chosen, picture)
    print(variant)
    for seed, row in zip(chosen, probabilities, strict=True):
        first, second = np.argsort(-row, kind="stable")[:2]
        print(f"  seed {seed:<4}{first}  (probability {row[first]:.3f}; next {second}, {row[second]:.3f})")
    if len(chosen) > 1:
        mean = probabilities.mean(0)
        print(f"  mean     {mean.argmax()}  (probability {mean.max():.3f})")
    if maps is None:
        print(f"\n{variant} has no attention weights to draw.")
        return
    from pipeline.report.figures.attention import rollouts
    from pipeline.report.figures.base import png

    grey = (picture if picture.ndim == 2 else picture.mean(0)) / 255
    maps = maps[:_SHOWN]
    content = png(rollouts(np.stack([grey] * len(maps)), [("attention rollout", maps)], [f"seed {one}" for one in chosen]))
    with replacing(PICTURE) as temporary:
        temporary.write_bytes(content)
    print(f"\nWhere attention goes: {from_root(PICTURE)}")


def read(path: Path, side: int, channels: int) -> np.ndarray:
    """A square picture of one digit, scaled: uint8 (side, side), or with several channels (channel, side, side).

    What is transparent is black, but white behind dark ink.

    Raises:
        UserError: it cannot be read, is not square, or is empty.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            if width != height:
                raise UserError(f"{path} has {width} x {height} pixels: give a square.")
            if image.mode[0] in "IF":  # `convert` would clip them at 255
                raise UserError(f"{path} has 16 or 32 bits for a pixel: give a PNG of 8 bits.")
            seen: Image.Image = image
            if image.has_transparency_data:
                light = np.asarray(image.convert("LA")).min(2)  # ink that is light and not transparent
                paper = "white" if light.max() < _MIN_BRIGHTNESS else "black"
                seen = Image.alpha_composite(Image.new("RGBA", image.size, paper), image.convert("RGBA"))
            pixels = np.asarray(seen.convert("L" if channels == 1 else "RGB").resize((side, side), Image.Resampling.BOX))
    except UserError:
        raise
    except Exception as error:  # a decoder's fault has no class of its own
        raise UserError(f"{path} is not a picture that can be read ({first_line(error)}).") from None
    if pixels.max() < _MIN_BRIGHTNESS:
        raise UserError(f"{path} holds no digit.")
    return pixels if channels == 1 else pixels.transpose(2, 0, 1)


def networks(settings: VariantSettings, run: Path, chosen: Sequence[int]) -> Iterator[nn.Module]:
    """The trained networks of seeds, one after the other. Raises UserError where weights are missing, damaged or of other settings."""
    import torch

    from pipeline.training.engine import set_reproducible
    from pipeline.training.stack import Stack

    if not settings.trained_as(seeds.read_record(run)["config"]):
        raise UserError(f"{run} was trained with other settings than params.yaml has: run `dvc repro train@{run.stem}`.")
    weights = seeds.load_weights(run, chosen)
    set_reproducible(torch.device("cpu"))
    for place, seed in enumerate(chosen):
        stack = Stack(settings.model, [seed], torch.device("cpu"))
        stack.load({name: value[[place]] for name, value in weights.items()})
        yield stack.module.eval()


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
