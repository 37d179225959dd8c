"""Views of MLflow's page of runs: what is shown, in which order, and the link that leads there.

MLflow 3 keeps a named view as a tag of the experiment. Its page offers the views by name, and opens one by `viewStateShareKey` in its
address. A view holds filter, order, columns and charts as the page itself writes them (the fields of the page's `ExperimentPageUIState`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The tag of a parent run that says whether the views show it: "true" from its start on, "false" once `sync` finds its variant trained anew.
CURRENT = "current"
_CURRENT = f"tags.kind = 'parent' and tags.{CURRENT} = 'true'"

_TAG = "mlflow.sharedViewState."
# With it MLflow shows an experiment as trainings; else it guesses, and opens at its overview of language models' traces.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_COLUMNS = (
    "metrics.`late_accuracy`", "metrics.`late_accuracy_sd`", "metrics.`late_accuracy_low`", "metrics.`late_accuracy_high`",
    "metrics.`late_test_error`", "metrics.`epoch_seconds`", "metrics.`n`", "params.`train.epochs`",
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """One view.

    Attributes:
        key: what its link calls it.
        name: what MLflow's list of views and `make ui` call it.
        filter: which runs it shows.
        mode: "TABLE" or "CHART".
    """

    key: str
    name: str
    filter: str
    mode: str

    def link(self, address: str, experiment: str) -> str:
        """The page of an experiment's runs in this view.

        Args:
            address: of the server, without a final slash.
            experiment: its id.
        """
        query = f"viewStateShareKey={self.key}&compareRunsMode={self.mode}&workflowType=machine_learning"
        return f"{address}/#/experiments/{experiment}/runs?{query}"

    def tag(self) -> tuple[str, str]:
        """Key and value of the experiment's tag that holds the view."""
        state = {
            "searchFilter": self.filter,
            "orderByKey": "metrics.`late_accuracy`",
            "orderByAsc": False,
            "selectedColumns": _COLUMNS,
            "columnOrder": _COLUMNS,
            "columnWidths": dict.fromkeys(_COLUMNS, 130) | {"metrics.`n`": 60},
            "runsHiddenMode": "SHOW_ALL",
            "compareRunCharts": _CHARTS,
            # The charts that MLflow adds by itself, one for each metric, are folded.
            "compareRunSections": [_section("study", "The study", is_open=True), _section("all", "Model metrics", is_open=False)],
            "isAccordionReordered": True,
            "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        }
        return f"{_TAG}{self.key}", json.dumps({"name": self.name, "createdAt": 0, "state": json.dumps(state)})


def missing_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags that an experiment lacks for its views. A view that is there stays, because a user may have changed it."""
    return {key: value for key, value in (*_KIND.items(), *(view.tag() for view in VIEWS)) if key not in tags}


def _section(uuid: str, name: str, *, is_open: bool) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": is_open, "isReordered": True, "deleted": False, "isGenerated": False}


def _chart(kind: str, title: str, **settings: Any) -> dict[str, Any]:
    shared = {"deleted": False, "isGenerated": False, "runsCountToCompare": 100, "metricSectionId": "study"}
    return {"uuid": title, "type": kind, **shared, **settings}


def _curve(title: str, metric: str) -> dict[str, Any]:
    return _chart("LINE", title, metricKey=metric, selectedMetricKeys=[metric], xAxisKey="step", scaleType="linear", lineSmoothness=0)


_CHARTS: Sequence[Mapping[str, Any]] = (
    _curve("Test accuracy by epoch", "test_accuracy"),
    _chart("BAR", "Test error, mean over the late epochs", metricKey="late_test_error"),
    _chart(
        "SCATTER", "Accuracy and seconds of an epoch",
        xaxis={"key": "epoch_seconds", "type": "METRIC"}, yaxis={"key": "late_accuracy", "type": "METRIC"},
    ),
    _curve("Test loss by epoch", "test_loss"),
    _curve("Train loss by epoch", "train_loss"),
    _chart("DIFFERENCE", "Settings that differ", compareGroups=["Parameters"], showDifferencesOnly=True, showChangeFromBaseline=False),
)  # fmt: skip

VIEWS = (
    View("study", "The study, a row for each variant", _CURRENT, "TABLE"),
    View("thesis", "The thesis's experiments", f"{_CURRENT} and tags.sources LIKE '%,thesis,%'", "CHART"),
)
