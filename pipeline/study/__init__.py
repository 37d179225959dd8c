"""What a study found: its results as frames, the statistics, and the rules that judge claims."""

from pipeline.study.results import Study, load
from pipeline.study.training import Training

__all__ = ["Study", "Training", "load"]
