"""What a study found: its results as frames, the statistics, and the rules that judge claims."""

from pipeline.study.results import Study, Training, load

__all__ = ["Study", "Training", "load"]
