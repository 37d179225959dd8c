"""The plan: what `dvc repro` would do is told from real finished seeds, its time from real records, and nothing is changed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline import params
from pipeline.commands import looks, plan
from pipeline.commands.plan import Entry, Rate
from pipeline.data import datasets
from pipeline.errors import UserError
from pipeline.provenance import STAGE_CODE, code_hash
from pipeline.runner import checkpoint, finished, results
from pipeline.runner.progress import duration
from pipeline.runner.workers import Task
from pipeline.stages import bring, resolve
from pipeline.study.claims import judge
from pipeline.study.files import FINISHED
from pipeline.study.results import load_current
from pipeline.training.engine import Trainer
from tests.conftest import Repository, small_study
from tests.helpers import flip_bit
from tests.made_up import write_study

pytestmark = pytest.mark.slow
ENVIRONMENT = {"LAB_DEVICE": "cpu", "LAB_PROCESSES": "2", "LAB_ATTENTION": "sdpa"}  # the fused attention may have to be compiled first


def study_of(raw: dict[str, Any], **variants: dict[str, Any]) -> dict[str, Any]:
    return small_study(raw) | {"variants": {"base": {}, **variants}, "experiments": {}, "claims": {}}


def write_params(directory: Path, raw: dict[str, Any]) -> params.Params:
    (directory / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return params.load(directory / "params.yaml")


@pytest.fixture
def lay_out(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], params.Params]:
    """Copies what was trained of `base`, two seeds of one epoch, to where the test then works, and writes params.yaml."""

    def copy(raw: dict[str, Any]) -> params.Params:
        (seeds,) = (path.parent for path in (trained.path / FINISHED).glob("*/base.*.json"))
        for folder in ("configs", "data/arrays", "runs/base", seeds.relative_to(trained.path)):
            shutil.copytree(trained.path / folder, tmp_path / "study" / folder)
        monkeypatch.chdir(tmp_path / "study")
        monkeypatch.delenv("REPLAY", raising=False)
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        return write_params(Path(), raw)

    return copy


def seeds_of(entry: Entry) -> tuple[list[int], list[int], list[int]]:
    return entry.kept, entry.replayed, entry.trained


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def by_other_code(place: Path) -> None:
    """The finished seeds of a folder, as if another version of the code had trained them."""
    for path in place.glob("*.done"):
        part = finished.read(path)
        path.unlink()
        finished.write(place, finished.Finished(part.seed, part.tensors, part.rows, {**part.origin, "code_hash": "f" * 64}))


def test_each_state_is_told(lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Kept, kept under another name, in training, to train; and, by other code, replayed."""
    raw = study_of(raw_params, renamed={}, more={"seeds": 3}, long={"epochs": 3})
    settings = lay_out(raw)
    long = settings.resolve("long")
    dataset = datasets.load(plan.ARRAYS)
    trainer = Trainer(long, dataset, [1], torch.device("cpu"))
    trainer.run_epoch()
    place = finished.folder(FINISHED, long, dataset.digest)
    path, origin = checkpoint.path_of(place, [1], code_hash()), {"started": "2026-01-01T00:00:00+00:00"}
    for other in ({"device_name": "another processor (2 cores)"}, {"versions": {"python": "3.11.7", "torch": "1.0"}}):
        checkpoint.save(path, trainer, {**origin, **other})
        assert [entry.epochs_done for entry in plan.survey(settings, "cpu")][-1] == {}  # none goes on from it here
    checkpoint.save(path, trainer, origin)
    before = snapshot(Path())

    entries = {entry.variant: entry for entry in plan.survey(settings, "cpu")}
    assert {name: seeds_of(entry) for name, entry in entries.items()} == {
        "base": ([0, 1], [], []),
        "renamed": ([0, 1], [], []),
        "more": ([0, 1], [], [2]),
        "long": ([], [], [0, 1]),
    }
    assert [entry.state for entry in entries.values()] == ["kept", "kept", "to train", "to train"]
    assert entries["long"].epochs_done == {1: 1}

    capsys.readouterr()
    plan.main([])
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert "2 seeds x 3 epochs" in lines["long"]
    assert "1 of 3 epochs of seed 1" in lines["long"]
    assert "4 variants: 2 kept, 2 to train: 3 seeds, about " in said
    assert "with 2 processes." in said
    assert snapshot(Path()) == before  # every time was recorded, so not even the cache of times is there

    shutil.rmtree("runs")
    (folder,) = (path.parent for path in FINISHED.glob("*/seed-0.*.done"))
    by_other_code(folder)
    entries = {entry.variant: entry for entry in plan.survey(settings, "cpu")}
    assert seeds_of(entries["more"]) == ([], [0, 1], [2])
    assert entries["base"].state == "replayed"


def test_nothing_of_other_code_is_kept_without_replay(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lay_out(study_of(raw_params))
    shutil.rmtree("runs")
    (folder,) = (path.parent for path in FINISHED.glob("*/seed-0.*.done"))
    by_other_code(folder)
    monkeypatch.setenv("REPLAY", "0")
    (entry,) = plan.survey(settings, "cpu")
    assert seeds_of(entry) == ([], [], [0, 1])


def test_nor_what_a_replay_has_accepted(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although dvc.lock has everything as it is."""
    settings = lay_out(study_of(raw_params))
    lock_stage(settings)
    run = results.read_run(Path("runs/base"))
    (group,) = run["trainings"]
    replayed = {**group, "code_hash": "f" * 64, "replays": [{"code_hash": code_hash()}]}
    results.write_run(Path("runs/base"), {**run, "code_hash": "f" * 64, "trainings": [replayed]})
    shutil.rmtree(".checkpoints")
    assert plan.survey(settings, "cpu")[0].state == "kept"
    monkeypatch.setenv("REPLAY", "0")
    (entry,) = plan.survey(settings, "cpu")
    assert seeds_of(entry) == ([], [], [0, 1])


def test_a_damaged_seed_is_to_train_and_stays_where_it_is(lay_out: Callable[..., params.Params], raw_params: dict[str, Any]) -> None:
    settings = lay_out(study_of(raw_params))
    shutil.rmtree("runs")
    (path,) = FINISHED.glob("*/seed-1.*.done")
    content = flip_bit(path)
    (entry,) = plan.survey(settings, "cpu")
    assert seeds_of(entry) == ([0], [], [1])
    assert path.read_bytes() == content


def test_a_fresh_clone_keeps_what_is_pulled(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It has neither arrays nor .checkpoints/, and its weights only once `dvc pull` or a train stage has brought them from results/."""
    settings = lay_out(study_of(raw_params))
    shutil.rmtree("data")
    shutil.rmtree(".checkpoints")
    weights = Path("runs/base/model.safetensors")
    md5 = hashlib.md5(weights.read_bytes()).hexdigest()
    stored = Path("results/files/md5") / md5[:2] / md5[2:]
    stored.parent.mkdir(parents=True)
    weights.rename(stored)
    lock = {"train@base": {"deps": [], "outs": [{"path": weights.as_posix(), "md5": md5}]}}
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": lock}))
    (entry,) = plan.survey(settings, "cpu")
    assert seeds_of(entry) == ([0, 1], [], [])
    assert entry.tasks == ()
    stored.unlink()  # of what was never pushed, or has been lost
    (entry,) = plan.survey(settings, "cpu")
    assert seeds_of(entry) == ([], [], [0, 1])
    plan.main([])
    said = "runs/base/model.safetensors is missing, and DVC does not have it: bring it back with `git checkout results`, or base is "
    assert capsys.readouterr().out.splitlines()[0] == f"{said}trained anew."


def test_dvc_runs_no_stage_that_its_lock_has(lay_out: Callable[..., params.Params], raw_params: dict[str, Any]) -> None:
    """Seeds of other code would be replayed, but DVC does not ask for them as long as nothing has changed. All devices keep them."""
    settings = lay_out(study_of(raw_params))
    (entry,) = plan.survey(settings, "cuda")
    assert seeds_of(entry) == ([0, 1], [], [])
    run = results.read_run(Path("runs/base"))
    results.write_run(Path("runs/base"), {**run, "trainings": [{**group, "code_hash": "f" * 64} for group in run["trainings"]]})
    shutil.rmtree(".checkpoints")
    (entry,) = plan.survey(settings, "cuda")
    assert entry.replayed == [0, 1]
    lock_stage(settings)
    (entry,) = plan.survey(settings, "cuda")
    assert entry.tasks == ()
    (entry,) = plan.survey(write_params(Path(), study_of(raw_params) | {"base": raw_params["base"] | {"patch": 7}}), "cuda")
    assert entry.trained == [0, 1]


def lock_stage(settings: params.Params) -> None:
    """Writes dvc.lock as DVC does after train@base."""
    resolve.write_configs(settings, Path("configs"))
    Path("code-hashes").mkdir()
    Path("code-hashes/train.txt").write_text(f"{code_hash(STAGE_CODE['train'])}\n")
    shutil.copyfile(Path(__file__).parent.parent.parent / "dvc.yaml", "dvc.yaml")
    (stage,) = (stage for stage in yaml.safe_load(Path("dvc.yaml").read_text())["stages"].items() if stage[0] == "train")
    Path("data/scenes").mkdir()
    deps = [dep.replace("${key}", "base") for dep in stage[1]["do"]["deps"]]
    md5 = {dep: dvc_md5(Path(dep)) for dep in deps}
    lock = {
        "prepare": {"outs": [{"path": "data/arrays", "md5": md5["data/arrays"]}, {"path": "reports/data", "md5": "0"}]},
        "scenes": {"outs": [{"path": "data/scenes", "md5": md5["data/scenes"]}]},
        "train@base": {"deps": [{"path": dep, "hash": "md5", "md5": value} for dep, value in md5.items()]},
    }
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": lock}))


def dvc_md5(path: Path) -> str:
    """As DVC itself computes it."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.db import HashFileDB
    from dvc_objects.fs.local import LocalFileSystem
    from dvc_objects.fs.memory import MemoryFileSystem

    _, _, built = build(HashFileDB(MemoryFileSystem(), "/"), str(path.resolve()), LocalFileSystem(), "md5", dry_run=True)
    return str(built.hash_info.value)


def test_times_are_those_on_record(lay_out: Callable[..., params.Params], raw_params: dict[str, Any]) -> None:
    raw = study_of(
        raw_params, half={"epochs": 4, "epoch_images": 700}, other={"learning_rate": 0.1, "batch_size": 32}, wide={"mlp_dim": 48}
    )
    settings = lay_out(raw)
    (folder,) = (path.parent for path in FINISHED.glob("*/seed-0.*.done"))
    for seed, second in ((0, 1437.0), (1, 2874.0)):  # 1 s and 2 s an image
        (path,) = folder.glob(f"seed-{seed}.*.done")
        part = finished.read(path)
        finished.write(folder, finished.Finished(seed, part.tensors, (part.rows[0]._replace(seconds=second),), part.origin))
    directory = Path("runs/base")
    run_json = results.read_run(directory)
    rows = [row._replace(seconds=1437.0 * (1 + row.seed)) for row in results.epoch_rows(run_json)]
    results.write_run(directory, {**run_json, "epochs": rows})
    rates = plan.recorded(settings, "cpu")
    assert {name: rate.source for name, rate in rates.items()} == {
        "base": "recorded",
        "half": "recorded of base",
        "other": "recorded of base",
    }
    # The faster of the two speeds.
    assert all((rate.train, rate.test) == pytest.approx((1, 1 / 3)) for rate in rates.values())
    entries = {entry.variant: entry for entry in plan.survey(settings, "cpu")}
    # Four epochs of 700 images at 1 s, each with a test of 360 images at a third of that; one process per seed.
    four = 4 * (700 + 360 / 3)
    assert plan.seconds([entries["half"]], rates, 2) == pytest.approx(four)
    assert plan.seconds([entries["half"]], rates, 1) == pytest.approx(2 * four)
    rates = plan.estimated(list(entries.values()), rates)
    assert rates["wide"].source == "arithmetic"
    assert rates["wide"].train > rates["base"].train

    # Of another kind of processor nothing is known.
    (path,) = folder.glob("seed-0.*.done")
    shutil.rmtree("runs")
    for path in folder.glob("*.done"):
        part = finished.read(path)
        finished.write(folder, finished.Finished(part.seed, part.tensors, part.rows, {**part.origin, "device_name": "Other (2 cores)"}))
    assert plan.recorded(settings, "cpu") == {}
    # What is kept counts as work that is done all the same.
    guessed = plan.estimated(list(entries.values()), {})
    assert guessed.keys() == entries.keys()
    assert all(rate.source == "arithmetic" and rate.train > 0 for rate in guessed.values())


def test_times_of_a_profiles_runs_count_too(lay_out: Callable[..., params.Params], raw_params: dict[str, Any]) -> None:
    settings = lay_out(study_of(raw_params))
    Path("build/demo").mkdir(parents=True)
    Path("runs").rename("build/demo/runs")
    shutil.rmtree(".checkpoints")
    assert plan.recorded(settings, "cpu")["base"].source == "recorded"


def test_the_last_seeds_leave_processes_idle(study: params.Params) -> None:
    """Three seeds on two processes take as long as four; what a checkpoint holds of one, and a replay, take that much less."""
    settings = study.resolve("base")
    tasks = tuple(Task([seed]) for seed in range(3))
    rates = {"base": Rate(3e-3, "recorded")}  # and 1e-3 for a test image
    epoch = 180 + 10
    entry = Entry("base", settings, tasks, {})
    assert plan.seconds([entry], rates, 1) == pytest.approx(3 * 30 * epoch)
    assert plan.seconds([entry], rates, 2) == pytest.approx(2 * 30 * epoch)
    assert plan.seconds([entry], rates, 8) == pytest.approx(30 * epoch)
    assert plan.seconds([Entry("base", settings, tasks, {0: 20})], rates, 2) == pytest.approx(40 * epoch)
    replay = Entry("base", settings, (Task([0], replay=True),), {})
    assert plan.seconds([replay], rates, 2) == pytest.approx(50 * 128 * 3e-3 + 10)


def test_the_cheapest_claim_comes_next(study: params.Params) -> None:
    """T11a waits for one variant, T11b for a slower one, T5a for two, T16 for one more; T4 for timings alone, and T1a for nothing."""
    named = {"mean": 1e-3, "max": 2e-3, "patch-14": 1e-3, "patch-7": 1e-3, "patch-2": 9e-3, "base": 1e-3, "sinusoidal": 1e-3}
    few = study.model_copy(update={"claims": {id: study.claims[id] for id in ("T5a", "T11b", "T1a", "T4", "T11a", "T16")}})
    entries = [Entry(name, study.resolve(name), () if name in ("base", "sinusoidal") else (Task([0]), Task([1])), {}) for name in named]
    rates = {name: Rate(rate, "recorded") for name, rate in named.items()}
    lines = plan.prices(few, entries, rates, 2)
    assert [line[:2] for line in lines] == [
        ("T11a", "mean"), ("T11b", "max"), ("T5a", "patch-7, patch-2"), ("T16", "patch-14"),
    ]  # fmt: skip
    epoch = 60 + 10 / 3  # 1e-3 s for each of 60,000 images, a third of it for each of 10,000 tests
    assert [line[2] for line in lines] == [duration(30 * epoch), duration(60 * epoch), duration(300 * epoch), duration(30 * epoch)]
    assert [line[3] for line in lines] == [duration(30 * epoch), duration(90 * epoch), duration(390 * epoch), duration(420 * epoch)]


def test_the_next_look_of_each_claim_that_is_not_decided_has_a_price(
    tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = copy.deepcopy({id: raw_params["claims"][id] for id in ("T1a", "T1b", "T3", "T4", "T11a")})
    variants = {variant: dict(raw_params["variants"][variant]) for variant in ("base", "sinusoidal", "first")}
    variants["first"]["seeds"] = 10
    for variant in ("base", "sinusoidal"):
        variants[variant].pop("seeds", None)
    raw = write_study(tmp_path, seeds=6, epochs=30, variants=variants, claims=few, experiments={})
    settings, trainings = params.load(), load_current(params.load()).trainings
    effect = judge("T3", settings.claims["T3"], trainings, images_shown=settings.images_shown, looks=settings.looks).deciding.effect
    assert effect is not None
    raw["claims"]["T3"]["comparisons"][0]["bound"] = max(effect, 1 / effect) * 1.001  # so that the interval crosses it
    settings = write_params(tmp_path, raw)
    costs = {variant: plan.seed_cost(Entry(variant, settings.resolve(variant), (), {}), Rate(3e-3, "recorded")) for variant in variants}
    found = {line[0]: line for line in looks.prices(settings, trainings, costs, 2)}
    a_seed = 30 * (180 + 10)
    assert list(found) == ["T3", "T1b"]  # the cheapest first; T1a is decided, T4 timed, T11a not run
    assert found["T3"][3:] == ("10", "4 of base", duration(2 * a_seed))
    assert found["T1b"][3:] == ("10", "4 of base, 4 of sinusoidal", duration(4 * a_seed))
    assert all(line[1] in ("not decided", "not settled") and "seeds" in line[2] for line in found.values())
    assert looks.prices(settings.model_copy(update={"looks": (6,)}), trainings, costs, 2) == []
    assert {line[5] for line in looks.prices(settings, trainings, {}, 2)} == {""}  # nothing is known of any time
    steadier = judge("T1b", settings.claims["T1b"], trainings, images_shown=settings.images_shown, looks=settings.looks).deciding
    raw["claims"]["T1b"]["comparisons"][0]["bound"] = steadier.effect  # the effect is the bound: no number of seeds decides
    assert [line[0] for line in looks.prices(write_params(tmp_path, raw), trainings, costs, 2)] == ["T3"]
    # Nor where a comparison stands beside it that more seeds would only put where the claim has it.
    assert steadier.interval is not None
    wider = raw["claims"]["T1b"]["comparisons"][0] | {"bound": steadier.interval.high * 0.99}
    raw["claims"]["T1b"]["comparisons"].append(wider)
    assert [line[0] for line in looks.prices(write_params(tmp_path, raw), trainings, costs, 2)] == ["T3"]
    raw["claims"]["T1b"]["comparisons"] = [wider]
    assert "T1b" in [line[0] for line in looks.prices(write_params(tmp_path, raw), trainings, costs, 2)]


def test_a_claim_whose_predictions_are_damaged_keeps_no_other_from_its_price(
    tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    variants: dict[str, Any] = {"base": {}, "sinusoidal": raw_params["variants"]["sinusoidal"] | {"seeds": 6}}
    claims = copy.deepcopy({id: raw_params["claims"][id] for id in ("B1", "T1b")})
    for comparison in claims["B1"]["comparisons"]:
        comparison["variant"] = "base"
    write_study(tmp_path, seeds=6, epochs=30, variants=variants, claims=claims, experiments={})
    settings, trainings = params.load(), load_current(params.load()).trainings

    def damaged() -> None:
        raise UserError("predictions/base.npz is damaged.")

    broken = trainings | {"base": replace(trainings["base"], stored=damaged)}
    assert [line[0] for line in looks.prices(settings, broken, {}, 2)] == ["T1b"]
    assert capsys.readouterr().out == "B1 is not judged: predictions/base.npz is damaged.\n"


def test_what_nothing_is_known_of_is_timed_once(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Variants whose steps are alike share the figure; only the cache of times is written."""
    lay_out(study_of(raw_params, wide={"mlp_dim": 48}, longer={"mlp_dim": 48, "epochs": 5}))
    before = snapshot(Path())
    plan.main([])
    first = capsys.readouterr()
    assert "Timing a few steps of 1 variant." in first.err
    assert first.out.count("20 steps") == 2
    after = snapshot(Path())
    times = json.loads(after.pop(".checkpoints/times.json"))
    assert after == before
    (seconds,) = times.values()
    assert 0 < seconds < 1
    plan.main([])
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.err == ""


def test_without_arrays_there_are_no_times(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(study_of(raw_params, wide={"mlp_dim": 48}))
    shutil.rmtree("data")
    plan.main([])
    said = capsys.readouterr().out
    assert "2 variants: 1 kept, 1 to train: 2 seeds.\n" in said
    assert "run `dvc repro scenes` first" in said


def test_without_scenes_captioners_alone_have_no_times(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """So after `dvc repro prepare`: the arrays are there, and no scenes."""
    lay_out(study_of(raw_params, wide={"mlp_dim": 48}, caption=raw_params["variants"]["caption"] | {"epochs": 1, "seeds": 2}))
    plan.main([])
    said = capsys.readouterr().out
    lines = {name: line for line in said.splitlines() if (name := line.split(" ")[0]) in ("wide", "caption")}
    assert "20 steps" in lines["wide"]
    assert "20 steps" not in lines["caption"]
    assert "3 variants: 1 kept, 2 to train: 4 seeds.\n" in said
    assert "run `dvc repro scenes` first" in said


def test_no_self_critical_step_is_timed(study: params.Params) -> None:
    """The rate that is measured is also that of captioners without such epochs."""
    critical, plain = (plan._shortened(study.resolve(name)).train for name in ("caption-critical", "caption-7"))
    assert study.resolve("caption-critical").train.self_critical_epochs
    assert (critical.self_critical_epochs, critical.epochs, critical.epoch_images) == (0, 1, 23 * critical.batch_size)
    assert critical.model_copy(update={"seeds": ()}) == plain.model_copy(update={"seeds": ()})


def test_a_variant_whose_steps_fail_has_no_time(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Here because torch's device without memory computes nothing; else where memory does not suffice."""
    settings = lay_out(study_of(raw_params, wide={"mlp_dim": 48}))
    entries = [entry for entry in plan.survey(settings, "cpu") if entry.tasks]
    assert plan.measured(entries, "meta", 1) == {}
    assert re.fullmatch(r"wide cannot be timed \(.+\), so its training would fail here, too\.\n", capsys.readouterr().out)


def test_a_lock_that_cannot_be_read_is_one_sentence(lay_out: Callable[..., params.Params], raw_params: dict[str, Any]) -> None:
    lay_out(study_of(raw_params))
    for text in ("", "schema: '2.0'\n", "schema: '2.0'\nstages: {}\n"):
        Path("dvc.lock").write_text(text)
        bring.check_lock()
    for text in ("<<<<<<< HEAD\nschema: '2.0'\nstages: {}\n", "schema: '2.0'\nstages:\n- train\n", "schema: '2"):
        Path("dvc.lock").write_text(text)
        with pytest.raises(UserError, match=r"^dvc\.lock cannot be read: "):
            plan.main([])


def test_a_timing_process_that_dies_is_one_sentence(
    lay_out: Callable[..., params.Params], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lay_out(study_of(raw_params, wide={"mlp_dim": 48}))
    entries = [entry for entry in plan.survey(settings, "cpu") if entry.tasks]
    monkeypatch.setattr(plan, "_open", os._exit)  # refuses the name of a device, which ends the process
    with pytest.raises(UserError, match=r"^A process that timed steps ended early \(out of memory\?\); run") as caught:
        plan.measured(entries, "cpu", 1)
    assert caught.value.status == 1
