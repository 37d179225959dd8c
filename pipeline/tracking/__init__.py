"""MLflow tracking, and the only room that imports mlflow.

Tracking never stops science: whatever happens to the store, training and report go on, one plain line says so, and
`python -m pipeline.tracking sync` (`make sync`) completes the store later from the files in runs/.

A training is one parent run with a nested child run per seed. A run is FINISHED in MLflow only when all its points are there.
"""

from pipeline.tracking.live import Tracker
from pipeline.tracking.store import init_store
from pipeline.tracking.sync import sync

__all__ = ["Tracker", "init_store", "sync"]
