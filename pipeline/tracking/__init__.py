"""MLflow. The only room that imports it.

`record` writes a finished training, whole or not at all; `live` shows curves while one runs, and may fail without harm. Tracking never
stops a training or a report: whatever happens to the store, they go on, one line says so, and `make sync` logs what is missing.

A training is one parent run with a nested child run per seed. A run is FINISHED in MLflow only when all its points are there.
A value that is not finite is logged as it is: MLflow keeps NaN, and the largest float in infinity's place.
"""
