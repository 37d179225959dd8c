"""The transformer that describes scenes, optionally with memory slots in its encoder and a meshed decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.captioning.grammar import MAX_WORDS, PAD
from pipeline.captioning.model import CaptionModel, State, Stem, check_images, evaluating, stem_multiply_adds
from pipeline.models.dropout import Dropout
from pipeline.models.encoder import BlockSettings, EncoderBlock
from pipeline.models.positions import sinusoidal_table
from pipeline.params import CaptionerSettings

MAX_PLACES = MAX_WORDS + 1  # words that the decoder reads: BOS and the caption


class DecoderAttention(nn.Module):
    """Multi-head attention whose queries and keys may come from different tokens (Vaswani et al. 2017, section 3.2.2).

    Weights start as those of `torch.nn.MultiheadAttention`.

    Args:
        dim: width of a token.
        heads: number of heads, each of dim / heads channels.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.utils.skip_init(nn.Linear, dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (batch, token, dim) to the results of `query` and of `keys`, in one product."""
        query, keys = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).split([1, 2], dim=2)
        return query[:, :, 0], keys

    def query(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, token, dim) to queries (batch, token, head, head_dim)."""
        dim = tokens.shape[-1]
        return F.linear(tokens, self.qkv.weight[:dim], self.qkv.bias[:dim]).unflatten(-1, (self.heads, -1))

    def keys(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, token, dim) to keys and values (batch, token, 2, head, head_dim)."""
        dim = tokens.shape[-1]
        return F.linear(tokens, self.qkv.weight[dim:], self.qkv.bias[dim:]).unflatten(-1, (2, self.heads, -1))

    def forward(self, query: Tensor, keys: Tensor, *, levels: int = 1, mask: Tensor | None = None) -> Tensor:
        """Attends with each query to each level separately.

        Args:
            query: (batch, query, head, head_dim).
            keys: keys and values (batch, level * key, 2, head, head_dim), level by level.
            levels: number of groups of keys; softmax is taken within each group.
            mask: added to the scores, (batch, 1, query, level * key); -inf where a query may not look.

        Returns:
            (level, batch, query, dim).
        """
        weight = self.weights(query, keys, levels=levels, mask=mask)
        value = keys[:, :, 1].unflatten(1, (levels, -1)).permute(1, 0, 3, 2, 4)  # (level, batch, head, key, head_dim)
        return self.out((weight @ value).transpose(2, 3).flatten(3))

    def weights(self, query: Tensor, keys: Tensor, *, levels: int = 1, mask: Tensor | None = None) -> Tensor:
        """The attention weights (level, batch, head, query, key); arguments as for `forward`."""
        # On the CPU torch's fused attention takes 1.4 times as long for such small heads. One product for all levels saves a third.
        score = (query.transpose(1, 2) * query.shape[-1] ** -0.5) @ keys[:, :, 0].permute(0, 2, 3, 1)
        if mask is not None:
            score = score + mask
        return score.unflatten(-1, (levels, -1)).softmax(-1).permute(3, 0, 1, 2, 4)


class Mesh(nn.Module):
    """Combines the cross-attention to the levels: sum_i alpha_i C(X_i, Y) / sqrt(levels), alpha_i = sigmoid(W_i [Y, C(X_i, Y)] + b_i).

    Cornia et al. 2020, "Meshed-memory transformer", equations 5 and 6. The square root is from their published code. That code adds Y
    to each C first; the equations add it once, after the sum, as is done here.

    Args:
        dim: width of a token.
        levels: blocks of the encoder.
    """

    def __init__(self, dim: int, levels: int) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(levels))

    def forward(self, words: Tensor, found: Tensor) -> Tensor:
        """Words Y (batch, place, dim) and their cross-attention C(X_i, Y) (level, batch, place, dim) to (batch, place, dim)."""
        gated = [gate(torch.cat([words, level], dim=-1)).sigmoid() * level for gate, level in zip(self.gates, found, strict=True)]
        return torch.stack(gated).sum(0) / math.sqrt(len(gated))


class DecoderBlock(nn.Module):
    """Attention to the words so far, attention to the image, and an MLP, each with a residual connection and a layer norm.

    Norm pre: x + f(norm(x)) (Xiong et al. 2020); post: norm(x + f(x)) (Vaswani et al. 2017). All levels share one cross-attention.
    """

    def __init__(self, settings: CaptionerSettings) -> None:
        super().__init__()
        dim = settings.dim
        self.post_norm = settings.norm == "post"
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.attention = DecoderAttention(dim, settings.heads)
        self.cross = DecoderAttention(dim, settings.heads)
        self.levels = _levels(settings)
        self.mesh = Mesh(dim, self.levels) if settings.meshed else None
        self.mlp = nn.Sequential(nn.Linear(dim, settings.mlp_dim), nn.ReLU(), nn.Linear(settings.mlp_dim, dim))
        self.dropout1, self.dropout2, self.dropout3 = (Dropout(settings.dropout) for _ in range(3))

    def forward(self, words: Tensor, past: Tensor | None, image: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """One block's pass.

        Args:
            words: (row, place, dim).
            past: keys and values of the words before them (row, past place, 2, head, head_dim), or None.
            image: keys and values of the images, as `image_keys` returns them; each image has equally many rows, which are adjacent.
            mask: added to the scores of words, (row, 1, place, past place + place), or None.

        Returns:
            (row, place, dim), and the keys and values of all words so far.
        """
        words, keys = self._attend_to_words(words, past, mask)
        words = self._norm_after(self.norm2, words + self.dropout2(self._attend_to_image(words, image)))
        return self._norm_after(self.norm3, words + self.dropout3(self.mlp(self._norm_before(self.norm3, words)))), keys

    def image_keys(self, levels: Tensor) -> Tensor:
        """The encoder's levels (image, level, token, dim) to keys and values (image, level * token, 2, head, head_dim)."""
        return self.cross.keys(levels.flatten(1, 2))

    def image_weights(self, words: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        """The weights of the attention to the image, mean over the heads: (level, row, place, token). Arguments as for `forward`."""
        query = self.cross.query(self._norm_before(self.norm2, self._attend_to_words(words, None, mask)[0]))
        return self.cross.weights(query, image, levels=self.levels).mean(2)

    def _attend_to_words(self, words: Tensor, past: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The words after the attention to the words so far, and the keys and values of these."""
        query, keys = self.attention.project(self._norm_before(self.norm1, words))
        if past is not None:
            keys = torch.cat([past, keys], dim=1)
        return self._norm_after(self.norm1, words + self.dropout1(self.attention(query, keys, mask=mask)[0])), keys

    def _attend_to_image(self, words: Tensor, image: Tensor) -> Tensor:
        """The result of the words' attention to the image, (row, place, dim)."""
        normed = self._norm_before(self.norm2, words)
        # Queries do not affect each other, so all rows of an image attend at once, and its keys need not be repeated for each row.
        query = self.cross.query(normed).unflatten(0, (image.shape[0], -1)).flatten(1, 2)
        found = self.cross(query, image, levels=self.levels).view(-1, *words.shape)  # (level, row, place, dim)
        return found[0] if self.mesh is None else self.mesh(normed, found)

    def _norm_before(self, norm: nn.LayerNorm, words: Tensor) -> Tensor:
        return words if self.post_norm else norm(words)

    def _norm_after(self, norm: nn.LayerNorm, words: Tensor) -> Tensor:
        return norm(words) if self.post_norm else words


class Captioner(CaptionModel):
    """A transformer that reads a scene's places and writes its caption (Vaswani et al. 2017; meshed and memory: Cornia et al. 2020).

    With `meshed` the decoder reads the output of every encoder block, else that of the last. With pre-norm each of these outputs, and
    the decoder's, has its own layer norm. Layers start with the initial weights of torch's own; learned positions and memory slots
    start from N(0, 1). Sinusoids are constants, which are neither trained nor stored.
    """

    image_position: Tensor
    word_position: Tensor

    def __init__(self, settings: CaptionerSettings) -> None:
        super().__init__()
        dim, words = settings.dim, settings.shape.words
        self.settings = settings
        self.stem = Stem(settings.shape.channels, dim)
        for name, places in (("image_position", settings.num_tokens), ("word_position", MAX_PLACES)):
            if settings.position == "learned":
                self.register_parameter(name, nn.Parameter(torch.randn(places, dim)))
            else:
                self.register_buffer(name, sinusoidal_table(places, dim), persistent=False)
        self.image_dropout, self.word_dropout = Dropout(settings.dropout), Dropout(settings.dropout)
        block = BlockSettings(dim, settings.heads, settings.mlp_dim, settings.norm, settings.memory, settings.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(block) for _ in range(settings.encoder_blocks))
        self.level_norms = nn.ModuleList(_final_norm(settings) for _ in range(_levels(settings)))
        self.embedding = nn.Embedding(words, dim)
        self.decoder = nn.ModuleList(DecoderBlock(settings) for _ in range(settings.decoder_blocks))
        self.norm = _final_norm(settings)
        self.head = nn.Linear(dim, words)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        levels, mask, tokens = self.encode(images), _mask(words), self._embed(words, 0)
        for block in self._blocks():
            tokens, _ = block(tokens, None, block.image_keys(levels), mask)
        return self.head(self.norm(tokens))

    def encode(self, images: Tensor) -> Tensor:
        """Images (batch, channel, height, width) to the levels that the decoder reads (batch, level, token, dim)."""
        check_images(images, self.settings.shape)
        tokens = self.image_dropout(self.stem(images).flatten(2).transpose(1, 2) + self.image_position)
        outputs = []
        for block in self.encoder:
            tokens = block(tokens)
            outputs.append(tokens)
        read = outputs[-len(self.level_norms) :]
        return torch.stack([norm(level) for norm, level in zip(self.level_norms, read, strict=True)], dim=1)

    def start(self, images: Tensor) -> State:
        levels = self.encode(images)
        seen = tuple(block.image_keys(levels) for block in self._blocks())
        return State(seen, tuple(keys[:, :0] for keys in seen))

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        tokens, rows = self._embed(words[:, None], state.rows[0].shape[1]), []
        for block, past, image in zip(self._blocks(), state.rows, state.images, strict=True):
            tokens, keys = block(tokens, past, image, None)
            rows.append(keys)
        return self.head(self.norm(tokens[:, 0])), State(state.images, tuple(rows))

    def _blocks(self) -> list[DecoderBlock]:
        return [block for block in self.decoder if isinstance(block, DecoderBlock)]

    def _embed(self, words: Tensor, first: int) -> Tensor:
        """Words (row, place), the first at place `first`, to (row, place, dim)."""
        if first + words.shape[1] > MAX_PLACES:
            raise ValueError(f"words have {first + words.shape[1]} places, but a caption has {MAX_PLACES} at most, BOS included")
        return self.word_dropout(self.embedding(words) + self.word_position[first : first + words.shape[1]])


@torch.no_grad()
def image_attention(model: nn.Module, images: Tensor, words: Tensor) -> Tensor:
    """The decoder's attention to the image as it reads each word, without dropout.

    Args:
        model: a captioner; its training mode is left as it was.
        images: (batch, channel, height, width) in [0, 1].
        words: (batch, place) int64, starting with BOS.

    Returns:
        (decoder block, level, batch, place, token): the mean over the heads, tokens in row-major order of the scene's places. The
        weights at a place sum to 1 and belong to the choice of the next word. A decoder that is not meshed has one level.

    Raises:
        ValueError: `model` is another model.
    """
    if not isinstance(model, Captioner):
        raise ValueError(f"Attention to the image is of captioners, and {type(model).__name__} is none.")
    weights = []
    with evaluating(model):
        levels, mask, tokens = model.encode(images), _mask(words), model._embed(words, 0)
        for block in model._blocks():
            image = block.image_keys(levels)
            weights.append(block.image_weights(tokens, image, mask))
            tokens, _ = block(tokens, None, image, mask)
    return torch.stack(weights)


def _mask(words: Tensor) -> Tensor:
    """The mask for words (batch, place), to be added to scores: -inf for later words and for padding, (batch, 1, place, place).

    Every place sees BOS, so no place is without keys.
    """
    places = words.shape[1]
    seen = torch.ones(places, places, dtype=torch.bool, device=words.device).tril() & (words != PAD)[:, None, None]
    return torch.zeros(seen.shape, device=words.device).masked_fill(~seen, -math.inf)


def _levels(settings: CaptionerSettings) -> int:
    """The number of encoder blocks whose output the decoder reads."""
    return settings.encoder_blocks if settings.meshed else 1


def _final_norm(settings: CaptionerSettings) -> nn.Module:
    return nn.LayerNorm(settings.dim) if settings.norm == "pre" else nn.Identity()


def multiply_adds(settings: CaptionerSettings) -> int:
    """The multiply-adds of one scene with the longest caption; `pipeline.models.count_flops` says which count."""
    tokens, words, dim = settings.num_tokens, MAX_PLACES, settings.dim
    levels = _levels(settings)
    encoder = 4 * tokens * dim**2 + 2 * tokens * (tokens + settings.memory) * dim + 2 * tokens * dim * settings.mlp_dim
    self_attention = 4 * words * dim**2 + 2 * words**2 * dim
    cross_attention = words * dim**2 + levels * (2 * tokens * dim**2 + 2 * words * tokens * dim + words * dim**2)
    gates = levels * words * 2 * dim**2 if settings.meshed else 0
    decoder = self_attention + cross_attention + gates + 2 * words * dim * settings.mlp_dim
    stem = stem_multiply_adds(settings.shape, dim)
    return stem + settings.encoder_blocks * encoder + settings.decoder_blocks * decoder + words * dim * settings.shape.words
