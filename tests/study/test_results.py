"""A study's frames hold the numbers of its files, those of a folder and those of a commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pipeline.runner.seeds import read_record
from pipeline.study import Study, load
from pipeline.system.errors import UserError
from pipeline.system.paths import Files
from pipeline.training.records import EpochRow
from tests.helpers import of_this_study, stored

if TYPE_CHECKING:
    from tests.conftest import Repository


@pytest.mark.slow
@of_this_study
def test_frames_hold_the_numbers_of_the_files(trained: Repository) -> None:
    study = load(trained.path)
    for variant in ("base", "wide"):
        run = read_record(stored(trained.path, variant))
        found = study.epochs[study.epochs.variant == variant].drop(columns="variant")
        assert found[list(EpochRow._fields)].values.tolist() == run["epochs"]
        evaluated = pd.read_csv(trained.path / "tables" / "seeds.csv").query("variant == @variant")
        seeds = study.seeds[study.seeds.variant == variant]
        assert list(seeds.seed) == list(evaluated.seed)
        np.testing.assert_allclose(seeds.test_accuracy, evaluated.test_accuracy, rtol=0, atol=1e-9)
    assert list(study.variants.variant) == list(study.trainings) == ["base", "wide", "caption", "critical"]
    assert list(study.variants["model.mlp_dim"])[:2] == [8, 12]
    assert {"train.epochs", "parameters", "flops", "code_hash", "versions.torch"} <= set(study.variants.columns)
    row, accuracy = study.summary().set_index("variant").loc["wide"], seeds.test_accuracy  # of the only epoch, which is a late one
    ends = np.clip(stats.t.interval(0.95, 1, accuracy.mean(), accuracy.sem()), 0, 1)
    assert row.tolist() == pytest.approx([2, accuracy.mean(), accuracy.std(), *ends])


def test_the_table_of_claims_is_read_at_any_age(tmp_path: Path) -> None:
    def claims() -> pd.DataFrame:
        return Study(Files(tmp_path), {}).claims

    with pytest.raises(UserError, match="holds no results in tables/"):
        load(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/epochs.csv").write_text("base,0,3,1,1,1,1,1\n")
    with pytest.raises(UserError, match=r"^tables/ is damaged: run"):
        load(tmp_path)
    assert claims().empty
    table = tmp_path / "reports" / "claims.csv"
    table.parent.mkdir()
    header, line = "claim,verdict,comparison,n,effect,low,high,level,shown\n", "T1,supported,a / b,6,1.5,1.2,1.9,0.95,1.5 times\n"
    table.write_text(f"{header}{line}T2,not run,c,,,,,,\n")
    assert claims().to_dict("records")[0] == {
        "claim": "T1", "verdict": "supported", "comparison": "a / b", "n": 6, "effect": 1.5, "low": 1.2, "high": 1.9, "level": 0.95,
        "shown": "1.5 times", "fixed": "", "digest": "",
    }  # fmt: skip
    assert claims().shown[1] == ""
    for damaged in ("", line, f'{header}"'):
        table.write_text(damaged)
        with pytest.raises(UserError, match=r"^reports/claims\.csv is damaged: run `dvc repro --force --single-item report`\.$"):
            claims()
