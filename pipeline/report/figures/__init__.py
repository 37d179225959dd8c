"""The figures of the pages: each beside its caption and its choice of data.

A figure that experiments may name is one function, registered under its name by `@figure`; the name stands in `Figure`
(pipeline/params/study.py), too, where params.yaml is checked.
"""

from pipeline.report.figures import arithmetic, attention, captions, curves, measure, positions, scaling  # each registers its figures
from pipeline.report.figures.drawing import Drawing, Material, drawings

__all__ = ["Drawing", "Material", "arithmetic", "attention", "captions", "curves", "drawings", "measure", "positions", "scaling"]
