"""Profiles: the same pipeline on another scale, in a nested DVC repository under build/ that leaves the root's files alone.

    python -m pipeline.commands.profiles NAME

lays profiles/NAME/params.yaml over the root's params.yaml and runs the result in build/NAME.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline import params
from pipeline.commands.repro import read_stages, reproduce
from pipeline.errors import UserError, run_command
from pipeline.files import write_changed, write_text
from pipeline.params import nearest, shown

ROOT = Path(__file__).parent.parent.parent
_NAMED = 5  # variants in a note; of more it gives the number


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.profiles",
        description="Runs the pipeline with profiles/NAME laid over params.yaml, in build/NAME.",
    )
    parser.add_argument("name")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    _find_mirror()
    directory = lay_out(arguments.name)
    reproduce(directory)
    here = directory.relative_to(ROOT)
    print(f"\n{arguments.name}: done in {time.monotonic() - start:.0f} s.")
    print(f"  The report:   {here / 'reports' / 'README.md'}")
    print(f"  MLflow on it: make ui IN={here}   then open the address that it prints")
    print(f"  A change:     cp -r {here} build/before   then change something, run it again, and")
    print(f"                make compare BASE=build/before HEAD={here}   says what that did")


def refresh() -> None:
    """Lays out anew the profile whose nested repository is the working directory, if it is one's. Raises UserError as `lay_out` does."""
    build, name = Path.cwd().parent, Path.cwd().name
    if build == ROOT / "build" and (ROOT / "profiles" / name).is_dir():
        _find_mirror()
        lay_out(name)


def _find_mirror() -> None:
    """Takes a folder that MNIST_MIRROR names as relative to the root, not to build/NAME, where the stages run."""
    mirror = os.environ.get("MNIST_MIRROR", "")
    if mirror and (ROOT / mirror).is_dir():
        os.environ["MNIST_MIRROR"] = str((ROOT / mirror).resolve())


def lay_out(name: str) -> Path:
    """Makes or refreshes the nested repository build/NAME: a DVC repository without SCM whose dvc.yaml is the root's own.

    Raises:
        UserError: there is no such profile, or it or the root's params.yaml is wrong.
    """
    settings = read(name)
    directory = ROOT / "build" / name
    lay_out_stages(directory)
    header = f"# Generated from params.yaml and profiles/{name}/params.yaml of the root: change those, not this file.\n"
    text = yaml.dump(settings, Dumper=params.Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=140)
    write_changed(directory / "params.yaml", header + text)
    return directory


def lay_out_stages(directory: Path) -> None:
    """Makes or refreshes all of a nested repository, a folder of build/, but its params.yaml."""
    stages = read_stages(ROOT / "dvc.yaml")
    stages["vars"] = [{"code": "../.."}]
    for stage in stages["stages"].values():
        stage = stage.get("do", stage)
        stage["deps"] = [file for dep in stage.get("deps", ()) for file in source_files(dep)]
    write_changed(directory / "dvc.yaml", yaml.dump(stages, Dumper=params.Dumper, sort_keys=False))
    write_changed(directory / ".dvcignore", (ROOT / ".dvcignore").read_text(encoding="utf-8"))
    config = directory / ".dvc" / "config"
    if not config.is_file():  # written here, because `dvc init` and two `dvc config` take seconds
        write_text(config, "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n")
    for template in (ROOT / ".dvc" / "plots").glob("*.json"):
        write_changed(directory / ".dvc" / "plots" / template.name, template.read_text(encoding="utf-8"))


def read(name: str) -> dict[str, Any]:
    """The full params.yaml of a profile, checked: the root's with the profile's overlay on it.

    Raises:
        UserError: there is no such profile, or it or the root's params.yaml is wrong.
    """
    names = sorted(path.parent.name for path in (ROOT / "profiles").glob("*/params.yaml"))
    if name not in names:
        raise UserError(f"There is no profile {shown(name)}; the choices are {', '.join(names)}.")
    source = ROOT / "profiles" / name / "params.yaml"
    study = params.read(ROOT / "params.yaml")
    params.parse(study)  # so that a fault found after the overlay is the overlay's
    called = f"profiles/{name}/params.yaml"
    change = params.read(source, called=called)
    own, change = _without_gone(study, change)
    try:
        whole = overlay(study, change) | {"profile": name}
    except UserError as error:
        raise UserError(f"In {called}: {error}") from None
    gone = dict.fromkeys([*own, *(variant for variant in change.get("variants_left_out", []) if variant not in study["variants"])])
    if gone:
        named = ", ".join(gone) if len(gone) <= _NAMED else f"{len(gone)} variants"
        print(f"note: {called} names {named}, which params.yaml does not have.", file=sys.stderr)
    return whole


def _without_gone(study: Mapping[str, Any], change: Any) -> tuple[list[str], Any]:
    """The variants that a change has options for and the study does not have, and the change without them.

    So a profile still lies over a study that has taken the place of the repository's own. A name that resembles one of the study's
    stays in the change, and is refused as misspelt.
    """
    own = change.get("variants") if isinstance(change, Mapping) else None
    if not isinstance(own, Mapping):
        return [], change
    gone = [name for name in own if name not in study["variants"] and not difflib.get_close_matches(str(name), study["variants"], n=1)]
    return gone, {**change, "variants": {name: options for name, options in own.items() if name not in gone}}


def overlay(study: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """A study with a profile's change laid over it; both as YAML gives them, the study already checked.

    Mappings are merged key by key; lists and scalars take the study's place. A change of `train.seeds` holds for every variant, also
    where the study gives a variant seeds of its own. The change's own key `variants_left_out` names the variants that go. With a
    variant goes its place in experiments, and an experiment left with fewer than two variants or without its baseline goes too. Claims
    stay: what they say of a variant that is gone is not run.

    Raises:
        UserError: the change names what the study does not have, or what comes of it is not a valid params.yaml.
    """
    if not isinstance(change, Mapping):
        raise UserError("a profile has to be a mapping of what it changes, for example `train: {epochs: 3}`.")
    left_out = change.get("variants_left_out", [])
    merged = _merge(study, {key: value for key, value in change.items() if key != "variants_left_out"})
    if "seeds" in (change.get("train") or {}):
        own = change.get("variants") or {}
        merged["variants"] = {name: _without_seeds(one, own.get(name)) for name, one in merged["variants"].items()}
    # Checked with the study's data set: that of the change may be too small for variants that go.
    whole = params.parse({**merged, "data": study["data"]})
    if not isinstance(left_out, list) or not all(isinstance(name, str) for name in left_out):
        raise UserError(f"variants_left_out is {left_out!r}, but has to be a list of variants' names.")
    # With all its options, because the variant that it starts from may go.
    merged["variants"] = {name: whole.difference(name) for name in merged["variants"] if name not in left_out}
    if not merged["variants"]:
        raise UserError("variants_left_out leaves no variant; keep at least one.")
    merged["experiments"] = _experiments(merged["experiments"], merged["variants"])
    params.parse(merged)
    return merged


def _merge(old: Any, new: Any, path: tuple[str, ...] = ()) -> Any:
    if old is None and path[:1] == ("variants",) and len(path) == 2:  # `base:` alone is `base: {}`
        old = {}
    if not isinstance(old, Mapping):
        return new
    where = ".".join(path)
    if not isinstance(new, Mapping):
        raise UserError(f"{where} is {new!r}, but params.yaml has a mapping there; name the keys of it that change.")
    for key in new:
        # Elsewhere a new key may be an option that was left at its default, which the schema checks.
        if path in (("variants",), ("experiments",), ("claims",)) and key not in old:
            raise UserError(f"{where}.{key} is not in the root's params.yaml, where it would have to be added{nearest(key, old)}.")
    return {**old, **{key: _merge(old.get(key), value, (*path, str(key))) for key, value in new.items()}}


def _without_seeds(difference: Mapping[str, Any] | None, change: Mapping[str, Any] | None) -> dict[str, Any]:
    """A variant's difference without the study's seeds for it; seeds that the change names stay."""
    return {key: value for key, value in (difference or {}).items() if key != "seeds" or "seeds" in (change or {})}


def _experiments(experiments: Mapping[str, Any], variants: Mapping[str, Any]) -> dict[str, Any]:
    """The experiments that still make sense with these variants, without what they say of others."""
    kept = {}
    for name, experiment in experiments.items():
        left = [variant for variant in experiment["variants"] if variant in variants]
        if len(left) < 2 or experiment["baseline"] not in left:
            continue
        kept[name] = {**experiment, "variants": left}
        if "labels" in experiment:
            kept[name]["labels"] = {variant: label for variant, label in experiment["labels"].items() if variant in variants}
        if "beside" in experiment:
            kept[name]["beside"] = {variant: other for variant, other in experiment["beside"].items() if {variant, other} <= {*left}}
    return kept


def source_files(dep: str) -> list[str]:
    """A dependency's source files. A folder would bring its bytecode, because .dvcignore does not reach outside the repository."""
    place = dep.removeprefix("${code}/")
    if place == dep or not (ROOT / place).is_dir():
        return [dep]
    files = (path for path in (ROOT / place).rglob("[!.]*") if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"))
    return sorted(f"${{code}}/{path.relative_to(ROOT).as_posix()}" for path in files)


if __name__ == "__main__":
    run_command(main)
