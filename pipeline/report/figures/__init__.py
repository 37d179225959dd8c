"""The figures of the pages, each with its caption and its choice of data.

A figure that experiments may name is one function, which `@figure` registers under its name. The name also stands in `Figure`
(pipeline/params/study.py), by which params.yaml is checked.
"""

from pipeline.report.figures import arithmetic, attention, captions, curves, measure, positions, scaling  # each registers its figures
from pipeline.report.figures.drawing import Drawing, Material, drawings

__all__ = ["Drawing", "Material", "arithmetic", "attention", "captions", "curves", "drawings", "measure", "positions", "scaling"]
