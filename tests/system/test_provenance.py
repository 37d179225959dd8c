"""What a run says of its code and machine."""

import hashlib
import importlib
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.stages import code
from pipeline.system import provenance
from pipeline.system.errors import UserError
from tests.helpers import ROOT, commit_all, git, of_this_study

# All that Pythons parse into other trees, or into trees that `ast.dump` writes otherwise: f-strings, type parameters, empty fields.
SOURCE = '''
"""Docstring."""
import os  # a comment
async def f(a, /, b: int = 1, *c, d=u"x", **e) -> None:
    "Docstring."
    async with a as b: pass
    return f"{a!r:>{b}} {{x}} {c=} " f"tail" "more" f"{d:%Y-%m}{''}"
class C(int, metaclass=type):
    """Docstring."""
    x: int = 1_000.5e3
    @property
    def y(self): return lambda *a, k=(1,): {**{1: 2}, 3: [*a]}
match f:
    case [1, *r] | {"a": 2, **z}: pass
    case C(x=1) as q if q: pass
try: pass
except* ValueError as e: raise RuntimeError() from e
x = (y := 3), 1j, b"s", ..., -0.0, "a" "b", f"", f"{x:{'>'}10}", f'{x["a"]}'
'''


def test_the_code_hash_is_the_same_on_every_python() -> None:
    """The digest was written down with 3.11, 3.12 and 3.13; CI runs this on its own Pythons."""
    digest = hashlib.sha256(provenance.canonical(SOURCE).encode()).hexdigest()
    assert digest == "711e83f06186544b9fe4440f6cdf9e26c0da5a1f0aba5f0390226ed895420db8"


def test_a_module_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "room").mkdir()
    for content, why in ((b"def f(:", "SyntaxError: invalid syntax"), (b"x = '\xff'", "UnicodeDecodeError: ")):
        (tmp_path / "room/mine.py").write_bytes(content)
        with pytest.raises(UserError, match=rf"^room/mine\.py cannot be read \({why}.*\): mend it, or move it elsewhere\.$"):
            provenance.code_hash(["room"], tmp_path)


def test_a_worker_has_all_its_code_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is imported later might have been edited since."""
    imported, real = set[str](), importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name, *package: (imported.add(name), real(name, *package))[1])
    assert provenance.loaded_code.__wrapped__() == {task: provenance.training_code(task) for task in ("classification", "captioning")}
    files = {file for file in provenance.files_of(provenance.code_of("captioning"), provenance.PACKAGE) if file.suffix == ".py"}
    assert {Path(str(sys.modules[name].__file__)) for name in imported if name.startswith("pipeline.")} == files


def test_only_what_a_program_means_counts() -> None:
    for old, new, same in (
        ("# a comment", "# another", True), ('"""Docstring."""', '"""Reworded."""', True), ('    "Docstring."\n', "", True),
        ("1_000.5e3", "1000500.0", True), ("b: int = 1", "b: int = 2", False), ("async def f", "async def g", False),
        ('"more"', '"less"', False), ("{b}}", "{a}}", False),
    ):  # fmt: skip
        assert old in SOURCE
        assert (provenance.canonical(SOURCE.replace(old, new)) == provenance.canonical(SOURCE)) is same, old


def test_the_hash_names_its_files(tmp_path: Path) -> None:
    room, hashes = tmp_path / "room", list[str]()
    room.mkdir()
    # What a module may read counts, too.
    for file, content in (("a.py", b"x = 1"), ("a.py", b"x = 2"), ("table.npy", b"\x931"), ("table.npy", b"\x932")):
        (room / file).write_bytes(content)
        hashes.append(provenance.code_hash(["room"], tmp_path))
    (room / "a.py").rename(room / "b.py")
    hashes.append(provenance.code_hash(["room"], tmp_path))
    assert len(set(hashes)) == 5
    (room / "__pycache__").mkdir()
    for file in ("__pycache__/b.pyc", ".#b.py", "b.py~"):
        (room / file).write_bytes(b"\0")
    assert provenance.code_hash(["room"], tmp_path) == hashes[-1]


@of_this_study
def test_every_stage_with_a_hash_depends_on_it() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, entries in provenance.STAGE_CODE.items():
        assert f"code-hashes/{name}.txt" in stages[name].get("do", stages[name])["deps"]
        assert all((provenance.PACKAGE / entry).exists() for entry in entries)


# What decides what a file of each row of CONTRIBUTING's table says; each stage is run again, or one before it that gives it its input.
DECIDES = {
    "measures/__init__.py": {"evaluate", "report"},
    "measures/own.py": {"evaluate", "report"},
    "training/optimizers.py": {"train", "timing"},
    "params/train.py": {"resolve", "timing"},
    "models/vit.py": {"train", "evaluate", "timing"},
    "params/model.py": {"resolve", "timing"},
    "models/own.py": {"resolve", "train", "evaluate", "timing"},
    "models/own.json": {"train", "evaluate", "timing"},
    "params/architectures.py": {"train", "evaluate", "timing"},
    "report/figures/own.py": {"report"},
    "params/study.py": {"resolve", "report"},
    "data/own.py": {"fetch", "prepare"},
    "data/own.csv": {"fetch", "prepare"},
    "params/data.py": {"fetch", "prepare", "scenes", "train"},
}


def test_an_edit_of_each_addition_is_noticed(tmp_path: Path) -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    for file, decided in DECIDES.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        noticed = {stage for stage, entries in provenance.STAGE_CODE.items() if path in provenance.files_of(entries, tmp_path)}
        for name, stage in stages.items():
            deps = stage.get("do", stage)["deps"]
            places = [dep.removeprefix("${code}/pipeline/") for dep in deps if dep.startswith("${code}/pipeline/")]
            if any(Path(file).is_relative_to(place) for place in places):
                noticed.add(name)
        assert noticed >= decided, file


def test_a_module_of_which_no_stage_would_notice_an_edit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr(code, "PACKAGE", tmp_path / "pipeline")
    made = ("layers.py", *(f"pipeline/{room}/{name}.py" for room in ("models", "captioning") for name in ("__init__", "vit", "layers")))
    for name in made:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    own = tmp_path / "pipeline/models/own.py"
    imports = [f"from {place}layers import Own" for place in ("pipeline.", "..", "..captioning.", "pipeline.captioning.")]
    for line in ("import layers", *imports):
        own.write_text(f"def build():\n    {line}\n")
        with pytest.raises(UserError, match=r"own\.py imports .*layers"):
            code.check_imports()
    (tmp_path / "pipeline/captioning/own.py").write_text("from .layers import Own\nfrom pipeline.models.layers import Own as Other\n")
    own.write_text("import pipeline.models.layers, torch\nfrom .layers import Own\nfrom pipeline.models import vit, layers\n")
    code.check_imports()


CPUINFO = """processor\t: {place}
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
flags\t\t: fpu sse sse2 {flags}
power management:
"""


def test_processors_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines of two generations, and one that hides AVX-512: their libraries round differently."""
    monkeypatch.setattr(provenance.os, "sched_getaffinity", lambda _: {0, 1})
    names = []
    for model, flags in ((1, "avx2"), (17, "avx2 avx512f"), (17, "avx2")):
        text = "\n".join(CPUINFO.format(place=place, model=model, flags=flags) for place in range(2))
        monkeypatch.setattr(Path, "read_text", lambda self, text=text: text)
        names.append(provenance.device_name("cpu"))
    assert names == [f"AMD EPYC, family 25 model {kind} (2 cores)" for kind in ("1, AVX2", "17, AVX-512", "17, AVX2")]
    assert [[provenance.same_processor(one, other) for other in names] for one in names] == [[i == j for j in range(3)] for i in range(3)]
    assert not provenance.same_processor("AMD EPYC (2 cores)", names[0])  # an earlier version's record
    assert provenance.same_processor("AMD EPYC (2 cores)", "AMD EPYC (64 cores)")


def test_what_decides_a_training_and_is_in_no_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, text: str) -> bool | None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return provenance.origin("cpu")["git_dirty"]

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.delenv("COMMIT", raising=False)
    assert provenance.git_state() == (None, None)
    monkeypatch.setenv("COMMIT", "b" * 40)  # of a copy without git
    assert provenance.git_state() == ("b" * 40, False)
    monkeypatch.delenv("COMMIT")
    git(tmp_path, "init", "--quiet")
    assert write("params.yaml", "train: {epochs: 3}\n") is None
    for name in ("pipeline/models/vit.py", "claims.yaml", "profiles/small.yaml"):
        write(name, "")
    assert provenance.git_state() == (None, None)  # no commit
    commit = commit_all(tmp_path)
    assert provenance.git_state() == (commit, False)
    for name, decides in (("claims.yaml", False), ("pipeline/report/pages.py", False), ("pipeline/captioning/new.py", False)):
        assert write(name, "x = 1\n") is decides
    assert provenance.git_state() == (commit, True)
    assert provenance.origin("cpu", "captioning")["git_dirty"]
    assert provenance.origin("cpu")["git_commit"] == commit
    for name in ("params.yaml", "profiles/small.yaml", "pipeline/models/vit.py", "pipeline/kernels/new.py"):
        commit_all(tmp_path)
        assert write(name, "x = 2\n") is True
