"""Files appear whole or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.system.files import write_text

CODE = """
import os, resource, signal, sys
from pathlib import Path
from pipeline.system.errors import run_command
from pipeline.system.files import write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.argv[1] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
elif os.geteuid() == 0:
    os.setuid(65534)  # the root may write everywhere
run_command(lambda _: write_text(Path("store/a.txt"), "x" * 5000))
"""


@pytest.mark.parametrize(("cause", "said"), [("full", "File too large: 'store'"), ("read-only", "Permission denied: 'store/")])
def test_what_cannot_be_written_leaves_the_old_file_and_no_other_and_names_its_folder(tmp_path: Path, cause: str, said: str) -> None:
    path = tmp_path / "store" / "a.txt"
    write_text(path, "old")
    tmp_path.chmod(0o755)
    path.parent.chmod(0o555 if cause == "read-only" else 0o755)
    result = subprocess.run([sys.executable, "-c", CODE, cause], cwd=tmp_path, capture_output=True, text=True)
    path.parent.chmod(0o755)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
