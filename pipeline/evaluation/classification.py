"""Classifiers tested on the test images as they are, shifted and scaled, and the probes of their attention and gradients."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from pipeline.data.datasets import Dataset
from pipeline.evaluation import recurrence, saturation
from pipeline.evaluation.attention import NUM_IMAGES, probe
from pipeline.evaluation.group import Result, Task
from pipeline.measures.definitions import EMPTY_ROWS, SHIFTS, SIZES, FloatArray
from pipeline.measures.positions import table_correlation
from pipeline.models.pixels import scaled
from pipeline.models.positions import interpolated, sincos2d_table, sinusoidal_table
from pipeline.params import ModelSettings
from pipeline.training.classification import evaluate, fit_pixels
from pipeline.training.stack import Stack, initial_model

CLASSES_MAPPED = 10  # maps that fit side by side on a page


def measure(task: Task, dataset: Dataset, make_stack: Callable[..., Stack], device: torch.device) -> Result:
    """See `pipeline.evaluation.inference.measure`.

    Returns:
        Arrays: `predictions` (seed, image), of the labels' type; with the probe `positions`, and where they are fixed, also the vectors
        added to the tokens (seed, token, dim) float32; with the probe `attention` also `rollout`.
        Columns: `validation_loss` and `validation_accuracy`, on training images that were held out, if any. As the probes ask: `shift_N`,
        accuracy under shifts of N pixels, mean over the directions; `size_N`, accuracy on images scaled to a side of N pixels; `rows_N`,
        accuracy with N rows of empty patches below the image; those of `attention.probe`, `saturation.measure` and `position_columns`;
        `state_gradient`, see `pipeline.evaluation.recurrence`. A column of saturation or recurrence has a second one with the ending
        `_start`, which is that of the untrained models.
        Shared: the labels of the test images; with the probe `attention` also one image of each class, and the first seed's maps and
        patch filters.
    """
    stack, model = make_stack(*task.seeds), cast("ModelSettings", task.settings.model)  # which those are that have a probe's options
    images, labels = torch.from_numpy(dataset.test_images).to(device), torch.from_numpy(dataset.test_labels).long().to(device)

    def accuracy(images: Tensor, stack: Stack, seeds: Sequence[int] = task.seeds) -> FloatArray:
        """(seed,): of images in the test images' place."""
        return (evaluate(stack, images, labels, num_seeds=len(seeds))[1] == labels).double().mean(1).cpu().numpy()

    def add(found: Iterable[Mapping[str, float]], end: str = "") -> None:
        """Adds columns of what was found of each seed's network."""
        each = list(found)
        columns.update({f"{name}{end}": np.array([one[name] for one in each]) for name in each[0]})

    losses, predictions = evaluate(stack, images, labels, num_seeds=len(task.seeds))
    arrays = {"predictions": predictions.cpu().numpy().astype(dataset.test_labels.dtype)}
    shared: dict[str, np.ndarray] = {"labels": dataset.test_labels}
    columns: dict[str, FloatArray] = {}
    if held := task.settings.train.validation:
        held_images = torch.from_numpy(dataset.train_images[-held:]).to(device)
        held_labels = torch.from_numpy(dataset.train_labels[-held:]).long().to(device)
        held_losses, predicted = evaluate(stack, held_images, held_labels, num_seeds=len(task.seeds))
        columns["validation_loss"] = held_losses.cpu().numpy()
        columns["validation_accuracy"] = (predicted == held_labels).double().mean(1).cpu().numpy()
    if "shifts" in task.probes:
        for by in SHIFTS:
            moved = [accuracy(shift(images, *step), stack) for step in ((-by, 0), (by, 0), (0, -by), (0, by))]
            columns[f"shift_{by}"] = np.mean(moved, 0)
    if "sizes" in task.probes:
        for size in SIZES:
            columns[f"size_{size}"] = accuracy(scale(images, size), at_size(stack, task, size, device))
        for rows in EMPTY_ROWS:
            longer = [accuracy(images, lengthened(make_stack(seed), model, rows), (seed,)) for seed in task.seeds]
            columns[f"rows_{rows}"] = np.concatenate(longer)
    if "attention" in task.probes:
        places = np.unique(dataset.test_labels, return_index=True)[1][:CLASSES_MAPPED]
        seen = dataset.test_images[:NUM_IMAGES], dataset.test_labels[:NUM_IMAGES], (digits := dataset.test_images[places])
        # Maps need plain modules, not stacks.
        found, maps, rolled = zip(*(probe(make_stack(seed).module, model, *seen) for seed in task.seeds), strict=True)
        add(found)
        arrays["rollout"] = np.stack(rolled)
        filters = make_stack(task.seeds[0]).module.get_parameter("embedding.project.weight").detach()
        shared |= {"images": digits, "image_labels": dataset.test_labels[places], "maps": maps[0]}
        shared["filters"] = filters.flatten(1).double().cpu().numpy()  # (token channel, value of a patch)
    if "saturation" in task.probes:
        some = dataset.test_images[: saturation.NUM_IMAGES], dataset.test_labels[: saturation.NUM_IMAGES]
        for end, modules in _ends(task, dataset, make_stack, device).items():
            add((saturation.measure(module, model, *some) for module in modules), end)
    own = isinstance(model, ModelSettings) and ("positions" in task.probes or model.position != "learned")
    if own and (position := stack.position()) is not None:
        arrays["positions"] = position.cpu().numpy()
    if "positions" in task.probes and not model.dim % 4 and not task.settings.train.pretrained:  # a table of two dimensions takes fours
        columns |= position_columns(model, task.seeds, arrays["positions"].astype(np.float64))
    if "recurrence" in task.probes:
        some = dataset.test_images[: recurrence.NUM_IMAGES], dataset.test_labels[: recurrence.NUM_IMAGES]
        for end, modules in _ends(task, dataset, make_stack, device).items():
            add(({"state_gradient": recurrence.log_ratio(recurrence.state_gradients(one, *some))} for one in modules), end)
    accuracies = (arrays["predictions"] == dataset.test_labels).mean(1)
    return Result(losses.cpu().numpy(), accuracies, len(labels), columns, arrays, shared)


def position_columns(settings: ModelSettings, seeds: Sequence[int], positions: FloatArray) -> dict[str, FloatArray]:
    """The similarity of position vectors to the fixed tables.

    Args:
        positions: (seed, token, dim), after training.

    Returns:
        (seed,) each: `positions_1d` and `positions_2d`, see `table_correlation`; for learned vectors also `position_changes_1d` and
        `_2d`, the same for the difference from the initial vectors. NaN if vectors are not finite.
    """
    patches = slice(int(settings.has_cls), None)
    tables = {
        "1d": sinusoidal_table(settings.num_tokens, settings.dim)[patches].double().numpy(),
        "2d": sincos2d_table(settings.grid, settings.dim).double().numpy(),
    }
    kinds = {"positions": positions}
    if settings.position == "learned":
        initial = [initial_model(settings, seed).get_parameter("position").detach() for seed in seeds]
        kinds["position_changes"] = positions - torch.stack(initial).double().numpy()
    return {
        f"{kind}_{name}": np.array(
            [table_correlation(one[patches], table) if np.isfinite(one).all() else math.nan for one in vectors], dtype=np.float64
        )
        for kind, vectors in kinds.items()
        for name, table in tables.items()
    }


def _ends(task: Task, dataset: Dataset, make_stack: Callable[..., Stack], device: torch.device) -> dict[str, list[nn.Module]]:
    """The plain modules of the task's seeds, untrained and trained, by the ending of their columns' names."""
    untrained = [initial_model(task.settings.model, seed).to(device) for seed in task.seeds]
    for module in untrained:
        fit_pixels(task.settings, dataset, module.state_dict())
    return {"_start": untrained, "": [make_stack(seed).module for seed in task.seeds]}


def shift(images: Tensor, down: int, right: int) -> Tensor:
    """Images (..., height, width) moved by whole pixels, up and left if negative, and filled with zeros."""
    return pad(images, (right, -right, down, -down))


def scale(images: Tensor, size: int) -> Tensor:
    """Images (image, height, width) or (image, channel, height, width) in [0, 255] scaled to a side of `size` pixels, float32.

    Bilinear; in smaller images every pixel is a weighted mean of all pixels that it covers.
    """
    channels = images.unsqueeze(1) if images.dim() == 3 else images
    scaled = interpolate(channels.float(), (size, size), mode="bilinear", align_corners=False, antialias=True)
    return scaled[:, 0] if images.dim() == 3 else scaled


def at_size(stack: Stack, task: Task, size: int, device: torch.device) -> Stack:
    """The trained models for images of another side: the same weights, with position vectors for more or fewer patches.

    Fixed and learned vectors are treated alike: both are interpolated by the places of the patches.

    Args:
        size: pixels, a multiple of the patch.
    """
    settings = cast("ModelSettings", task.settings.model).at_size(size)
    resized = Stack(settings, task.seeds, device)
    state, position = stack.state(), stack.position()
    if position is not None:
        position = interpolated(position, settings.grid, has_cls=settings.has_cls)
        state |= {"position": position} if "position" in state else {}
    resized.load(state)
    if (own := resized.position()) is not None and position is not None:
        own.copy_(position)  # a fixed table is no part of the state
    return resized


def lengthened(stack: Stack, settings: ModelSettings, rows: int) -> Stack:
    """A trained model of one seed, changed to add rows of empty patches below every image: a longer sequence that says no more.

    A fixed table is continued by its formula. Of learned vectors, which have none, those of the last row stand for the new ones, as
    where vectors are interpolated beyond the outermost patches.
    """
    module, grid, position = stack.module, settings.grid, stack.position()
    if position is not None:
        if settings.position == "sinusoidal":
            more = sinusoidal_table(settings.num_tokens + rows * grid, settings.dim)[-rows * grid :]
        elif settings.position == "sincos2d":
            more = sincos2d_table(grid + rows, settings.dim).unflatten(0, (grid + rows, grid + rows))[grid:, :grid].flatten(0, 1)
        else:
            more = position[0, -grid:].repeat(rows, 1)
        del module.position
        module.register_buffer("position", torch.cat([position[0], more.to(position)]), persistent=False)
    side, channels = settings.shape.size, settings.shape.channels

    def extend(embedding: nn.Module, _: tuple[Tensor, ...], tokens: Tensor) -> Tensor:
        empty = embedding.forward(scaled(module, tokens.new_zeros(1, channels, side, side)))[:, :grid].repeat(1, rows, 1)
        return torch.cat([tokens, empty.expand(len(tokens), -1, -1)], 1)

    module.get_submodule("embedding").register_forward_hook(extend)
    return stack
