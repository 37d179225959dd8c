"""The training engine: a stack of seeds, its step, optimisers, schedules and augmentation. All of it decides results."""
