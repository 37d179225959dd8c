"""Profiles: the same pipeline on another scale, in a nested DVC repository under build/ that leaves the root's files alone.

    python -m pipeline.commands.profiles NAME

lays profiles/NAME.yaml over params.yaml and claims.yaml and runs the result in build/NAME.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline import params
from pipeline.commands.catalogue import without_experiment
from pipeline.commands.repro import reproduce
from pipeline.params import nearest, shown
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_changed
from pipeline.system.paths import PRETRAINED

ROOT = Path(__file__).parent.parent.parent
_CLAIMS = ("experiments", "claims", "ranking")  # sections of claims.yaml


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.profiles", description="Runs a profile in build/NAME.")
    parser.add_argument("name")
    name, start = parser.parse_args(argv).name, time.monotonic()
    directory = lay_out(name)
    reproduce(directory)
    here = directory.relative_to(ROOT)
    print(f"\n{name}: done in {time.monotonic() - start:.0f} s.")
    if alone := without_experiment(params.parse(read(name))):
        print(f"  Not compared: {', '.join(alone)}: an experiment of profiles/{name}.yaml has to name what it compares with its baseline")
    print(f"  The report:   {here / 'reports' / 'README.md'}")
    print(f"  MLflow on it: make ui IN={here}   then open the address that it prints")
    again = f"make {name}" if name in ("demo", "preview") else f"python -m pipeline.commands.profiles {name}"
    print(f"  A change:     rm -rf build/before; cp -r {here} build/before   then edit params.yaml or profiles/{name}.yaml,")
    print(f"                {again}, and make compare BASE=build/before HEAD={here}   says what that did")


def from_root(path: Path) -> Path:
    """A path as seen from the root, where commands are typed, though they run in a profile's folder."""
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def refresh() -> None:
    """Lays out anew the profile whose nested repository is the working directory, if it is one's. Raises UserError as `lay_out` does."""
    build, name = Path.cwd().parent, Path.cwd().name
    if build == ROOT / "build" and (ROOT / "profiles" / f"{name}.yaml").is_file():
        lay_out(name)


def lay_out(name: str, given: Mapping[str, Any] | None = None) -> Path:
    """Makes or refreshes the nested repository build/NAME, a DVC repository without SCM whose dvc.yaml is the root's own, with the given
    settings, or those of profiles/NAME.yaml. Raises UserError as `read` does."""
    settings, directory = given or read(name), ROOT / "build" / name
    if (mirror := os.environ.get("MNIST_MIRROR")) and (ROOT / mirror).is_dir():  # relative to the root, not to where the stages run
        os.environ["MNIST_MIRROR"] = str((ROOT / mirror).resolve())
    stages = stages_of(settings)
    stages["vars"] = [{"code": "../.."}]
    for stage in stages["stages"].values():
        stage = stage.get("do", stage)
        stage["deps"] = [file for dep in stage["deps"] for file in _source_files(dep)]
    write_changed(directory / "dvc.yaml", yaml.safe_dump(stages, sort_keys=False))
    # Written here, because `dvc init` and two `dvc config` take seconds.
    write_changed(directory / ".dvc" / "config", "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n")
    for file in (Path(".dvcignore"), *(path.relative_to(ROOT) for path in (ROOT / ".dvc" / "plots").glob("*.json"))):
        write_changed(directory / file, (ROOT / file).read_text(encoding="utf-8"))
    if (ROOT / PRETRAINED).is_dir():
        shutil.copytree(ROOT / PRETRAINED, directory / PRETRAINED, dirs_exist_ok=True)
    source = "the root's own" if given else f"profiles/{name}.yaml and the root's own"
    write_settings(directory, settings, f"# Generated from {source}: change those, not this file.\n")
    return directory


def write_settings(directory: Path, settings: Mapping[str, Any], header: str = "") -> None:
    """Writes params.yaml and claims.yaml where they have changed."""
    for file, is_of_claims in (("params.yaml", False), ("claims.yaml", True)):
        part = {key: value for key, value in settings.items() if (key in _CLAIMS) == is_of_claims}
        text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True, default_flow_style=None, width=140)
        write_changed(directory / file, header + text)


def stages_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """dvc.yaml without the stages that a study has no use for: scenes where nothing writes captions, timing where nothing is timed."""
    study, stages = params.parse(settings), params.read(ROOT / "dvc.yaml")
    idle = {} if study.timing.subjects else {"timing": "timing"}
    idle |= {} if any(study.resolve(name).task == "captioning" for name in study.variants) else {"scenes": "data/scenes"}
    stages["stages"] = {name: stage for name, stage in stages["stages"].items() if name not in idle}
    for stage in stages["stages"].values():
        stage = stage.get("do", stage)
        stage["deps"] = [dep for dep in stage.get("deps", ()) if dep not in idle.values()]
        if "params" in stage:  # DVC refuses what params.yaml leaves out
            stage["params"] = [name for name in stage["params"] if name.split(".")[0] in settings]
    return stages


def _source_files(dep: str) -> list[str]:
    """A dependency's source files. A folder would bring its bytecode, because .dvcignore does not reach outside the repository."""
    place = dep.removeprefix("${code}/")
    if place == dep or not (ROOT / place).is_dir():
        return [dep]
    files = (path for path in (ROOT / place).rglob("[!.]*") if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"))
    return sorted(f"${{code}}/{path.relative_to(ROOT).as_posix()}" for path in files)


def read(name: str) -> dict[str, Any]:
    """All settings of a profile, checked: the root's with the profile's overlay on them.

    Raises:
        UserError: there is no such profile, or it or the root's settings are wrong.
    """
    names = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))
    if name not in names:
        raise UserError(f"There is no profile {shown(name)}{nearest(name, names)}.")
    study = params.study.read_both(ROOT / "params.yaml")
    params.parse(study)  # so that a fault found after the overlay is the overlay's
    change = params.read(ROOT / "profiles" / f"{name}.yaml")
    try:
        return overlay(study, change) | {"profile": name}
    except UserError as error:
        raise UserError(f"In profiles/{name}.yaml: {error}") from None


def overlay(study: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """A study with a profile's change laid over it; both as YAML gives them, the study already checked.

    Mappings are merged key by key; lists and scalars take the study's place, and so do `experiments`, `claims`, `ranking` and
    `timing.subjects` as a whole. `variants` of the change names those that stay, each with what it changes; a name that the study does
    not have is left out with a note, and where it names none that is there, all stay. A change of `train.seeds` holds for every variant.
    An experiment left with fewer than two variants or without its baseline goes. The study's claims stay: what they say of a variant that
    is gone is not run. Raises UserError where no valid study comes of it.
    """
    if not isinstance(change, Mapping) or any(not isinstance(change.get(part) or {}, Mapping) for part in ("variants", "data", "train")):
        raise UserError("a profile is a mapping of what it changes, and so are its variants, data and train; as `train: {epochs: 3}`.")
    own = {name: one or {} for name, one in (change.get("variants") or {}).items()}
    if gone := own.keys() - study["variants"].keys():
        told = "; ".join(f"{name}{nearest(name, study['variants'])}" for name in sorted(gone))
        print(f"note: a profile names variants that params.yaml does not have: {told}.", file=sys.stderr)
    if "subjects" in (change.get("timing") or {}):
        study = {**study, "timing": {**study.get("timing", {}), "subjects": {}, "labels": {}}}
    merged = {**_merge(study, change), **{key: change[key] for key in _CLAIMS if key in change}}
    if (path := (merged["data"] or {}).get("path")) and (ROOT / path).exists():
        merged["data"] = {**merged["data"], "path": str((ROOT / path).resolve())}  # the stages run elsewhere
    alike = {"seeds"} & (change.get("train") or {}).keys()
    merged["variants"] = {
        name: _merge({key: value for key, value in (one or {}).items() if key not in alike}, own.get(name, {}))
        for name, one in study["variants"].items()
    }
    # Checked with the study's data set and with all variants: that of the change may be too small for those that go. Experiments and claims
    # of the study are cut later; the change's own have to be right as they stand.
    checked = {key: value for key, value in merged.items() if key not in _CLAIMS or key in {*change, "claims"}}
    whole = params.parse(checked | {"data": study["data"]})
    kept = [name for name in study["variants"] if name in own] or list(study["variants"])
    merged["variants"] = {name: whole.difference(name) for name in kept}  # all, because the variant that it starts from may go
    timed = {name: of for name, of in whole.timing.subjects.items() if of.get("from") in (None, *kept)}
    merged["timing"] = (merged.get("timing") or {}) | {"subjects": timed}
    cut = {name: _cut(one, merged["variants"].keys()) for name, one in (merged.get("experiments") or {}).items()}
    merged["experiments"] = {name: one for name, one in cut.items() if len(one["variants"]) > 1 and one["baseline"] in one["variants"]}
    params.parse(merged)
    return merged


def _merge(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


def _cut(experiment: Mapping[str, Any], variants: Collection[str]) -> dict[str, Any]:
    """An experiment without what it says of variants that are gone."""
    named = {key: {name: said for name, said in experiment.get(key, {}).items() if name in variants} for key in ("labels", "lead")}
    beside = {variant: other for variant, other in experiment.get("beside", {}).items() if {variant, other} <= {*variants}}
    return {**experiment, "variants": [name for name in experiment["variants"] if name in variants], **named, "beside": beside}


if __name__ == "__main__":
    run_command(main)
