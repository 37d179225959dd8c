"""An ablation laboratory for vision transformers: what `dvc repro` and `make` run."""

import sys

if sys.argv[:1] == ["-m"]:  # true while Python searches for the module of `python -m pipeline...`
    from pipeline.system.environment import clean

    clean()
