"""Kernels of our own, each behind a function that falls back to PyTorch's where it does not win."""

from pipeline.kernels.small_head_attention import attention, attention_path, fuses_slices, sliced_attention, why_not_fused

__all__ = ["attention", "attention_path", "fuses_slices", "sliced_attention", "why_not_fused"]
