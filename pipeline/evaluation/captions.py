"""Captions of the test scenes, by greedy and by beam search, and the decoder's attention."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.captioning import decoding, metrics
from pipeline.captioning.captioner import Captioner, image_attention
from pipeline.captioning.data import SceneData
from pipeline.captioning.grammar import PHRASINGS, grammar_of
from pipeline.captioning.learning import EVALUATION_BATCH, evaluate, scenes_right, shifted
from pipeline.captioning.model import CaptionModel
from pipeline.captioning.scenes import compose
from pipeline.evaluation.group import Result, Task
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.training.classification import pixels
from pipeline.training.stack import Stack

LENGTH_NORMALISATION = 0.0
EXAMPLES = 8  # scenes shown on the pages


def measure(task: Task, data: SceneData, make_stack: Callable[..., Stack], device: torch.device) -> Result:
    """See `pipeline.evaluation.inference.measure`. The training's own test uses the validation scenes.

    Returns:
        Arrays: `greedy` and `beam`, the captions of the test scenes (seed, scene, place) uint8.
        Columns, from `pipeline.captioning.metrics.summarise` for each search: of all scenes every measure (`greedy_scene_accuracy`); of
        each group the scene accuracy (`greedy_scene_accuracy_4_digits`), NaN for a group without scenes; the share of each phrasing
        (`greedy_share_rows`) and of the commonest one.
        Shared: the first scenes with their references, the classes of all scenes, the vocabulary; and, if the network has attention,
        the decoder's for the first seed's greedy captions of the first scenes, `attention` (block, level, scene, place, token) float16.
    """
    (seed,) = task.seeds  # captioners are not stacked
    model = make_stack(seed).module
    assert isinstance(model, CaptionModel)
    grammar, test = grammar_of(data.scenes.dataset), data.scenes.test
    train_images, test_images = (torch.from_numpy(images).to(device) for images in (data.dataset.train_images, data.dataset.test_images))
    loss, validated = evaluate(model, train_images, data.scenes.validation)
    right = scenes_right(validated.cpu().numpy(), data.scenes.validation, grammar)
    cells = torch.from_numpy(test.cells).long().to(device)
    arrays: dict[str, np.ndarray] = {}
    columns: dict[str, np.ndarray] = {}
    for name, search in _SEARCHES.items():
        written = [search(model, pixels(compose(test_images, part), 1)) for part in cells.split(EVALUATION_BATCH)]
        captions = torch.cat(written).to(torch.uint8).cpu().numpy()
        arrays[name] = captions[None]
        found = metrics.summarise(metrics.measure(captions, test.captions, test.labels, grammar))
        columns |= {f"{name}_{column}": np.array([value]) for column, value in _columns(found).items()}
    scenes = compose(test_images, cells[:EXAMPLES])
    shared: dict[str, Any] = {
        "scenes": scenes.cpu().numpy(),
        "cells": test.labels,
        "references": test.captions[:EXAMPLES],
        "words": np.array(data.scenes.words),
    }
    if isinstance(model, Captioner):
        words = torch.from_numpy(arrays["greedy"][0, :EXAMPLES]).long().to(device)
        shared["attention"] = image_attention(model, pixels(scenes, 1), shifted(words)).cpu().numpy().astype(np.float16)
    return Result(np.array([loss.item()]), np.array([right.mean()]), len(right), columns, arrays, shared)


_SEARCHES: dict[str, Callable[[CaptionModel, Tensor], Tensor]] = {
    "greedy": decoding.greedy,
    "beam": lambda model, images: decoding.beam(model, images, BEAM_WIDTH, LENGTH_NORMALISATION)[0],
}


def _columns(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """The columns of one search, from its `summarise`."""
    columns = {name: value for name, value in found["all"].items() if name != "share"}
    of_scenes = ["1 digit", *(f"{number} digits" for number in (2, 3, 4)), "repeats", "no repeats"]
    phrasings = [*PHRASINGS, "no phrasing"]
    for group in (*of_scenes, *phrasings):
        columns[f"scene_accuracy_{group.replace(' ', '_')}"] = found.get(group, {}).get("scene_accuracy", np.nan)
    shares = {group: found.get(group, {}).get("share", 0.0) for group in phrasings}
    columns |= {f"share_{group.replace(' ', '_')}": share for group, share in shares.items()}
    return columns | {"share_commonest": max(shares[group] for group in PHRASINGS)}
