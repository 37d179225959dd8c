"""The captioning network without attention: it maps an image to one vector, from which a recurrent layer writes the caption."""

from __future__ import annotations

from torch import Tensor, nn

from pipeline.captioning.grammar import MAX_WORDS
from pipeline.captioning.model import CaptionModel, State, Stem, check_images, stem_multiply_adds
from pipeline.params import BaselineSettings

DIM = 48  # width of a word's embedding, and channels of the stem's last convolution


class CnnLstm(CaptionModel):
    """An LSTM whose initial state comes from a CNN's vector (Vinyals et al. 2015, "Show and tell"; Xu et al. 2015 for both states).

    It has the transformer's stem, a linear map to the vector, and linear maps from the vector to the initial hidden and cell state. The
    LSTM sees the scene nowhere else. `widths` gives the size of the vector and the units of the LSTM. Weights start as torch's default.
    """

    def __init__(self, settings: BaselineSettings) -> None:
        super().__init__()
        vector, units = settings.widths
        self.shape = settings.shape
        self.stem = Stem(self.shape.channels, DIM)
        self.vector = nn.Linear(_features(settings), vector)
        self.hidden = nn.Linear(vector, units)
        self.cell = nn.Linear(vector, units)
        self.embedding = nn.Embedding(self.shape.words, DIM)
        self.lstm = nn.LSTM(DIM, units, batch_first=True)
        self.head = nn.Linear(units, self.shape.words)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        return self._write(words, *self._read(images))[0]

    def start(self, images: Tensor) -> State:
        return State((), self._read(images))

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, cell = state.rows
        logits, rows = self._write(words[:, None], hidden, cell)
        return logits[:, 0], State((), rows)

    def _read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images to the initial hidden and cell state, (image, unit) each."""
        check_images(images, self.shape)
        vector = self.vector(self.stem(images).flatten(1))
        return self.hidden(vector), self.cell(vector)

    def _write(self, words: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Words (row, place) to the logits of each next word (row, place, word), and the states after the last; rows as in `forward`."""
        hidden, cell = (state.repeat_interleave(len(words) // len(state), 0) for state in (hidden, cell))
        states, (hidden, cell) = self.lstm(self.embedding(words), (hidden[None], cell[None]))
        return self.head(states), (hidden[0], cell[0])


def _features(settings: BaselineSettings) -> int:
    """The number of features that the stem gives per scene."""
    return (-(-settings.shape.size // 8)) ** 2 * DIM


def multiply_adds(settings: BaselineSettings) -> int:
    """The multiply-adds of one scene with the longest caption; `pipeline.models.count_flops` says which count."""
    vector, units = settings.widths
    reading = stem_multiply_adds(settings.shape, DIM) + _features(settings) * vector + 2 * vector * units
    return reading + (MAX_WORDS + 1) * (4 * (DIM + units) * units + units * settings.shape.words)
