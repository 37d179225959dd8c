"""The catalogue: every variant, experiment and claim is there in full, and what is probably not meant is said."""

from __future__ import annotations

import copy
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pipeline import params
from pipeline.commands import catalogue
from pipeline.errors import UserError, run_command
from pipeline.models import build
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def listed(study: params.Params) -> dict[str, dict[str, str]]:
    return variants(study)


def variants(study: params.Params) -> dict[str, dict[str, str]]:
    """By variant, its line by column."""
    (header, lines) = next((header, lines) for title, header, lines in catalogue.sections(study) if title == "Variants")
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


def test_parameters_are_those_of_the_built_model(study: params.Params, listed: dict[str, dict[str, str]]) -> None:
    counted = {name: int(row["parameters"].replace(",", "")) for name, row in listed.items()}
    assert list(counted) == list(study.variants)
    for variant in ("base", "patch-2", "full-attention", "memory-4", "lab", "cnn", "lenet", "mlp", "rnn", "lstm"):
        state = [parameter.numel() for parameter in build(study.resolve(variant).model).parameters()]
        assert counted[variant] == sum(state), variant
    # By hand. Embedding 16 x 32 + 32, class token 32, positions 50 x 32; a block: two norms of 64, eight heads of three 4 x 4
    # matrices with biases, an MLP of 32 x 32 + 32 twice; the head 32 x 10 + 10.
    assert counted["base"] == 544 + 32 + 1600 + 3 * (2 * 64 + 8 * 3 * (16 + 4) + 2 * 1056) + 330


def test_a_row_says_what_the_variant_is_and_who_speaks_of_it(raw_params: dict[str, Any], listed: dict[str, dict[str, str]]) -> None:
    for name, difference in raw_params["variants"].items():
        assert yaml.safe_load("{" + listed[name]["difference"] + "}") == difference
        assert listed[name]["experiments"] == ", ".join(key for key, of in raw_params["experiments"].items() if name in of["variants"])
    assert listed["cnn-1000"]["claims"] == "T8"
    assert listed["cnn"]["claims"] == "T8, T8b, K4"  # T8's as the last of its pairs
    assert listed["first"]["claims"] == "T3, T4"
    assert listed["patch-14"]["claims"] == "T5b, T6, T16-time, T16"


def test_the_shipped_study_has_no_oddities(study: params.Params) -> None:
    assert catalogue.oddities(study) == []


def test_a_claim_about_nothing_and_a_variant_on_no_page_are_told(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    del raw["variants"]["sinusoidal"]
    for name in ("positions", "lengths", "attention-maps"):
        raw["experiments"][name]["variants"].remove("sinusoidal")
    raw["variants"] |= {"lonely": {"heads": 2}, "alone": {}}
    raw["timing"]["subjects"]["patch-7"] = {"patch": 7, "heads": 4}
    del raw["timing"]["subjects"]["conv-embed"], raw["timing"]["labels"]["conv-embed"]
    assert catalogue.oddities(params.parse(raw)) == [
        *(
            f"claim {claim} speaks of 'sinusoidal', which variants does not have; the nearest is 'sincos2d'; it will read \"not run\"."
            for claim in ("T1a", "T1b", "T10", "T14c", "T15")
        ),
        "claim K3 speaks of 'conv-embed', which timing.subjects does not have; the choices are base, cls-loop, first, patch-14, patch-7, "
        'patch-2, scale-32x1, reference; it will read "not run".',
        'timing.subjects.patch-7 is another network than variants.patch-7; what claims say of its time will read "not run".',
        "no experiment has lonely, alone: trained, and on no experiment's page.",
    ]


def test_claims_that_speak_of_longer_trainings_are_told(raw_params: dict[str, Any]) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"]["best"]["epochs"] = 59
    assert catalogue.oddities(params.parse(raw)) == [
        'the trainings are shown fewer images than claims B1 speak of; these will read "short run".'
    ]
    raw["train"]["epoch_images"] = 59_999
    (sentence,) = catalogue.oddities(params.parse(raw))
    timed = {"T4", "T6", "T7", "T9", "T16-time", "K3", "L1b"}
    captioners = {"C1", "C1-M2", "C2-captions", "C3", "C4", "C5a", "C5b"}  # whose scenes are fewer, so that they are shown more
    told = re.search(r"claims (.+) speak", sentence)
    assert told is not None
    assert told[1].split(", ") == [name for name in raw["claims"] if name not in timed | captioners]


def test_a_claim_is_listed_with_the_images_that_it_speaks_of(study: params.Params) -> None:
    (lines,) = (lines for title, _, lines in catalogue.sections(study) if title == "Claims")
    shown = {line[0]: line[3] for line in lines}
    assert (shown["T1a"], shown["B1"], shown["T4"]) == ("1,800,000", "3,600,000", "")


def test_columns_without_anything_are_left_out() -> None:
    console = Console(file=io.StringIO(), width=80)
    catalogue.show(console, "Seeds", ("variant", "kept", "replayed"), [("base", "", ""), ("first", "6", "")])
    catalogue.show(console, "Nothing", ("variant", "kept"), [])
    assert isinstance(console.file, io.StringIO)
    assert [line.split() for line in console.file.getvalue().splitlines() if line.strip(" \N{BOX DRAWINGS LIGHT HORIZONTAL}")] == [
        ["Seeds"], ["variant", "kept"], ["base"], ["first", "6"], ["Nothing"], ["variant", "kept"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_tables_lose_nothing(study: params.Params, width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, color_system=None)
    for title, header, lines in catalogue.sections(study):
        screen.seek(0)
        screen.truncate()
        catalogue.show(console, title, header, lines)
        shown = screen.getvalue()
        assert title in shown
        assert all(len(line) <= width for line in shown.splitlines())
        assert "…" not in shown
        # Cells wrap side by side, so count letters: none is missing.
        letters = re.sub(r"\W", "", "".join([title, *header, *(cell for line in lines for cell in line)]))
        assert sorted(re.sub(r"\W", "", shown)) == sorted(letters)


def status_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the command in a folder; in this process, as another one would spend seconds on importing torch."""
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "argv", ["catalogue"])
    with pytest.raises(SystemExit) as end:
        run_command(catalogue.main)
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_wrong_file_is_one_sentence(
    tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = copy.deepcopy(raw_params)
    raw["base"]["patch"] = 5
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    assert status_in(tmp_path, monkeypatch) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors == "error: base.patch: 5 does not divide the image's side of 28 pixels; the nearest that does is 4.\n"


def test_oddities_go_to_standard_error(
    tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = copy.deepcopy(raw_params)
    raw["variants"]["lonely"] = {"heads": 2}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    assert status_in(tmp_path, monkeypatch) == 0
    assert capsys.readouterr().err == "warning: no experiment has lonely: trained, and on no experiment's page.\n"


def test_the_newcomers_exercise_is_valid_as_written(raw_params: dict[str, Any], study: params.Params) -> None:
    page = (ROOT / "docs" / "newcomer.md").read_text(encoding="utf-8")
    variant, experiment, claim, comparison = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL))
    raw = copy.deepcopy(raw_params)
    for section, added in (("variants", variant), ("experiments", experiment), ("claims", claim)):
        assert not added.keys() & raw[section].keys()
        raw[section] |= added
    parsed = params.parse(raw)
    assert catalogue.oddities(parsed) == []
    assert all(parsed.resolve(name) == study.resolve(name) for name in study.variants)  # nothing else is trained again
    (row,) = (row for name, row in variants(parsed).items() if name in variant)
    (line,) = (line for line in page.splitlines() if line.startswith(f"{row['variant']} "))
    assert line.split() == " ".join(row.values()).split()
    raw["claims"]["W1"]["comparisons"] = comparison
    assert params.parse(raw).claims["W1"].comparisons[0].bound == 0.8
    slip = copy.deepcopy(raw)
    slip["variants"]["wide-mlp"] = {"mlp_dm": 128}
    with pytest.raises(UserError) as caught:
        params.parse(slip)
    assert f"error: {caught.value}\n" in page
