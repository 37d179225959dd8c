"""The resolve stage: one file per variant, equal bytes for equal settings, and nothing of variants that are gone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.errors import run_command
from pipeline.files import sealed_json, write_json
from pipeline.params import Params, load, load_variant
from pipeline.runner import seeds
from pipeline.runner.seeds import read_run
from pipeline.stages.resolve import prune, write_configs
from pipeline.study.files import FINISHED, RUNS
from tests.conftest import Repository
from tests.helpers import ROOT


def test_one_file_a_variant(tmp_path: Path, study: Params) -> None:
    (tmp_path / "gone.json").write_text("{}")
    write_configs(study, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.json")} == set(study.variants)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    for variant in study.variants:
        assert load_variant(tmp_path / f"{variant}.json") == study.resolve(variant)
    write_configs(study, tmp_path)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    (tmp_path / "base.json").write_bytes(b"\xff")
    write_configs(study, tmp_path)
    assert (tmp_path / "base.json").read_bytes() == before[tmp_path / "base.json"][0]


def test_runs_of_variants_that_are_gone_are_removed(tmp_path: Path, study: Params) -> None:
    for name in ("base", "gone"):
        write_json(tmp_path / name / "run.json", sealed_json({"form": "of an older version"}))
    (tmp_path / "a-file").touch()
    assert prune(tmp_path, study) == ["runs/gone removed: params.yaml no longer names this variant"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "base"]
    assert prune(tmp_path / "not-there", study) == []


def test_what_is_no_training_stays(tmp_path: Path, study: Params) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for folder in (runs / "notes", runs / "mixed", elsewhere):
        folder.mkdir(parents=True)
    for file in (runs / "notes" / "today.md", runs / "mixed" / "run.json", runs / "mixed" / "mine.csv", elsewhere / "run.json"):
        file.touch()
    (runs / "link").symlink_to(elsewhere, target_is_directory=True)
    assert prune(runs, study) == []
    assert sorted(path.name for path in runs.iterdir()) == ["link", "mixed", "notes"]
    assert (elsewhere / "run.json").exists()
    assert (runs / "mixed" / "mine.csv").exists()


@pytest.mark.parametrize("in_the_way", ["a file for the folder", "a folder for a file"])
def test_what_lies_in_the_way_is_one_sentence(tmp_path: Path, study: Params, capsys: pytest.CaptureFixture[str], in_the_way: str) -> None:
    configs = tmp_path / "configs"
    if in_the_way == "a file for the folder":
        configs.touch()
    else:
        (configs / "base.json").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda _: write_configs(study, configs))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: Something else lies in the place of a file or folder \(.*configs.*\): move it elsewhere, .*\n", said)


def test_another_order_runs_what_writes_tables_and_pages(tmp_path: Path, study: Params) -> None:
    """DVC compares mappings without their order. Experiments and claims lie in a file that it compares byte by byte."""
    subjects = study.timing.model_copy(update={"subjects": dict(reversed(study.timing.subjects.items()))})
    turned = ({"variants": dict(reversed(study.variants.items()))}, {"timing": subjects})
    orders = set()
    for params in (study, *(study.model_copy(update=update) for update in turned)):
        write_configs(params, tmp_path)
        orders.add((tmp_path / "order.txt").read_text())
    assert len(orders) == 3
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert "params.yaml" in stages["resolve"]["deps"]
    assert all({"configs", "claims.yaml"} <= {*stages[name]["deps"]} for name in ("evaluate", "report"))


def test_what_dvc_has_of_a_variant_that_is_gone_is_not_copied(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh clone, which has no finished seeds of its own. One that trains the same under another name has them."""
    study = trained.copy(tmp_path / "study")
    monkeypatch.chdir(study.path)
    shutil.rmtree(study.path / ".checkpoints")
    settings = load()
    place = seeds.folder(FINISHED, settings.resolve("wide"), read_run(RUNS / "wide")["data_digest"])
    left = settings.model_copy(update={"variants": {"base": settings.variants["base"]}})
    shutil.copytree(RUNS / "wide", tmp_path / "wide")
    for params, kept in ((left, 0), (left.model_copy(update={"variants": {"broad": settings.variants["wide"]}}), 2)):
        shutil.copytree(tmp_path / "wide", RUNS / "wide", dirs_exist_ok=True)
        assert "runs/wide removed: params.yaml no longer names this variant" in prune(RUNS, params)
        assert len(seeds.find(place, "")[0]) == kept
