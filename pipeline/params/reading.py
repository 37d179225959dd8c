"""YAML files as plain values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UserError


def read(path: Path, *, shown: str | None = None) -> Any:
    """What a YAML file holds, unchecked. `shown`: what a fault calls the file, where not by its name.

    Raises:
        UserError: there is no such file, or it is not YAML; the sentence names the line.
    """
    shown = shown or path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no {path.name} in {path.parent.resolve().name}/: run the command from the repository's root.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{shown} cannot be read: {error}.") from None
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{shown}{where} is not valid YAML: {getattr(error, 'problem', None) or error}.") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml reads the catalogue ten times as fast
    """YAML 1.2's floats (5e-3 is a number), and a key given twice is an error instead of the last one winning."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key_node.tag != "tag:yaml.org,2002:merge" and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice; keep one of them", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
