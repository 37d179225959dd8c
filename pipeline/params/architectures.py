"""The architectures that params.yaml can name. A new one needs its own module, an entry here, and a variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """The properties of an architecture that the rest of the project uses.

    Attributes:
        label: its name on pages.
        settings: `module:class` of its options, a `NetworkSettings` with `architecture: Literal["NAME"]`; may lie in the model's module.
        builder: `module:function`, imported when a model is built; maps its settings to an untrained module.
        multiply_adds: `module:function`; maps its settings to the multiply-adds of one image's forward pass, or, for a captioning
            model, of one scene's with the longest caption.
        num_widths: the number of `widths` that it takes; None for any number.
        task: what its models are trained for: to classify an image, or to describe a scene of several images.
        stackable: whether the seeds on a GPU train together as one stack. Batch norm's running statistics and torch's recurrent layers
            cannot be stacked. Such models, also a transformer with batch norm, train seed by seed.
    """

    label: str
    builder: str
    multiply_adds: str
    settings: str = "pipeline.params.model:BaselineSettings"
    num_widths: int | None = None
    task: Literal["classification", "captioning"] = "classification"
    stackable: bool = True


_OPTIONS = "pipeline.params.model"
_BASELINES = "pipeline.models.baselines"
_CAPTIONING = "pipeline.captioning"
ARCHITECTURES = {
    "vit": Architecture("ViT", "pipeline.models.vit:VisionTransformer", "pipeline.models.vit:multiply_adds", f"{_OPTIONS}:ModelSettings"),
    "cnn": Architecture("CNN", f"{_BASELINES}:cnn", f"{_BASELINES}:cnn_multiply_adds", num_widths=2, stackable=False),
    "lenet": Architecture("LeNet", f"{_BASELINES}:lenet", f"{_BASELINES}:lenet_multiply_adds", num_widths=4),
    "mlp": Architecture("MLP", f"{_BASELINES}:mlp", f"{_BASELINES}:mlp_multiply_adds"),
    "rnn": Architecture("RNN", f"{_BASELINES}:rnn", f"{_BASELINES}:rnn_multiply_adds", num_widths=1, stackable=False),
    "lstm": Architecture("LSTM", f"{_BASELINES}:lstm", f"{_BASELINES}:lstm_multiply_adds", num_widths=1, stackable=False),
    "captioner": Architecture(
        "Captioner", f"{_CAPTIONING}.captioner:Captioner", f"{_CAPTIONING}.captioner:multiply_adds", f"{_OPTIONS}:CaptionerSettings",
        task="captioning", stackable=False,
    ),
    "cnn_lstm": Architecture(
        "CNN + LSTM", f"{_CAPTIONING}.cnn_lstm:CnnLstm", f"{_CAPTIONING}.cnn_lstm:multiply_adds", num_widths=2, task="captioning",
        stackable=False,
    ),
}  # fmt: skip
