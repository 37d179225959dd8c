"""The figure of what is taken for what, by hand; a network that errs nowhere has one, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.report.figures.errors import draw_errors, errors

LABELS = np.array([0, 0, 1, 2], np.uint8)
IMAGES = np.arange(4 * 9, dtype=np.uint8).reshape(4, 1, 3, 3)


def material(**answers: list[list[int]]) -> Any:
    runs = [
        SimpleNamespace(
            predictions=(np.array(given, np.uint8), LABELS),
            settings=SimpleNamespace(model=SimpleNamespace(shape=SimpleNamespace(classes=3))),
            accuracy=(np.array(given) == LABELS).mean(1),
            label=name,
        )
        for name, given in answers.items()
    ]
    return SimpleNamespace(runs=runs, test_images=IMAGES, label=lambda run: run.label, is_baseline=lambda run: run.label == "base")


def test_shares_of_classes_and_the_images_that_most_seeds_miss() -> None:
    (picture,) = errors(material(base=[[0, 1, 1, 2], [0, 1, 1, 0]], other=[[0, 0, 1, 2], [0, 0, 1, 2]]))
    base, other = picture.draw.args[0]
    assert base.confusion == pytest.approx(np.array([[0.5, 0.5, 0], [0, 1, 0], [0.5, 0, 0.5]]))
    assert base.said == ("0 as 1\n2 of 2", "2 as 0\n1 of 2")
    assert base.images == pytest.approx(IMAGES[[1, 3], 0] / 255)
    assert other.confusion == pytest.approx(np.eye(3))
    assert other.said == ()
    draw_errors([base, other]).canvas.draw()
