"""An ablation laboratory for vision transformers."""
