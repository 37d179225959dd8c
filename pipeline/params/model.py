"""The settings of networks: the vision transformer with its options, and the others."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator

from pipeline.params.architectures import ARCHITECTURES
from pipeline.params.data import Settings, Shape
from pipeline.params.reading import refuse


class NetworkSettings(Settings):
    """Settings of any network. `shape` is not an option: it follows from the data set and is passed in the validation's context.

    normalize: what a network reads: pixels in [0, 1] (none), or each channel less its mean over its standard deviation, both of all
    training images (standard).
    frozen: of an own model's options that came after its first training, the value that its earlier trainings had.
    """

    frozen: ClassVar[Mapping[str, Any]] = {}

    architecture: str
    normalize: Literal["none", "standard"] = "none"
    _shape: Shape = PrivateAttr(default=Shape())

    def model_post_init(self, context: Any) -> None:
        self._shape = (context or {}).get("shape", Shape())

    @property
    def shape(self) -> Shape:
        """The shape of images and classes that the network has to fit."""
        return self._shape


class ModelSettings(NetworkSettings):
    """The vision transformer's options; params.yaml gives unit and source of each.

    attention: what the attention sublayer of every block computes; full and sliced: see `pipeline.models.attention`; unprojected: softmax
    attention of slices of the normed tokens themselves, without maps to query, key and value; uniform: every token reads the mean of
    the values of all tokens, which are projected as in sliced attention; none: the sublayer is left out, with its norm and residual.
    mlp: whether the blocks have their MLP sublayer; none leaves it out, with its norm and residual.
    """

    architecture: Literal["vit"]
    patch: Annotated[int, Field(ge=1)]
    dim: Annotated[int, Field(ge=1, le=4096)]
    heads: Annotated[int, Field(ge=1, le=256)]
    blocks: Annotated[int, Field(ge=1, le=100)]
    mlp_dim: Annotated[int, Field(ge=1, le=16384)]
    attention: Literal["full", "sliced", "unprojected", "uniform", "none"]
    mlp: Literal["full", "none"] = "full"
    position: Literal["learned", "sinusoidal", "sincos2d", "none"]
    position_std: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 1.0
    pool: Literal["cls", "first", "mean", "max", "attention", "concat"]
    cls_insert: Literal["expand", "loop", "none"]
    cls_init: Literal["normal", "zeros"]
    norm: Literal["pre", "post", "none"]
    norm_kind: Literal["layer", "batch"] = "layer"
    norm_eps: Annotated[float, Field(gt=0, lt=1)]
    final_norm: bool
    residual: Literal["input", "normalized", "none"]
    score_scale: bool
    memory: Annotated[int, Field(ge=0, le=4096)]
    activation: Literal["gelu", "relu"]
    embed: Literal["linear", "conv"]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    attention_dropout: Annotated[float, Field(ge=0, lt=1)]
    mlp_dropout: Annotated[float, Field(ge=0, lt=1)]

    @property
    def has_cls(self) -> bool:
        return self.cls_insert != "none"

    @property
    def has_batch_norm(self) -> bool:
        return self.norm_kind == "batch" and (self.norm != "none" or self.final_norm)

    @property
    def has_attention_weights(self) -> bool:
        """Whether tokens weigh each other by scores."""
        return self.attention not in ("uniform", "none")

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.shape.size // self.patch

    @property
    def head_inputs(self) -> int:
        """The number of inputs of the head: the width of a token, or of all patches concatenated."""
        return self.dim * (self.grid**2 if self.pool == "concat" else 1)

    @property
    def num_tokens(self) -> int:
        """Length of the encoder's sequence, including the class token."""
        return self.grid**2 + self.has_cls

    def changed(self, difference: Mapping[str, Any]) -> ModelSettings:
        """These settings with other values, validated again. Raises pydantic's ValidationError."""
        return ModelSettings.model_validate({**self.model_dump(), **difference}, context={"shape": self.shape})

    def at_size(self, size: int) -> ModelSettings:
        """These settings for images of another side in pixels. Raises pydantic's ValidationError if the patch does not divide it."""
        return ModelSettings.model_validate(self.model_dump(), context={"shape": self.shape._replace(size=size)})

    def serves(self, size: int) -> bool:
        """Whether the same weights can read images of this side in pixels. With `concat` they cannot: the head has weights per patch."""
        return self.pool != "concat" and size % self.patch == 0

    @model_validator(mode="after")
    def _possible(self) -> ModelSettings:
        unused = {} if self.has_attention_weights else {"memory": 0, "score_scale": True, "attention_dropout": 0.0}
        unused |= {"mlp_dropout": 0.0} if self.mlp == "none" else {}
        no_norm = self.norm != "pre" or self.mlp == "none"
        refuse(
            (self.shape.size % self.patch, f"patch: {self.patch} does not divide the image's side of {self.shape.size} pixels"),
            *_faults_of_width(self.dim, self.heads, self.position),
            (self.pool == "cls" and not self.has_cls, "pool: cls needs a class token; set cls_insert to expand, or pool to first"),
            (self.position_std != 1 and self.position != "learned", "position_std: it is for learned vectors only; set it to 1.0"),
            (self.residual == "normalized" and no_norm, "residual: normalized starts from the norm before the MLP, which is not there"),
            *((getattr(self, name) != plain, f"{name}: it changes nothing here; set it to {plain}") for name, plain in unused.items()),
        )
        return self


class CaptionerSettings(NetworkSettings):
    """The options of the transformer that describes scenes. `shape.size` is half a scene's side, `shape.words` its vocabulary's size.

    Attributes:
        memory: number of learned slots, only in the encoder's attention.
        meshed: whether the decoder reads every level of the encoder through gates, not the last alone (Cornia et al. 2020, section 3).
    """

    architecture: Literal["captioner"]
    dim: Annotated[int, Field(ge=1, le=4096)]
    heads: Annotated[int, Field(ge=1, le=256)]
    mlp_dim: Annotated[int, Field(ge=1, le=16384)]
    encoder_blocks: Annotated[int, Field(ge=1, le=100)]
    decoder_blocks: Annotated[int, Field(ge=1, le=100)]
    norm: Literal["pre", "post"]
    position: Literal["learned", "sinusoidal"]
    memory: Annotated[int, Field(ge=0, le=4096)]
    meshed: bool
    dropout: Annotated[float, Field(ge=0, lt=1)]

    @property
    def num_tokens(self) -> int:
        """Length of the encoder's sequence: the places that four convolutions of stride 2 leave of a scene with side 2 `size`."""
        return (-(-self.shape.size // 8)) ** 2

    @model_validator(mode="after")
    def _possible(self) -> CaptionerSettings:
        refuse(*_faults_of_width(self.dim, self.heads, self.position))
        return self


def _faults_of_width(dim: int, heads: int, position: str) -> list[tuple[object, str]]:
    divisor = {"sinusoidal": 2, "sincos2d": 4}.get(position, 1)
    return [
        (dim % heads, f"heads: {heads} heads do not divide dim, which is {dim}"),
        (dim % divisor, f"position: {position} needs a dim divisible by {divisor}, and {dim} is not"),
    ]


if TYPE_CHECKING:
    Baseline = str
else:
    Baseline = Literal[tuple(name for name, of in ARCHITECTURES.items() if of.settings.endswith(":BaselineSettings"))]


class BaselineSettings(NetworkSettings):
    """A network that is not a transformer.

    Attributes:
        widths: cnn: channels of its two blocks; lenet: channels of its two convolutions and units of its two hidden layers; mlp: units
            of each hidden layer; rnn, lstm: units of the one recurrent layer, which reads an image row by row; cnn_lstm: size of the
            vector that represents a scene, and units of the recurrent layer that describes it.
    """

    architecture: Baseline
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _possible(self) -> BaselineSettings:
        wanted = ARCHITECTURES[self.architecture].num_widths
        refuse((wanted not in (None, len(self.widths)), f"widths: {self.architecture} has {wanted} of them, not {len(self.widths)}"))
        return self


AnyModelSettings = SerializeAsAny[NetworkSettings]


def settings_class(architecture: str) -> type[NetworkSettings]:
    """The class of an architecture's options."""
    found: type[NetworkSettings] = resolve_name(ARCHITECTURES[architecture].settings)
    return found
