"""The baseline's network in the model registry: registered once, without a pickle, loaded as people do it."""

import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from pipeline.models import build
from pipeline.runner import seeds
from pipeline.stages.sync import sync
from pipeline.tracking.store import Store, study_name
from tests.conftest import Repository
from tests.helpers import stored

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")]  # in MLflow's own modules


def test_a_study_registers_its_baseline_alone(
    trained: Repository, empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loaded network computes what the stored weights do."""
    import mlflow

    trained = trained.copy(tmp_path / "study")
    shutil.copyfile(empty_database, trained.path / "mlflow.db")  # a copied store keeps its files in the original's folder
    monkeypatch.chdir(trained.path)
    other_place = tmp_path / "registry-of-another-project.db"
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{other_place}")
    sync()
    uri = f"sqlite:///{trained.path / 'mlflow.db'}"
    assert not other_place.exists()
    store = Store(uri)
    [version] = store.search_model_versions()
    [archive] = trained.path.glob("mlartifacts/**/model.pt2")
    assert not [name for name in zipfile.ZipFile(archive).namelist() if name.endswith(".pkl")]
    [parent] = store.search_runs([store.experiment("digits")], filter_string="tags.kind = 'parent' and tags.variant = 'base'")
    assert (version.name, version.run_id) == ("vit-ablations", parent.info.run_id)
    # Another network was registered since, or a process was killed before it gave the name.
    other = store.create_model_version("vit-ablations", version.source, run_id=version.run_id)
    store.set_registered_model_alias("vit-ablations", "base-digits", other.version)
    sync()
    version = store.get_model_version_by_alias("vit-ablations", "base-digits")
    assert version.version != other.version
    run = seeds.read_record(stored(trained.path, "base"))
    expected = {"variant": "base", "dataset": "digits", "seed": "0", "weights": run["outputs"]["weights"]["0"]}
    assert version.tags.items() >= expected.items()
    assert float(version.tags["late_test_error"]) == parent.data.metrics["late_test_error"]

    settings = seeds.settings_of(run)
    network = build(settings.model)
    weights = seeds.load_weights(stored(trained.path, "base"), settings.train.seeds[:1])
    network.load_state_dict({name: value[0] for name, value in weights.items()})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI")
    loaded = mlflow.pytorch.load_model("models:/vit-ablations@base-digits")
    images = torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), network.eval()(images), rtol=1e-4, atol=1e-5)
    for title, name in (("'My study #2'", "my-study-2-preview"), ("", "vit-ablations-preview")):  # not the study's own rows and model
        Path("params.yaml").write_text(f"title: {title}\nprofile: preview\n")
        assert study_name() == name
