"""One thin module per DVC stage; and `sync`, with which the report stage completes the MLflow store."""
