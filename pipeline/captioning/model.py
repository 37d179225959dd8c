"""What the models that describe scenes share: what generation asks of them, and the convolutions that read a scene."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from pipeline.params.data import Shape


@dataclass(frozen=True)
class State:
    """What a model remembers while it writes captions word by word.

    A row is one caption that is being written. All images have equally many, and an image's rows lie beside each other.

    Attributes:
        images: what is kept once for all rows of an image, tensors (image, ...).
        rows: what each row keeps of its own words, tensors (row, ...).
    """

    images: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    def select(self, rows: Tensor) -> State:
        """Goes on with `rows` (new row,) int64, each the number of an old one: one named twice is continued twice.

        Every image has to keep equally many, and the images their order.
        """
        return State(self.images, tuple(kept[rows] for kept in self.rows))


class CaptionModel(nn.Module, ABC):
    """A network that gives each next word of a scene's caption its logits: for whole captions at once, or word by word."""

    @abstractmethod
    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """The logits of every next word, given the ones before it.

        Args:
            images: (batch, channel, height, width) in [0, 1].
            words: (row, place) int64, which begin with BOS and end in PAD; MAX_WORDS + 1 places at most. Each image has as many rows,
                beside each other.

        Returns:
            (row, place, word): at a place, the logits of the word that follows.
        """

    @abstractmethod
    def start(self, images: Tensor) -> State:
        """Reads images (image, channel, height, width) in [0, 1]; the state has one row for each, without words."""

    @abstractmethod
    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Appends a word to every row.

        Args:
            words: (row,) int64; BOS first.
            state: of the rows without these words.

        Returns:
            The logits of the next words (row, word), and the state with these words.
        """


class Stem(nn.Sequential):
    """Four 3 x 3 convolutions of stride 2, each with batch norm and ReLU: a scene of 56 x 56 pixels becomes 4 x 4 places.

    Args:
        channels: values of a pixel.
        dim: channels of a place, and of the last convolution; the others have 16, 32 and 48.
    """

    def __init__(self, channels: int, dim: int) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(_widths(channels, dim)):
            convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)  # the norm has a bias
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


def _widths(channels: int, dim: int) -> tuple[int, ...]:
    return channels, 16, 32, 48, dim


def stem_multiply_adds(shape: Shape, dim: int) -> int:
    """Those of one scene, whose side is twice `shape.size`; `pipeline.models.count_flops` says what counts."""
    side, total = 2 * shape.size, 0
    for inputs, outputs in pairwise(_widths(shape.channels, dim)):
        side = -(-side // 2)
        total += 9 * inputs * outputs * side**2
    return total


def check_images(images: Tensor, shape: Shape) -> None:
    """Raises ValueError for images that are not (batch, channel, height, width) of scenes."""
    side = 2 * shape.size
    if images.dim() != 4 or images.shape[1:] != (shape.channels, side, side):
        raise ValueError(f"images have to be (batch, {shape.channels}, {side}, {side}), not {tuple(images.shape)}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as it is tested, without dropout and with batch norm's running statistics; afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
