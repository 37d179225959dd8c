"""What training and evaluation share with the measures: shifts, sizes, lengths, beam width, first steps, and when one has diverged."""

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

SHIFTS = (1, 2, 3, 4)  # pixels
SIZES = (20, 24, 32, 36, 40)  # pixels along a side: with patches of 4 pixels grids of 5 to 10, where the training's 28 pixels give 7
EMPTY_ROWS = (1, 2, 4, 7)  # rows of empty patches below the image: with patches of 4 pixels sequences of 56 to 98, where training has 49
FIRST_STEPS = 10  # whose changes of the weights an evaluation measures: "the first ten steps" of Liu et al. 2020, section 3.1
BEAM_WIDTH = 5  # captions that a beam search keeps, as in Cornia et al. 2020, section 4.2
GUESS = 0.99  # of log(num_outputs): who knows only how often each class occurs reaches 2.3012 nats on MNIST, where ln 10 is 2.3026


def is_diverged(train_loss: npt.ArrayLike, num_outputs: int) -> npt.NDArray[np.bool_]:
    """Whether last train losses are not finite, or no better than that of a guess: within 1 % of log(num_outputs), or above it."""
    return ~(np.asarray(train_loss) < GUESS * math.log(num_outputs))
