"""MLflow: recording trainings and reading them back. The only room that imports mlflow.

Tracking never stops a training or a report: whatever happens to the store, they go on, one plain line says so, and
`pipeline.stages.sync` (`make sync`) completes the store later from the files in runs/.

A training is one parent run with a nested child run per seed. A run is FINISHED in MLflow only when all its points are there.
A value that is not finite is logged as it is: MLflow keeps NaN, and the largest float in infinity's place.
"""

from pipeline.tracking.live import Tracker
from pipeline.tracking.query import SeedRun, runs_of

__all__ = ["SeedRun", "Tracker", "runs_of"]
