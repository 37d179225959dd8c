"""The resolve stage: one file per variant, equal bytes for equal settings, and nothing of variants that are gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.errors import run_command
from pipeline.files import sealed_json, write_json
from pipeline.params import Params, load_variant
from pipeline.stages.resolve import prune, write_configs


def test_one_file_a_variant(tmp_path: Path, study: Params) -> None:
    (tmp_path / "gone.json").write_text("{}")
    write_configs(study, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(study.variants)
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
