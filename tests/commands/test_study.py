"""A study of one's own: a repository that runs, and the page docs/own_study.md, whose every block is written into it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline import params
from pipeline.commands import study
from pipeline.system.errors import UserError
from pipeline.system.provenance import git
from tests.conftest import Repository
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "my-own_study #2"  # to YAML a comment, where nothing quotes it
    study.make(folder)
    return folder


def test_it_is_a_repository_with_a_study_of_one_screen(made: Path) -> None:
    settings = params.load(made / "params.yaml")
    assert (settings.title, list(settings.variants), list(settings.claims)) == ("My own study #2", ["base", "no-position"], ["P1"])
    assert len((made / "params.yaml").read_text().splitlines()) < 50
    assert yaml.safe_load((made / "dvc.yaml").read_text())["stages"].keys() == {
        "code", "fetch", "prepare", "resolve", "train", "evaluate", "report",
    }  # fmt: skip
    assert git("status", "--porcelain", cwd=made).stdout == b""
    assert git("log", "--format=%s", cwd=made, encoding="utf-8").stdout == "A study begins\n"
    tracked = git("ls-files", cwd=made, encoding="utf-8").stdout.split()
    assert not [name for name in tracked if name.startswith(("reports/", "store/", "tables/", "profiles/", "benchmarks/"))]
    assert "thesis" not in " ".join((made / name).read_text() for name in ("params.yaml", "claims.yaml", "README.md", "dvc.yaml"))
    settings.resolve("base")


@pytest.mark.parametrize("name", ["", "/", str(ROOT / "build" / "inside"), "taken", "100%"])
def test_a_place_that_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(UserError, match="NAME"):
        study.make(Path(name))
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "file"]


def write_blocks(folder: Path) -> int:
    """Writes the page's blocks that name a file in their first line where it says; gives the number of places."""
    found = re.findall(r"^```\w+\n# (\S+\.\w+[^\n]*)\n(.*?)^```", (ROOT / "docs/own_study.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    grouped = {name: "".join(text for other, text in found if other == name) for name, _ in found}
    for name, text in grouped.items():
        path, _, section = name.partition(": ")
        file = folder / path
        if section:
            before, after = re.split(rf"(?<=^{section}:\n)", file.read_text(), flags=re.MULTILINE)
            file.write_text(before + text + after)
        else:
            file.write_text(f"{file.read_text()}\n\n{text}" if file.exists() else text)
    return len(grouped)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_page_s_variant_claim_model_and_measure_on_own_data_reach_pages_and_mlflow(made: Path) -> None:
    repository = Repository(made)
    assert write_blocks(made) == 6

    def run(command: str) -> str:
        return repository.succeed(sys.executable, "-m", f"pipeline.commands.{command}")

    rng, own_data = np.random.default_rng(0), {}
    for split, number in (("train", 300), ("test", 60)):
        labels = np.arange(number) % 3
        images = rng.integers(0, 90, (number, 16, 16, 3), dtype=np.uint8)
        images[np.arange(number), :8, :8, labels] += 100
        own_data |= {f"{split}_images": images, f"{split}_labels": labels}
    np.savez(made / "my.npz", **own_data)
    raw: dict[str, Any] = yaml.safe_load((made / "params.yaml").read_text())
    raw["data"] = {"dataset": "npz", "path": "my.npz", "size": 16, "channels": 3, "classes": 3}
    raw["images_shown"] = 600
    raw["train"] |= {"epochs": 2, "seeds": 2, "augment": "affine", "crop": 2, "flip": True}
    raw["base"] |= {"patch": 8, "normalize": "standard"}
    raw["looks"] = [2]
    (made / "params.yaml").write_text(yaml.safe_dump(raw))
    claims = yaml.safe_load((made / "claims.yaml").read_text())
    figures = ["curves", "measure", "attention_maps", "shifts"]  # of images with three channels
    claims["experiments"]["mlp-width"] |= {"measure": "epochs to 90 %", "variants": ["base", "wide-mlp", "mixer"], "figures": figures}
    (made / "claims.yaml").write_text(yaml.safe_dump(claims))
    run("catalogue")
    assert "not up to date" not in run("repro")  # MLflow, which takes no % in a name
    first, own = ((made / "reports" / name).read_text() for name in ("README.md", "experiments/mlp-width.md"))
    assert first.startswith("# My own study #2\n")
    assert re.search(r"\| mixer \|.* 2 \|", first)
    assert "| epochs to 90 % |" in own
    assert "W1" in first
    assert not list((made / "reports").glob("t*.md"))  # neither the thesis's nor the timing's
    metrics = json.loads((made / "tables/metrics.json").read_text())
    # Embedding of 3 x 8 x 8 values, class token, positions; two blocks of two norms, full attention and an MLP; a norm, three classes.
    block = 2 * 64 + 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32
    assert metrics["base"]["parameters"] == (192 * 32 + 32) + 32 + 5 * 32 + 2 * block + 64 + (32 * 3 + 3)
    assert set(metrics["base"]["per_class_accuracy"]) == set("012")
    assert metrics["mixer"]["parameters"] == (768 * 48 + 48) + 2 * (48 * 48 + 48) + (48 * 3 + 3)
    assert metrics["mixer"]["flops"] == 2 * 48 * (768 + 2 * 48 + 3)
    assert "Nothing is to be trained" in run("repro")
    listed = "import mlflow; print([one.name for one in mlflow.MlflowClient('sqlite:///mlflow.db').search_experiments()])"
    assert "my-own-study-2/npz" in repository.succeed(sys.executable, "-c", listed)
    assert "are read first" not in run("plan")
    with (made / "pipeline/data/own.py").open("a") as reader:
        reader.write("# edited\n")
    assert "are read first" in run("plan")
    run("repro")
    assert "are read first" not in run("plan")
    own_data["train_images"] += 1
    np.savez(made / "my.npz", **own_data)
    assert "are read first" in run("plan")
