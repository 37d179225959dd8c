"""params.yaml and claims.yaml as frozen, validated settings; a variant is the base plus its own difference.

Nothing here knows of DVC, MLflow or torch. Every fault becomes one sentence that names its key.
"""

from pipeline.params.architectures import ARCHITECTURES
from pipeline.params.data import DATASETS, DataSettings, DataSource, ScenesSettings, Shape
from pipeline.params.model import AnyModelSettings, BaselineSettings, CaptionerSettings, ModelSettings, NetworkSettings, settings_class
from pipeline.params.reading import nearest, read, shown
from pipeline.params.study import ClaimSettings, ComparisonSettings, ExperimentSettings, Figure, Measure, Params, load, load_variant, parse
from pipeline.params.timing import TimingSettings
from pipeline.params.train import TrainSettings
from pipeline.params.variant import VariantSettings, flatten, recorded

__all__ = [
    "ARCHITECTURES", "DATASETS", "AnyModelSettings", "BaselineSettings", "CaptionerSettings", "ClaimSettings", "ComparisonSettings",
    "DataSettings", "DataSource", "ExperimentSettings", "Figure", "Measure", "ModelSettings", "NetworkSettings", "Params", "ScenesSettings",
    "Shape", "TimingSettings", "TrainSettings", "VariantSettings", "flatten", "load", "load_variant", "nearest", "parse", "read",
    "recorded", "settings_class", "shown",
]  # fmt: skip
