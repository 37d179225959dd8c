"""Captions of a scene by a trained captioner, greedy and by beam search.

python -m pipeline.commands.caption --image scene.png
python -m pipeline.commands.caption --scene 12
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn

from pipeline.captioning import decoding
from pipeline.captioning.data import load as load_data
from pipeline.captioning.grammar import grammar_of
from pipeline.captioning.model import CaptionModel
from pipeline.captioning.scenes import compose
from pipeline.evaluation.captions import LENGTH_NORMALISATION
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import VariantSettings, load, nearest, shown
from pipeline.runner import seeds
from pipeline.system.errors import UserError, first_line, run_command
from pipeline.system.paths import ARRAYS, TRAININGS
from pipeline.training.classification import pixels
from pipeline.training.engine import set_reproducible
from pipeline.training.stack import Stack

MIN_BRIGHTNESS = 64  # of 255; the brightest pixel of any digit is far above it


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.caption", description="What a trained captioner says of a scene.")
    parser.add_argument("--image", default="", metavar="FILE", help="a square picture of four cells, light on dark")
    parser.add_argument("--scene", default="", metavar="N", help="a test scene by its number, instead of a picture")
    parser.add_argument("--variant", default="", help="a trained captioner of params.yaml; caption unless said otherwise")
    parser.add_argument("--seed", default="", help="one of its seeds; the first unless said otherwise")
    given = parser.parse_args(argv)
    params, variant = load(), given.variant or "caption"
    captioners = [name for name in params.variants if params.resolve(name).task == "captioning"]
    if variant not in captioners:
        raise UserError(f"{shown(variant)} is no captioner of params.yaml{nearest(variant, captioners)}.")
    settings = params.resolve(variant)
    seed = number("SEED", given.seed, settings.train.seeds) if given.seed else settings.train.seeds[0]
    if bool(given.image) == bool(given.scene):
        raise UserError("Give a picture or the number of a test scene: `make caption IMAGE=scene.png` or `make caption SCENE=12`.")
    truth: list[str] = []
    if given.image:
        picture = read(Path(given.image), 2 * settings.model.shape.size, settings.model.shape.channels)
    else:
        picture, truth = _test_scene(given.scene)
    greedy, beam, probability = describe(settings, TRAININGS / f"{variant}{seeds.SUFFIX}", seed, picture)
    print(f"{variant}, seed {seed}\n  greedy     {greedy}\n  beam       {beam}  (probability {probability:.2f})")
    for reference in truth:
        print(f"  {'reference' if reference == truth[0] else '':11}{reference}")


def number(name: str, text: str, choices: range | tuple[int, ...]) -> int:
    if text not in (known := [*map(str, choices)]):
        raise UserError(f"There is no {name}={shown(text)}: they begin with {known[0]} and end with {known[-1]}.")
    return int(text)


def read(path: Path, side: int, channels: int) -> np.ndarray:
    """A square picture, scaled: uint8 (side, side), or with several channels (channel, side, side).

    What is transparent is black, but white around dark ink. Raises UserError where it cannot be read, is not square, or is empty.
    """
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)  # a phone's may lie on its side
            width, height = image.size
            if width != height:
                raise UserError(f"{path} has {width} x {height} pixels: give a square.")
            if image.mode[0] in "IF":  # `convert` would clip them at 255
                raise UserError(f"{path} has 16 or 32 bits for a pixel: give a PNG of 8 bits.")
            seen: Image.Image = image
            if image.has_transparency_data:
                light = np.asarray(image.convert("LA")).min(2)  # ink that is light and not transparent
                paper = "white" if light.max() < MIN_BRIGHTNESS else "black"
                seen = Image.alpha_composite(Image.new("RGBA", image.size, paper), image.convert("RGBA"))
            scaled = np.asarray(seen.convert("L" if channels == 1 else "RGB").resize((side, side), Image.Resampling.BOX))
    except UserError:
        raise
    except Exception as error:  # a decoder's fault has no class of its own
        raise UserError(f"{path} is not a picture that can be read ({first_line(error)}).") from None
    if scaled.max() < MIN_BRIGHTNESS:
        raise UserError(f"{path} holds no digit that is light on dark.")
    return scaled if channels == 1 else scaled.transpose(2, 0, 1)


def _test_scene(text: str) -> tuple[np.ndarray, list[str]]:
    """A test scene and its references. Raises UserError where there is none of that number, or the scenes are not here."""
    data = load_data(ARRAYS)
    place = number("SCENE", text, range(len(data.scenes.test)))
    grammar = grammar_of(data.scenes.dataset)
    picture = compose(torch.from_numpy(data.dataset.test_images), torch.from_numpy(data.scenes.test.cells[place]).long())
    return picture.numpy(), [" ".join(grammar.decode(caption)) for caption in data.scenes.test.captions[place].tolist()]


def current_record(settings: VariantSettings, run: Path) -> Mapping[str, object]:
    """What a training's file says of it. Raises UserError where it is of other settings."""
    record = seeds.read_record(run)
    if not settings.trained_as(record["config"]):
        raise UserError(f"{run} was trained with other settings than params.yaml has: run `dvc repro train@{run.stem}`.")
    return record


def networks(settings: VariantSettings, run: Path, chosen: Sequence[int]) -> Iterator[nn.Module]:
    """The trained networks of seeds, one after the other. Raises UserError where weights are missing, damaged or of other settings."""
    current_record(settings, run)
    weights = seeds.load_weights(run, chosen)
    set_reproducible(torch.device("cpu"))
    for place, seed in enumerate(chosen):
        stack = Stack(settings.model, [seed], torch.device("cpu"))
        stack.load({name: value[[place]] for name, value in weights.items()})
        yield stack.module.eval()


def describe(settings: VariantSettings, run: Path, seed: int, picture: np.ndarray) -> tuple[str, str, float]:
    """The greedy caption, that of beam search, and the probability of the latter. Raises UserError as `networks`."""
    (model,) = networks(settings, run, [seed])
    assert isinstance(model, CaptionModel)
    grammar, images = grammar_of(settings.data.dataset), pixels(torch.from_numpy(picture.copy())[None], 1)
    greedy = decoding.greedy(model, images)[0]
    beam, score = decoding.beam(model, images, BEAM_WIDTH, LENGTH_NORMALISATION)
    return " ".join(grammar.decode(greedy.tolist())), " ".join(grammar.decode(beam[0].tolist())), math.exp(score.item())


if __name__ == "__main__":
    run_command(main)
