"""The models; `build(settings)` is the only entry point. Nothing here knows of seeds, DVC or MLflow."""

from __future__ import annotations

from pkgutil import resolve_name

from torch import nn

from pipeline.models.attention import attention_kernel
from pipeline.models.pixels import standardize
from pipeline.models.vit import VisionTransformer, attention_maps
from pipeline.params import ARCHITECTURES, AnyModelSettings
from pipeline.system.errors import UserError

__all__ = ["VisionTransformer", "attention_kernel", "attention_maps", "build", "count_flops", "count_parameters"]


def build(settings: AnyModelSettings) -> nn.Module:
    """An untrained model, whose initial weights come from torch's global generator.

    Returns:
        A module that maps images (batch, channel, height, width) in [0, 1] to logits (batch, class); for captioning a
        `pipeline.captioning.model.CaptionModel`.

    Raises:
        UserError: the architecture's module lies elsewhere.
    """
    builder = ARCHITECTURES[settings.architecture].builder
    if not builder.startswith(("pipeline.models.", "pipeline.captioning.")):
        raise UserError(f"{builder} is not in pipeline/models, so no stage would notice an edit of it: move its module there.")
    model: nn.Module = resolve_name(builder)(settings)
    if settings.normalize == "standard":
        standardize(model, settings.shape.channels)
    return model


def count_parameters(model: nn.Module) -> int:
    """The number of trained scalars."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def count_flops(settings: AnyModelSettings) -> int:
    """Floating-point operations of the matrix products and convolutions in one image's forward pass; a multiply-add counts as two.

    Softmax, norms, activations and sums are left out, as is usual. The count follows the definition, not the implementation: sliced
    attention counts its small products, not the block-diagonal one, and memory slots count no queries. A padded convolution counts
    its border, as is usual.
    """
    return 2 * int(resolve_name(ARCHITECTURES[settings.architecture].multiply_adds)(settings))
