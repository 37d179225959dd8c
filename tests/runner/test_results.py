"""What DVC's stores hold of a training is taken where it is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.runner import seeds


def test_a_damaged_cache_does_not_hide_the_intact_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    md5 = hashlib.md5(b"whole", usedforsecurity=False).hexdigest()
    monkeypatch.chdir(tmp_path)
    cache, remote = (Path(store, "files/md5", md5[:2], md5[2:]) for store in (".dvc/cache", "results"))
    lock = {"train@base": {"outs": [{"path": "runs/base/run.json", "md5": md5}]}}
    path = Path("runs/base/run.json")
    assert seeds._stored(path, lock) is None
    for place, content in ((cache, b"whol3"), (remote, b"whole")):
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
    assert seeds._stored(path, lock) == remote
    cache.write_bytes(b"whole")
    assert seeds._stored(path, lock) == cache
    for place in (cache, remote):
        place.write_bytes(b"whole\r\n")
    Path("dvc.lock").write_text(json.dumps({"stages": lock}))
    with pytest.raises(UserError, match=f"^{remote} is damaged, "):  # and not trained again
        seeds.restore_runs(Path("runs"), lambda _: True)
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "stages:\n", "stages: [1]\n", "- 1\n", "stages: {a: 1", "\0"])
def test_a_lock_that_is_cut_has_no_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert seeds.read_lock() == {}
    Path("dvc.lock").write_text(content)
    assert seeds.read_lock() == {}
