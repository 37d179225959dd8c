"""The resolve stage: one file per variant, equal bytes for equal settings, and nothing of variants that are gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pipeline.errors import run_command
from pipeline.params import Params, load_variant
from pipeline.stages.resolve import write_configs
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


def test_what_lies_in_the_way_is_one_sentence(tmp_path: Path, study: Params, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tmp_path / "configs"
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
