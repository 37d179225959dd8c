"""Runs trainings: processes, checkpoints, the store of finished seeds, replay, progress."""
