"""The command."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pipeline.compare.__main__ import main
from pipeline.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compare.conftest import Study


@pytest.fixture
def trained(study: Study, monkeypatch: pytest.MonkeyPatch) -> Study:
    study.train("base", [0.9, 0.8])
    study.commit("the first")
    study.git("tag", "v1")
    study.train("base", [0.8, 0.6])
    study.commit("the second")
    monkeypatch.chdir(study.root)
    return study


def test_the_page_is_written_and_printed(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    main(["v1", "main"])
    page = (trained.root / "build" / "compare.md").read_text()
    out, err = capsys.readouterr()
    assert out == page
    assert err == "Written to build/compare.md.\n"
    assert page.startswith("# What changed from `v1` to `main`\n")


def test_where_nothing_can_be_written_the_page_is_printed(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    (trained.root / "build").touch()  # stands where the folder would be
    main(["v1", "main"])
    out, err = capsys.readouterr()
    assert out.startswith("# What changed from `v1` to `main`\n")
    assert err == "Not written to build/compare.md: File exists.\n"


def test_without_a_head_the_working_tree_is_compared(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    trained.train("base", [0.5, 0.3])
    main(["v1", "--out", "elsewhere/page.md"])
    assert capsys.readouterr().out.startswith("# What changed from `v1` to the working tree\n")
    page = (trained.root / "elsewhere" / "page.md").read_text()
    assert "largest change: `base` \N{MINUS SIGN}45.00 points" in page
    assert ", and changes |" in page
    trained.git("checkout", "--quiet", "--", ".")
    main(["main"])
    assert "**Nothing differs" in capsys.readouterr().out


def test_the_same_commit_twice_is_fine(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    main(["main", "main"])
    assert "**Nothing differs: the one variant of both sides is identical" in capsys.readouterr().out


def test_the_command_works_in_a_folder_below(trained: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(trained.root / "runs")
    main(["v1", "--out", str(trained.root / "page.md")])
    assert "`base`" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["reports/preview", "./reports/preview/"])
def test_the_folder_can_be_named(
    make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    study = make_study(prefix="reports/preview")
    study.train("base", [0.9])
    study.commit()
    monkeypatch.chdir(study.root)
    main(["HEAD", "--in", folder])
    assert "`reports/preview/runs`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "Say which commit to compare with: make compare BASE=main~1, or python -m pipeline.compare main~1."),
        (["", "main"], "Say which commit to compare with"),
        (["v2"], "There is no commit 'v2' here; the nearest is 'v1'."),
        (["v1", "mian"], "There is no commit 'mian' here; the nearest is 'main'."),
        (["v1", "--source", "mlfow"], "There is no source 'mlfow'; the choices are files and mlflow."),
        (["v1", "--in", "/reports"], "--in /reports: give a folder from the repository's top, for example reports/preview."),
        (["v1", "--in", "../x"], "--in ../x: give a folder from the repository's top"),
        (["v1", "--in", "reports/demo"], "The commit v1 holds no results in reports/demo/tables; the newest commit that wrote some is"),
    ],
)
def test_a_wrong_use_is_answered_in_one_sentence(trained: Study, argv: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        main(argv)
    assert str(error.value).startswith(sentence)
    assert not (trained.root / "build").exists()


def test_the_process_ends_with_status_2_and_no_traceback(trained: Study) -> None:
    done = subprocess.run([sys.executable, "-m", "pipeline.compare", "v9"], cwd=trained.root, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no commit 'v9' here")
    assert done.stderr.count("\n") == 1
