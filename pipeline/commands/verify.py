"""`make verify`: whether what is committed is what the code makes of the stored weights and the real data.

    python -m pipeline.commands.verify [--variant VARIANT] [--seed SEED] [--train 1]

Checks results/, brings what a fresh clone lacks, tests every stored weight anew, and renders the pages; with --train it trains one
seed again instead. Nothing that is committed changes. Exit status 0 when all agrees, 1 when not, 2 when there is nothing to verify.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from pipeline.captioning.data import SCENES
from pipeline.commands.repro import reproduce
from pipeline.errors import UserError, run_command
from pipeline.evaluation import inference
from pipeline.evaluation.records import Records
from pipeline.params import Params, VariantSettings, shown
from pipeline.params import load as load_params
from pipeline.provenance import device_name, same_processor, training_code, versions
from pipeline.runner import pool, seeds
from pipeline.runner.seeds import Finished
from pipeline.runner.train import train
from pipeline.stages import bring
from pipeline.study.files import ARRAYS, PREDICTIONS, RUNS, TABLES
from pipeline.study.results import load_current
from pipeline.training.records import EpochRow
from pipeline.training.tasks import data_digest

STORE = Path("results")  # the DVC remote that git tracks; a study with another one may lack it
LIMIT = 250_000_000  # bytes; the weights of the study, six to 22 seeds of a variant, are about 190 MB of float32
# This share of a figure's colour values may differ, because another kind of processor may round a coordinate otherwise.
_COLOURS_APART = 0.001


def main(argv: list[str]) -> int:
    # make passes empty values for variables that were not given.
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.verify", description="Whether the committed results hold.")
    parser.add_argument("--variant", default="", help="this variant alone, without the pages")
    parser.add_argument("--seed", default="", help="of each variant this seed alone")
    parser.add_argument("--train", default="", help="1: train the seed again, in a temporary folder")
    given = parser.parse_args(argv)
    params = load_params()
    variant, seed = given.variant, _seed(params, given.variant, given.seed)
    if given.train not in ("", "0", "1"):
        raise UserError(f"TRAIN is {given.train!r}; 1 trains the seed again.")
    if given.train == "1" and (not variant or seed is None):
        raise UserError("TRAIN=1 trains one seed: say which, for example with VARIANT=base SEED=0.")
    bring.check_lock()
    bring.runs(params.variants)
    trained = [name for name in params.variants if (RUNS / name / seeds.RUN).exists()]
    chosen = [name for name in trained if variant in ("", name) and (seed is None or seed in params.resolve(name).train.seeds)]
    if not chosen:
        raise UserError("There is nothing to verify: runs/ holds no finished training of what is asked for; run `make repro` first.")
    if STORE.is_dir():
        _say(check_store(STORE))
    bring.pull([RUNS / name / output for name in trained for output in seeds.OUTPUTS] + [PREDICTIONS / f"{name}.npz" for name in trained])
    if not ((ARRAYS / "dataset.json").exists() and ARRAYS.with_name(SCENES).exists()):
        reproduce(Path(), ["--quiet", "scenes"])  # and the stages before it
    if given.train == "1" and seed is not None:
        faulty = [] if train_again(params, variant, seed) else [variant]
    else:
        faulty = retest(params, chosen, seed)
        if not variant:
            if untrained := [name for name in params.variants if name not in trained]:
                _say(f"not trained yet: {', '.join(untrained)}")
            faulty += ["the tables"] * (not compare_tables(params)) + ["the pages"] * (not compare_pages(params))
    if faulty:
        _say(f"Not verified: {', '.join(faulty)}.")
        return 1
    said = variant or f"{len(chosen)} variant{'s' * (len(chosen) != 1)}"
    _say(f"Verified: {'' if seed is None else f'seed {seed} of '}{said}{'' if variant else ', the tables and the pages'}.")
    return 0


def _seed(params: Params, variant: str, seed: str) -> int | None:
    """The seed as a number. Raises UserError if the variant, or every variant, lacks it."""
    variants = [variant] if variant else list(params.variants)
    known = [str(one) for one in sorted({one for name in variants for one in params.resolve(name).train.seeds})]
    if seed and seed not in known:
        raise UserError(f"{f'Variant {variant} has no' if variant else 'No variant has a'} seed {shown(seed)}, only {', '.join(known)}.")
    return int(seed) if seed else None


def check_store(folder: Path) -> str:
    """How much the remote in the repository holds, as a sentence.

    Raises:
        UserError: status 1; it holds more than the limit, or a file of it is damaged.
    """
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    said = f"{folder}/ holds {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} files, of {LIMIT / 1e6:.0f} MB at most"
    if sum(sizes.values()) > LIMIT:
        raise UserError(f"{said}: `dvc gc --workspace --cloud` removes what no stage has any more.", status=1)
    for path in sizes:
        # DVC names a file by the md5 of its content, a folder's list with .dir after it.
        if path.parent.parent == folder / "files" / "md5" and path.suffix in ("", ".dir"):
            with path.open("rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != path.parent.name + path.stem:
                    raise UserError(f"{path} is damaged, its name is not its md5: restore it with `git checkout {folder}`.", status=1)
    return f"{said}."


# --- the stored weights ---


def retest(params: Params, variants: Sequence[str], seed: int | None) -> list[str]:
    """Tests stored weights in processes of their own, as the evaluate stage does, and prints a line about each variant.

    Args:
        seed: this one alone, or None for all.

    Returns:
        The variants whose weights do not give what their training recorded.
    """
    from pipeline.runner.replay import test_difference

    device = pool.choose_device()
    here = device_name(device)
    faults: dict[str, str] = {}
    stored: dict[str, dict[int, Finished]] = {}
    tasks = []
    for variant in variants:
        try:
            stored[variant] = _stored(params, variant)
        except UserError as error:
            faults[variant] = str(error)
            continue
        groups = {tuple(_group(part, device)) for part in stored[variant].values() if seed in (None, part.seed)}
        tasks += [inference.Task(variant, params.resolve(variant), group, (), device, RUNS / variant, ARRAYS) for group in sorted(groups)]
    rounded = dict.fromkeys(stored, 0)  # seeds whose test is the training's up to rounding
    if tasks:
        with closing(inference.run(tasks, min(len(pool.choose_cards(device)), len(tasks)))) as outcomes:
            for task, outcome in outcomes:
                if isinstance(outcome, UserError):
                    faults[task.variant] = str(outcome)
                    continue
                for one, loss, accuracy in zip(task.seeds, outcome.losses, outcome.accuracies, strict=True):
                    if seed not in (None, one):
                        continue
                    part, tested = stored[task.variant][one], (float(loss), float(accuracy), outcome.num_tests)
                    # Torch's engine has no other bits than in the same stack; a fused training is tested by torch's operations.
                    exact = (
                        same_processor(part.origin["device_name"], here) and list(task.seeds) == part.origin["stack"] and not part.is_fused
                    )
                    if clause := test_difference(part, *tested, exact=exact):
                        faults[task.variant] = f"the test of seed {one}: {clause}{_elsewhere(part, here)}"
                    rounded[task.variant] += test_difference(part, *tested, exact=True) is not None
    for variant in variants:
        bits = "same bits" if not rounded.get(variant) else f"same, {rounded[variant]} of them up to rounding"
        what = f"seed {seed}" if seed is not None else f"{len(stored.get(variant, ()))} seeds"
        _say(f"{variant}  not verified: {faults[variant]}" if variant in faults else f"{variant}  {what}  {bits}")
    return list(faults)


def _stored(params: Params, variant: str) -> dict[int, Finished]:
    """The finished seeds of a variant. Raises UserError where files are missing or damaged, or of other settings or data."""
    run, settings = seeds.read_run(RUNS / variant), params.resolve(variant)
    if not settings.trained_as(run["config"], seeds=True):
        raise UserError(f"params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it.")
    if run["data_digest"] != data_digest(settings.task, ARRAYS):
        raise UserError(f"it was trained on other data than {ARRAYS} holds; `dvc repro train@{variant}` mends it.")
    return {part.seed: part for part in seeds.load(RUNS / variant)}


def _group(part: Finished, device: str) -> list[int]:
    """The seeds to compute with: on CUDA, grouping decides the rounding of torch's engine."""
    stack: list[int] = part.origin["stack"]
    return stack if device == "cuda" and not part.is_fused else [part.seed]


def _elsewhere(part: Finished, here: str) -> str:
    """The processor and the versions that differ from the training's, as a clause after a fault; empty without any."""
    old = {"processor": part.origin["device_name"], **part.origin["versions"]}
    new = {"processor": old["processor"] if same_processor(old["processor"], here) else here, **versions()}
    others = [f"{name} {now} here, {old.get(name)} there" for name, now in new.items() if old.get(name) != now]
    return f" ({', '.join(others)})" if others else ""


def train_again(params: Params, variant: str, seed: int) -> bool:
    """Trains a seed from its initial weights, in a temporary folder, and prints a line: whether it has the bits of the stored one.

    On another kind of processor the beginning has to agree: the tables, and the first losses up to rounding.
    """
    old = _stored(params, variant)[seed]
    device, settings = pool.choose_device(), params.resolve(variant)
    group = _group(old, device)
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": tuple(group)})})
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        train({variant: settings}, device, functools.partial(pool.run_all, cards=[""]), root=Path(folder))
        (place,) = (path for path in Path(folder).iterdir() if path.is_dir())
        new = seeds.find(place, training_code(settings.task))[0][seed]
    here = device_name(device)
    same = same_processor(old.origin["device_name"], here) and old.is_fused == new.is_fused
    exact = same and (new.is_fused or old.origin["stack"] == group)
    clause = first_difference(settings, new, old, exact=exact)
    bits = "same bits: the weights, the trace, all epochs" if exact else "the beginning agrees up to rounding"
    _say(f"{variant}  seed {seed}, trained again  {f'differs: {clause}' if clause else bits}{'' if exact else _elsewhere(old, here)}")
    return clause is None


def first_difference(settings: VariantSettings, new: Finished, old: Finished, *, exact: bool) -> str | None:
    """The first difference between two trainings of a seed, as a clause; None if all but their seconds is bitwise equal.

    Args:
        exact: False compares only what agrees on every processor: the tables, and the first losses up to rounding.
    """
    from pipeline.runner.replay import TOLERANCES, other_tables

    tables = new.origin["tables"], old.origin["tables"]
    others = [name for name in tables[1] if tables[0][name] != tables[1][name]]
    if others := others if exact else other_tables(settings.train, settings.num_steps, *tables):
        return f"not the same {', '.join(others)}"
    steps, tolerance = (len(old.tensors["trace.step"]), 0.0) if exact else (seeds.REPLAYED_STEPS, TOLERANCES["loss"])
    for name in ("step", "loss", "gradient_norm") if exact else ("loss",):
        found, was = (part.tensors[f"trace.{name}"] for part in (new, old))
        if len(found) != len(was):
            return f"{len(found)} steps are kept, there were {len(was)}"
        other = np.flatnonzero(~np.isclose(found[:steps], was[:steps], rtol=tolerance, atol=0, equal_nan=True))
        if other.size:
            return f"{name.replace('_', ' ')} of step {old.tensors['trace.step'][other[0]]}: {found[other[0]]:.9g} was {was[other[0]]:.9g}"
    if not exact:
        return None
    for row, stored in zip(new.rows, old.rows, strict=True):
        for name in EpochRow._fields[:-1]:
            if repr(getattr(row, name)) != repr(getattr(stored, name)):
                return f"{name.replace('_', ' ')} of epoch {stored.epoch}: {getattr(row, name)!r} was {getattr(stored, name)!r}"
    weights = (name for name in old.tensors if name.startswith("model."))
    other_weights = (name for name in weights if old.tensors[name].tobytes() != new.tensors[name].tobytes())
    return next((f"the weights {name.removeprefix('model.')}" for name in other_weights), None)


# --- the tables and the pages ---


def compare_tables(params: Params) -> bool:
    """Whether the tables are what the records of trainings and evaluations give; prints a line."""
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        records = Records(arrays=ARRAYS, runs=RUNS, predictions=PREDICTIONS, tables=Path(folder))
        try:
            records.write_tables(records.wanted(params, _say))
        except UserError as error:
            _say(f"tables  not written: {error}")
            return False
        made = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    other = [name for name, content in made.items() if not (TABLES / name).is_file() or (TABLES / name).read_bytes() != content]
    differ = f"differ: {', '.join(other)} of {TABLES}/; `dvc repro evaluate` writes them anew"
    _say(f"tables  {differ if other else f'{len(made)} files of {TABLES}/  same bits'}")
    return not other


def compare_pages(params: Params) -> bool:
    """Whether pages and figures, rendered anew, are the files in reports/; prints a line."""
    from pipeline.report import pages

    try:
        rendered = {pages.REPORTS / name: content for name, content in pages.render(params, load_current(params).trainings).items()}
    except UserError as error:
        _say(f"pages  not rendered: {error}")
        return False
    stored = {path: path.read_bytes() if path.is_file() else b"" for path in rendered}
    unequal = [path for path, content in rendered.items() if stored[path] != content]
    rounded = [path for path in unequal if path.suffix == ".png" and same_picture(stored[path], rendered[path])]
    other = [str(path) for path in unequal if path not in rounded]
    stale = {path for pattern in pages.OWN for path in pages.REPORTS.glob(pattern)} - rendered.keys()
    other += [f"{path}, which this code does not make" for path in sorted(stale)]
    differ = f"differ: {', '.join(other[:3])}{f' and {len(other) - 3} more' * (len(other) > 3)}; `dvc repro report` writes them anew"
    same = f"{len(rendered)} files of {pages.REPORTS}/  same bits{f' but in {len(rounded)} figures, up to rounding' * bool(rounded)}"
    _say(f"pages  {differ if other else same}")
    return not other


def same_picture(stored: bytes, content: bytes) -> bool:
    """Whether two PNGs show the same but for the rounding of coordinates."""
    from PIL import Image

    try:
        old, new = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")) for data in (stored, content))
    except (OSError, SyntaxError, ValueError):  # what Pillow raises depends on the bytes that are damaged
        return False
    return old.shape == new.shape and float((old != new).mean()) <= _COLOURS_APART


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    run_command(main)
