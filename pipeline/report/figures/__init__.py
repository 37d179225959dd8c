"""The figures of the pages, each with its caption and its choice of data; `base` has what they share."""

from pipeline.report.figures import arithmetic, attention, captions, curves, measure, positions, scaling  # each registers its figures
from pipeline.report.figures.base import Material, Picture, pictures

__all__ = ["Material", "Picture", "arithmetic", "attention", "captions", "curves", "measure", "pictures", "positions", "scaling"]
