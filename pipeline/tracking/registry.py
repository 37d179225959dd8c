"""A trained network in MLflow's model registry, where `load_model` and `mlflow models serve` find it.

It is an exported graph (torch.export, a .pt2 archive), which needs neither pickle nor this project's code.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pipeline.tracking.store import Store, study_name

if TYPE_CHECKING:
    import numpy as np
    from torch import nn


def is_registered(store: Store, run_id: str, tags: Mapping[str, str], alias: str) -> bool:
    """Whether the alias names a version of this run with these tags. A kill may have left a version without its name."""
    if not store.call("search_registered_models", filter_string=f"name = '{study_name()}'"):
        return False
    named = store.call("get_registered_model", study_name()).aliases.get(alias)
    version = store.call("get_model_version", study_name(), named) if named else None
    return version is not None and version.run_id == run_id and version.tags.items() >= tags.items()


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
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        logits = network(torch.from_numpy(images)).numpy()
    inputs, outputs = (Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))]) for array in (images, logits))
    run = store.call("get_run", run_id)
    model = store.call(
        "create_logged_model", run.info.experiment_id, study_name(), source_run_id=run_id, tags=dict(tags), params=run.data.params
    )
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, of its modules' type hints and of loading the example
        mlflow.pytorch.save_model(
            network,
            f"{folder}/model",
            mlflow_model=Model(run_id=run_id, model_id=model.model_id),
            serialization_format="pt2",
            signature=ModelSignature(inputs, outputs),
            input_example=images,
            # MLflow would find it out by loading the model in a process of its own.
            pip_requirements=[f"mlflow=={mlflow.__version__}", f"torch=={torch.__version__.partition('+')[0]}"],
        )
        store.call("log_model_artifacts", model.model_id, f"{folder}/model")
    store.call("finalize_logged_model", model.model_id, "READY")
    store.call("log_outputs", run_id, [LoggedModelOutput(model.model_id, step=0)])
    if not store.call("search_registered_models", filter_string=f"name = '{study_name()}'"):
        store.call("create_registered_model", study_name(), description=_DESCRIPTION)
    source = f"models:/{model.model_id}"
    version = store.call("create_model_version", study_name(), source, run_id=run_id, tags=dict(tags), model_id=model.model_id)
    store.call("set_registered_model_alias", study_name(), alias, version.version)


_DESCRIPTION = (
    "The baseline's first seed. Input: images (batch, channel, height, width), float32 in [0, 1], a digit's strokes bright. Output: logits "
    "(batch, class). Tags of a version say which data set, training and weights it is of, and what the study found of its variant: late "
    "accuracy, mean over all seeds, with its 95 % interval."
)
