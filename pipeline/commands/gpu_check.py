"""Checks this project on the GPU that is here (`make gpu-check`, ten minutes): PASS or FAIL with what was measured, SKIP without a GPU.

build/gpu-check.json has all lines and numbers. Each part runs in a process of its own, because an error on the GPU breaks its process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline import environment
from pipeline.errors import UserError, first_line, run_command
from pipeline.files import write_json
from pipeline.params import Params, ScenesSettings, VariantSettings
from pipeline.params import load as load_params
from pipeline.provenance import device_name, git_state, versions
from pipeline.runner import results, workers

if TYPE_CHECKING:
    import torch

    from pipeline.data.datasets import Dataset
    from pipeline.training.engine import Trainer

OUT = Path("build/gpu-check.json")
ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
_MARK = "gpu-check: "  # before the lines of a part's process
STEPS, TIMED_STEPS = 6, 30  # of every configuration: those compared, then those timed
EPOCH_SHARE = 12_800  # images of the synthetic data; enough for a hundred steps


@dataclass(frozen=True)
class Line:
    """A finding: what was checked, with the number that was measured, and all numbers by name."""

    outcome: Literal["PASS", "FAIL", "SKIP"]
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def line(passed: bool, text: str, **numbers: Any) -> Line:
    return Line("PASS" if passed else "FAIL", text, numbers)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.gpu_check", description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="only this part, in this process")
    arguments = parser.parse_args(argv)
    if arguments.part:
        import torch

        workers.prepare("cuda")
        for one in PARTS[arguments.part](torch.device("cuda")):
            print(_MARK + json.dumps(asdict(one)), flush=True)
        return 0
    reason = workers.why_no_gpu()
    found: list[dict[str, Any]] = []
    commit, dirty = git_state()
    about = {"date": workers.now(), "git_commit": commit, "git_dirty": dirty, "lines": found}
    for part in PARTS:
        for one in [Line("SKIP", reason)] if reason else run_part(part):
            print(f"{one.outcome}  {part}: {one.text}", flush=True)
            found.append({"part": part, **asdict(one)})
            write_json(OUT, about)  # after each line, because a lent GPU may go before the last one
    failed = sum(one["outcome"] == "FAIL" for one in found)
    print(f"{failed} of {len(found)} lines failed; {OUT} has the numbers." if failed else f"No line failed; {OUT} has the numbers.")
    return 1 if failed else 0


def run_part(part: str, command: Sequence[str] = (), seconds: float = 600) -> Iterator[Line]:
    """Yields the lines of a part as its process finds them, and a failure if the process dies or takes too long.

    Args:
        command: of the process; by default that of the part.
    """
    command = command or [sys.executable, "-m", "pipeline.commands.gpu_check", "--part", part]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        last = ""
        try:
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith(_MARK):
                    yield Line(**json.loads(text.removeprefix(_MARK)))
                else:
                    last = text.strip() or last
            if status := process.wait():
                yield Line("FAIL", f"ended with status {status}: {last}")
        finally:
            timer.cancel()
            process.kill()


def check_machine(device: torch.device) -> Iterator[Line]:
    """GPU, versions, memory, and what Triton compiles with."""
    import torch

    about = {"device": device_name(device.type), **versions(device.type)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {"capability": f"{properties.major}.{properties.minor}", "memory": f"{properties.total_memory / 2**30:.1f} GiB"}
    yield line(device.type == "cpu" or properties.major >= 7, ", ".join(f"{name} {value}" for name, value in about.items()), **about)
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    compiler = next(filter(None, map(shutil.which, names)), None)
    header = Path(sysconfig.get_path("include"), "Python.h")
    lacking = [what for what, there in (("no C compiler", compiler), (f"no {header}", header.is_file())) if not there]
    yield line(not lacking, ", ".join(lacking) or f"Triton can compile: {compiler}, {header}", compiler=compiler)


def check_kernel(device: torch.device) -> Iterator[Line]:
    """The fused attention beside the formula in float64 and torch's own."""
    import torch

    from pipeline.kernels.small_head_attention import CUDA_DTYPES

    for dtype in CUDA_DTYPES:
        # Trainings are in float32, and a wide kernel takes minutes to compile.
        for dim in (2, 3, 4, 8, 16, 32) if dtype == torch.float32 else (4,):
            yield kernel_line(device, dtype, dim, (5, 50, 197))


def kernel_line(device: torch.device, dtype: torch.dtype, dim: int, lengths: Sequence[int], *, batch: int = 128) -> Line:
    """The largest errors over several numbers of tokens. The text has the times of the last but one, forward and backward."""
    import torch

    from pipeline.kernels import attention, attention_path, why_not_fused
    from pipeline.kernels.cuda import TOLERANCES

    name, scale, heads = f"{str(dtype).removeprefix('torch.')}, heads of {dim}", dim**-0.5, max(1, 32 // dim)
    errors, repeats, times = [], True, []
    for tokens in lengths:
        if not attention_path(device=device, head_dim=dim, tokens=tokens, dtype=dtype).startswith("fused"):
            return Line("FAIL", f"{name}: {why_not_fused(dim, device, dtype)}")
        generator = torch.Generator().manual_seed(tokens)
        qkv = torch.randn(batch, tokens, 3, heads, dim, generator=generator).to(device, dtype).requires_grad_()
        grad = torch.randn(batch, tokens, heads, dim, generator=generator).to(device, dtype)

        def both(qkv: torch.Tensor = qkv, grad: torch.Tensor = grad) -> tuple[torch.Tensor, torch.Tensor]:
            out = attention(qkv, scale=scale)
            return out.detach(), torch.autograd.grad(out, qkv, grad)[0]

        exact = qkv.detach().double().requires_grad_()
        q, k, v = exact.unbind(2)
        out = torch.einsum("bhij,bjhd->bihd", torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) * scale, -1), v)
        (expected,) = torch.autograd.grad(out, exact, grad.double())
        first, second = both(), both()
        repeats &= all(map(torch.equal, first, second))
        # Among so many random numbers some outputs are above 1, and rounding grows with them.
        bounded = float((first[0] - out.detach()).abs().max() / out.detach().abs().max().clamp(min=1))
        errors.append((bounded, float((first[1] - expected).abs().max() / expected.abs().max())))
        ours = milliseconds(both, device)
        with environment.variables(LAB_ATTENTION="sdpa"):
            times.append((ours, milliseconds(both, device)))
    error, gradient = (max(column) for column in zip(*errors, strict=True))
    ours, theirs = times[-2:][0]
    bounds = TOLERANCES[dtype]
    text = f"{name}: output within {error:.1e}, gradient within {gradient:.1e}, {'repeatable' if repeats else 'not repeatable'}"
    return line(
        error <= bounds[0] and gradient <= bounds[1] and repeats, f"{text}, {ours:.3f} ms (torch's {theirs:.3f} ms)",
        error=error, gradient=gradient, repeats=repeats, milliseconds=[pair[0] for pair in times], torch=[pair[1] for pair in times],
    )  # fmt: skip


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """Mean time of a call over 20, after two that are not timed."""
    from pipeline.timing.steps import synchronize

    repeats = 20
    for _ in range(2):
        call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / repeats * 1000


@cache
def synthetic(num_train: int, num_test: int) -> Dataset:
    """Noise with a bright square where the class says, in the shape of MNIST."""
    from pipeline.data.datasets import Dataset

    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[7 * (label // 4) :, 7 * (label % 4) :][:7, :7] += 150
        return images, labels

    return Dataset("mnist", *draw(num_train), *draw(num_test), digest="0" * 64)


def data_of(settings: VariantSettings, num_train: int = EPOCH_SHARE) -> Any:
    """Synthetic data of the variant's task."""
    dataset = synthetic(num_train, 500)
    if settings.task == "classification":
        return dataset
    from pipeline.captioning.data import SceneData
    from pipeline.captioning.scenes import draw

    return SceneData(draw(dataset, ScenesSettings(train=max(1, num_train // 4), validation=20, test=10)), dataset)


def on_all_data(settings: VariantSettings, **train: Any) -> VariantSettings:
    """The settings with these of training, on all of the data."""
    changed = {"train_images": None, "epoch_images": None, **train}
    return settings.model_copy(update={"train": settings.train.model_copy(update=changed)})


def shortened(settings: VariantSettings, steps: int) -> VariantSettings:
    """The settings with one epoch of so many steps, on all of the data."""
    return on_all_data(settings, epochs=1, epoch_images=steps * settings.train.batch_size, self_critical_epochs=0)


def configurations(params: Params, steps: int) -> list[tuple[VariantSettings, list[str]]]:
    """Each different step of a study, with the variants that take it; networks that cannot be stacked last.

    Their capture is the least certain, and after one that fails its process captures no other.
    """
    found: dict[str, tuple[VariantSettings, list[str]]] = {}
    for variant in params.variants:
        settings = shortened(params.resolve(variant), steps)
        found.setdefault(settings.to_json(), (settings, []))[1].append(variant)
    return sorted(found.values(), key=lambda one: not one[0].stackable)


def after_steps(settings: VariantSettings, data: Any, seeds: Sequence[int], device: torch.device, **variables: str) -> Trainer:
    """A trainer after its first steps, which ran with these environment variables."""
    from pipeline.training.engine import Trainer

    with environment.variables(**variables):
        trainer = Trainer(settings, data, seeds, device)
        trainer.run_steps(STEPS)
    return trainer


def check_configurations(device: torch.device) -> Iterator[Line]:
    """The step of every variant: captured, op by op and with torch's attention. Then the time of the whole study."""
    params = load_params()
    seconds = 0.0
    for settings, variants in configurations(params, STEPS + TIMED_STEPS):
        try:
            found = configuration_line(settings, variants, data_of(settings), device)
        except Exception as error:
            gc.collect()
            yield Line("FAIL", f"{variants[0]}: {first_line(error)}")
            continue
        yield found
        for variant in variants:
            whole = params.resolve(variant)
            seconds += whole.num_steps * found.numbers["milliseconds"] / 1000 * (1 if whole.stackable else len(whole.train.seeds))
    hours = seconds / 3600
    yield line(hours > 0, f"the steps of the whole study, tests left out, take {hours:.2f} hours", hours=hours)


def configuration_line(settings: VariantSettings, variants: Sequence[str], data: Any, device: torch.device) -> Line:
    import torch

    from pipeline.timing.steps import synchronize
    from pipeline.training.step import same_bits

    seeds = settings.train.seeds if settings.stackable else settings.train.seeds[:1]
    captured = after_steps(settings, data, seeds, device)
    state = captured.state()
    synchronize(device)
    start = time.perf_counter()
    captured.run_steps(TIMED_STEPS)
    synchronize(device)
    step = (time.perf_counter() - start) / TIMED_STEPS * 1000
    eager = after_steps(settings, data, seeds, device, LAB_GRAPHS="0")
    others = [name for name, value in eager.state().items() if not same_bits(value, state[name])]
    plain = after_steps(settings, data, seeds, device, LAB_GRAPHS="0", LAB_ATTENTION="sdpa")
    old, new = (trainer.trace.loss[:, :STEPS].double().cpu() for trainer in (eager, plain))
    apart = float(torch.where(old.isfinite() & new.isfinite(), (new - old).abs() / old.abs().clamp(min=1), 0).max())
    graphs = device.type == "cpu" or captured.driver.graphs == "captured"
    bits = f"{len(others)} tensors differ, {others[0]} the first" if others else "the same bits"
    how = "captured and op by op" if graphs else f"{captured.driver.note} Twice"
    more = f" (and {len(variants) - 1} more)" if len(variants) > 1 else ""
    return line(
        graphs and not others and apart <= 1e-4,
        f"{variants[0]}{more}: {how} {bits}, losses within {apart:.1e} of those with torch's attention, {step:.2f} ms a step",
        variants=list(variants), seeds=len(seeds), others=others, apart=apart, milliseconds=step, graphs=captured.driver.graphs,
    )  # fmt: skip


def lay_out(directory: Path, seeds: Sequence[int] = SEEDS, epochs: int = 1) -> VariantSettings:
    """A working directory in which the train stage can train `base` on scikit-learn's digits."""
    from pipeline.data.datasets import prepare
    from pipeline.data.fetch import fetch, source

    base = on_all_data(load_params().resolve("base"), seeds=tuple(seeds), epochs=epochs)
    settings = base.model_copy(update={"data": base.data.model_copy(update={"dataset": "digits"})})
    with contextlib.redirect_stdout(sys.stderr):
        fetch(source("digits"), directory / "data" / "raw")
        prepare("digits", directory / "data" / "raw", directory / "data" / "arrays")
    (directory / "configs").mkdir()
    (directory / "configs" / "base.json").write_text(settings.to_json())
    return settings


def stage(directory: Path, device: torch.device, **variables: str) -> subprocess.Popen[str]:
    """The train stage there, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.stages.train", "base"], cwd=directory, text=True,
        env={**os.environ, "LAB_DEVICE": device.type, "LAB_PROCESSES": "1", **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def check_resume(device: torch.device) -> Iterator[Line]:
    """A training that is killed and goes on, beside an unbroken one; and the evaluation of the latter."""
    from pipeline.evaluation import inference
    from pipeline.evaluation.evaluate import check_reproduced

    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        settings = lay_out(whole, epochs=60 if device.type == "cuda" else 2)  # the kill has to come before the end
        shutil.copytree(whole, killed)
        said = stage(whole, device).communicate()[0]
        with stage(killed, device) as process:
            assert process.stdout is not None
            for text in process.stdout:
                if "epoch 1/" in text:
                    process.kill()
                    break
        again = stage(killed, device).communicate()[0]
        left = []
        for directory, output in ((whole, said), (killed, again)):
            if not (directory / "runs" / "base" / "run.json").exists():
                yield Line("FAIL", f"the train stage did not finish: {output.strip().splitlines()[-1:]}")
                return
            run = results.read_run(directory / "runs" / "base")
            left.append((run["outputs"], [row[:6] for row in results.epoch_rows(run)]))
        went_on, same = "goes on after epoch" in again, left[0] == left[1]
        text = f"killed after its first epoch, {'went on' if went_on else 'began anew'}, {'the same' if same else 'other'} bits"
        yield line(went_on and same, text)
        place, arrays = whole / "runs" / "base", whole / "data" / "arrays"
        groups = workers.make_groups(SEEDS, device.type, stackable=True)
        found = [inference.measure(inference.Task("base", settings, tuple(group), (), device.type, place, arrays)) for group in groups]
        losses, accuracies = (np.concatenate([getattr(one, name) for one in found]) for name in ("losses", "accuracies"))
        last = [row for row in results.epoch_rows(results.read_run(place)) if row.epoch == settings.train.epochs]
        try:
            check_reproduced("base", last, losses, accuracies, num_tests=found[0].num_tests, elsewhere=None)
        except UserError as error:
            yield Line("FAIL", f"evaluate: {error}")
        else:
            apart = float(np.abs(losses - [row.test_loss for row in last]).max())
            yield line(True, f"evaluate: {len(last)} seeds as their training left them, losses within {apart:.1e}", apart=apart)


def check_fallbacks(device: torch.device) -> Iterator[Line]:
    """Trainings without a compiler, graphs or memory for the stack: they end, and say what they did instead."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        compiler, kept = str(Path(folder, "no-compiler")), str(Path(folder, "triton"))
        said = "the kernel cannot be compiled"
        yield fallback_line("no compiler", Path(folder, "compiler"), device, said, CC=compiler, TRITON_CACHE_DIR=kept)
        yield fallback_line("graphs off", Path(folder, "graphs"), device, "LAB_GRAPHS is 0", LAB_GRAPHS="0")
        share = capped_share(device)
        if share is None:
            yield Line("SKIP", "memory: half a stack needs nearly as much as a whole one")
        else:
            limit = f"per_process_memory_fraction:{share:.6f}"
            said = "does not hold a stack of 8 seeds"
            yield fallback_line("memory", Path(folder, "memory"), device, said, seeds=range(8), PYTORCH_ALLOC_CONF=limit)


def fallback_line(name: str, directory: Path, device: torch.device, said: str, *, seeds: Sequence[int] = SEEDS, **variables: str) -> Line:
    """Whether a training under these environment variables ends well and says so."""
    lay_out(directory, seeds)
    process = stage(directory, device, **variables)
    output = process.communicate()[0]
    told = [text for text in output.splitlines() if said in text]
    ended = process.returncode == 0
    text = told[0] if told else f"nothing said of it; the last line is {output.strip().splitlines()[-1:]}"
    return line(ended and bool(told), f"{name}: status {process.returncode}, {text}", status=process.returncode, output=output)


def capped_share(device: torch.device) -> float | None:
    """The share of the GPU's memory that holds a stack of four seeds and not of eight; None where they need nearly the same.

    What counts is what torch's allocator reserves, which is more than what is in use.
    """
    import torch

    from pipeline.training.engine import Trainer

    if device.type == "cpu":
        return None
    settings, peaks = shortened(load_params().resolve("base"), 4), []
    for count in (4, 8):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        trainer = Trainer(settings, synthetic(1437, 360), range(count), device)
        trainer.run_epoch()
        peaks.append(torch.cuda.max_memory_reserved(device))
        del trainer
    half, whole = peaks
    return (half + whole) / 2 / torch.cuda.get_device_properties(device).total_memory if whole > 1.2 * half else None


def check_profile(device: torch.device) -> Iterator[Line]:
    """Whether the parts of a profile add up to the time of its kernels."""
    from pipeline.timing.profile import record
    from pipeline.timing.subjects import entries

    params = load_params()
    for entry in entries(params, 16):
        if entry.kind == "step" and entry.subject == "base" and not entry.nested:
            yield profile_line(entry.name, record(entry, params, synthetic(2000, 500), device, 2))


def profile_line(name: str, events: Sequence[Any]) -> Line:
    from torch._C._autograd import DeviceType

    from pipeline.timing.profile import by_part

    total = by_part(events, cuda=True)[0].total()
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    spent = sum(event.time_range.elapsed_us() for event in kernels)
    share = total / spent if spent else 0.0
    return line(abs(share - 1) <= 0.05, f"{name}: its parts are {share:.1%} of {spent / 1000:.2f} ms of kernels", share=share)


def check_speed(device: torch.device) -> Iterator[Line]:
    """An epoch of the base, one seed and ten in a stack, and the kernels on which the stack's step spends most."""
    from torch.profiler import ProfilerActivity, profile

    from pipeline.training.engine import Trainer

    for count in (1, 10):
        settings = on_all_data(load_params().resolve("base"), seeds=tuple(range(count)), epochs=4)
        trainer = Trainer(settings, synthetic(EPOCH_SHARE, 500), range(count), device)
        rows = [trainer.run_epoch()[0] for _ in range(3)]
        seconds = min(row.seconds for row in rows[1:])
        step = seconds / -(-EPOCH_SHARE // settings.train.batch_size) * 1000
        epoch = seconds * 60_000 / EPOCH_SHARE / count
        text = f"base, seeds: {count}; {step:.2f} ms a step, {epoch * 1000:.0f} ms for an epoch of 60,000 images and a seed"
        yield line(True, text, seeds=count, step=step, epoch=epoch)
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as result:
        trainer.run_epoch()
    spent = {event.key: event.self_device_time_total if cuda else event.self_cpu_time_total for event in result.key_averages()}
    shares = {name: value / sum(spent.values()) for name, value in sorted(spent.items(), key=lambda one: -one[1])}
    most = "; ".join(f"{share:.0%} {name[:60]}" for name, share in list(shares.items())[:5])
    yield line(True, f"the stack's step spends most on {most}", shares=shares)


def check_tests(device: torch.device) -> Iterator[Line]:
    """The tests that need a GPU."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    # A warning of another version of Python, torch or Triton is no fault of the kernels.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "-W", "default", *files]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    last = (process.stdout.strip().splitlines() or [""])[-1]
    yield line(process.returncode == 0, f"pytest -m cuda: {last}", output=process.stdout[-20_000:])


PARTS: dict[str, Callable[[torch.device], Iterator[Line]]] = {
    "machine": check_machine,
    "kernel": check_kernel,
    "configurations": check_configurations,
    "resume": check_resume,
    "fallbacks": check_fallbacks,
    "profile": check_profile,
    "speed": check_speed,
    "tests": check_tests,
}

if __name__ == "__main__":
    run_command(main)
