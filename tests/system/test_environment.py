"""What other projects set reaches no program of this one, and any output will do."""

import getpass
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from requests.utils import should_bypass_proxies

from pipeline.study.git import commit_of, root_of
from pipeline.system import environment
from tests.helpers import ROOT, commit_all, git


def test_what_the_outputs_encoding_lacks_is_written_as_its_code() -> None:
    code = """
from pipeline.system.errors import UserError, run_command
def main(_):
    print("−30.88 \\udcff")
    raise UserError("±")
run_command(main)
"""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "\\u221230.88 \\udcff\n", "error: \\xb1\n")


def test_a_server_on_this_machine_is_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"http_proxy": "http://192.0.2.1:8", "NO_PROXY": "intranet", "no_proxy": "", "MPLBACKEND": "none"}.items():
        monkeypatch.setenv(name, value)
    environment.clean()
    assert os.environ["MPLBACKEND"] == "agg"
    addresses = ("http://127.0.0.1:5000", "http://localhost:5000", "http://intranet", "http://example.org")
    assert [should_bypass_proxies(address, None) for address in addresses] == [True, True, True, False]
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]


def test_a_user_without_a_name_and_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is started with a number."""
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 9)
    with pytest.raises(KeyError):
        pwd.getpwuid(os.getuid())
    environment.clean()
    assert getpass.getuser() == str(2**31 - 9)
    assert Path.home().is_relative_to(ROOT)


def test_git_reads_this_repository_whatever_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        git(folder, "init", "--quiet")
    head = commit_all(own)
    for name, place in {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / "index"}.items():
        monkeypatch.setenv(name, str(place))
    assert (root_of(own), commit_of(own, "HEAD")) == (own, head)


def test_git_changes_no_bytes(tmp_path: Path) -> None:
    """Digests are of bytes, and Git for Windows is set to change the ends of lines."""
    shutil.copyfile(ROOT / ".gitattributes", tmp_path / ".gitattributes")
    (tmp_path / "run.json").write_bytes(b"{}\n")
    git(tmp_path, "init", "--quiet")
    commit_all(tmp_path)
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "--quiet", ".", "clone")
    assert (tmp_path / "clone" / "run.json").read_bytes() == b"{}\n"
