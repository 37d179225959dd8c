"""Processes that end with the one that started them."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_dvc() -> None:
    """Makes a stage that DVC runs end when DVC ends."""
    if "DVC_STAGE" in os.environ:
        die_with_parent(os.getppid())


def die_with_parent(parent: int) -> None:
    """Makes the kernel end this process when its parent, process `parent`, ends: a killed `dvc repro` leaves no trainer behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)
