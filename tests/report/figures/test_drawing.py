"""The table of figures, and their captions where there is little to show."""

from __future__ import annotations

from typing import get_args

import numpy as np

from pipeline.params import ExperimentSettings, Figure, Params
from pipeline.report.figures import Material, drawings
from pipeline.report.figures.drawing import REGISTERED
from pipeline.study import Training


def test_every_figure_that_params_may_name_is_registered() -> None:
    assert REGISTERED.keys() == set(get_args(Figure))


def test_one_seed_has_no_bands_and_the_caption_says_so(study: Params) -> None:
    experiment = ExperimentSettings(title="One", question="Is it?", source="code", baseline="base", variants=("base", "relu"))
    curves = {name: np.full((1, 2), 0.5) for name in ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "seconds")}
    run = Training("base", {"config": study.resolve("base").model_dump(mode="json")}, (0,), curves)
    assert drawings("curves", Material("one", experiment, [])) == []
    (drawing,) = drawings("curves", Material("one", experiment, [run]))
    assert drawing.name == "one-curves"
    assert "One seed (n = 1), so no bands." in drawing.caption
