"""The vision transformer of the thesis; every choice under study is an option."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.models.dropout import Dropout
from pipeline.models.encoder import EncoderBlock, make_norm
from pipeline.models.pixels import scaled
from pipeline.models.positions import sincos2d_table, sinusoidal_table
from pipeline.params import ModelSettings


class PatchEmbedding(nn.Module):
    """Cuts an image into patches and maps each to a token, by flatten and linear or by a convolution. Both are the same function.

    Args:
        patch: side of a patch in pixels.
        dim: width of a token.
        conv: whether to use a convolution with kernel and stride `patch`.
        channels: values per pixel.
    """

    def __init__(self, patch: int, dim: int, *, conv: bool, channels: int = 1) -> None:
        super().__init__()
        self.patch = patch
        self.project: nn.Conv2d | nn.Linear
        if conv:
            self.project = nn.Conv2d(channels, dim, patch, stride=patch)
        else:
            self.project = nn.Linear(channels * patch**2, dim)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) to (batch, patch, dim), patches in row-major order."""
        if isinstance(self.project, nn.Conv2d):
            return self.project(images).flatten(2).transpose(1, 2)
        side = images.shape[-1] // self.patch
        patches = images.unflatten(3, (side, self.patch)).unflatten(2, (side, self.patch))  # (batch, channel, row, y, column, x)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (batch, patch, channel * y * x)
        return self.project(patches)


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al. 2021) at the size of the thesis, with the options of `settings`.

    Layers start with the initial weights of torch's own. The class token (unless `cls_init` says zeros) and the pooling query start
    from N(0, 1), as published; learned positions from N(0, `position_std`^2).
    """

    position: Tensor | None

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        dim = settings.dim
        self.settings = settings
        self.embedding = PatchEmbedding(settings.patch, dim, conv=settings.embed == "conv", channels=settings.shape.channels)
        start = torch.zeros if settings.cls_init == "zeros" else torch.randn
        self.cls_token = nn.Parameter(start(1, dim)) if settings.has_cls else None
        if settings.position == "learned":
            self.position = nn.Parameter(settings.position_std * torch.randn(settings.num_tokens, dim))
        else:
            self.register_buffer("position", _table(settings), persistent=False)
        self.dropout = Dropout(settings.dropout)
        self.blocks = nn.Sequential(*(EncoderBlock(settings) for _ in range(settings.blocks)))
        self.norm = make_norm(settings) if settings.final_norm else nn.Identity()
        self.pool_query = nn.Parameter(torch.randn(dim)) if settings.pool == "attention" else None
        self.head = nn.Linear(settings.head_inputs, settings.shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) in [0, 1] to logits (batch, class)."""
        return self.head(self._pool(self.encode(images)))

    def encode(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) to the encoder's output (batch, token, dim); the class token, if any, comes first."""
        return self.norm(self.blocks(self.embed(images)))

    def embed(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) to the first block's input (batch, token, dim)."""
        size, channels = self.settings.shape[:2]
        if images.dim() != 4 or images.shape[1:] != (channels, size, size):
            raise ValueError(f"images have to be (batch, {channels}, {size}, {size}), not {tuple(images.shape)}")
        tokens = self._add_cls(self.embedding(images))  # (batch, token, dim)
        if self.position is not None:
            tokens = tokens + self.position
        return self.dropout(tokens)

    def _add_cls(self, tokens: Tensor) -> Tensor:
        if self.cls_token is None:
            return tokens
        if self.settings.cls_insert == "loop":  # image by image, as published: the same tokens, computed more slowly
            return torch.stack([torch.vstack([self.cls_token, tokens[i]]) for i in range(tokens.shape[0])])
        return torch.cat([self.cls_token.expand(tokens.shape[0], 1, -1), tokens], dim=1)

    def _pool(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to the head's input: (batch, dim), or (batch, patch * dim) for `concat`."""
        if self.settings.pool == "cls":
            return tokens[:, 0]
        patches = tokens[:, 1:] if self.cls_token is not None else tokens
        match self.settings.pool:
            case "first":
                return patches[:, 0]
            case "mean":
                return patches.mean(1)
            case "max":
                return patches.amax(1)
            case "concat":
                return patches.flatten(1)
            case _:
                assert self.pool_query is not None
                weight = (patches @ self.pool_query * patches.shape[-1] ** -0.5).softmax(-1)  # (batch, patch)
                return (weight[..., None] * patches).sum(1)


@torch.no_grad()
def attention_maps(module: nn.Module, images: Tensor) -> Tensor:
    """The attention weights of every block in evaluation mode.

    Args:
        module: a vision transformer; its training mode is left as it was.
        images: (batch, channel, height, width) in [0, 1].

    Returns:
        (block, batch, head, query token, key token). The class token, if any, is the first token; memory slots are the last
        keys. Each query's weights sum to 1.

    Raises:
        ValueError: `module` is another model, or has no attention weights.
    """
    if not isinstance(module, VisionTransformer):
        raise ValueError(f"Attention maps are of vision transformers, and {type(module).__name__} is none.")
    if not module.settings.has_attention_weights:
        raise ValueError(f"There are no attention weights to map: the model's attention is {module.settings.attention}.")
    training = module.training
    module.eval()
    try:
        tokens = module.embed(scaled(module, images))
        maps = []
        for block in module.blocks:
            assert isinstance(block, EncoderBlock)
            maps.append(block.attention_weights(tokens))
            tokens = block(tokens)
    finally:
        module.train(training)
    return torch.stack(maps)


def _table(settings: ModelSettings) -> Tensor | None:
    """The fixed position vectors (token, dim), or None if tokens get none."""
    if settings.position == "none":
        return None
    if settings.position == "sinusoidal":
        return sinusoidal_table(settings.num_tokens, settings.dim)
    # The class token has no position on the grid. It gets zeros, as in the authors' code for this table.
    table = sincos2d_table(settings.grid, settings.dim)
    return torch.cat([torch.zeros(int(settings.has_cls), settings.dim), table])


def multiply_adds(settings: ModelSettings) -> int:
    """The multiply-adds of one image's forward pass; `pipeline.models.count_flops` says which count."""
    tokens, dim = settings.num_tokens, settings.dim
    head_dim = dim // settings.heads
    embedding = settings.grid**2 * settings.shape.channels * settings.patch**2 * dim
    maps = {"full": 4 * dim, "sliced": 3 * head_dim, "uniform": head_dim}  # inputs of a channel of query, key, value and output
    projections = tokens * dim * maps.get(settings.attention, 0)
    weighing = 2 * tokens * (tokens + settings.memory) * dim  # scores, and their product with the values
    attention = weighing if settings.has_attention_weights else 0
    mlp = 0 if settings.mlp == "none" else 2 * tokens * dim * settings.mlp_dim
    pooling = 2 * settings.grid**2 * dim if settings.pool == "attention" else 0
    return embedding + settings.blocks * (projections + attention + mlp) + pooling + settings.head_inputs * settings.shape.classes
