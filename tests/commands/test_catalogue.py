"""The catalogue: every variant is there in full, and what is probably not meant is said."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import params
from pipeline.commands import catalogue
from pipeline.models import build
from pipeline.system.errors import UserError
from tests.helpers import of_this_study


def test_a_row_says_what_the_variant_is_and_who_compares_it(own: dict[str, Any]) -> None:
    study = params.parse(own)
    title, header, lines = catalogue.sections(study)[0]
    listed = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
    assert (title, list(listed)) == ("Variants", list(study.variants))
    for name, row in listed.items():
        assert int(row["parameters"].replace(",", "")) == sum(one.numel() for one in build(study.resolve(name).model).parameters())
        assert yaml.safe_load("{" + row["difference"] + "}") == own["variants"][name]
    # By hand. Embedding 196 x 8 + 8, class token 8, positions 5 x 8; two norms of 16, two heads of three 4 x 4 matrices with biases,
    # an MLP of 8 x 8 + 8 twice; the head 8 x 10 + 10.
    assert int(listed["base"]["parameters"].replace(",", "")) == 1576 + 8 + 40 + 32 + 2 * 3 * 20 + 2 * 72 + 90
    assert [listed[name]["experiments"] for name in ("wide", "first")] == ["width", "networks"]


@of_this_study
def test_what_is_probably_not_meant_is_told(own: dict[str, Any], study: params.Params) -> None:
    assert catalogue.oddities(study) == []
    own["variants"]["lonely"] = {"heads": 1}
    own["timing"]["subjects"]["first"] = {"pool": "first", "cls_insert": "none", "heads": 1}
    part = own["claims"]["W1"]["comparisons"][0]
    own["claims"]["W2"] = own["claims"]["W1"] | {"comparisons": [part | {"variant": "gone"}]}
    own["variants"]["base"] = {"seeds": [0], "epochs": 4}
    own["ranking"] = {"typo": ["gone", "base"], "same": ["base", "base"]}
    told = catalogue.oddities(params.parse(own))
    assert len(told) == 6
    assert "'gone'" in told[0]
    assert "timing.subjects.first" in told[1]
    assert "variants.base changes epochs, and the others" in told[2]
    assert "'typo' has no row: 'gone'" in told[3]
    assert "'same' compares 'base' with itself" in told[4]
    assert re.search("caption.*lonely", told[5])


def test_the_command_checks_and_lists(tmp_path: Path, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(own | {"images_shown": 1}))
    catalogue.main([])
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "params.yaml is valid: variants (9), experiments (2), claims (2)."
    assert err.count("\n") == 1  # that some variants are on no page
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(own | {"images_shown": 0}))
    with pytest.raises(UserError):
        catalogue.main([])
