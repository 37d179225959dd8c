"""Views of MLflow's page of runs: a table of the study, and for each experiment of params.yaml its charts.

MLflow 3 keeps a named view as a tag of the experiment. Its page offers the views by name, and opens one by `viewStateShareKey` in its
address. A view holds filter, order, columns and charts as the page itself writes them (the fields of the page's `ExperimentPageUIState`).
"""

import json
from typing import Any, NamedTuple

from pipeline.params import Params
from pipeline.tracking.record import CURRENT
from pipeline.tracking.store import Store

STUDY = "study"  # the key of the table
MAX_RUNS = 12  # lines that a chart can tell apart
_CURRENT = f"tags.kind = 'parent' and tags.{CURRENT} = 'true'"
_SPREAD = ("", "_sd", "_low", "_high")


class View(NamedTuple):
    """One view.

    Attributes:
        key: what its link calls it.
        name: what MLflow's list of views calls it.
        filter: which runs it shows.
        of: "", or "scene" for captioners, whose accuracy is that of scenes.
    """

    key: str
    name: str
    filter: str
    of: str = ""

    def tag(self) -> tuple[str, str]:
        """Key and value of the experiment's tag that holds the view."""
        late = "late_scene" if self.of else "late"
        measures = [*(["evaluation.greedy_scene_accuracy"] if self.of else []), *(f"{late}_accuracy{end}" for end in _SPREAD)]
        measures += [f"{late}_error" if self.of else f"{late}_test_error", "epoch_seconds", "n"]
        columns = [*(f"metrics.`{name}`" for name in measures), "params.`train.epochs`"]
        pace = {"xaxis": {"key": "epoch_seconds", "type": "METRIC"}, "yaxis": {"key": measures[0], "type": "METRIC"}}
        charts = [
            _curve("Test accuracy by epoch", "test_accuracy", range={"yMin": 0, "yMax": 1}),
            _chart("BAR", "Test error, mean over the late epochs", metricKey=measures[-3]),
            _chart("SCATTER", "Accuracy and seconds of an epoch", **pace),
            _curve("Test loss by epoch", "test_loss"),
            _curve("Train loss by epoch", "train_loss"),
            _chart("DIFFERENCE", "Settings that differ", compareGroups=["Parameters"], showDifferencesOnly=True),
        ]
        state = {
            "searchFilter": self.filter, "orderByKey": columns[0], "orderByAsc": False, "runsHiddenMode": "SHOW_ALL",
            "selectedColumns": columns, "columnOrder": columns, "columnWidths": dict.fromkeys(columns, 130) | {"metrics.`n`": 60},
            "compareRunCharts": [] if self.key == STUDY else charts, "isAccordionReordered": True,
            # The charts that MLflow adds by itself, one for each metric, are folded.
            "compareRunSections": [_section("study", self.name, True), _section("all", "Model metrics", False)],
            "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        }  # fmt: skip
        return f"mlflow.sharedViewState.{self.key}", json.dumps({"name": self.name, "createdAt": 0, "state": json.dumps(state)})


def views_of(study: Params | None) -> list[View]:
    """The table, and the views of the study's experiments."""
    found = [View(STUDY, "The study, a row for each variant", f"{_CURRENT} and metrics.late_accuracy >= 0")]
    for name, experiment in study.experiments.items() if study else ():
        where, variants = f"{_CURRENT} and tags.experiments LIKE '%,{name},%'", experiment.variants
        where += "".join(f" and tags.variant != '{variant}'" for variant in variants[MAX_RUNS:])
        task = study.resolve(variants[0]).task if study else ""
        found.append(View(name, experiment.title, where, "scene" if task == "captioning" else ""))
    return found


def show(store: Store, experiment: str, study: Params | None) -> None:
    """Gives an MLflow experiment the views that it lacks. One that is there stays, because a user may have changed it."""
    there = store.get_experiment(experiment).tags
    # With this kind MLflow shows an experiment as trainings; else it guesses, and opens at its overview of language models' traces.
    for key, value in (("mlflow.experimentKind", "custom_model_development"), *(view.tag() for view in views_of(study))):
        if key not in there:
            store.set_experiment_tag(experiment, key, value)


def link(address: str, experiment: str) -> str:
    """The page of an MLflow experiment's runs, at the study's table. `address`: of the server, without a final slash."""
    return f"{address}/#/experiments/{experiment}/runs?viewStateShareKey={STUDY}&compareRunsMode=TABLE&workflowType=machine_learning"


def _section(uuid: str, name: str, is_open: bool) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": is_open, "isReordered": True, "deleted": False, "isGenerated": False}


def _chart(kind: str, title: str, **settings: Any) -> dict[str, Any]:
    shared = {"deleted": False, "isGenerated": False, "runsCountToCompare": MAX_RUNS, "metricSectionId": "study"}
    return {"uuid": title, "type": kind, **shared, **settings}


def _curve(title: str, metric: str, **settings: Any) -> dict[str, Any]:
    shared = {"xAxisKey": "step", "scaleType": "linear", "lineSmoothness": 0}
    return _chart("LINE", title, metricKey=metric, selectedMetricKeys=[metric], **shared, **settings)
