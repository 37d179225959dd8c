"""The commands that `make` runs beside the stages."""
