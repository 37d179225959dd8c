"""Self-critical sequence training: sampled captions become more probable if they score better than the scene's other samples.

Rennie et al. 2017 use the greedy caption's reward as the baseline. Cornia et al. 2020 (section 3.3) use the samples' mean, as here.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pipeline.captioning.metrics import FloatArray


def advantages(rewards: FloatArray) -> FloatArray:
    """Each sample's reward minus the mean reward of its scene's samples.

    Args:
        rewards: (scene, sample), for example CIDEr-D.

    Returns:
        (scene, sample).
    """
    return np.asarray(rewards - rewards.mean(1, keepdims=True))


def self_critical_losses(log_probabilities: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """The mean over each scene's samples of -(r - b) log p(caption), whose gradient is that of Cornia et al. 2020, section 3.3.

    Args:
        log_probabilities: of the sampled words, (scene, sample, place).
        mask: whether a place belongs to the caption, EOS included; other places are ignored, (scene, sample, place).
        advantages: r - b, (scene, sample); no gradient flows through them.

    Returns:
        (scene,).
    """
    captions = log_probabilities.masked_fill(~mask, 0).sum(-1)
    return -(advantages.detach() * captions).mean(-1)
