"""`make gpu-check`: what it says without a GPU, and its parts on the CPU, where eager stands beside eager."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from pipeline import params
from pipeline.commands import gpu_check
from pipeline.commands.gpu_check import Line
from pipeline.params import Params
from tests.conftest import small_study

CPU = torch.device("cpu")


@pytest.fixture
def tiny(raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Params:
    """A study of two small networks in the place of params.yaml's."""
    study = params.parse(small_study(raw_params))
    monkeypatch.setattr(gpu_check, "load_params", lambda: study)
    for name, value in {"STEPS": 2, "TIMED_STEPS": 2, "EPOCH_SHARE": 256}.items():
        monkeypatch.setattr(gpu_check, name, value)
    return study


def test_without_a_gpu_every_part_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check.workers, "why_no_gpu", lambda: "RuntimeError: Found no NVIDIA driver on your system.")
    assert gpu_check.main([]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [f"SKIP  {part}: RuntimeError: Found no NVIDIA driver on your system." for part in gpu_check.PARTS]
    assert last == "No line failed; build/gpu-check.json has the numbers."
    assert [one["outcome"] for one in json.loads(gpu_check.OUT.read_text())["lines"]] == ["SKIP"] * len(gpu_check.PARTS)


def test_one_failure_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check.workers, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu_check, "run_part", lambda part: iter([gpu_check.line(part != "kernel", "so much", number=3)]))
    assert gpu_check.main([]) == 1
    assert "FAIL  kernel: so much\n" in capsys.readouterr().out
    written = {one["part"]: one for one in json.loads(gpu_check.OUT.read_text())["lines"]}
    assert written["kernel"] == {"part": "kernel", "outcome": "FAIL", "text": "so much", "numbers": {"number": 3}}


def test_a_run_that_is_cut_short_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_part(part: str) -> Iterator[Line]:
        if part == "configurations":
            raise KeyboardInterrupt
        yield Line("PASS", "so much")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check.workers, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu_check, "run_part", run_part)
    with pytest.raises(KeyboardInterrupt):
        gpu_check.main([])
    assert [one["part"] for one in json.loads(gpu_check.OUT.read_text())["lines"]] == ["machine", "kernel"]


def test_networks_that_cannot_be_stacked_are_checked_last(study: Params) -> None:
    found = gpu_check.configurations(study, 4)
    assert [settings.stackable for settings, _ in found] == sorted((settings.stackable for settings, _ in found), reverse=True)
    assert not found[-1][0].stackable
    assert sorted(name for _, variants in found for name in variants) == sorted(study.variants)


def test_a_part_that_dies_or_does_not_end_is_a_failure() -> None:
    said = f"print({gpu_check._MARK!r} + {json.dumps({'outcome': 'PASS', 'text': 'first', 'numbers': {}})!r}, flush=True)"
    dies = [sys.executable, "-c", f"{said}\nraise ValueError('an illegal memory access')"]
    assert list(gpu_check.run_part("x", dies)) == [
        Line("PASS", "first"),
        Line("FAIL", "ended with status 1: ValueError: an illegal memory access"),
    ]
    waits = [sys.executable, "-c", f"{said}\nimport time\ntime.sleep(60)"]
    assert [one.outcome for one in gpu_check.run_part("x", waits, seconds=1)][-1] == "FAIL"


def test_the_kernel_beside_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("pipeline.kernels.cuda")
    found = gpu_check.kernel_line(CPU, torch.float32, 4, (5, 9, 11), batch=4)
    assert found.outcome == "PASS", found.text
    assert 0 < found.numbers["error"] < 2e-6
    assert gpu_check.kernel_line(CPU, torch.float32, 32, (5,)).outcome == "FAIL"  # there the CPU has none of its own
    for tolerances in ((0.0, 1e9), (1e9, 0.0)):
        monkeypatch.setattr(cuda, "TOLERANCES", {torch.float32: tolerances})
        assert gpu_check.kernel_line(CPU, torch.float32, 4, (5, 9), batch=4).outcome == "FAIL"


def test_the_machine_is_described() -> None:
    about, _ = gpu_check.check_machine(CPU)
    assert about.outcome == "PASS"
    assert f"torch {torch.__version__.split('+')[0]}" in about.text


def test_each_variant_is_in_one_configuration(study: Params) -> None:
    found = gpu_check.configurations(study, 36)
    assert sorted(variant for _, variants in found for variant in variants) == sorted(study.variants)
    assert len(found) < len(study.variants)  # more epochs or another subset are the same steps


def test_configurations_are_compared(tiny: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    *lines, whole = gpu_check.check_configurations(CPU)
    assert [(one.outcome, one.numbers["variants"]) for one in lines] == [("PASS", ["base"]), ("PASS", ["wide"])], lines
    steps = -(-tiny.resolve("base").epoch_examples // tiny.train.batch_size)
    assert whole.numbers["hours"] == pytest.approx(sum(one.numbers["milliseconds"] for one in lines) * steps / 3.6e6)


@pytest.mark.parametrize(("fault", "others", "apart"), [("weight", 1, False), ("loss", 0, True)])
def test_each_difference_of_a_configuration_is_a_failure(
    tiny: Params, monkeypatch: pytest.MonkeyPatch, fault: str, others: int, apart: bool
) -> None:
    real = gpu_check.after_steps

    def other(settings: Any, data: Any, seeds: Any, device: Any, **variables: str) -> Any:
        trainer = real(settings, data, seeds, device, **variables)
        if fault == "weight" and variables == {"LAB_GRAPHS": "0"}:
            trainer.stack.parameters[0].data.view(-1)[0] += 1e-6
        if fault == "loss" and "LAB_ATTENTION" in variables:
            trainer.trace.loss.add_(5e-4)
        return trainer

    monkeypatch.setattr(gpu_check, "after_steps", other)
    (settings, variants), _ = gpu_check.configurations(tiny, 4)
    failed = gpu_check.configuration_line(settings, variants, gpu_check.data_of(settings), CPU)
    assert (failed.outcome, len(failed.numbers["others"])) == ("FAIL", others)
    assert (failed.numbers["apart"] > 1e-4) == apart


def test_an_epoch_is_timed(tiny: Params) -> None:
    alone, stack, shares = gpu_check.check_speed(CPU)
    assert (alone.numbers["seeds"], stack.numbers["seeds"]) == (1, 10)
    assert min(alone.numbers["step"], stack.numbers["step"]) > 0
    assert sum(shares.numbers["shares"].values()) == pytest.approx(1)


def test_captioners_get_scenes(study: Params) -> None:
    data = gpu_check.data_of(study.resolve("caption"), 256)
    assert len(data.scenes.train) == 64


@pytest.mark.long
def test_a_killed_training_and_one_with_other_variables(tiny: Params, tmp_path: Path) -> None:
    for found in gpu_check.check_resume(CPU):
        assert found.outcome == "PASS", found
    line = gpu_check.fallback_line("a process", tmp_path / "a", CPU, "no such sentence", LAB_DEVICE="gpu")
    assert (line.outcome, line.numbers["status"]) == ("FAIL", 2)


@pytest.mark.parametrize(("kernel", "outcome"), [(20.0, "PASS"), (22.0, "FAIL")])
def test_the_parts_of_a_profile_have_to_add_up(kernel: float, outcome: str) -> None:
    def event(name: str, device_type: Any, kernels: list[Any], spent: float, annotation: bool = False) -> Any:
        time_range = SimpleNamespace(start=0, elapsed_us=lambda: spent)
        return SimpleNamespace(
            name=name, device_type=device_type, kernels=kernels, time_range=time_range, cpu_parent=None, sequence_nr=-1,
            is_user_annotation=annotation,
        )  # fmt: skip

    events = [
        event("aten::mm", DeviceType.CPU, [SimpleNamespace(name="gemm", duration=20.0)], 0.0),
        event("gemm", DeviceType.CUDA, [], kernel),
        event("part: attention", DeviceType.CUDA, [], 40.0, True),
    ]
    assert gpu_check.profile_line("step", events).outcome == outcome
