"""What several test modules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from pipeline import params

if TYPE_CHECKING:
    from pipeline.data.datasets import Dataset

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


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread, as every training on the CPU runs, while the test lasts."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def blobs() -> Callable[[int, int], Dataset]:
    """Makes data sets of so many training and test images: noise with a bright square where the class says; soon learned."""
    from pipeline.data.datasets import Dataset

    def make(num_train: int, num_test: int) -> Dataset:
        rng = np.random.default_rng(0)
        arrays: list[np.ndarray] = []
        for count in (num_train, num_test):
            labels = rng.integers(0, 10, count).astype(np.uint8)
            images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
            for image, label in zip(images, labels, strict=True):
                row, column = divmod(int(label), 4)
                image[7 * row : 7 * row + 7, 7 * column : 7 * column + 7] += 150
            arrays += [images, labels]
        return Dataset("blobs", *arrays, digest="0" * 64)

    return make
