"""Views of MLflow's page of runs: a table of the study, and for each experiment of params.yaml its charts.

MLflow 3 keeps a named view as a tag of the experiment. Its page offers the views by name, and opens one by `viewStateShareKey` in its
address. A view holds filter, order, columns and charts as the page itself writes them (the fields of the page's `ExperimentPageUIState`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.params import Params
from pipeline.tracking.record import CURRENT
from pipeline.tracking.store import Store

TAG = "mlflow.sharedViewState."
STUDY = "study"  # the key of the table
MAX_RUNS = 12  # lines that a chart can tell apart
_CURRENT = f"tags.kind = 'parent' and tags.{CURRENT} = 'true'"
# With it MLflow shows an experiment as trainings; else it guesses, and opens at its overview of language models' traces.
_KIND = ("mlflow.experimentKind", "custom_model_development")
_CLASSIFIERS = ("late_accuracy", "late_accuracy_sd", "late_accuracy_low", "late_accuracy_high", "late_test_error")
_CAPTIONERS = (
    "evaluation.greedy_scene_accuracy", "late_word_accuracy", "late_word_accuracy_sd", "late_word_accuracy_low", "late_word_accuracy_high",
    "late_word_error",
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """One view.

    Attributes:
        key: what its link calls it.
        name: what MLflow's list of views calls it.
        filter: which runs it shows.
        measures: the metrics in its table, by the first of which the runs are sorted; the last is an error, with a chart.
        is_chart: whether it opens at its charts.
    """

    key: str
    name: str
    filter: str
    measures: Sequence[str] = _CLASSIFIERS
    is_chart: bool = True

    def tag(self) -> tuple[str, str]:
        """Key and value of the experiment's tag that holds the view."""
        columns = [f"metrics.`{name}`" for name in (*self.measures, "epoch_seconds", "n")] + ["params.`train.epochs`"]
        error, accuracy = self.measures[-1], self.measures[0]
        charts = [
            _curve("Test accuracy by epoch", "test_accuracy", yMin=0, yMax=1),
            _chart("BAR", "Test error, mean over the late epochs", metricKey=error),
            _chart("SCATTER", "Accuracy and seconds of an epoch", xaxis=_axis("epoch_seconds"), yaxis=_axis(accuracy)),
            _curve("Test loss by epoch", "test_loss"),
            _curve("Train loss by epoch", "train_loss"),
            _chart(
                "DIFFERENCE", "Settings that differ", compareGroups=["Parameters"], showDifferencesOnly=True, showChangeFromBaseline=False
            ),
        ]
        state = {
            "searchFilter": self.filter, "orderByKey": columns[0], "orderByAsc": False, "runsHiddenMode": "SHOW_ALL",
            "selectedColumns": columns, "columnOrder": columns, "columnWidths": dict.fromkeys(columns, 130) | {"metrics.`n`": 60},
            "compareRunCharts": charts if self.is_chart else [], "isAccordionReordered": True,
            # The charts that MLflow adds by itself, one for each metric, are folded.
            "compareRunSections": [_section("study", self.name, is_open=True), _section("all", "Model metrics", is_open=False)],
            "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        }  # fmt: skip
        return f"{TAG}{self.key}", json.dumps({"name": self.name, "createdAt": 0, "state": json.dumps(state)})


def views_of(study: Params | None) -> list[View]:
    """The table, and the views of the study's experiments."""
    found = [View(STUDY, "The study, a row for each variant", f"{_CURRENT} and metrics.late_accuracy >= 0", is_chart=False)]
    for name, experiment in study.experiments.items() if study else ():
        where, variants = f"{_CURRENT} and tags.experiments LIKE '%,{name},%'", experiment.variants
        where += "".join(f" and tags.variant != '{variant}'" for variant in variants[MAX_RUNS:])
        task = study.resolve(variants[0]).task if study else ""
        found.append(View(name, experiment.title, where, _CAPTIONERS if task == "captioning" else _CLASSIFIERS))
    return found


def show(store: Store, experiment: str, study: Params | None) -> None:
    """Gives an MLflow experiment the views that it lacks. One that is there stays, because a user may have changed it."""
    there = store.call("get_experiment", experiment).tags
    for key, value in (_KIND, *(view.tag() for view in views_of(study))):
        if key not in there:
            store.call("set_experiment_tag", experiment, key, value)


def link(address: str, experiment: str, key: str = STUDY, *, mode: str = "TABLE") -> str:
    """The page of an experiment's runs in a view.

    Args:
        address: of the server, without a final slash.
        experiment: its id.
        mode: "TABLE" or "CHART".
    """
    return f"{address}/#/experiments/{experiment}/runs?viewStateShareKey={key}&compareRunsMode={mode}&workflowType=machine_learning"


def _section(uuid: str, name: str, *, is_open: bool) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": is_open, "isReordered": True, "deleted": False, "isGenerated": False}


def _axis(metric: str) -> dict[str, str]:
    return {"key": metric, "type": "METRIC"}


def _chart(kind: str, title: str, **settings: Any) -> dict[str, Any]:
    shared = {"deleted": False, "isGenerated": False, "runsCountToCompare": MAX_RUNS, "metricSectionId": "study"}
    return {"uuid": title, "type": kind, **shared, **settings}


def _curve(title: str, metric: str, **ends: float) -> dict[str, Any]:
    shared = {"xAxisKey": "step", "scaleType": "linear", "lineSmoothness": 0, **({"range": ends} if ends else {})}
    return _chart("LINE", title, metricKey=metric, selectedMetricKeys=[metric], **shared)
