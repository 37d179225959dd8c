"""The encoder block."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.models.attention import FullAttention, SlicedAttention, SoftmaxAttention, UniformAttention, UnprojectedAttention
from pipeline.models.dropout import Dropout
from pipeline.params import ModelSettings

_SOFTMAX: dict[str, type[SoftmaxAttention]] = {"full": FullAttention, "sliced": SlicedAttention, "unprojected": UnprojectedAttention}


@dataclass(frozen=True)
class BlockSettings:
    """The options of an encoder block outside the vision transformer. The defaults are those of Vaswani et al. 2017."""

    dim: int
    heads: int
    mlp_dim: int
    norm: str
    memory: int
    dropout: float
    attention: str = "full"
    mlp: str = "full"
    norm_kind: str = "layer"
    norm_eps: float = 1e-5
    residual: str = "input"
    score_scale: bool = True
    activation: str = "relu"
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm (Ioffe and Szegedy 2015) with each channel's mean and variance over all tokens of all images of the batch."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        # Flattened to rows, because the channels-first layout of torch's documentation takes three to four times as long.
        return super().forward(tokens.flatten(0, 1)).view(tokens.shape)


class EncoderBlock(nn.Module):
    """Attention and MLP, each with a residual connection and a norm.

    norm pre:  x + f(norm(x)), the published code (Xiong et al. 2020);  post: norm(x + f(x)), the thesis's formula (Vaswani et al.
    2017);  none: x + f(x).
    residual input: as above;  normalized: the MLP's sublayer is norm(x) + f(norm(x)), as the lab writes it;  none: no `x +`.
    attention none, mlp none: the sublayer is left out, with its norm.
    """

    attention: SoftmaxAttention | UniformAttention | None
    mlp: nn.Sequential | None

    def __init__(self, settings: ModelSettings | BlockSettings) -> None:
        super().__init__()
        dim = settings.dim
        self.post_norm = settings.norm == "post"
        self.residual = settings.residual
        self.attention = self.mlp = None
        if settings.attention != "none":
            self.norm1 = _norm(settings)
            self.attention = _attention(settings)
        if settings.mlp != "none":
            self.norm2 = _norm(settings)
            self.mlp = nn.Sequential(
                nn.Linear(dim, settings.mlp_dim),
                nn.GELU() if settings.activation == "gelu" else nn.ReLU(),
                *([Dropout(settings.mlp_dropout)] if settings.mlp_dropout else []),
                nn.Linear(settings.mlp_dim, dim),
            )
        self.dropout1 = Dropout(settings.dropout)
        self.dropout2 = Dropout(settings.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        if self.post_norm:
            if self.attention is not None:
                tokens = self.norm1(self._add(tokens, self.dropout1(self.attention(tokens))))
            return tokens if self.mlp is None else self.norm2(self._add(tokens, self.dropout2(self.mlp(tokens))))
        if self.attention is not None:
            tokens = self._add(tokens, self.dropout1(self.attention(self.norm1(tokens))))
        if self.mlp is None:
            return tokens
        normed = self.norm2(tokens)
        return self._add(normed if self.residual == "normalized" else tokens, self.dropout2(self.mlp(normed)))

    def attention_weights(self, tokens: Tensor) -> Tensor:
        """The block's attention weights for the block input (batch, token, dim): (batch, head, query token, key token)."""
        assert isinstance(self.attention, SoftmaxAttention)
        return self.attention.weights(tokens if self.post_norm else self.norm1(tokens))

    def _add(self, tokens: Tensor, change: Tensor) -> Tensor:
        return change if self.residual == "none" else tokens + change


def _attention(settings: ModelSettings | BlockSettings) -> SoftmaxAttention | UniformAttention:
    if settings.attention == "uniform":
        return UniformAttention(settings.dim, settings.heads)
    return _SOFTMAX[settings.attention](
        settings.dim, settings.heads, memory=settings.memory, score_scale=settings.score_scale, dropout=settings.attention_dropout
    )


def _norm(settings: ModelSettings | BlockSettings) -> nn.Module:
    return nn.Identity() if settings.norm == "none" else make_norm(settings)


def make_norm(settings: ModelSettings | BlockSettings) -> nn.Module:
    """A norm with the settings' kind and epsilon."""
    kind = TokenBatchNorm if settings.norm_kind == "batch" else nn.LayerNorm
    return kind(settings.dim, eps=settings.norm_eps)
