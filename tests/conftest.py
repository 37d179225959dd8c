"""What several test modules share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import params

ROOT = Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked cuda are skipped where torch sees no GPU."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def raw_params() -> dict[str, Any]:
    """The repository's params.yaml as plain YAML; copy before changing."""
    return yaml.safe_load((ROOT / "params.yaml").read_text())


@pytest.fixture(scope="session")
def study(raw_params: dict[str, Any]) -> params.Params:
    """The repository's params.yaml, checked."""
    return params.parse(raw_params)


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data/arrays` of scikit-learn's digits."""
    from pipeline.data.datasets import prepare
    from pipeline.data.fetch import fetch, source

    directory = tmp_path_factory.mktemp("digits")
    fetch(source("digits"), directory / "raw")
    prepare("digits", directory / "raw", directory / "arrays")
    return directory / "arrays"
