"""What the timing stage times: a step, or captions, of each subject of params.yaml, and the growth of the base with its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.params import ARCHITECTURES, NetworkSettings, Params

Way = Literal["published", "fast"]
Kind = Literal["step", "growth", "attention", "decoding"]
WAYS: tuple[Way, ...] = ("published", "fast")
WORDS = (3, 6, 12, 18)  # of a caption, whose end is the eighteenth at the latest


@dataclass(frozen=True)
class Entry:
    """One thing to time.

    Attributes:
        kind: step: a training step at the study's batch size; growth: one at the batch size that the most tokens allow; attention:
            forward and backward of only the attention of one block, at that batch size; decoding: so many words of captions, word by
            word, of images that have been read, at that batch size.
        way: as published, or on the fast path.
        subject: a key of `timing.subjects`, or the number of tokens.
        batch: images per step.
        nested: whether it is computed like the reference, in nested loops and with a softmax before the loss.
        words: of decoding.
    """

    kind: Kind
    way: Way
    subject: str
    model: NetworkSettings
    batch: int
    nested: bool = False
    words: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.way}/{self.subject}" + f"/{self.words}" * bool(self.words)


def entries(params: Params, growth_batch: int) -> list[Entry]:
    """All entries in a fixed order. `growth_batch`: maximum images per step of all kinds but step."""
    timing, batch = params.timing, params.train.batch_size
    listed = []
    for name in timing.subjects:
        nested, model = timing.is_nested(name), params.timed(name)
        if ARCHITECTURES[model.architecture].task == "captioning":
            listed += [Entry("decoding", "fast", name, model, min(batch, growth_batch), words=words) for words in WORDS]
        else:
            listed += [Entry("step", way, name, model, batch, nested) for way in (WAYS[:1] if nested else WAYS)]
    for tokens in timing.tokens:
        # Without a class token, so that the numbers of tokens are those in the claim.
        change = {"patch": round(params.base.shape.size / tokens**0.5), "pool": "first", "cls_insert": "none"}
        model = params.base.changed(change)
        listed += [Entry(kind, way, str(tokens), model, min(batch, growth_batch)) for kind in ("growth", "attention") for way in WAYS]
    return listed
