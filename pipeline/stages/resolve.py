"""DVC stage `resolve`: one settings file a variant, so that a change of params.yaml retrains only what it touches."""

import hashlib
import json
from pathlib import Path

from pipeline.params import Params, load, read
from pipeline.runner import seeds
from pipeline.stages import settled
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_changed
from pipeline.system.paths import CONFIGS, FINISHED, TRAININGS


def main(_: list[str]) -> None:
    params = load()
    write_configs(params, CONFIGS)
    write_changed(CONFIGS / "settings.txt", f"{digest(Path('params.yaml'))}\n")
    for line in prune(TRAININGS, params):
        print(line)


def digest(path: Path) -> str:
    """Of all that a settings file says, in its order, which tables and pages have and DVC does not look at: sha256, in hexadecimal."""
    return hashlib.sha256(json.dumps(read(path)).encode()).hexdigest()


def write_configs(params: Params, directory: Path) -> None:
    """Writes `directory/VARIANT.json` for every variant where it has changed, and removes those of variants that are gone."""
    for variant in params.variants:
        write_changed(directory / f"{variant}.json", params.resolve(variant).to_json())
    for path in directory.glob("*.*"):
        if path.stem not in params.variants and path.name != "settings.txt":
            path.unlink()


def prune(trainings: Path, params: Params) -> list[str]:
    """Removes the files of variants that params.yaml no longer has, but keeps their seeds: a variant that was only renamed finds them.

    What cannot be kept stays. Returns what there is to say.
    """
    said = []
    for path in sorted(trainings.glob(f"*{seeds.SUFFIX}")):
        if path.stem in params.variants:
            continue
        try:
            run = seeds.read_record(path)
            seeds.keep(seeds.load(path), seeds.folder(FINISHED, seeds.settings_of(run), run["data_digest"]))
            path.unlink()
            said.append(f"{path} removed: params.yaml no longer names this variant")
        except UserError as error:
            said.append(f"{path} left, though params.yaml no longer names this variant, because its seeds cannot be kept: {error}")
    return said


if __name__ == "__main__":
    run_command(settled(main))
