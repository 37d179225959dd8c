"""The interface of captioning models for generation, and the convolutional stem that they share."""

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
    """A model's state while it writes captions word by word.

    A row is one caption that is being written. All images have equally many rows, and an image's rows are adjacent.

    Attributes:
        images: tensors (image, ...), kept once for all rows of an image.
        rows: tensors (row, ...), which depend on the row's own words.
    """

    images: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    def select(self, rows: Tensor) -> State:
        """The state whose rows are the old rows with the indices `rows` (new row,) int64; an index may occur more than once.

        Every image has to keep equally many rows, and the images have to stay in order.
        """
        return State(self.images, tuple(kept[rows] for kept in self.rows))


class CaptionModel(nn.Module, ABC):
    """A network that computes the logits of each next word of a scene's caption, for whole captions or word by word."""

    @abstractmethod
    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """The logits of every next word, given the words before it.

        Args:
            images: (batch, channel, height, width) in [0, 1].
            words: (row, place) int64, starting with BOS and padded with PAD, at most MAX_WORDS + 1 places. All images have equally
                many rows, and an image's rows are adjacent.

        Returns:
            (row, place, word): at each place, the logits of the word that follows.
        """

    @abstractmethod
    def start(self, images: Tensor) -> State:
        """Reads images (image, channel, height, width) in [0, 1]. The state has one row per image, without words."""

    @abstractmethod
    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Appends a word to every row.

        Args:
            words: (row,) int64; in the first call BOS.
            state: before these words.

        Returns:
            The logits of the next words (row, word), and the state after these words.
        """


class Stem(nn.Sequential):
    """Four 3 x 3 convolutions of stride 2, each with batch norm and ReLU: a scene of 56 x 56 pixels becomes 4 x 4 places.

    Args:
        channels: values per pixel.
        dim: channels of the last convolution; the others have 16, 32 and 48.
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
    """The multiply-adds of one scene, whose side is twice `shape.size`; `pipeline.models.count_flops` says which count."""
    side, total = 2 * shape.size, 0
    for inputs, outputs in pairwise(_widths(shape.channels, dim)):
        side = -(-side // 2)
        total += 9 * inputs * outputs * side**2
    return total


def check_images(images: Tensor, shape: Shape) -> None:
    """Raises ValueError unless images are scenes (batch, channel, height, width)."""
    side = 2 * shape.size
    if images.dim() != 4 or images.shape[1:] != (shape.channels, side, side):
        raise ValueError(f"images have to be (batch, {shape.channels}, {side}, {side}), not {tuple(images.shape)}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode, without dropout and with batch norm's running statistics; then restores its mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
