"""The figures of the pages, each with its caption and its choice of data; `base` has what they share. A module registers its figures."""

from pipeline.report.figures import attention, captions, curves, errors, measure
from pipeline.report.figures.base import Material, Picture, pictures

__all__ = ["Material", "Picture", "attention", "captions", "curves", "errors", "measure", "pictures"]
