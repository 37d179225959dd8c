"""What a study found: its results as frames, the statistics, and the rules that judge claims."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.study.results import Study, load
    from pipeline.study.training import Training

__all__ = ["Study", "Training", "load"]


def __getattr__(name: str) -> Any:
    """Imports the results on first use: processes that need the statistics alone do not pay for pandas."""
    if name not in __all__:
        raise AttributeError(name)
    from pipeline.study import results

    return getattr(results, name)
