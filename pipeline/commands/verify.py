"""`make verify`: whether what is committed is what the code makes of the stored weights and the real data.

    python -m pipeline.commands.verify [--variant VARIANT] [--seed SEED] [--train 1]

Tests the first seed's weights of every variant anew, and renders tables and pages; with --train it trains one seed, of which a clone
has the digest of its weights, again. Nothing that is committed changes. Exit status 0 when all agrees, 1 when not, 2 when there is
nothing to verify, or the files are not there to make tables and pages of.
"""

import argparse
import functools
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.captioning.data import SCENES
from pipeline.commands.repro import data_stage, own_data_changed, reproduce
from pipeline.evaluation import inference
from pipeline.evaluation.evaluate import alike, difference, elsewhere
from pipeline.evaluation.group import Task
from pipeline.evaluation.records import Records
from pipeline.params import Params, VariantSettings, shown
from pipeline.params import load as load_params
from pipeline.runner import pool, seeds
from pipeline.runner.replay import TOLERANCES, other_tables, test_difference
from pipeline.runner.seeds import Finished
from pipeline.runner.train import Entry, plan, train
from pipeline.study.results import load_current
from pipeline.system.errors import UserError, run_command
from pipeline.system.paths import ARRAYS, PREDICTIONS, TABLES, TRAININGS
from pipeline.system.provenance import EVALUATION_CODE, code_hash, device_name, same_processor, training_code
from pipeline.training.tasks import data_digest

# This share of a figure's colour values may differ, because another kind of processor may round a coordinate otherwise.
_COLOURS_APART = 0.001


def main(argv: list[str]) -> int:
    # make passes empty values for variables that were not given.
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.verify", description="Whether the committed results hold.")
    parser.add_argument("--variant", default="", help="this variant alone, without the pages")
    parser.add_argument("--seed", default="", help="this seed instead of each variant's first; its weights have to be here")
    parser.add_argument("--train", default="", choices=("", "0", "1"), help="1: train the seed again, in a temporary folder")
    given = parser.parse_args(argv)
    params, records = load_params(), Records()
    variants = {name: params.resolve(name) for name in ([given.variant] if given.variant else params.variants)}
    known = [str(seed) for seed in sorted({seed for settings in variants.values() for seed in settings.train.seeds})]
    if given.seed and given.seed not in known:
        raise UserError(f"{given.variant or 'The study'} has no seed {shown(given.seed)}, only {', '.join(known)}.")
    if given.train == "1" and not (given.variant and given.seed):
        raise UserError("TRAIN=1 trains one seed: say which, for example with VARIANT=base SEED=0.")
    asked = {name: int(given.seed or settings.train.seeds[0]) for name, settings in variants.items()}
    chosen = {name: seed for name, seed in asked.items() if records.training(name).exists() and seed in variants[name].train.seeds}
    if not chosen:
        raise UserError(f"There is nothing to verify: {TRAININGS}/ has no finished training of what is asked for; run `make repro` first.")
    if not ((ARRAYS / "dataset.json").exists() and ARRAYS.with_name(SCENES).exists()):
        reproduce(Path(), ["--quiet", data_stage()])  # and the stages before it
    if own_data_changed(params):
        raise UserError(f"{params.data.path} is no longer what was read and trained on: run `make repro`.")
    if given.train == "1":
        faulty = [] if train_again(params, records, given.variant, int(given.seed)) else [given.variant]
    else:
        faulty = retest(params, records, chosen)
    if not given.variant:
        if untrained := [name for name in variants if not records.training(name).exists()]:
            print(f"not trained yet: {', '.join(untrained)}")
        faulty += remade(params)
    if faulty:
        print(f"Not verified: {', '.join(faulty)}.")
        return 1
    said = given.variant or f"{len(chosen)} variant{'s' * (len(chosen) != 1)}, the tables and the pages"
    print(f"Verified: {f'seed {given.seed}' if given.seed else 'the first seed'} of {said}.")
    return 0


# --- the stored weights ---


def retest(params: Params, records: Records, chosen: Mapping[str, int]) -> list[str]:
    """Tests stored weights in processes of their own, as the evaluate stage does, and prints a line about each variant.

    Args:
        chosen: by variant, the seed to test.

    Returns:
        The variants whose weights do not give what their training recorded.
    """
    device, stored, said, tasks = pool.choose_device(), dict[str, Finished](), dict[str, str](), []
    code = code_hash(EVALUATION_CODE)
    for variant, seed in chosen.items():
        try:
            stored[variant] = _stored(params, records, variant, seed)
            place = records.training(variant)
            tasks.append(Task(variant, params.resolve(variant), (seed,), (), device, place, ARRAYS))
        except UserError as error:
            said[variant] = f"not verified: {error}"
    for task, found in inference.run(tasks, len(pool.choose_cards(device))) if tasks else ():
        part = stored[task.variant]
        if isinstance(found, UserError):
            said[task.variant] = f"not verified: {found}"
        elif clause := difference(part, found, 0, device_name(device)):
            said[task.variant] = f"not verified: the test of seed {part.seed}: {clause}"
        else:
            same = test_difference(part, float(found.losses[0]), float(found.accuracies[0]), found.num_tests, exact=True) is None
            said[task.variant] = f"seed {part.seed}  same {'bits' if same else 'up to rounding'}"
            evaluation, kept = records.stored(task.variant) or (None, {})
            if evaluation is None or evaluation.inputs["code"] != code:
                file = f"{PREDICTIONS}/{task.variant}.npz"
                said[task.variant] = f"not verified: {file} is missing, damaged or of other code; `dvc repro evaluate` writes it anew"
                continue
            new, kept = found.arrays | found.columns, kept | {name: np.array(one) for name, one in evaluation.columns.items()}
            same &= same_processor(evaluation.inputs.get("device") or "", device_name(device))
            own = {name: kept[name][kept["seeds"] == part.seed] for name in new.keys() & kept.keys()}
            if unlike := [name for name, value in own.items() if not alike(new[name], value, exact=same)]:
                said[task.variant] = f"not verified: {PREDICTIONS}/{task.variant}.npz has other {unlike[0]} than the weights give"
    for variant in chosen:
        print(f"{variant}  {said[variant]}")
    return [variant for variant in chosen if said[variant].startswith("not verified")]


def _stored(params: Params, records: Records, variant: str, seed: int) -> Finished:
    """A finished seed. Raises UserError where its file is missing or damaged, or of other settings or data."""
    path, settings = records.training(variant), params.resolve(variant)
    run = seeds.read_record(path)
    if not settings.trained_as(run["config"], seeds=True):
        raise UserError(f"params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it.")
    if run["data_digest"] != data_digest(settings.task, ARRAYS):
        raise UserError(f"it was trained on other data than {ARRAYS} holds; `dvc repro train@{variant}` mends it.")
    return next(part for part in seeds.load(path) if part.seed == seed)


def train_again(params: Params, records: Records, variant: str, seed: int) -> bool:
    """Trains a seed from its initial weights, in a temporary folder, and prints a line: whether it has the bits of the stored one.

    On another kind of processor the beginning has to agree: the tables, and the first losses up to rounding.
    """
    old = _stored(params, records, variant, seed)
    device, settings = pool.choose_device(), params.resolve(variant)
    # On CUDA, grouping decides the rounding of torch's engine.
    group = old.origin["stack"] if device == "cuda" and not old.is_fused else [seed]
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": tuple(group)})})
    entry = Entry(variant, settings, tuple(plan(settings, {}, "", device)))
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        train([entry], device, functools.partial(pool.run_all, cards=[""]), root=Path(folder))
        (place,) = (path for path in Path(folder).iterdir() if path.is_dir())
        new = seeds.find(place, training_code(settings.task))[0][seed]
    here = device_name(device)
    same = same_processor(old.origin["device_name"], here) and old.is_fused == new.is_fused
    exact = same and (new.is_fused or old.origin["stack"] == group)
    clause = first_difference(settings, new, old, exact=exact)
    bits = "same bits: the weights, the trace, all epochs" if exact else "the beginning agrees up to rounding"
    print(f"{variant}  seed {seed}, trained again  {f'differs: {clause}' if clause else bits}{'' if exact else elsewhere(old, here)}")
    return clause is None


def first_difference(settings: VariantSettings, new: Finished, old: Finished, *, exact: bool) -> str | None:
    """The first difference between two trainings of a seed, as a clause; None if all but their seconds is bitwise equal.

    Args:
        exact: False compares only what agrees on every processor: the tables, and the first losses up to rounding.
    """
    if others := other_tables(settings.train, settings.num_steps, new.origin["tables"], old.origin["tables"]):
        return f"not the same {', '.join(others)}"
    found, was = (part.tensors["trace.loss"][: None if exact else seeds.REPLAYED_STEPS] for part in (new, old))
    apart = np.flatnonzero(~np.isclose(found, was, rtol=0 if exact else TOLERANCES["loss"], atol=0, equal_nan=True))
    if apart.size:
        return f"loss of step {apart[0] + 1}: {found[apart[0]]:.9g} was {was[apart[0]]:.9g}"
    now, before = (
        (one.tensors["trace.gradient_norm"].tobytes(), repr([row[:-1] for row in one.rows]), one.origin["weights"]) for one in (new, old)
    )
    others = [name for name, one, other in zip(("gradient norms", "epochs", "weights"), now, before, strict=True) if one != other]
    return f"not the same {', '.join(others)}" if exact and others else None


# --- the tables and the pages ---


def remade(params: Params) -> list[str]:
    """Which of the tables and the pages are not what records and code give, figures up to rounding; prints a line about each."""
    from pipeline.report import pages

    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        records = Records()
        records.tables = Path(folder)
        records.write_tables(records.wanted(params))
        tables = {TABLES / path.name: path.read_bytes() for path in sorted(records.tables.iterdir())}
    rendered = {pages.REPORTS / name: content for name, content in pages.render(params, load_current(params).trainings).items()}
    stale = sorted({path for pattern in pages.OWN for path in pages.REPORTS.glob(pattern)} - rendered.keys())
    faulty = []
    for what, made, stage in (("tables", tables, "evaluate"), ("pages", rendered, "report")):
        stored = {path: path.read_bytes() if path.is_file() else b"" for path in made}
        unequal = [path for path, content in made.items() if stored[path] != content]
        rounded = [path for path in unequal if path.suffix == ".png" and same_picture(stored[path], made[path])]
        other = [str(path) for path in unequal if path not in rounded]
        other += [f"{path}, which this code does not make" for path in stale if what == "pages"]
        differ = f"differ: {', '.join(other[:3])}{f' and {len(other) - 3} more' * (len(other) > 3)}"
        differ += f"; `dvc repro --force --single-item {stage}` writes them anew"
        same = f"{len(made)} files  same bits{f' but in {len(rounded)} figures, up to rounding' * bool(rounded)}"
        print(f"{what}  {differ if other else same}")
        faulty += [f"the {what}"] * bool(other)
    return faulty


def same_picture(stored: bytes, content: bytes) -> bool:
    """Whether two PNGs show the same but for the rounding of coordinates."""
    try:
        old, new = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")) for data in (stored, content))
    except (OSError, SyntaxError, ValueError):  # what Pillow raises depends on the bytes that are damaged
        return False
    return old.shape == new.shape and float((old != new).mean()) <= _COLOURS_APART


if __name__ == "__main__":
    run_command(main)
