"""`python -m docs.engines`: which engine trains each variant on a GPU, and what the compiler makes of each shape of the fused kernel.

Writes docs/engines.md. It needs no GPU: NVRTC compiles for any architecture. A new shape takes 20 seconds.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.page import grid
from pipeline import params
from pipeline.kernels.fused_vit import SOURCE, macros
from pipeline.params import ModelSettings
from pipeline.system.errors import run_command
from pipeline.system.files import write_text
from pipeline.training.fused import why_not

ROOT = Path(__file__).parent.parent
ARCHITECTURE = "sm_90"
_CUT = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL)
_TEXT = """# Engines on a GPU

Written by `python -m docs.engines`. Of {count} variants the fused kernel ([kernel.md](kernel.md)) trains {fused}; torch trains the \
others, and all of them where the kernel cannot run. On a CPU torch trains all.

{engines}

## Compiled shapes

For {architecture}, of the kernel that computes gradients: threads, images and shared memory of a block, blocks that a processor is to \
hold at a time, registers of a thread, and bytes that its code stores and loads because registers do not suffice.

{shapes}
"""


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.engines", description=__doc__).parse_args(argv)
    study = params.load(ROOT / "params.yaml")
    engines: list[tuple[str, str]] = []
    shapes: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for variant in study.variants:
        settings = study.resolve(variant)
        reason = why_not(settings, torch.device("cuda"))
        engines.append((f"`{variant}`", "fused" if reason is None else f"torch: {reason}"))
        if reason is None and isinstance(settings.model, ModelSettings):
            shapes.setdefault(tuple(macros(settings.model).items()), []).append(variant)
    rows = []
    for shape, variants in shapes.items():
        given = dict(shape)
        stores, loads, registers = compiled(given)
        names = ", ".join(f"`{variant}`" for variant in variants[:3]) + (f" and {len(variants) - 3} more" if len(variants) > 3 else "")
        cells = given["THREADS"], given["IMAGES"], round(given["SHARED_BYTES"] / 1000), given["RESIDENT"], registers
        rows.append((names, *map(str, cells), f"{stores}, {loads}"))
        print(*rows[-1], flush=True)
    header = "variants", "threads", "images", "shared (kB)", "blocks", "registers", "spilled: stores, loads (bytes)"
    fused, listed = sum(engine == "fused" for _, engine in engines), grid(("variant", "engine"), engines)
    text = _TEXT.format(count=len(engines), fused=fused, engines=listed, architecture=ARCHITECTURE, shapes=grid(header, rows))
    write_text(ROOT / "docs" / "engines.md", text)


def compiled(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the kernel of gradients the bytes of spilled stores and loads, and registers."""
    from cuda.core import Program, ProgramOptions

    macros = [(name, str(value)) for name, value in given.items()]
    options = ProgramOptions(
        std="c++17", arch=ARCHITECTURE, define_macro=macros, ptxas_options=["-v"], device_as_default_execution_space=True
    )
    log = io.StringIO()
    Program(SOURCE.read_text(), "c++", options).compile("cubin", logs=log)
    return {name: tuple(rest) for name, *rest in _CUT.findall(log.getvalue())}["differentiate"]


if __name__ == "__main__":
    run_command(main)
