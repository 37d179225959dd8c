"""What several test modules share."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

from pipeline import params
from pipeline.commands.profiles import write_settings
from pipeline.params import data
from pipeline.system.environment import clean
from pipeline.tracking.store import Store
from tests.helpers import ROOT, STUDY, read_study, variant

if TYPE_CHECKING:
    from pipeline.data.datasets import Dataset
    from pipeline.params import VariantSettings
    from pipeline.training.engine import Trainer


data.COUNTED = (*data.COUNTED, STUDY / data.RECORD)  # the images of whose data a study of its own cannot know
clean()  # for all that tests start, too
# The same cases in every run, so that a commit that passed passes again. `pytest --hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


class Repository:
    """A DVC repository of its own: the real dvc.yaml and code, and settings of a small study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.output = ""  # of the last command

    @classmethod
    def create(cls, path: Path, raw: dict[str, Any]) -> Repository:
        shutil.copytree(ROOT / "pipeline", path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copyfile(ROOT / name, path / name)
        (path / ".dvc").mkdir()
        (path / ".dvc" / "config").write_text("[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n")
        write_settings(path, raw)
        return cls(path)

    def copy(self, path: Path) -> Repository:
        """With the files' times, by which DVC and make tell what has changed."""
        shutil.copytree(self.path, path, symlinks=True)
        return Repository(path)

    @property
    def environment(self) -> dict[str, str]:
        """The copy's code, not the installed project's; and the environment's python first, as `make` sets it.

        One worker, because each start of torch costs seconds; no fused attention, which would be compiled anew for every copy.
        """
        given = {"PYTHONPATH": "", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        given |= {"LAB_DEVICE": "cpu", "LAB_PROCESSES": "1", "LAB_ATTENTION": "sdpa"}
        return os.environ | given

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.path, env=self.environment, capture_output=True, text=True)

    def succeed(self, *command: str) -> str:
        """What a command, which has to end with status 0, printed."""
        result = self.run(*command)
        assert result.returncode == 0, result.stdout + result.stderr
        self.output = result.stdout
        return result.stdout

    def repro(self, *arguments: str) -> list[str]:
        """`dvc repro`; the stages that ran, in order."""
        return self.stages_run(self.succeed(sys.executable, "-m", "dvc", "repro", *arguments))

    @staticmethod
    def stages_run(output: str) -> list[str]:
        """From what DVC printed."""
        return re.findall(r"^Running stage '([^']+)':", output, flags=re.M)

    def params(self) -> dict[str, Any]:
        return params.study.read_both(self.path / "params.yaml")

    def edit(self, **changes: Any) -> None:
        """Merges changes into the sections of params.yaml and claims.yaml; None removes a key."""
        raw = self.params()
        for section, change in changes.items():
            for key, value in change.items():
                if value is None:
                    del raw[section][key]
                else:
                    raw[section][key] = value
        write_settings(self.path, raw)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked cuda are skipped where torch sees no GPU; of several processes, each begins with what takes longest.

    Torch computes on one thread here, as in every training on the CPU: a second one mostly waits, at the cost of a core that another
    test could have.
    """
    if "torch" in sys.modules:  # some test needs it
        sys.modules["torch"].set_num_threads(1)
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        # A module's tests stay together, for the sake of its fixtures. pytest-xdist gives each process a stretch of the list to
        # begin with, and what is left at the end to whoever is idle: there the tests have to be short.
        modules: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            modules[item.path].append(item)
        ordered = sorted(modules.values(), key=is_slow, reverse=True)
        stretches = [ordered[first::workers] for first in range(workers)]
        # The first process makes the trained study; the others begin with what does without, instead of waiting for it.
        for stretch in stretches[1:]:
            stretch.sort(key=lambda tests: (not is_slow(tests), any("trained" in getattr(test, "fixturenames", ()) for test in tests)))
        items[:] = [item for stretch in stretches for tests in stretch for item in tests]
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def is_slow(tests: Sequence[pytest.Item]) -> int:
    """How many of a module's tests are slow."""
    return sum(test.get_closest_marker("slow") is not None for test in tests)


@pytest.fixture(scope="session")
def raw_params() -> dict[str, Any]:
    """params.yaml and claims.yaml as plain YAML, to be copied before changing; those of the tests, where another study took their place."""
    return read_study()


@pytest.fixture
def own() -> dict[str, Any]:
    """The tests' own study, which is small, to be changed."""
    return params.study.read_both(ROOT / "tests/params.yaml")


@pytest.fixture(scope="session")
def study() -> params.Params:
    """The repository's study, checked."""
    return params.parse(params.study.read_both(STUDY / "params.yaml"))


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data/arrays` of scikit-learn's digits."""
    from pipeline.data.datasets import prepare
    from pipeline.data.fetch import fetch, source
    from pipeline.params import DataSettings

    directory = tmp_path_factory.mktemp("digits")
    fetch(source("digits"), directory / "raw")
    prepare(DataSettings(dataset="digits"), directory / "raw", directory / "arrays")
    data.COUNTED = (*data.COUNTED, directory / "arrays" / "dataset.json")  # for settings that no folder with arrays goes with
    return directory / "arrays"


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], str]], tuple[Path, str]]:
    """Has something that takes long made once for all processes of a test run; gives its folder, and the text that its maker returned."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in the run's
        place = place.parent

    def made(name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
        path, said = place / name, place / f"{name}.txt"
        with (place / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not said.exists():
                shutil.rmtree(path, ignore_errors=True)  # of a process that failed
                said.write_text(make(path))
        return path, said.read_text()

    return made


@pytest.fixture(scope="session")
def trained(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], raw_params: dict[str, Any]) -> Repository:
    """A small study with captioners after `make repro`'s command has run once; `output` is what it printed. To be copied, not changed."""
    raw = small_study(raw_params)
    raw["variants"] |= {
        "caption": {
            "architecture": "captioner", "dim": 16, "heads": 2, "mlp_dim": 16, "encoder_blocks": 2, "decoder_blocks": 1, "norm": "pre",
            "position": "learned", "memory": 2, "meshed": True, "dropout": 0.0, "epochs": 2,
        },
        "critical": {"architecture": "cnn_lstm", "widths": [8, 16], "epochs": 2, "self_critical_epochs": 1},
    }  # fmt: skip

    def make(path: Path) -> str:
        return Repository.create(path, raw).succeed(sys.executable, "-m", "pipeline.commands.repro")

    path, said = once("trained study", make)
    repository = Repository(path)
    repository.output = said
    return repository


def small_study(raw_params: dict[str, Any]) -> dict[str, Any]:
    """A params.yaml of two tiny variants on the digits, one experiment and one claim."""
    return {
        "preview": "A test.",
        "images_shown": 1437,
        "looks": [],
        "data": {"dataset": "digits"},
        "scenes": {"train": 128, "validation": 20, "test": 20},
        "train": raw_params["train"] | {"seeds": [0, 1], "epochs": 1},
        "base": raw_params["base"] | {"patch": 14, "blocks": 1, "dim": 8, "heads": 2, "mlp_dim": 8},
        "timing": {"rounds": 1, "steps": 1, "seconds": 1, "tokens": [49, 196], "subjects": {"base": {}}},
        "variants": {"base": {}, "wide": {"mlp_dim": 12}},
        "experiments": {"width": {
            "title": "Width", "question": "Does width help?", "source": "a test", "baseline": "base", "variants": ["base", "wide"],
            "claims": ["W1"],
        }},
        "claims": {"W1": {
            "source": "a test", "sentence": "Width does not matter.", "measured": "Test accuracy.", "margin": "A guess.",
            "comparisons": [{"rule": "equivalent", "measure": "accuracy", "variant": "wide", "reference": "base", "bound": 0.9}],
        }},
    }  # fmt: skip


@pytest.fixture(scope="session")
def blobs() -> Callable[[int, int], Dataset]:
    """Makes data sets of so many training and test images: noise with a bright square where the class says; soon learned."""
    from pipeline.data.datasets import Dataset

    def make(num_train: int, num_test: int) -> Dataset:
        rng = np.random.default_rng(0)

        def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
            labels = rng.integers(0, 10, count).astype(np.uint8)
            images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
            for image, label in zip(images, labels.tolist(), strict=True):
                image[7 * (label // 4) :, 7 * (label % 4) :][:7, :7] += 150
            return images, labels

        return Dataset("mnist", *draw(num_train), *draw(num_test), digest="0" * 64)

    return make


@pytest.fixture(scope="module")
def drawn_once() -> Iterator[Callable[..., bytes]]:
    """Has the first figure of each kind drawn, and taken for all others of its kind, while a module's tests run.

    Drawing takes most of a report's time, and no word of a page depends on what a figure shows. Yields what draws each anew.
    """
    from pipeline.report.figures import base

    drawn: dict[Any, bytes] = {}
    png = base.png

    def once(draw: Any, digest: str = "") -> bytes:
        if draw.func not in drawn:
            drawn[draw.func] = png(draw, digest)
        return drawn[draw.func]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "png", once)
        yield png


@pytest.fixture
def tiny_settings(study: params.Params) -> Callable[..., VariantSettings]:
    """Settings of a one-block network with dropout, 4 epochs of 3 steps; keywords change how it is trained."""

    def make(**train: Any) -> VariantSettings:
        own = {"seeds": (0, 1), "epochs": 4, "batch_size": 40, "learning_rate": 0.005, **train}
        return variant(study, {"patch": 14, "blocks": 1, "dropout": 0.1}, **own)

    return make


@pytest.fixture
def tiny_trainer(tiny_settings: Callable[..., VariantSettings]) -> Callable[..., Trainer]:
    """A new trainer of seeds on 96 images of noise; keywords change how it is trained."""
    import torch

    from pipeline.data.datasets import Dataset
    from pipeline.training.engine import Trainer

    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (96, 28, 28)).astype(np.uint8), rng.integers(0, 10, 96).astype(np.uint8)
    dataset = Dataset("noise", images, labels, images[:32], labels[:32], digest="0" * 64)

    def make(seeds: Sequence[int] = (0, 1), **train: Any) -> Trainer:
        return Trainer(tiny_settings(seeds=tuple(seeds), **train), dataset, list(seeds), torch.device("cpu"))

    return make


@pytest.fixture
def make_timings(study: params.Params, tmp_path: Path) -> Callable[..., Any]:
    """Makes timings: writes timing/cpu.json with known ratios as published, and reads it; the fast path takes a fifth of the time."""
    from pipeline.system.paths import TIMINGS
    from pipeline.timing import results
    from pipeline.timing.profile import GROUPS
    from pipeline.timing.subjects import entries

    def make(
        *, rounds: int = 12, loop: float = 1.3, patch_14: float = 0.2, nested: float = 13.0, exponent: float = 2.0, noise: float = 0.01,
        disturbed: int = 0, device: str = "cpu", writing: float = 1.0,
    ) -> results.Timings:  # fmt: skip
        rng = np.random.default_rng(0)
        factors = {"cls-loop": loop, "patch-14": patch_14, "patch-7": 0.4, "patch-2": 9.0, "reference": loop * nested, "scale-32x1": 0.4}
        measurements, seconds, profiles = [], {}, {}
        for entry in entries(study, 16):
            tokens, published = entry.words or getattr(entry.model, "num_tokens", 0), entry.way == "published"
            alone = 1e-6 * (1.0 if published else 0.2) * tokens**exponent
            step = 0.05 * (1.0 if published else 0.2) * factors.get(entry.subject, 1.0)
            seconds[entry.name] = {"step": step, "attention": alone, "growth": 0.002 + 3.3 * alone, "decoding": 0.001 * tokens**writing}[
                entry.kind
            ]
            kept = 4 * 16 * (8 * tokens**2 + 96 * tokens) if published else 4 * 16 * 130 * tokens
            measurements.append({
                "name": entry.name, "kind": entry.kind, "way": entry.way, "subject": entry.subject, "tokens": tokens,
                "batch": entry.batch, "steps": 5, "model": entry.model.model_dump(mode="json"),
                "attention": "loop over heads" if published else "fused-cpu" if tokens <= 256 else "sdpa",
                "saved_bytes": kept if entry.kind == "attention" else 4 * kept,
            })  # fmt: skip
            if (entry.kind == "step" and tokens and not entry.nested) or (entry.kind, entry.subject) == ("growth", "784"):
                total, shares = 1.2 * seconds[entry.name], rng.dirichlet(np.ones(len(GROUPS)))
                groups = dict(zip(GROUPS, (total * shares).tolist(), strict=True))
                profiles[entry.name] = {"seconds": total, "groups": groups, "operators": dict.fromkeys(GROUPS, 100)}
        listed = []
        for kept in [False] * disturbed + [True] * rounds:
            pace = rng.lognormal(0, 0.05) * (1 if kept else 3)  # a slow round is slow for all
            times = {name: time * pace * rng.lognormal(0, noise) for name, time in seconds.items()}
            listed.append({"foreign": 0.002 if kept else 0.4, "kept": kept, "seconds": times})
        machine = {"device": device, "name": "Some Processor (2 cores)", "threads": 1, "versions": {"python": "3.11.2", "torch": "2.15.0"}}
        raw = {
            "started": "2026-01-02T03:04:05+00:00", "machine": machine, "dataset": {"name": "mnist", "digest": "d" * 64},
            "settings": {"batch_size": 128, "threshold": 0.05}, "measurements": measurements, "rounds": listed, "profiles": profiles,
        }  # fmt: skip
        (tmp_path / "timing").mkdir(exist_ok=True)
        (tmp_path / TIMINGS / f"{device}.json").write_text(json.dumps(raw))
        return results.load(study, tmp_path)[device]

    return make


@pytest.fixture(scope="session")
def empty_database(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]]) -> Iterator[Path]:
    """An MLflow store without an experiment of ours, made where a kill had left parts of one: it takes seconds, a copy of it none.

    MLflow reads all its migrations whenever a store is opened, to learn the newest; here it does once.
    """
    from mlflow.store.db import utils

    def make(path: Path) -> str:
        path.mkdir()
        for leftover in ("mlflow.db.new", "mlflow.db.new-journal", "mlflow.db.lock"):
            (path / leftover).write_bytes(os.urandom(100))
        (path / "mlflow.db").touch()
        Store(f"sqlite:///{path / 'mlflow.db'}")
        return " ".join(sorted(entry.name for entry in path.iterdir()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_get_latest_schema_revision", functools.cache(utils._get_latest_schema_revision))
        yield once("empty-store", make)[0] / "mlflow.db"


@pytest.fixture
def project(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an MLflow store, as the stages have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def uri(project: Path) -> str:
    """The address of the project's store."""
    return f"sqlite:///{project / 'mlflow.db'}"
