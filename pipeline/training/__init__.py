"""The training engine: a stack of seeds, its step, optimisers, schedules and augmentation. All of this code affects results."""
