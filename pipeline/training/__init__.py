"""The training engine: a stack of seeds, its step, its checkpoints, and the processes that run it."""
