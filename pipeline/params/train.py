"""How a variant is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.params.data import Settings
from pipeline.params.reading import refuse

MAX_SEEDS = 1000


class TrainSettings(Settings):
    """How a variant is trained; params.yaml gives unit and source of each option.

    Attributes:
        seeds: one run each. A number n in params.yaml means the seeds 0 to n - 1.
        learning_rate: the schedule's maximum.
        beta2: decay of the running mean of squared gradients of adam and radam.
        clip_norm: maximum L2 norm of one seed's gradient, over all its weights; None means no clipping.
        warmup: share of all steps in which the learning rate rises linearly; see `pipeline.training.schedules.learning_rates`.
        train_images: size of the random subset of the training images that a seed sees; None means all images.
        epoch_images: images shown in an epoch, the subset repeated or cut; None means as many as the training set has.
        validation: images at the end of the training set that no training sees; the evaluation tests the trained networks on them.
        crop: every training image is moved by up to so many pixels across and down, and filled with zeros: a random crop of the padded one.
        flip: whether half of the training images, at random, are mirrored.
        pretrained: the file of store/pretrained/ whose weights the training starts from, but for the head; see
            `pipeline.training.pretrained`. None means new weights.
        divergence: whether a loss that is not finite ends the training with an error, or is recorded as a result.
        self_critical_epochs: the last epochs, in which a captioner learns from the CIDEr-D of its own captions.
        self_critical_rate: the learning rate in these epochs; the schedule ends before them.
    """

    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, strict=False)]
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=1, le=60_000)]
    learning_rate: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    optimizer: Literal["adam", "radam", "sgd"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    weight_decay: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
    clip_norm: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None
    schedule: Literal["constant", "linear", "warmup_linear", "noam", "cosine"]
    warmup: Annotated[float, Field(ge=0, lt=1)]
    train_images: Annotated[int, Field(ge=1, le=10**9)] | None
    epoch_images: Annotated[int, Field(ge=1, le=10**9)] | None
    validation: Annotated[int, Field(ge=0, le=10**9)] = 0
    augment: Literal["none", "affine"]
    crop: Annotated[int, Field(ge=0, le=512)] = 0
    flip: bool = False
    pretrained: Annotated[str, Field(pattern=r"^[\w-]+-[0-9a-f]{8}$")] | None = None
    divergence: Literal["stop", "record"]
    self_critical_epochs: Annotated[int, Field(ge=0, le=10_000)] = 0
    self_critical_rate: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 2e-4

    @model_validator(mode="after")
    def _possible(self) -> TrainSettings:
        needs, has_none = self.schedule in ("warmup_linear", "noam"), self.schedule in ("constant", "linear")
        refuse(
            (len({*self.seeds}) < len(self.seeds), "seeds: one is listed more than once"),
            (self.momentum and self.optimizer != "sgd", f"momentum: it is for sgd, not for {self.optimizer}; set it to 0.0"),
            (needs and not self.warmup, f"warmup: {self.schedule} needs a share of the steps to warm up in, for example 0.1"),
            (has_none and self.warmup, f"warmup: {self.schedule} has none; set it to 0.0, or schedule to warmup_linear"),
            (self.self_critical_epochs >= self.epochs, f"self_critical_epochs: they are fewer than the {self.epochs} epochs"),
        )
        return self

    @property
    def augments(self) -> bool:
        """Whether training images are changed at random."""
        return self.augment != "none" or bool(self.crop) or self.flip

    @property
    def ends_at_zero(self) -> bool:
        """Whether the schedule ends the training: its learning rate falls to 0."""
        return self.schedule in ("linear", "warmup_linear", "cosine")

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        if isinstance(seeds, list | tuple):
            return seeds
        if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MAX_SEEDS:
            raise ValueError(f"a number of seeds from 1 to {MAX_SEEDS:,}, or a list of seeds, and not {seeds!r}")
        return tuple(range(seeds))
