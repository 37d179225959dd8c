"""What the GPUs' driver tells of them, as MLflow's system metrics."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress

SYSTEM = "system/"  # begins the names of what MLflow shows as system metrics
_NAMES = ("memory_usage_megabytes", "power_usage_watts", "utilization_percentage")  # as MLflow's own
_ASKED = ("nvidia-smi", "--query-gpu=memory.used,power.draw,utilization.gpu", "--format=csv,noheader,nounits")


def gpu_points(sample: int) -> list[tuple[str, float, int, int]]:
    """Memory, power and use of each GPU now: key, value, milliseconds since 1970, sample. None where the driver does not tell them."""
    points: list[tuple[str, float, int, int]] = []
    with suppress(OSError, subprocess.SubprocessError):
        for number, line in enumerate(subprocess.run(_ASKED, capture_output=True, text=True, timeout=10).stdout.splitlines()):
            for name, value in zip(_NAMES, line.split(","), strict=False):
                with suppress(ValueError):  # "[N/A]"
                    points.append((f"{SYSTEM}gpu_{number}_{name}", float(value), time.time_ns() // 1_000_000, sample))
    return points
