"""DVC stage `evaluate`: tests the stored weights of every variant anew.

One stage for all variants. It keeps what it has while all that decides it is the same; `store/predictions/VARIANT.npz`
says what that was.
"""

import argparse

from pipeline.evaluation.evaluate import evaluate
from pipeline.evaluation.records import Records
from pipeline.params import load as load_params
from pipeline.stages import settled
from pipeline.system.errors import UserError, run_command
from pipeline.system.paths import TRAININGS
from pipeline.system.processes import die_with_dvc


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.stages.evaluate", description=__doc__).parse_args(argv)
    die_with_dvc()
    params = load_params()
    records = Records()
    wanted = records.wanted(params)
    if not wanted:
        raise UserError(
            f"There is nothing to evaluate: {TRAININGS}/ holds no finished training of what params.yaml describes; run `dvc repro` first."
        )
    kept, stale = records.split_stale(wanted)
    records.prune(params)
    if not stale:
        records.write_tables(wanted)
        print(f"The evaluation of {len(kept)} variant{'s' * (len(kept) != 1)} is up to date.")
        return
    faults = evaluate(params, records, {variant: wanted[variant] for variant in stale})
    records.write_tables(wanted)
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        raise UserError(f"{', '.join(faults)} were not evaluated, for the reasons above; all other variants were.")


if __name__ == "__main__":
    run_command(settled(main))
