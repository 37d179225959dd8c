"""Captions of a scene by a trained captioner, greedy and by beam search.

python -m pipeline.commands.caption --image scene.png
python -m pipeline.commands.caption --scene 12
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pipeline.errors import UserError, run_command
from pipeline.params import Params, VariantSettings, load, nearest, shown
from pipeline.runner import seeds
from pipeline.study.files import ARRAYS, TRAININGS

_MIN_BRIGHTNESS = 64  # of 255; the brightest pixel of any digit is far above it
_MAX_SIDE = 4096  # pixels of a picture that is scaled
_SHADES = " .:-=+*#%@"  # from 0 to 255


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.caption", description="What a trained captioner says of a scene.")
    parser.add_argument("--image", default="", metavar="FILE", help="a picture of four cells, light on dark")
    parser.add_argument("--scene", default="", metavar="N", help="a test scene by its number, instead of a picture")
    parser.add_argument("--variant", default="", help="a trained captioner of params.yaml; caption unless said otherwise")
    parser.add_argument("--seed", default="", help="one of its seeds; the first unless said otherwise")
    parser.add_argument("--caption", default="", metavar="WORDS", help="a caption of your own, to be told whether it is right")
    arguments = parser.parse_args(argv)
    params = load()
    variant = arguments.variant or "caption"
    settings = _settings(params, variant)
    seed = number("SEED", arguments.seed, settings.train.seeds) if arguments.seed else settings.train.seeds[0]
    if bool(arguments.image) == bool(arguments.scene):
        raise UserError("Give a picture or the number of a test scene: `make caption IMAGE=scene.png` or `make caption SCENE=12`.")
    if arguments.caption and not arguments.scene:
        raise UserError("A caption of your own is judged beside a test scene: `make caption SCENE=12 CAPTION='a three at the top left'`.")
    truth: list[str] = []
    if arguments.image:
        picture = read(Path(arguments.image), 2 * settings.model.shape.size, settings.model.shape.channels)
    else:
        picture, truth = _test_scene(arguments.scene)
    greedy, beam, probability = describe(settings, TRAININGS / f"{variant}{seeds.SUFFIX}", seed, picture)
    print(drawn(picture))
    print(f"\n{variant}, seed {seed}\n  greedy     {greedy}\n  beam       {beam}  (probability {probability:.2f})")
    if arguments.caption:
        print(f"  yours      {arguments.caption}  ({_judged(settings, arguments.caption.split(), truth[0].split())})")
    for reference in truth:
        print(f"  {'reference' if reference == truth[0] else '':11}{reference}")


def _settings(params: Params, variant: str) -> VariantSettings:
    captioners = [name for name in params.variants if params.resolve(name).task == "captioning"]
    if variant not in captioners:
        what = "writes no captions" if variant in params.variants else "is not in params.yaml"
        choice = nearest(variant, captioners) if captioners else "; add one with `architecture: captioner`"
        raise UserError(f"The variant {variant} {what}{choice}.")
    return params.resolve(variant)


def number(name: str, text: str, choices: range | tuple[int, ...]) -> int:
    if text not in map(str, choices):
        every = list(choices) == list(range(choices[0], choices[-1] + 1))
        which = f"a whole number from {choices[0]} to {choices[-1]}" if every else f"one of {', '.join(map(str, choices))}"
        raise UserError(f"{name} is {shown(text)}, but has to be {which}.")
    return int(text)


def _judged(settings: VariantSettings, words: list[str], reference: list[str]) -> str:
    """Whether a caption says what a reference of its scene says. Raises UserError where it has an unknown word or too many."""
    from pipeline.captioning.grammar import grammar_of

    grammar = grammar_of(settings.data.dataset)
    grammar.encode(words)
    if (meant := grammar.parse(words)) is None:
        return "not a whole sentence of this grammar"
    return "true and complete" if meant == grammar.parse(reference) else "not what the scene holds"


def read(path: Path, side: int, channels: int, *, scaled: bool = False) -> np.ndarray:
    """A picture, uint8 (side, side), or with several channels (channel, side, side).

    What is transparent is black; of a digit in dark ink alone it is white.

    Args:
        scaled: whether a picture of one digit in any size is meant, which is scaled; else a scene, which has to fit.

    Raises:
        UserError: it cannot be read, has another size, or is empty.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            if scaled and (width != height or width > _MAX_SIDE):  # a large one is not decoded
                raise UserError(f"{path} has {width} x {height} pixels: give a square picture of at most {_MAX_SIDE} a side.")
            if not scaled and (width, height) != (side, side):
                raise UserError(
                    f"{path} has {width} x {height} pixels, but a scene has {side} x {side}: four cells of {side // 2} x {side // 2}."
                )
            if image.mode in ("I", "F"):
                raise UserError(f"{path} has 32 bits for a pixel, of which it does not say what is white; give a PNG of 8 bits.")
            # `convert` would clip 16 bits at 255.
            eight = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I;16") else image
            if eight.has_transparency_data:
                seen = np.asarray(eight.convert("LA")).min(2)  # of ink that is light and not transparent
                dark = scaled and seen.max() < _MIN_BRIGHTNESS
                eight = Image.alpha_composite(Image.new("RGBA", eight.size, "white" if dark else "black"), eight.convert("RGBA"))
            eight = eight.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(eight.resize((side, side), Image.Resampling.BOX) if eight.size != (side, side) else eight)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} is not there.") from None
    except Exception:  # a decoder's fault has no class of its own
        raise UserError(f"{path} is not a picture that can be read; give a PNG{'' if scaled else f' of {side} x {side} pixels'}.") from None
    if pixels.max() < _MIN_BRIGHTNESS:
        raise UserError(f"{path} holds no digit{'' if scaled else ': a scene has one to four, light on dark'}.")
    return pixels if channels == 1 else pixels.transpose(2, 0, 1)


def _test_scene(text: str) -> tuple[np.ndarray, list[str]]:
    """A test scene and its references. Raises UserError where there is none of that number, or the scenes are not here."""
    import torch

    from pipeline.captioning.data import load as load_data
    from pipeline.captioning.grammar import grammar_of
    from pipeline.captioning.scenes import compose

    data = load_data(ARRAYS)
    place = number("SCENE", text, range(len(data.scenes.test)))
    grammar = grammar_of(data.scenes.dataset)
    picture = compose(torch.from_numpy(data.dataset.test_images), torch.from_numpy(data.scenes.test.cells[place]).long())
    return picture.numpy(), [" ".join(grammar.decode(caption)) for caption in data.scenes.test.captions[place].tolist()]


def describe(settings: VariantSettings, run: Path, seed: int, picture: np.ndarray) -> tuple[str, str, float]:
    """The greedy caption, that of beam search, and the probability of the latter.

    Raises:
        UserError: the weights are missing or damaged, or of other settings or another vocabulary.
    """
    import math

    import torch

    from pipeline.captioning import decoding
    from pipeline.captioning.grammar import grammar_of
    from pipeline.captioning.model import CaptionModel
    from pipeline.evaluation.captions import LENGTH_NORMALISATION
    from pipeline.measures.definitions import BEAM_WIDTH
    from pipeline.training.classification import pixels
    from pipeline.training.engine import set_reproducible
    from pipeline.training.stack import Stack

    if not settings.trained_as(seeds.read_record(run)["config"]):
        raise UserError(f"{run} was trained with other settings than params.yaml has: run `dvc repro train@{run.stem}`.")
    weights = seeds.load_weights(run, [seed])
    known, words = weights["head.weight"].shape[1], settings.model.shape.words
    if known != words:
        raise UserError(
            f"The weights in {run} know {known} words, but the captions of {settings.data.dataset} have {words}: train them anew."
        )
    device = torch.device("cpu")
    set_reproducible(device)
    stack = Stack(settings.model, [seed], device)
    stack.load(weights)
    assert isinstance(stack.module, CaptionModel)
    grammar, images = grammar_of(settings.data.dataset), pixels(torch.from_numpy(picture.copy())[None], 1)
    greedy = decoding.greedy(stack.module, images)[0]
    beam, score = decoding.beam(stack.module, images, BEAM_WIDTH, LENGTH_NORMALISATION)
    return " ".join(grammar.decode(greedy.tolist())), " ".join(grammar.decode(beam[0].tolist())), math.exp(score.item())


def drawn(picture: np.ndarray) -> str:
    """A picture as text, one line for two rows of pixels."""
    grey = picture if picture.ndim == 2 else picture.mean(0)
    rows = (grey[0::2].astype(float) + grey[1::2]) / 2
    lines = ("".join(_SHADES[int(value) * len(_SHADES) // 256] for value in row) for row in rows)
    border = f"+{'-' * grey.shape[1]}+"
    return "\n".join([border, *(f"|{line}|" for line in lines), border])


if __name__ == "__main__":
    run_command(main)
