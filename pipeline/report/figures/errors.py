"""What is taken for what: confusion matrices, and the test images that most seeds answer wrongly."""

from functools import partial

import numpy as np

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures import tiles
from pipeline.report.figures.base import Material, Picture, figure
from pipeline.report.figures.tiles import Tile
from pipeline.study import Training


@figure("errors")
def errors(material: Material) -> list[Picture]:
    """What is taken for what, and the test images that most seeds answer wrongly."""
    known = [run for run in material.runs if run.predictions is not None]
    others = [run for run in known if not material.is_baseline(run)]
    best = max(others, key=lambda run: float(run.accuracy.mean()), default=None)
    shown = [run for run in known if material.is_baseline(run) or run is best]
    caption = (
        "What is taken for what after the last epoch, by the baseline and by the other variant with the fewest errors: of the test images "
        "of a class the share (%) that is answered as each class, mean over the seeds; none where it is below 0.05. Below: the images that "
        "most seeds answer wrongly, with the right class, the commonest wrong answer, and how many seeds are wrong."
    )
    return [Picture(caption, partial(tiles.draw_errors, [_of(run, material) for run in shown]))] if shown else []


def _of(run: Training, material: Material) -> tuple[str, FloatArray, list[Tile]]:
    """Label, (class, answer) shares of a class's test images, mean over the seeds, and the images that most seeds answer wrongly."""
    assert run.predictions is not None
    predictions, labels = (array.astype(np.int64) for array in run.predictions)
    classes = run.settings.model.shape.classes
    counts = np.bincount((labels * classes + predictions).ravel(), minlength=classes**2).reshape(classes, classes)
    wrong, worst = (predictions != labels).sum(0), []
    for image in np.argsort(-wrong, kind="stable")[: tiles.ROWS * tiles.COLUMNS]:
        if wrong[image] and material.test_images is not None:
            pixels = np.asarray(material.test_images[image], dtype=np.float64) / 255
            shown = pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, -1)
            answers = predictions[predictions[:, image] != labels[image], image]
            said = f"{labels[image]} as {np.bincount(answers).argmax()}\n{wrong[image]} of {len(predictions)}"
            worst.append(Tile(shown, "greys", said))
    return material.label(run), counts / np.maximum(counts.sum(1, keepdims=True), 1), worst
