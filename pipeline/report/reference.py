"""docs/reference.md: all measures, figures and options. `python -m pipeline.report.reference` writes it."""

import inspect
import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.measures import MEASURES
from pipeline.params.data import DataSettings, ScenesSettings, Settings
from pipeline.params.model import BaselineSettings, CaptionerSettings, ModelSettings
from pipeline.params.study import DEFAULTS, ClaimSettings, ComparisonSettings, ExperimentSettings
from pipeline.params.timing import TimingSettings
from pipeline.params.train import TrainSettings
from pipeline.report import text
from pipeline.report.figures.base import REGISTERED
from pipeline.system.provenance import ROOT

PATH = Path("docs/reference.md")
# (heading, where they stand, class, the part of params.yaml that has values and comments)
_PARTS: tuple[tuple[str, str, type[Settings], str], ...] = (
    ("Data", "`data` of params.yaml", DataSettings, "data"),
    ("Scenes of captioners", "`scenes` of params.yaml", ScenesSettings, "scenes"),
    ("Training", "`train` of params.yaml; any variant", TrainSettings, "train"),
    ("The vision transformer", "`base` of params.yaml; any variant", ModelSettings, "base"),
    ("Captioners", "variants with `architecture: captioner`", CaptionerSettings, ""),
    ("The other networks", "variants with another architecture", BaselineSettings, ""),
    ("Timings", "`timing` of params.yaml", TimingSettings, "timing"),
    ("An experiment", "`experiments` of claims.yaml", ExperimentSettings, ""),
    ("A claim", "`claims` of claims.yaml", ClaimSettings, ""),
    ("A claim's comparison", "`comparisons` of a claim", ComparisonSettings, ""),
)  # fmt: skip


def render() -> str:
    figures = [(kind, str(inspect.getdoc(make)).partition("\n\n")[0]) for kind, make in sorted(REGISTERED.items())]
    parts = [(heading, where, _options(settings, part)) for heading, where, settings, part in _PARTS]
    return text.page("reference.md.j2", measures=MEASURES, figures=figures, parts=parts).decode()


def _options(settings: type[Settings], part: str) -> list[tuple[str, ...]]:
    """(name, values, default, lab, meaning) of each option; meanings are params.yaml's comments, else those of the class's docstring."""
    written = (ROOT / "params.yaml").read_text(encoding="utf-8")
    own = yaml.safe_load(written).get(part) or {}
    section = re.search(rf"^{part}:.*\n((?:[ #].*\n|\n)*)", written, re.MULTILINE) if part else None
    comments = dict(re.findall(r"^  (\w+):.*?  # (.*)", section[1] if section else "", re.MULTILINE))
    for names, meaning in re.findall(r"^ *([\w, ]+): ((?:.|\n {8,})*)", str(inspect.getdoc(settings)), re.MULTILINE):
        for name in names.split(", "):
            comments.setdefault(name.strip(), " ".join(meaning.split()))
    schema = settings.model_json_schema()
    found = []
    for name, field in schema["properties"].items():
        given = (DEFAULTS.get(part, {}).get(name, field.get("default", "")), own.get(name, ""))
        shown = ("" if isinstance(value, dict) else text.plain(value) for value in given)
        found.append((name, _values(field, schema.get("$defs", {})), *shown, comments.get(name, "")))
    return found


def _values(field: dict[str, Any], defs: dict[str, Any]) -> str:
    """What an option may be: its choices, or its type and range."""
    if "$ref" in field:
        field = defs[field["$ref"].rpartition("/")[2]]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_values(one, defs) for one in field["anyOf"]))
    if choices := field.get("enum") or ([field["const"]] if "const" in field else []):
        return " \\| ".join(map(str, choices)) if len(choices) <= 12 else "a name of the lists above"
    ends = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    kinds = {"integer": "whole number", "number": "number", "boolean": "true \\| false", "string": "text", "array": "list", "null": "none"}
    kind = kinds.get(field.get("type", ""), "names and values")
    return " ".join([kind, *(f"{word} {field[end]:,}" for end, word in ends.items() if end in field)])


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
