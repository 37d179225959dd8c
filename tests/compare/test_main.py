"""The command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.compare.__main__ import main
from pipeline.errors import UserError
from pipeline.study import states
from tests.helpers import ROOT

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
    first, second = (trained.git("rev-parse", name)[:10] for name in ("v1", "main"))
    assert page.startswith(f"# What changed in `tables` from `v1` ({first}) to `main` ({second})\n")


def test_where_nothing_can_be_written_the_page_is_printed(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    (trained.root / "build").touch()  # stands where the folder would be
    main(["v1", "main"])
    out, err = capsys.readouterr()
    assert out.startswith("# What changed in `tables` from `v1` ")
    assert err == "Not written to build/compare.md: File exists.\n"


def test_without_a_head_the_working_tree_is_compared(trained: Study, capsys: pytest.CaptureFixture[str]) -> None:
    trained.train("base", [0.5, 0.3])
    main(["v1", "--out", "elsewhere/page.md"])
    assert capsys.readouterr().out.splitlines()[0].endswith(") to the working tree")
    page = (trained.root / "elsewhere" / "page.md").read_text()
    assert "largest change: `base` \N{MINUS SIGN}45.00 points" in page
    assert ", and changes |" in page
    trained.git("checkout", "--quiet", "--", ".")
    main(["main"])
    assert "**Nothing differs" in capsys.readouterr().out


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
    assert "`reports/preview/tables`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "Say which commit to compare with: make compare BASE=main~1, or python -m pipeline.compare main~1."),
        (["", "main"], "Say which commit to compare with"),
        (["v2"], "There is no commit 'v2' here; the nearest is 'v1'."),
        (["v1", "mian"], "There is no commit 'mian' here; the nearest is 'main'."),
        (["v1", "--source", "mlfow"], "There is no source 'mlfow'; the choices are files and mlflow."),
        (["v1", "--in", "/reports"], "--in /reports: give a folder from the repository's top, for example build/demo."),
        (["v1", "--in", "../x"], "--in ../x: give a folder from the repository's top"),
        (
            ["v1", "--in", "reports/demo"],
            "The commit v1 holds no results in reports/demo/tables/, only in the top folder: say so with `IN=.`.",
        ),
        (
            ["v1", "--in", "build/demo"],
            "build/demo has no results of the settings and code of v1: check that commit out and run `make demo`",
        ),
    ],
)
def test_a_wrong_use_is_answered_in_one_sentence(trained: Study, argv: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        main(argv)
    assert str(error.value).startswith(sentence)
    assert not (trained.root / "build").exists()


def test_a_profile_is_compared_with_what_it_had_by_any_commit_of_its_settings_and_code(
    make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Committed before the profile ran or after, and also by a commit that changes neither."""
    study = make_study(prefix="build/demo")
    monkeypatch.chdir(study.root)
    (study.root / ".gitignore").write_text("/build/\n")
    published = make_study("published", prefix="reports/preview")
    published.train("base", [0.1])
    shutil.copytree(published.root / "reports", study.root / "reports")

    def write(name: str, text: str) -> None:
        (study.root / name).parent.mkdir(parents=True, exist_ok=True)
        (study.root / name).write_text(text)

    def run(variant: str, accuracy: float, verdict: str = "not run") -> None:
        """What `make demo` leaves."""
        study.train(variant, [accuracy])
        for name, text in (
            ("dvc.lock", ""),
            ("reports/README.md", ""),
            ("reports/claims.csv", f"claim,verdict,comparison,n,effect,low,high,level,shown\nT1,{verdict},a,,,,,,\n"),
        ):
            write(f"build/demo/{name}", text)
        assert states.keep(study.root, study.root / "build/demo", states.key(study.root, study.root / "build/demo"))

    write("pipeline/models/vit.py", "x = 1")
    write("params.yaml", "variants: {base: {}}")
    study.commit("committed, then run")
    run("base", 0.9)
    write("params.yaml", "variants: {base: {}, wide: {}}")
    run("wide", 0.8, verdict="supported")
    study.commit("run, then committed")
    write("README.md", "nothing that decides")
    study.commit("words")
    main(["HEAD", "--in", "build/demo"])
    page = capsys.readouterr().out
    assert page.startswith("# What changed in `build/demo/tables` from `HEAD` (")
    assert "Nothing differs: the 2 variants" in page
    main(["HEAD~2", "HEAD~1", "--in", "build/demo"])
    assert "\n- Added: `wide`.\n- Verdicts changed: 1 of 1; not run → supported (1).\n" in capsys.readouterr().out
    write("pipeline/models/vit.py", "x = 2")
    study.commit("other code")
    with pytest.raises(UserError, match=r"^build/demo has no results of the settings and code of HEAD, only of \w{10}, \w{10}: check that"):
        main(["HEAD", "--in", "build/demo"])
    with pytest.raises(
        UserError, match=r"^The commit HEAD holds no results in tables/, only in reports/preview: say so with `IN=reports/preview`\.$"
    ):
        main(["HEAD"])


def test_the_example_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, page = (ROOT / "docs" / "compare-example.md").read_text(encoding="utf-8").partition("\n\n")
    revisions = re.findall(r"(?:BASE|HEAD)=(\w+)", first)
    assert len(revisions) == 2
    for revision in revisions:
        if subprocess.run(["git", "cat-file", "-e", f"{revision}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
            pytest.skip("this copy has no history")
    monkeypatch.chdir(ROOT)
    main([*revisions, "--out", str(tmp_path / "page.md")])
    assert capsys.readouterr().out == page


def test_the_process_ends_with_status_2_and_no_traceback(trained: Study) -> None:
    done = subprocess.run([sys.executable, "-m", "pipeline.compare", "v9"], cwd=trained.root, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no commit 'v9' here")
    assert done.stderr.count("\n") == 1
