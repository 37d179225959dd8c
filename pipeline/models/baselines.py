"""The networks that a transformer is compared with; `widths` gives their sizes. All have torch's default initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from pipeline.params import BaselineSettings


class RowReader(nn.Module):
    """Reads an image row by row from the top, and classifies the last hidden state.

    Args:
        kind: the recurrent layer: nn.RNN with tanh (Elman 1990), or nn.LSTM (Hochreiter and Schmidhuber 1997).
        settings: `widths` is the number of units of the state.
    """

    def __init__(self, kind: type[nn.RNN] | type[nn.LSTM], settings: BaselineSettings) -> None:
        super().__init__()
        (width,) = settings.widths
        size, channels, classes = settings.shape[:3]
        self.recurrent = kind(channels * size, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) in [0, 1] to logits (batch, class)."""
        states, _ = self.recurrent(images.transpose(1, 2).flatten(2))  # (batch, row, width)
        return self.head(states[:, -1])


def cnn(settings: BaselineSettings) -> nn.Module:
    """Two blocks of two 3 x 3 convolutions, each with ReLU and batch norm; the second of a block halves the image. Then mean and linear."""
    first, second = settings.widths
    size, channels, classes = settings.shape[:3]
    return nn.Sequential(
        _convolution(channels, first, stride=1),
        _convolution(first, first, stride=2),
        _convolution(first, second, stride=1),
        _convolution(second, second, stride=2),
        nn.AvgPool2d(-(-size // 4)),
        nn.Flatten(),
        nn.Linear(second, classes),
    )


def cnn_multiply_adds(settings: BaselineSettings) -> int:
    first, second = settings.widths
    size, channels, classes = settings.shape[:3]
    half, quarter = -(-size // 2), -(-size // 4)
    blocks = (channels * first * size**2, (first + second) * first * half**2, second**2 * quarter**2)
    return 9 * sum(blocks) + second * classes


def _convolution(inputs: int, outputs: int, *, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs))


def lenet(settings: BaselineSettings) -> nn.Module:
    """The layers of LeNet-5 (LeCun et al. 1998) at other widths.

    Tanh and mean pooling are as in the paper, because the network of its time is compared, not a modern one of the same shape. Parts
    that later networks dropped are left out: the factors of tanh and its use after pooling, trained factors in the pooling, the partial
    connection table, RBF outputs.
    """
    first, second, *dense = settings.widths
    return nn.Sequential(
        nn.Conv2d(settings.shape.channels, first, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        *_dense(_lenet_features(settings), dense, settings.shape.classes, nn.Tanh),
    )


def _lenet_features(settings: BaselineSettings) -> int:
    """The number of features that the convolutions give per image."""
    return settings.widths[1] * ((settings.shape.size // 2 - 4) // 2) ** 2


def lenet_multiply_adds(settings: BaselineSettings) -> int:
    first, second, *dense = settings.widths
    size, channels, classes = settings.shape[:3]
    convolutions = 25 * (channels * first * size**2 + first * second * (size // 2 - 4) ** 2)
    return convolutions + _products(_lenet_features(settings), *dense, classes)


def mlp(settings: BaselineSettings) -> nn.Module:
    size, channels, classes = settings.shape[:3]
    return nn.Sequential(nn.Flatten(), *_dense(channels * size**2, settings.widths, classes, nn.ReLU))


def mlp_multiply_adds(settings: BaselineSettings) -> int:
    size, channels, classes = settings.shape[:3]
    return _products(channels * size**2, *settings.widths, classes)


def rnn(settings: BaselineSettings) -> nn.Module:
    return RowReader(nn.RNN, settings)


def lstm(settings: BaselineSettings) -> nn.Module:
    return RowReader(nn.LSTM, settings)


def rnn_multiply_adds(settings: BaselineSettings, *, gates: int = 1) -> int:
    (width,) = settings.widths
    size, channels, classes = settings.shape[:3]
    return size * gates * _products(channels * size + width, width) + _products(width, classes)


def lstm_multiply_adds(settings: BaselineSettings) -> int:
    return rnn_multiply_adds(settings, gates=4)


def _products(*widths: int) -> int:
    """Multiply-adds of dense layers of these widths."""
    return sum(inputs * outputs for inputs, outputs in pairwise(widths))


def _dense(inputs: int, widths: Sequence[int], classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """Hidden layers of these widths, each with its activation, and the output layer."""
    layers = [layer for pair in pairwise((inputs, *widths)) for layer in (nn.Linear(*pair), activation())]
    return [*layers, nn.Linear(widths[-1], classes)]
