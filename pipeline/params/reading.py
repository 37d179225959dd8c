"""YAML files as plain values, and what is wrong with them as one sentence."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.system.errors import UserError

_LONGEST = 80  # characters of a wrong value in a sentence
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def read(path: Path) -> Any:
    """The content of a YAML file, not validated. Raises UserError where there is none, it is no YAML, or a key is given twice."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        _refuse_double_keys(node)
        return loader.construct_document(node) if node else None
    except FileNotFoundError:
        raise UserError(f"There is no {path.name} in {path.parent.resolve().name}/: run the command from the repository's root.") from None
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or a date like 2026-02-30
        raise UserError(f"{path} cannot be read ({error}): mend it, or bring it back with `git checkout {path}`.") from None


def _refuse_double_keys(node: yaml.Node | None) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice")
            _refuse_double_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            _refuse_double_keys(entry)


def shown(value: object) -> str:
    """A wrong value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def refuse(*faults: tuple[object, str]) -> None:
    """Raises ValueError with the words of the first fault that there is; a model's own begin with the key that they are about."""
    for fault, said in faults:
        if fault:
            raise ValueError(said)


def nearest(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the most similar valid one, else all choices if they are few."""
    choices = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    if close:
        return f"; the nearest is {close[0]!r}"
    return f"; the choices are {', '.join(choices)}" if 0 < len(choices) <= 16 else ""


def sentence(error: ValidationError, prefix: str, model: type[BaseModel]) -> str:
    """The first fault of a validation in pydantic's words, after its key; of an unknown key with the nearest that there is."""
    # A misspelt key gives one unknown and one missing key. The unknown one comes first, because it is what the user wrote.
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in (prefix, *fault["loc"]) if part != "")
    if fault["type"] == "extra_forbidden":
        for part in fault["loc"][:-1]:
            kinds = getattr(field.annotation, "__args__", (field.annotation,)) if (field := model.model_fields.get(str(part))) else ()
            model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
        return f"{key}: there is no such key{nearest(fault['loc'][-1], model.model_fields)}."
    if fault["type"] == "value_error":
        said = str(fault["ctx"]["error"])  # of a model's own validator it begins with the key that it is about
        return f"{key}{'.' if key and re.match('[a-z_]+: ', said) else ': ' if key else ''}{said}."
    if fault["type"] == "literal_error" and len(choices := re.findall("'([^']+)'", fault["ctx"]["expected"])) > 16:
        return f"{key}: there is no {shown(fault['input'])}{nearest(fault['input'], choices)}."
    if fault["loc"][-1:] == ("[key]",):  # before it stands the name, as pydantic compares it: True is 1
        return f"{'.'.join(map(str, fault['loc'][:-2]))}: the name {shown(fault['input'])} is no text to YAML; put it in quotes."
    if fault["type"] in ("int_type", "float_type") and isinstance(fault["input"], str) and _NUMBER.fullmatch(fault["input"]):
        return f"{key}: {shown(fault['input'])} is text to YAML; write a number without quotes, and with a point before an e, as 1.0e-3."
    got = "" if fault["type"] == "missing" else f" (got {shown(fault['input'])})"
    return f"{key or 'params.yaml'}: {fault['msg']}{got}."
