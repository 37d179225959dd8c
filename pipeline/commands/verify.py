"""`make verify`: whether what is committed is what the code makes of the stored weights and the real data.

    python -m pipeline.commands.verify [--variant VARIANT] [--seed SEED] [--train 1]

Checks results/, brings what a fresh clone lacks, tests every stored weight anew, and renders the pages; with --train it trains one
seed again instead. Nothing that is committed changes. Exit status 0 when all agrees, 1 when not, 2 when there is nothing to verify.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.captioning.data import SCENES
from pipeline.commands.repro import reproduce
from pipeline.errors import UserError, run_command
from pipeline.evaluation import inference
from pipeline.evaluation.records import Records
from pipeline.params import Params, VariantSettings, shown
from pipeline.params import load as load_params
from pipeline.provenance import device_name, origin, same_processor, versions
from pipeline.runner import finished, results, workers
from pipeline.runner.finished import Finished
from pipeline.runner.progress import TrainingProgress
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
    parser.add_argument("--train", default="", help="1: train the seed again, from its initial weights, in a temporary folder")
    arguments = parser.parse_args(argv)
    params = load_params()
    variant, seed = arguments.variant, _seed(params, arguments.variant, arguments.seed)
    if arguments.train not in ("", "0", "1"):
        raise UserError(f"TRAIN is {arguments.train!r}; 1 trains the seed again.")
    if arguments.train == "1" and not (variant and seed is not None):
        raise UserError("TRAIN=1 trains one seed: say which, for example with VARIANT=base SEED=0.")
    bring.check_lock()
    bring.runs(params.variants)
    trained = [name for name in params.variants if (RUNS / name / results.RUN).exists()]
    if not trained:
        raise UserError("There is nothing to verify: runs/ holds no finished training of what params.yaml names; run `make repro` first.")
    if variant and variant not in trained:
        raise UserError(f"Variant {variant} has not been trained: run `dvc repro train@{variant}` first.")
    chosen = [variant] if variant else with_seed(params, trained, seed)
    if not chosen:
        raise UserError(f"No variant that has been trained has seed {seed}.")
    if STORE.is_dir():
        _say(check_store(STORE))
    bring_rest(trained)
    if arguments.train == "1" and seed is not None:
        return _train_again(params, variant, seed)
    faulty = retest(params, chosen, seed)
    if not variant:
        if untrained := [name for name in params.variants if name not in trained]:
            _say(f"not trained yet: {', '.join(untrained)}")
        if not compare_tables(params):
            faulty.append("the tables")
        if not compare_pages(params):
            faulty.append("the pages")
    if faulty:
        _say(f"Not verified: {', '.join(faulty)}.")
        return 1
    said = variant or f"{len(chosen)} variant{'s' * (len(chosen) != 1)}"
    _say(f"Verified: {'' if seed is None else f'seed {seed} of '}{said}{'' if variant else ', the tables and the pages'}.")
    return 0


def _seed(params: Params, variant: str, seed: str) -> int | None:
    """The seed as a number. Raises UserError if the variant, or every variant, lacks it."""
    variants = [variant] if variant else list(params.variants)
    seeds = [str(one) for one in sorted({one for name in variants for one in params.resolve(name).train.seeds})]
    if seed and seed not in seeds:
        which = f"Variant {variant} has no" if variant else "No variant has a"
        raise UserError(f"{which} seed {shown(seed)}, only {', '.join(seeds)}.")
    return int(seed) if seed else None


def with_seed(params: Params, variants: Sequence[str], seed: int | None) -> list[str]:
    """Those of the variants that have the seed; all for None."""
    return [name for name in variants if seed is None or seed in params.resolve(name).train.seeds]


def check_store(folder: Path) -> str:
    """How much the remote in the repository holds, as a sentence.

    Raises:
        UserError: status 1; it holds more than the limit, or a file of it is damaged.
    """
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    said = f"{folder}/ holds {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} file{'s' * (len(sizes) != 1)}"
    limit = f"{LIMIT / 1e6:.0f} MB"
    if sum(sizes.values()) > LIMIT:
        raise UserError(
            f"{said}, more than the limit of {limit}: `dvc gc --workspace --cloud` removes what no stage has any more,"
            " from there and from DVC's cache.",
            status=1,
        )
    for path in sizes:
        # DVC names a file by the md5 of its content, a folder's list with .dir after it.
        if path.parent.parent == folder / "files" / "md5" and path.suffix in ("", ".dir"):
            with path.open("rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != path.parent.name + path.stem:
                    raise UserError(f"{path} is damaged, its name is not its md5: restore it with `git checkout {folder}`.", status=1)
    return f"{said}; the limit is {limit}."


def bring_rest(trained: Sequence[str]) -> None:
    """Has DVC pull weights, traces and predictions that are missing, and make data that are missing.

    Raises:
        UserError: status 1; DVC failed and has said why.
    """
    outputs = [RUNS / variant / name for variant in trained for name in (results.WEIGHTS, results.STEPS)]
    outputs += [PREDICTIONS / f"{variant}.npz" for variant in trained]
    bring.pull(outputs)
    if not ((ARRAYS / "dataset.json").exists() and ARRAYS.with_name(SCENES).exists()):
        reproduce(Path(), ["--quiet", "scenes"])  # and the stages before it


# --- the stored weights, tested anew ---


@dataclass(frozen=True)
class _Test:
    """A seed tested anew. `exact`: the training ran on this kind of processor, so the bits have to agree."""

    part: Finished
    loss: float
    accuracy: float
    num_images: int
    exact: bool

    def parted(self, *, exact: bool) -> str | None:
        from pipeline.runner.replay import test_parted

        return test_parted(self.part, self.loss, self.accuracy, self.num_images, exact=exact)


def retest(params: Params, variants: Sequence[str], seed: int | None) -> list[str]:
    """Tests stored weights in processes of their own, as the evaluate stage does, and prints a line about each variant.

    Args:
        seed: this one alone, or None for all.

    Returns:
        The variants whose weights do not give what their training recorded.
    """
    device = workers.choose_device()
    here = device_name(device)
    faulty: list[str] = []

    def fault(variant: str, sentence: str) -> None:
        if variant not in faulty:
            faulty.append(variant)
            _say(f"{variant}  not verified: {sentence}")

    stored: dict[str, dict[int, Finished]] = {}
    tasks = []
    for variant in variants:
        try:
            stored[variant] = _stored(params, variant)
        except UserError as error:
            fault(variant, str(error))
            continue
        settings = params.resolve(variant)
        groups = dict.fromkeys(tuple(_group(part, device)) for part in stored[variant].values() if seed in (None, part.seed))
        tasks += [inference.Task(variant, settings, group, (), device, RUNS / variant, ARRAYS) for group in groups]
    if not tasks:
        return faulty
    left = {variant: sum(task.variant == variant for task in tasks) for variant in stored}
    tests: dict[str, list[_Test]] = defaultdict(list)
    processes = workers.choose_processes() if device == "cpu" else 1
    with closing(inference.run(tasks, min(processes, len(tasks)))) as outcomes:
        for task, outcome in outcomes:
            if isinstance(outcome, UserError):
                fault(task.variant, str(outcome))
                continue
            for one, loss, accuracy in zip(task.seeds, outcome.losses, outcome.accuracies, strict=True):
                if seed in (None, one):
                    part = stored[task.variant][one]
                    exact = _exact(part, task.seeds, here)
                    tests[task.variant].append(_Test(part, float(loss), float(accuracy), outcome.num_tests, exact))
            left[task.variant] -= 1
            if left[task.variant] == 0 and task.variant not in faulty:
                clause, agrees = _judge(sorted(tests.pop(task.variant), key=lambda test: test.part.seed), seed)
                if agrees:
                    _say(f"{task.variant}  {clause}")
                else:
                    fault(task.variant, clause)
    return faulty


def _stored(params: Params, variant: str) -> dict[int, Finished]:
    """The finished seeds of a variant. Raises UserError where files are missing or damaged, or of other settings or data."""
    directory = RUNS / variant
    run = results.read_run(directory)
    settings = params.resolve(variant)
    if not settings.trained_as(run["config"], seeds=True):
        raise UserError(f"params.yaml has other settings than its training had; `dvc repro train@{variant}` mends it.")
    if run["data_digest"] != data_digest(settings.task, ARRAYS):
        raise UserError(f"it was trained on other data than {ARRAYS} holds; `dvc repro train@{variant}` mends it.")
    return {part.seed: part for part in results.load_seeds(directory)}


def _group(part: Finished, device: str) -> list[int]:
    """The seeds to compute with: on CUDA, grouping decides the rounding of torch's engine."""
    stack: list[int] = part.origin["stack"]
    return stack if device == "cuda" and not part.is_fused else [part.seed]


def _exact(part: Finished, group: Sequence[int], here: str, *, fused: bool = False) -> bool:
    """Whether the bits have to agree with those of a computation here, by the fused engine or torch's operations."""
    same = same_processor(part.origin["device_name"], here) and part.is_fused == fused
    return same and (fused or list(group) == part.origin["stack"])


def _judge(tests: Sequence[_Test], seed: int | None) -> tuple[str, bool]:
    """A clause about the tests of a variant, and whether all agree with the training."""
    for test in tests:
        if (parted := test.parted(exact=test.exact)) is not None:
            kind = "" if test.exact else f", more than rounding on another processor than {test.part.origin['device_name']}"
            return f"the test of seed {test.part.seed}: {parted}{kind}{_other_versions(test.part)}", False
    what = f"seed {seed}" if seed is not None else f"{len(tests)} seed{'s' * (len(tests) != 1)}"
    if all(test.parted(exact=True) is None for test in tests):
        return f"{what}  same bits", True
    last = [test.part.rows[-1] for test in tests]
    loss = max(_relative(test.loss, row.test_loss) for test, row in zip(tests, last, strict=True))
    images = max(_images(test.accuracy - row.test_accuracy, test.num_images) for test, row in zip(tests, last, strict=True))
    where = ", ".join(dict.fromkeys(test.part.origin["device_name"] for test in tests if not test.exact))
    return (
        f"{what}  same up to rounding: losses within {loss:.1e}, {images} of {tests[0].num_images} test examples apart; trained on {where}",
        True,
    )


def _images(accuracy: float, num_images: int) -> int:
    """A difference of accuracies as a number of images."""
    return round(abs(accuracy) * num_images)


def _relative(new: float, old: float) -> float:
    """Relative difference; 0 where neither is a number."""
    if math.isfinite(new) and math.isfinite(old):
        return abs(new - old) / max(abs(old), sys.float_info.min)
    return math.inf if math.isfinite(new) or math.isfinite(old) else 0.0


def _other_versions(part: Finished) -> str:
    """Versions that differ from the training's, as a clause after a fault; empty without any."""
    old = part.origin["versions"]
    others = [f"{name} {new} here, {old.get(name)} there" for name, new in versions().items() if old.get(name) != new]
    return f" ({', '.join(others)})" if others else ""


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
        names = sorted(path.name for path in Path(folder).iterdir())
        stored = {name: (TABLES / name).read_bytes() if (TABLES / name).is_file() else b"" for name in names}
        other = [name for name in names if stored[name] != (Path(folder) / name).read_bytes()]
    if other:
        _say(f"tables  differ: {', '.join(other)} of {TABLES}/; `dvc repro evaluate` writes them anew")
        return False
    _say(f"tables  {len(names)} files of {TABLES}/  same bits")
    return True


def compare_pages(params: Params) -> bool:
    """Whether pages and figures, rendered anew, are the files in reports/; prints a line."""
    from pipeline.report import pages

    try:
        rendered = pages.render(params, load_current(params).trainings)
    except UserError as error:
        _say(f"pages  not rendered: {error}")
        return False
    other, rounded = [], 0
    for name, content in rendered.items():
        path = pages.REPORTS / name
        stored = path.read_bytes() if path.is_file() else b""
        if stored == content:
            continue
        if path.suffix == ".png" and _same_picture(stored, content):
            rounded += 1
        else:
            other.append(str(path))
    stale = {path for pattern in pages.OWN for path in pages.REPORTS.glob(pattern)} - {pages.REPORTS / name for name in rendered}
    other += [f"{path}, which this code does not make" for path in sorted(stale)]
    if other:
        shown = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
        _say(f"pages  differ: {shown} of {len(rendered)} files; `dvc repro report` writes them anew")
        return False
    note = f"same bits but in {rounded} figure{'s' * (rounded != 1)}, which differ by rounding" if rounded else "same bits"
    _say(f"pages  {len(rendered)} files of {pages.REPORTS}/  {note}")
    return True


def _same_picture(stored: bytes, content: bytes) -> bool:
    """Whether two PNGs show the same but for the rounding of coordinates."""
    from PIL import Image

    try:
        old, new = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")) for data in (stored, content))
    except (OSError, SyntaxError, ValueError):  # what Pillow raises depends on the bytes that are damaged
        return False
    return old.shape == new.shape and float((old != new).mean()) <= _COLOURS_APART


# --- one seed, trained again ---


def _train_again(params: Params, variant: str, seed: int) -> int:
    """Trains a seed from its initial weights and prints how the result compares with the stored one. Returns the exit status."""
    settings, device = params.resolve(variant), workers.choose_device()
    old = _stored(params, variant)[seed]
    group = _group(old, device)
    about = origin(device, settings.task)
    last: list[EpochRow] = []
    progress = TrainingProgress(variant, [group], settings.train.epochs)

    def handle(message: workers.Message) -> None:
        match message:
            case workers.Started():
                progress.started(message.seeds, message.epoch)
            case workers.Epoch():
                last[:] = message.rows
                progress.epoch(message.seeds, message.epoch, message.rows)
            case workers.Done():
                progress.finished(message.seeds, last)

    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        with progress.screen:
            workers.run(workers.Job(settings, ARRAYS, Path(folder), device, about), [workers.Task(group)], 1, handle)
        new = finished.find(Path(folder), about["code_hash"])[0].get(seed)
    what = f"{variant}  seed {seed}, trained again"
    if new is None:
        _say(f"{what}  differs: its loss was not finite")
        return 1
    here = device_name(device)
    if (parted := bits_parted(new, old)) is None:
        _say(f"{what}  same bits: the weights, {len(old.tensors['trace.step'])} steps of the trace, all epochs")
        return 0
    if _exact(old, group, here, fused=new.is_fused):
        _say(f"{what}  differs: {parted}{_other_versions(old)}")
        return 1
    loss = _relative(new.rows[-1].test_loss, old.rows[-1].test_loss)
    num_images = settings.num_tests
    images = _images(new.rows[-1].test_accuracy - old.rows[-1].test_accuracy, num_images)
    _say(f"{what}  on {here}; stored: {old.origin['device_name']}, which rounds otherwise")
    _say(f"  after the last epoch the test loss differs by {loss:.1e} of it, the accuracy by {images} of {num_images} test examples")
    if (parted := start_parted(settings, new, old)) is not None:
        _say(f"  differs: {parted}{_other_versions(old)}")
        return 1
    _say("  the beginning agrees: initial weights, order of the images, augmentation, learning rates, and the first losses up to rounding")
    return 0


def bits_parted(new: Finished, old: Finished) -> str | None:
    """The first difference between two trainings of a seed, as a clause; None if all but their seconds is bitwise equal."""
    others = [name for name, digest in old.origin["tables"].items() if new.origin["tables"][name] != digest]
    if (clause := _tables_parted(others)) is not None:
        return clause
    steps = old.tensors["trace.step"]
    if not np.array_equal(new.tensors["trace.step"], steps):
        return f"{len(new.tensors['trace.step'])} steps are kept, there were {len(steps)}"
    for name in ("loss", "gradient_norm"):
        found, was = new.tensors[f"trace.{name}"], old.tensors[f"trace.{name}"]
        other = np.flatnonzero(~((found == was) | (np.isnan(found) & np.isnan(was))))
        if other.size:
            return f"{name.replace('_', ' ')} of step {steps[other[0]]}: {found[other[0]]:.9g} was {was[other[0]]:.9g}"
    for row, stored in zip(new.rows, old.rows, strict=True):
        for name in EpochRow._fields[:-1]:
            if repr(getattr(row, name)) != repr(getattr(stored, name)):
                return f"{name.replace('_', ' ')} of epoch {stored.epoch}: {getattr(row, name)!r} was {getattr(stored, name)!r}"
    for name, value in old.tensors.items():
        if name.startswith("model.") and value.tobytes() != new.tensors[name].tobytes():
            return f"the weights {name.removeprefix('model.')}"
    return None


def start_parted(settings: VariantSettings, new: Finished, old: Finished) -> str | None:
    """The first difference in what agrees on every processor: the tables, and the first losses up to rounding. None without one."""
    from pipeline.runner.replay import TOLERANCES, other_tables

    if (clause := _tables_parted(other_tables(settings.train, settings.num_steps, new.origin["tables"], old.origin["tables"]))) is not None:
        return clause
    found, was = (part.tensors["trace.loss"][: finished.REPLAYED_STEPS] for part in (new, old))
    other = np.flatnonzero(~np.isclose(found, was, rtol=TOLERANCES["loss"], equal_nan=True))
    return f"loss of step {other[0] + 1}: {found[other[0]]:.9g} was {was[other[0]]:.9g}" if other.size else None


def _tables_parted(others: Sequence[str]) -> str | None:
    """A clause about tables that differ; None without any."""
    said = {"weights": "initial weights", "order": "order of the images", "augmentation": "augmentation", "rates": "learning rates"}
    return f"not the same {', '.join(said[name] for name in others)}" if others else None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    run_command(main)
