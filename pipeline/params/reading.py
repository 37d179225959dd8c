"""YAML files as plain values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UserError
from pipeline.params.faults import shown

MAX_DEPTH = 100

_TAG = "tag:yaml.org,2002:"


def read(path: Path, *, called: str | None = None) -> Any:
    """The content of a YAML file, not validated. `called`: the name of the file in messages, if not its own.

    Raises:
        UserError: there is no such file, or it is not YAML; the sentence names the line.
    """
    called = called or path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no {path.name} in {path.parent.resolve().name}/: run the command from the repository's root.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{called} cannot be read: {error}.") from None
    try:
        if _too_deep(text):
            raise UserError(f"{called} is nested more than {MAX_DEPTH} levels deep; it needs a few only.")
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        fault = "cannot be used" if isinstance(error, yaml.constructor.ConstructorError) else "is not valid YAML"
        raise UserError(f"{called}{where} {fault}: {getattr(error, 'problem', None) or error}.") from None


def _too_deep(text: str) -> bool:
    """Whether the text has more than MAX_DEPTH levels. It has to be checked before loading, because the loader recurses per level."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return True
    return False


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml loads the catalogue ten times as fast
    """Booleans and numbers as in YAML 1.2, which DVC reads: 5e-3 is a number, 1:30 and `no` are text, 010 is ten.

    Keys have to be text and unique; dates are refused.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) in ("null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise _fault(node, f"{shown(node.value)} cannot be read as {node.tag.removeprefix(_TAG)}") from None


class Dumper(yaml.SafeDumper):
    """Writes what `Loader` reads: text that either YAML takes for something else stands in quotes."""


def _fault(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _mapping(loader: Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            problem = (
                f"the key {shown(key.value)} is not text; put it in quotes"
                if isinstance(key, yaml.ScalarNode)
                else "a key has to be text, not a list or a mapping"
            )
            raise _fault(key, problem)
        if key.value in seen:
            raise _fault(key, f"the key {shown(key.value)} is given twice; keep one of them")
        seen.add(key.value)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _integer(loader: Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _date(loader: Loader, node: yaml.Node) -> Any:
    raise _fault(node, f"{shown(node.value)} is a date; put it in quotes to have it as text")


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+0123456789."),
    ("timestamp", r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?", "0123456789"),
):
    for _kind in (Loader, Dumper):
        _kind.add_implicit_resolver(_TAG + _tag, re.compile(f"(?:{_pattern})$"), list(_first))
Loader.add_constructor(f"{_TAG}map", _mapping)
Loader.add_constructor(f"{_TAG}int", _integer)
Loader.add_constructor(f"{_TAG}timestamp", _date)
