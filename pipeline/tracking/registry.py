"""A trained network in MLflow's model registry, where `load_model` and `mlflow models serve` find it.

It is an exported graph (torch.export, a .pt2 archive), which needs neither pickle nor this project's code.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.tracking.store import Store, study_name

if TYPE_CHECKING:
    import numpy as np
    from torch import nn


def is_registered(store: Store, run_id: str, weights: str, alias: str) -> bool:
    """Whether the alias names a version of this run with the tag `weights`. A kill may have left a version without its name."""
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # no model, or no such alias
        version = store.get_model_version_by_alias(study_name(), alias)
        return bool(version.run_id == run_id and version.tags.get("weights") == weights)
    return False


def register(store: Store, run_id: str, network: nn.Module, images: np.ndarray, tags: Mapping[str, str], alias: str) -> None:
    """Adds a version, which `models:/STUDY@ALIAS` names from then on.

    Args:
        run_id: of the run that it belongs to.
        network: maps images (batch, channel, height, width) in [0, 1] to logits (batch, class), for batches of any size.
        images: an example of its input, of at least two images; a dimension of size 1 would be exported as always 1.
        tags: of the version and of the logged model.
    """
    import mlflow
    import torch

    mlflow.set_tracking_uri(store.uri)
    mlflow.set_registry_uri(store.uri)
    mlflow.set_experiment(experiment_id=store.get_run(run_id).info.experiment_id)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # MLflow says that it made a version
        warnings.simplefilter("ignore")  # MLflow's own, of its modules' type hints and of loading the example
        logged = mlflow.pytorch.log_model(
            network,
            name=study_name(),
            run_id=run_id,
            registered_model_name=study_name(),
            serialization_format="pt2",
            input_example=images,
            # MLflow would find it out by loading the model in a process of its own.
            pip_requirements=[f"mlflow=={mlflow.__version__}", f"torch=={torch.__version__.partition('+')[0]}"],
            tags=dict(tags),
        )
    store.set_registered_model_alias(study_name(), alias, logged.registered_model_version)
