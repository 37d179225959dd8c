"""The networks a transformer is compared with, each of the size that `widths` gives it. All have torch's own initial weights."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from pipeline.params import IMAGE_SIZE, NUM_CHANNELS, NUM_CLASSES, BaselineSettings


def build_baseline(settings: BaselineSettings) -> nn.Module:
    """The network `settings.architecture` names: images (batch, 1, 28, 28) in [0, 1] to logits (batch, 10)."""
    match settings.architecture:
        case "cnn":
            return _cnn(*settings.widths)
        case "lenet":
            return _lenet(*settings.widths)
        case "mlp":
            return nn.Sequential(nn.Flatten(), *_dense(NUM_CHANNELS * IMAGE_SIZE**2, settings.widths, nn.ReLU))
        case "rnn":
            return RowReader(nn.RNN, *settings.widths)
        case "lstm":
            return RowReader(nn.LSTM, *settings.widths)


class RowReader(nn.Module):
    """Reads an image row by row from the top, and classifies the last hidden state.

    Args:
        kind: the recurrent layer: nn.RNN, whose state goes through tanh (Elman 1990), or nn.LSTM (Hochreiter and Schmidhuber 1997).
        width: units of the state.
    """

    def __init__(self, kind: type[nn.RNN] | type[nn.LSTM], width: int) -> None:
        super().__init__()
        self.recurrent = kind(NUM_CHANNELS * IMAGE_SIZE, width, batch_first=True)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) in [0, 1] to logits (batch, 10)."""
        states, _ = self.recurrent(images.transpose(1, 2).flatten(2))  # (batch, row, width)
        return self.head(states[:, -1])


def _cnn(first: int, second: int) -> nn.Module:
    """Two blocks of two 3 x 3 convolutions, each with ReLU and batch norm, the second of a block halving the image; the mean; linear."""
    return nn.Sequential(
        _convolution(NUM_CHANNELS, first, stride=1),
        _convolution(first, first, stride=2),
        _convolution(first, second, stride=1),
        _convolution(second, second, stride=2),
        nn.AvgPool2d(IMAGE_SIZE // 4),
        nn.Flatten(),
        nn.Linear(second, NUM_CLASSES),
    )


def _convolution(inputs: int, outputs: int, *, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs))


def _lenet(first: int, second: int, third: int, fourth: int) -> nn.Module:
    """The layers of LeNet-5 (LeCun et al. 1998) at other widths.

    Tanh and pooling by the mean, as there: it is the network of its time that is compared, not a modern one in its shape. What
    has not outlived it is left out: trained factors in the pooling, a partial table of connections, an output of distances.
    """
    return nn.Sequential(
        nn.Conv2d(NUM_CHANNELS, first, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        *_dense(second * 5**2, (third, fourth), nn.Tanh),
    )


def _dense(inputs: int, widths: tuple[int, ...], activation: type[nn.Module]) -> list[nn.Module]:
    """Hidden layers of these widths, and the output layer."""
    layers = [layer for pair in pairwise((inputs, *widths)) for layer in (nn.Linear(*pair), activation())]
    return [*layers, nn.Linear(widths[-1], NUM_CLASSES)]
