"""What `make` runs beside the stages: the catalogue, the plan, a mended `dvc repro`, profiles, verification."""
