"""Where the stages keep things, relative to the DVC repository's root."""

from pathlib import Path

ARRAYS = Path("data/arrays")
CHECKPOINTS = Path(".checkpoints")
CODE_HASHES = Path("code-hashes")
CONFIGS = Path("configs")
EVALUATIONS = Path("evaluations")
PREDICTIONS = Path("predictions")
FINISHED = CHECKPOINTS / "seeds"
RUNS = Path("runs")
