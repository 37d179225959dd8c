"""The sentences that describe a scene: what may be said, and what it means."""

from __future__ import annotations

PAD, BOS, EOS = 0, 1, 2  # the first words of every vocabulary: after the end, before the start, the end
MAX_WORDS = 17  # of a caption, without these
