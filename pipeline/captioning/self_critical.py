"""Self-critical sequence training: sampled captions that score better than their scene's others become more probable.

Rennie et al. 2017 take the greedy caption's reward as the baseline, Cornia et al. 2020 (section 3.3) the mean of the samples', as here.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pipeline.measures.definitions import FloatArray


def advantages(rewards: FloatArray) -> FloatArray:
    """How much better each sample is than the mean of its scene's samples; a scene's sum to 0.

    Args:
        rewards: (scene, sample), for example CIDEr-D.

    Returns:
        (scene, sample).

    Raises:
        ValueError: a scene has fewer than two samples, so that nothing would be learned.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"self-critical training compares the samples of a scene: it needs two or more, not {rewards.shape[1]}")
    return np.asarray(rewards - rewards.mean(1, keepdims=True))


def self_critical_losses(log_probabilities: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """Of each scene the mean over its samples of -(r - b) log p(caption), whose gradient is that of Cornia et al. 2020, section 3.3.

    Args:
        log_probabilities: of the words that were sampled, (scene, sample, place).
        mask: whether a place belongs to the caption, its EOS included; what lies behind may be anything, (scene, sample, place).
        advantages: r - b, constants, (scene, sample).

    Returns:
        (scene,).
    """
    captions = log_probabilities.masked_fill(~mask, 0).sum(-1)
    return -(advantages.detach() * captions).mean(-1)
