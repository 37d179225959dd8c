"""The networks a transformer is compared with, each of the size that `widths` gives it. All have torch's own initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from pipeline.params import IMAGE_SIZE, NUM_CHANNELS, NUM_CLASSES, BaselineSettings


class RowReader(nn.Module):
    """Reads an image row by row from the top, and classifies the last hidden state.

    Args:
        kind: the recurrent layer: nn.RNN, whose state goes through tanh (Elman 1990), or nn.LSTM (Hochreiter and Schmidhuber 1997).
        settings: `widths` has the units of the state.
    """

    def __init__(self, kind: type[nn.RNN] | type[nn.LSTM], settings: BaselineSettings) -> None:
        super().__init__()
        (width,) = settings.widths
        self.recurrent = kind(NUM_CHANNELS * IMAGE_SIZE, width, batch_first=True)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) in [0, 1] to logits (batch, 10)."""
        states, _ = self.recurrent(images.transpose(1, 2).flatten(2))  # (batch, row, width)
        return self.head(states[:, -1])


def cnn(settings: BaselineSettings) -> nn.Module:
    """Two blocks of two 3 x 3 convolutions, each with ReLU and batch norm, the second of a block halving the image; the mean; linear."""
    first, second = settings.widths
    return nn.Sequential(
        _convolution(NUM_CHANNELS, first, stride=1),
        _convolution(first, first, stride=2),
        _convolution(first, second, stride=1),
        _convolution(second, second, stride=2),
        nn.AvgPool2d(IMAGE_SIZE // 4),
        nn.Flatten(),
        nn.Linear(second, NUM_CLASSES),
    )


def cnn_multiply_adds(settings: BaselineSettings) -> int:
    (first, second), side = settings.widths, IMAGE_SIZE
    blocks = (NUM_CHANNELS * first * side**2, (first + second) * first * (side // 2) ** 2, second**2 * (side // 4) ** 2)
    return 9 * sum(blocks) + second * NUM_CLASSES


def _convolution(inputs: int, outputs: int, *, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs))


def lenet(settings: BaselineSettings) -> nn.Module:
    """The layers of LeNet-5 (LeCun et al. 1998) at other widths.

    Tanh and pooling by the mean, as there: it is the network of its time that is compared, not a modern one in its shape. What
    has not outlived it is left out: trained factors in the pooling, a partial table of connections, an output of distances.
    """
    first, second, *dense = settings.widths
    return nn.Sequential(
        nn.Conv2d(NUM_CHANNELS, first, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        *_dense(_lenet_features(settings), dense, nn.Tanh),
    )


def _lenet_features(settings: BaselineSettings) -> int:
    """What the convolutions leave of an image."""
    return settings.widths[1] * ((IMAGE_SIZE // 2 - 4) // 2) ** 2


def lenet_multiply_adds(settings: BaselineSettings) -> int:
    (first, second, *dense), side = settings.widths, IMAGE_SIZE
    convolutions = 25 * (NUM_CHANNELS * first * side**2 + first * second * (side // 2 - 4) ** 2)
    return convolutions + _products(_lenet_features(settings), *dense, NUM_CLASSES)


def mlp(settings: BaselineSettings) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *_dense(NUM_CHANNELS * IMAGE_SIZE**2, settings.widths, nn.ReLU))


def mlp_multiply_adds(settings: BaselineSettings) -> int:
    return _products(NUM_CHANNELS * IMAGE_SIZE**2, *settings.widths, NUM_CLASSES)


def rnn(settings: BaselineSettings) -> nn.Module:
    return RowReader(nn.RNN, settings)


def lstm(settings: BaselineSettings) -> nn.Module:
    return RowReader(nn.LSTM, settings)


def rnn_multiply_adds(settings: BaselineSettings, *, gates: int = 1) -> int:
    (width,) = settings.widths
    return IMAGE_SIZE * gates * _products(NUM_CHANNELS * IMAGE_SIZE + width, width) + _products(width, NUM_CLASSES)


def lstm_multiply_adds(settings: BaselineSettings) -> int:
    return rnn_multiply_adds(settings, gates=4)


def _products(*widths: int) -> int:
    """Multiply-adds of dense layers."""
    return sum(inputs * outputs for inputs, outputs in pairwise(widths))


def _dense(inputs: int, widths: Sequence[int], activation: type[nn.Module]) -> list[nn.Module]:
    """Hidden layers of these widths, and the output layer."""
    layers = [layer for pair in pairwise((inputs, *widths)) for layer in (nn.Linear(*pair), activation())]
    return [*layers, nn.Linear(widths[-1], NUM_CLASSES)]
