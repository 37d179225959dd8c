"""Files appear whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.files import replacing, write_text


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail_midway() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from pipeline.files import write_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_text(Path(sys.argv[1]), 'x' * 5000)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"File too large: '{tmp_path}'" in result.stderr  # which file system it is
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
