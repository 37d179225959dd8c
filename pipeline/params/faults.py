"""Sentences about faults in params.yaml: the key, what is wrong and, if there is one, the nearest valid choice."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

_WORDS = {None: "null", True: "true", False: "false"}
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxdict = 2, 8, 4
_repr.maxstring = _repr.maxlong = _repr.maxother = 80  # characters


def shown(value: object) -> str:
    """A wrong value as YAML writes it, shortened if it is long or deeply nested."""
    return _WORDS[value] if value is None or isinstance(value, bool) else _repr.repr(value)


def nearest(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the most similar valid one, else all choices if they are few."""
    choices = [str(choice) for choice in choices]
    close = difflib.get_close_matches(value if isinstance(value, str) else shown(value), choices, n=1, cutoff=0.5)
    if close:
        return f"; the nearest is {close[0]!r}"
    return f"; the choices are {', '.join(choices)}" if 0 < len(choices) <= 16 else ""


def sentence(error: ValidationError, prefix: str, model: type[BaseModel]) -> str:
    """The first fault of a validation as one sentence."""
    # A misspelt key gives one unknown and one missing key. The unknown one comes first, because it is what the user wrote.
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    location = [str(part) for part in fault["loc"]]
    key = ".".join(part for part in (prefix, *location) if part)
    kind, given, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        return f"{key} is not a key of params.yaml{nearest(location[-1], owner.model_fields)}."
    if kind == "missing":
        return f"{key} is missing from params.yaml; give it a value."
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{key} is {shown(given)}, which is not a choice{nearest(given, choices)}."
    if kind == "value_error":
        message = str(context["error"])
        inner = message.split(": ", 1)
        # The messages of a model's validator start with the key that they are about.
        if len(inner) == 2 and inner[0].isidentifier():
            return f"{key + '.' if key else ''}{inner[0]}: {inner[1]}."
        return f"{key} {message}."
    bounds = {
        "greater_than": "more than {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "less than {lt}",
        "less_than_equal": "at most {le}",
    }
    if kind in bounds:
        bound = next(iter(context.values()))
        allowed = bounds[kind].format(gt=bound, ge=bound, lt=bound, le=bound)
        closest = f"; the nearest valid value is {bound}" if kind.endswith("equal") else ""
        return f"{key} is {shown(given)}, but has to be {allowed}{closest}."
    if kind == "too_short":
        return f"{key} has too few entries; it needs at least {context['min_length']}."
    if kind == "too_long":
        return f"{key} has too many entries; it takes at most {context['max_length']}."
    expected = {
        "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "string_type": "text",
        "dict_type": "a mapping", "model_type": "a mapping", "tuple_type": "a list", "int_from_float": "a whole number",
        "finite_number": "a finite number", "string_too_short": "text that is not empty",
    }.get(kind)  # fmt: skip
    if expected:
        return f"{key} is {shown(given)}, but has to be {expected}."
    return f"{key} is {shown(given)}: {fault['msg']}."


def _model_at(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    """The settings class that owns a key, found by walking the annotations."""
    for part in location:
        field = model.model_fields.get(part)
        if field is None:
            continue
        annotation: Any = field.annotation
        arguments = getattr(annotation, "__args__", ())
        candidates = [annotation, *arguments]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return model
