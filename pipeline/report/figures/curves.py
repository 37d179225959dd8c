"""Learning curves: losses and test error by epoch."""

from __future__ import annotations

import textwrap
from functools import partial

from pipeline.report.figures import panels
from pipeline.report.figures.base import Material, Picture, figure
from pipeline.report.figures.panels import Line, Panel, of_epochs

MAX_LINES = 6  # in one panel; with more variants each has a panel


@figure("curves")
def curves(material: Material) -> list[Picture]:
    """Losses and test error after each epoch; of many variants a panel each."""
    scenes = any(run.settings.task == "captioning" for run in material.runs)
    error = "scene error on the validation scenes" if scenes else "test error"
    if len(material.runs) > MAX_LINES:
        caption = f"{error.capitalize()} after each epoch, one variant in each panel. The number is the mean error after the last epoch."
        return [Picture(caption, partial(panels.draw, _by_variant(material)))]
    losses: list[Line] = []
    errors: list[Line] = []
    for run in material.runs:
        label, is_baseline = material.label(run), material.is_baseline(run)
        losses += [of_epochs(label, run.test_loss, is_baseline), of_epochs("", run.train_loss, dashed=True)]
        errors.append(of_epochs(label, run.test_error, is_baseline))
    both = [
        Panel("Loss (nats, log scale); dashed: train", "epoch", losses, "losses", "epochs"),
        Panel("Error (%, log scale)", "epoch", errors, "errors", "epochs"),
    ]
    return [Picture(f"Losses and {error} after each epoch.", partial(panels.draw, both))]


def _by_variant(material: Material) -> list[Panel]:
    """Test error: a panel for each variant but the baseline, in colour, which stands in each in ink."""
    last = {run.variant: f"{100 * run.test_error[:, -1].mean():.2f} %" for run in material.runs}
    found: list[Panel] = []
    shared = [
        of_epochs(f"{material.label(run)}, the baseline: {last[run.variant]}", run.test_error, True)
        for run in material.runs
        if material.is_baseline(run)
    ]
    for run in material.runs:
        if not material.is_baseline(run):
            title = f"{textwrap.fill(material.label(run), 21)}\n{last[run.variant]}"
            found.append(Panel(title, "epoch", [*shared, of_epochs("the panel's variant", run.test_error)], "errors", "epochs"))
    return found
