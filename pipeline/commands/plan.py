"""What `make repro` would keep, replay and train, and how long that takes here; nothing is trained.

    python -m pipeline.commands.plan

Times come from earlier trainings on this kind of processor.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pipeline.commands import profiles, repro
from pipeline.commands.catalogue import show
from pipeline.params import load
from pipeline.runner import pool
from pipeline.runner.progress import duration
from pipeline.runner.train import Entry, cost, estimated, makespan, recorded, survey
from pipeline.system.errors import run_command


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.commands.plan", description="What make repro would train.").parse_args(argv)
    profiles.refresh()
    params = load()
    device = pool.choose_device()
    processes = len(pool.choose_cards(device))
    entries = survey(params, device)
    rates = recorded(entries, device)
    if rates and any(entry.tasks and entry.variant not in rates for entry in entries):
        rates = estimated(entries, rates)
    show("What make repro would do", *table(entries, rates, processes))
    print(summary(entries, rates, processes))
    if repro.own_data_changed(params) or code_of_data_changed():
        print("The data are read first: they, or what reads them, are not those of the last time. Where they differ all is trained anew.")


def code_of_data_changed() -> bool:
    """Whether DVC would read the data again for a change of their settings or their code; what is only absent is none."""
    done = subprocess.run([sys.executable, "-m", "dvc", "status", "--json", "fetch", "prepare"], capture_output=True, text=True)
    return '"modified"' in done.stdout


def seconds(entries: Sequence[Entry], rates: Mapping[str, float], processes: int) -> float:
    """How long all tasks of the variants take together, the longest first."""
    return makespan((cost(entry, task, rates[entry.variant]) for entry in entries for task in entry.tasks), processes)


def table(entries: Sequence[Entry], rates: Mapping[str, float], processes: int) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and lines of the list; without times of variants that have no rate."""
    lines: list[Sequence[str]] = []
    for entry in entries:
        epochs = entry.settings.train.epochs
        trained = f"{_seeds(entry.trained)} x {epochs} epochs" if entry.trained else ""
        time = duration(seconds([entry], rates, processes)) if entry.tasks and entry.variant in rates else ""
        lines.append((entry.variant, _seeds(entry.kept), _seeds(entry.replayed), trained, time))
    return ("variant", "kept", "replayed", "trained", "time"), lines


def summary(entries: Sequence[Entry], rates: Mapping[str, float], processes: int) -> str:
    """The total, as a sentence."""
    busy = [entry for entry in entries if entry.tasks]
    states = ["to train" if entry.trained else "replayed" if entry.replayed else "kept" for entry in entries]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("kept", "replayed", "to train") if state in states)
    line = f"{len(entries)} variant{'s' * (len(entries) != 1)}: {counts}"
    if trained := sum(len(entry.trained) for entry in entries):
        line += f": {trained} seed{'s' * (trained != 1)}"
    if busy and rates:
        line += f", about {duration(seconds(busy, rates, processes))} with {processes} process{'es' * (processes != 1)}"
    elif busy:
        line += "; this kind of processor has trained nothing yet that says how long it takes"
    return f"{line}."


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}" if seeds else ""


if __name__ == "__main__":
    run_command(main)
