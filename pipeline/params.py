"""params.yaml as frozen, validated settings; a variant is the base plus its own difference.

Nothing here knows of DVC, MLflow or torch. Every fault becomes one sentence that names the key, says what is wrong and,
where there is one, the nearest valid choice.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import UserError

IMAGE_SIZE = 28
NUM_CHANNELS = 1
NUM_CLASSES = 10

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSettings(_Settings):
    dataset: Literal["mnist", "fashion_mnist", "kmnist", "digits"]


class TrainSettings(_Settings):
    """How every variant is trained. Units: `epochs` passes, `batch_size` images, `learning_rate` Adam's step."""

    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, strict=False)]
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=1, le=60_000)]
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"names seed {twice[0]} more than once; every seed is one run, so list each once")
        return seeds


class TimingSettings(_Settings):
    """How long the timing stage measures. `seconds` bounds all rounds together; `tokens` are counts of patches in a square grid."""

    rounds: Annotated[int, Field(ge=1, le=1000)]
    steps: Annotated[int, Field(ge=1, le=10_000)]
    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
    tokens: Annotated[tuple[int, ...], Field(min_length=2, strict=False)]

    @field_validator("tokens")
    @classmethod
    def _grids(cls, tokens: tuple[int, ...]) -> tuple[int, ...]:
        possible = [n**2 for n in range(1, IMAGE_SIZE + 1) if IMAGE_SIZE % n == 0]
        wrong = [count for count in tokens if count not in possible]
        if wrong:
            raise ValueError(f"holds {wrong[0]}, but square patches cut an image into {', '.join(map(str, possible))} tokens")
        if list(tokens) != sorted(set(tokens)):
            raise ValueError("has to be in rising order, each count once")
        return tokens


class ModelSettings(_Settings):
    """The vision transformer's options; docs/architecture.md and params.yaml give unit and source of each."""

    patch: Annotated[int, Field(ge=1, le=IMAGE_SIZE)]
    dim: Annotated[int, Field(ge=1, le=4096)]
    heads: Annotated[int, Field(ge=1, le=256)]
    blocks: Annotated[int, Field(ge=1, le=100)]
    mlp_dim: Annotated[int, Field(ge=1, le=16384)]
    attention: Literal["full", "sliced"]
    position: Literal["learned", "sinusoidal", "sincos2d", "none"]
    pool: Literal["cls", "first", "mean", "max", "attention"]
    cls_insert: Literal["expand", "loop", "none"]
    norm: Literal["pre", "post"]
    final_norm: bool
    activation: Literal["gelu", "relu"]
    embed: Literal["linear", "conv"]
    dropout: Annotated[float, Field(ge=0, lt=1)]

    @property
    def has_cls(self) -> bool:
        return self.cls_insert != "none"

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return IMAGE_SIZE // self.patch

    @property
    def num_tokens(self) -> int:
        """Length of the encoder's sequence, the class token included."""
        return self.grid**2 + self.has_cls

    @model_validator(mode="after")
    def _possible(self) -> ModelSettings:
        if IMAGE_SIZE % self.patch:
            divisors = [n for n in range(1, IMAGE_SIZE + 1) if IMAGE_SIZE % n == 0]
            nearest = min(divisors, key=lambda n: (abs(n - self.patch), -n))
            raise ValueError(
                f"patch: {self.patch} does not divide the image's side of {IMAGE_SIZE} pixels; the nearest that does is {nearest}"
            )
        if self.dim % self.heads:
            nearest = min((n for n in range(1, self.dim + 1) if self.dim % n == 0), key=lambda n: (abs(n - self.heads), n))
            raise ValueError(f"heads: {self.heads} heads do not divide dim, which is {self.dim}; the nearest number that does is {nearest}")
        if self.pool == "cls" and not self.has_cls:
            raise ValueError("pool: cls needs a class token, but cls_insert is none; set cls_insert to expand, or pool to first")
        divisor = {"sinusoidal": 2, "sincos2d": 4}.get(self.position, 1)
        if self.dim % divisor:
            nearest = max(divisor, round(self.dim / divisor) * divisor)
            raise ValueError(
                f"position: {self.position} needs a dim divisible by {divisor}, and {self.dim} is not; the nearest is {nearest}"
            )
        return self


class VariantSettings(_Settings):
    """All that decides the result of one variant's stage. Its canonical JSON is the file `configs/VARIANT.json`."""

    data: DataSettings
    train: TrainSettings
    model: ModelSettings

    def to_json(self) -> str:
        """Canonical text: sorted keys, one trailing newline, equal for equal settings."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=2) + "\n"

    @property
    def config_hash(self) -> str:
        """sha256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


Figure = Literal["curves", "epoch_time", "position_similarity"]


class ExperimentSettings(_Settings):
    title: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    baseline: str
    variants: Annotated[tuple[str, ...], Field(min_length=2, strict=False)]
    labels: dict[str, str] = {}
    figures: Annotated[tuple[Figure, ...], Field(strict=False)] = ("curves", "epoch_time")
    claims: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def label(self, variant: str) -> str:
        """What the experiment's page calls the variant."""
        return self.labels.get(variant, variant)


class Params(_Settings):
    """The whole of params.yaml.

    Attributes:
        variants: each variant's difference to `base`, as written.
        preview: why this study is not the full one (shown on every page), or None.
    """

    data: DataSettings
    train: TrainSettings
    base: ModelSettings
    variants: dict[str, dict[str, Any]]
    experiments: dict[str, ExperimentSettings]
    timing: TimingSettings
    preview: str | None = None

    def resolve(self, variant: str) -> VariantSettings:
        """Settings of one variant.

        Raises:
            UserError: the name is unknown, or base and difference together are impossible.
        """
        if variant not in self.variants:
            raise UserError(f"There is no variant {variant!r}{_nearest(variant, self.variants)}.")
        merged = self.base.model_dump() | self.variants[variant]
        try:
            model = ModelSettings.model_validate(merged)
        except ValidationError as error:
            raise UserError(_sentence(error, f"variants.{variant}", ModelSettings)) from None
        return VariantSettings(data=self.data, train=self.train, model=model)


class _Loader(yaml.SafeLoader):
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
            raise UserError(f"params.yaml line {key_node.start_mark.line + 1}: the key {key!r} is given twice; keep one of them.")
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, every variant included.

    Raises:
        UserError: one sentence about the first fault, with the path of its key.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no {path.name} in {path.parent.resolve().name}/: run the command from the repository's root.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} cannot be read: {error}.") from None
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{path.name}{where} is not valid YAML: {getattr(error, 'problem', None) or error}.") from None
    return parse(raw)


def parse(raw: Any) -> Params:
    """Checks what params.yaml holds (a mapping, as YAML gives it). Raises UserError as `load` does."""
    if not isinstance(raw, Mapping):
        raise UserError("params.yaml has to be a mapping with the keys data, train, base, variants and experiments.")
    raw = dict(raw)
    variants = raw.get("variants")
    if isinstance(variants, Mapping):
        # `name:` with nothing behind it is the base under another name.
        raw["variants"] = {str(name): {} if change is None else change for name, change in variants.items()}
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        raise UserError(_sentence(error, "", Params)) from None
    _check_names(params)
    for variant in params.variants:
        params.resolve(variant)
    return params


def _check_names(params: Params) -> None:
    if not params.variants:
        raise UserError("variants is empty in params.yaml; name at least one, for example `base: {}`.")
    for kind, names in (("variants", params.variants), ("experiments", params.experiments)):
        for name in names:
            if not _NAME.fullmatch(name):
                better = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "variant-1"
                raise UserError(f"{kind}.{name}: a name may hold letters, digits, '-' and '_' only; {better} would do.")
    lowered: dict[str, str] = {}
    for name in params.variants:
        if name.lower() in lowered:
            raise UserError(
                f"variants.{name} and variants.{lowered[name.lower()]} differ in case only, which some file systems cannot tell apart."
            )
        lowered[name.lower()] = name
    for name, experiment in params.experiments.items():
        key = f"experiments.{name}"
        for variant in (*experiment.variants, experiment.baseline):
            if variant not in params.variants:
                raise UserError(f"{key} names the variant {variant!r}, which variants does not have{_nearest(variant, params.variants)}.")
        if experiment.baseline not in experiment.variants:
            raise UserError(
                f"{key}.baseline is {experiment.baseline!r}, which is not among its variants; add it there or choose one of them."
            )
        twice = [variant for variant in experiment.variants if experiment.variants.count(variant) > 1]
        if twice:
            raise UserError(f"{key}.variants names {twice[0]!r} more than once; list each variant once.")
        for variant in experiment.labels:
            if variant not in experiment.variants:
                raise UserError(f"{key}.labels names {variant!r}, which is not among its variants{_nearest(variant, experiment.variants)}.")


def _nearest(value: object, choices: Iterable[str]) -> str:
    choices = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    if close:
        return f"; the nearest is {close[0]!r}"
    return f"; the choices are {', '.join(choices)}" if len(choices) <= 16 else ""


def _sentence(error: ValidationError, prefix: str, model: type[BaseModel]) -> str:
    """The first fault of a validation as one sentence."""
    # A misspelt key shows as one unknown and one missing key: the unknown one is what the user wrote.
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    location = [str(part) for part in fault["loc"]]
    key = ".".join(part for part in (prefix, *location) if part)
    kind, given, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        return f"{key} is not a key of params.yaml{_nearest(location[-1], owner.model_fields)}."
    if kind == "missing":
        return f"{key} is missing from params.yaml; give it a value."
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{key} is {given!r}, which is not a choice{_nearest(given, choices)}."
    if kind == "value_error":
        message = str(context["error"])
        inner = message.split(": ", 1)
        # Messages of a whole model start with the key they are about.
        if len(inner) == 2 and inner[0] in ModelSettings.model_fields:
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
        nearest = f"; the nearest valid value is {bound}" if kind.endswith("equal") else ""
        return f"{key} is {given!r}, but has to be {allowed}{nearest}."
    if kind == "too_short":
        return f"{key} has too few entries; it needs at least {context['min_length']}."
    expected = {
        "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "string_type": "text",
        "dict_type": "a mapping", "model_type": "a mapping", "tuple_type": "a list", "int_from_float": "a whole number",
        "finite_number": "a finite number", "string_too_short": "text that is not empty",
    }.get(kind)  # fmt: skip
    if expected:
        return f"{key} is {given!r}, but has to be {expected}."
    return f"{key} is {given!r}: {fault['msg']}."


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


def load_variant(path: str | Path) -> VariantSettings:
    """Reads a resolved `configs/VARIANT.json`, as written by the resolve stage.

    Raises:
        UserError: the file is missing or damaged; the sentence says how to make it again.
    """
    path = Path(path)
    try:
        return VariantSettings.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro resolve` first, or check the variant's name against params.yaml.") from None
    except (ValidationError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged or of another version: run `dvc repro --force resolve` to write it again.") from None
