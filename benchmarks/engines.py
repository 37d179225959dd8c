"""`python -m benchmarks.engines`: which engine trains each variant on a GPU, and what the compiler makes of each shape of the fused kernel.

Writes docs/engines.md. It needs no GPU: NVRTC compiles for any architecture. A shape takes 20 seconds.
"""

from __future__ import annotations

import argparse
import io
import re
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.runner import ROOT
from pipeline import params
from pipeline.errors import run_command
from pipeline.files import write_text
from pipeline.kernels.fused_vit import SOURCE, macros
from pipeline.params import ModelSettings
from pipeline.training.fused import why_not

ARCHITECTURE = "sm_90"
_CUT = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL)


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__).parse_args(argv)
    study = params.load(ROOT / "params.yaml")
    reasons: dict[str, str | None] = {}
    shapes: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for variant in study.variants:
        settings = study.resolve(variant)
        reasons[variant] = why_not(settings, torch.device("cuda"))
        if reasons[variant] is None:
            assert isinstance(settings.model, ModelSettings)
            shapes.setdefault(tuple(macros(settings.model).items()), []).append(variant)
    fused = sum(reason is None for reason in reasons.values())
    lines = [
        "# Engines on a GPU",
        "",
        f"Written by `python -m benchmarks.engines`. Of {len(reasons)} variants the fused kernel ([kernel.md](kernel.md)) trains {fused}; "
        "torch trains the others, and all of them where the kernel cannot run. On a CPU torch trains all.",
        "",
        "| variant | engine |",
        "|---|---|",
        *(f"| `{variant}` | {'fused' if reason is None else f'torch: {reason}'} |" for variant, reason in reasons.items()),
        "",
        "## Compiled shapes",
        "",
        f"For {ARCHITECTURE}, of the kernel that computes gradients: threads, images and shared memory of a block, blocks that a processor "
        "is to hold at a time, registers of a thread, bytes that its code stores and loads because registers do not suffice, and seconds "
        "to compile.",
        "",
        "| variants | threads | images | shared (kB) | blocks | registers | spilled: stores, loads (bytes) | compiled in (s) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for shape, variants in shapes.items():
        given = dict(shape)
        seconds, (stores, loads, registers) = compiled(given)
        names = ", ".join(f"`{variant}`" for variant in variants[:3]) + (f" and {len(variants) - 3} more" if len(variants) > 3 else "")
        cells = names, given["THREADS"], given["IMAGES"], round(given["SHARED_BYTES"] / 1000), given["RESIDENT"], registers
        lines.append(f"| {' | '.join(map(str, cells))} | {stores}, {loads} | {seconds:.0f} |")
        print(lines[-1], flush=True)
    write_text(ROOT / "docs" / "engines.md", "\n".join(lines) + "\n")


def compiled(given: Mapping[str, Any]) -> tuple[float, tuple[str, ...]]:
    """Seconds that NVRTC takes; of the kernel of gradients the bytes of spilled stores and loads, and registers."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17", arch=ARCHITECTURE, define_macro=[(name, str(value)) for name, value in given.items()], ptxas_options=["-v"]
    )
    log, start = io.StringIO(), time.perf_counter()
    Program(SOURCE.read_text(), "c++", options).compile("cubin", logs=log)
    return time.perf_counter() - start, {name: tuple(rest) for name, *rest in _CUT.findall(log.getvalue())}["differentiate"]


if __name__ == "__main__":
    run_command(main)
