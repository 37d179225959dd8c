"""Our own kernels, each behind a function that falls back to PyTorch's where ours is not faster."""

from pipeline.kernels.dropout import dropout, fuses_dropout
from pipeline.kernels.small_head_attention import attention, attention_path, fuses_slices, sliced_attention, why_not_fused

__all__ = ["attention", "attention_path", "dropout", "fuses_dropout", "fuses_slices", "sliced_attention", "why_not_fused"]
