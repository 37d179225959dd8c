"""params.yaml as frozen, validated settings; a variant is the base plus its own difference.

Nothing here knows of DVC, MLflow or torch. Every fault becomes one sentence that names the key, says what is wrong and,
where there is one, the nearest valid choice.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import UserError
from pipeline.measures import MEASURES, TIMING_RULES, Probe

IMAGE_SIZE = 28
NUM_CHANNELS = 1
NUM_CLASSES = 10
MAX_SEEDS = 1000
TRAINING_IMAGES = {"mnist": 60_000, "fashion_mnist": 60_000, "kmnist": 60_000, "digits": 1_437}  # in the whole training set
TEST_IMAGES = {"mnist": 10_000, "fashion_mnist": 10_000, "kmnist": 10_000, "digits": 360}

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSettings(_Settings):
    dataset: Literal["mnist", "fashion_mnist", "kmnist", "digits"]


class TrainSettings(_Settings):
    """How a variant is trained; params.yaml gives unit and source of each option.

    Attributes:
        seeds: one run each. A number n in params.yaml stands for the seeds 0 to n - 1.
        learning_rate: the schedule's largest.
        clip_norm: largest L2 norm of one seed's gradient, over all its weights; None leaves gradients as they are.
        warmup: share of all steps in which the learning rate rises linearly from 0.
        train_images: size of the random subset of the training images that a seed sees; None is all of them.
        epoch_images: images shown in an epoch, the subset repeated or cut; None is the whole training set's number.
        divergence: whether a loss that is not finite ends the training with an error, or is recorded as a result.
    """

    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, strict=False)]
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=1, le=60_000)]
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    optimizer: Literal["adam", "radam", "sgd"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    schedule: Literal["constant", "linear", "warmup_linear", "noam", "cosine"]
    warmup: Annotated[float, Field(ge=0, lt=1)]
    train_images: Annotated[int, Field(ge=1)] | None
    epoch_images: Annotated[int, Field(ge=1)] | None
    augment: Literal["none", "affine"]
    divergence: Literal["stop", "record"]

    @model_validator(mode="after")
    def _possible(self) -> TrainSettings:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum: {self.momentum} is SGD's, and {self.optimizer} has its own; set it to 0.0, or optimizer to sgd")
        if self.schedule in ("warmup_linear", "noam") and not self.warmup:
            raise ValueError(f"warmup: {self.schedule} needs a share of the steps to warm up in, for example 0.1")
        if self.schedule in ("constant", "linear") and self.warmup:
            raise ValueError(f"warmup: {self.schedule} has none; set it to 0.0, or schedule to warmup_linear")
        return self

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        if not isinstance(seeds, int) or isinstance(seeds, bool):
            return seeds
        if not 1 <= seeds <= MAX_SEEDS:
            raise ValueError(f"is {seeds}, but has to be a number of seeds from 1 to {MAX_SEEDS:,}, or a list of seeds")
        return tuple(range(seeds))

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"names seed {twice[0]} more than once; every seed is one run, so list each once")
        return seeds


class TimingSettings(_Settings):
    """What the timing stage times, and for how long.

    Attributes:
        seconds: bounds all rounds together.
        tokens: counts of patches in a square grid.
        subjects: networks whose training step is timed, each as its difference to `base`. Each is timed as published and on the fast
            path; one with `loops: nested` only as published, but with patches cut one by one and attention image by image.
        labels: what the page calls a subject, where not by its name.
    """

    rounds: Annotated[int, Field(ge=1, le=1000)]
    steps: Annotated[int, Field(ge=1, le=10_000)]
    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
    tokens: Annotated[tuple[int, ...], Field(min_length=2, strict=False)]
    subjects: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    labels: dict[str, str] = {}

    @field_validator("subjects")
    @classmethod
    def _subjects(cls, subjects: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, difference in subjects.items():
            if "/" in name:
                raise ValueError(f"holds {name!r}, but a name may hold no '/'")
            loops = difference.get("loops", "nested")
            if loops != "nested":
                raise ValueError(f"holds {name!r} with loops: {loops}, which is not a choice; the only one is nested")
        return subjects

    @model_validator(mode="after")
    def _labelled(self) -> TimingSettings:
        for name in self.labels.keys() - self.subjects.keys():
            raise ValueError(f"labels: names {name!r}, which is not among the subjects{nearest(name, self.subjects)}")
        return self

    def label(self, subject: str) -> str:
        """What the timing page calls the subject."""
        return self.labels.get(subject, subject)

    def is_nested(self, subject: str) -> bool:
        """Whether the subject is computed in nested loops."""
        return "loops" in self.subjects[subject]

    def model(self, subject: str, base: ModelSettings) -> ModelSettings:
        """The subject's network. Raises UserError where base and difference together are impossible."""
        difference = {name: value for name, value in self.subjects[subject].items() if name != "loops"}
        try:
            return ModelSettings.model_validate(base.model_dump() | difference)
        except ValidationError as error:
            raise UserError(_sentence(error, f"timing.subjects.{subject}", ModelSettings)) from None

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

    architecture: Literal["vit"]
    patch: Annotated[int, Field(ge=1, le=IMAGE_SIZE)]
    dim: Annotated[int, Field(ge=1, le=4096)]
    heads: Annotated[int, Field(ge=1, le=256)]
    blocks: Annotated[int, Field(ge=1, le=100)]
    mlp_dim: Annotated[int, Field(ge=1, le=16384)]
    attention: Literal["full", "sliced"]
    position: Literal["learned", "sinusoidal", "sincos2d", "none"]
    pool: Literal["cls", "first", "mean", "max", "attention"]
    cls_insert: Literal["expand", "loop", "none"]
    cls_init: Literal["normal", "zeros"]
    norm: Literal["pre", "post", "none"]
    norm_eps: Annotated[float, Field(gt=0, lt=1)]
    final_norm: bool
    residual: Literal["input", "normalized", "none"]
    score_scale: bool
    memory: Annotated[int, Field(ge=0, le=4096)]
    activation: Literal["gelu", "relu"]
    embed: Literal["linear", "conv"]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    attention_dropout: Annotated[float, Field(ge=0, lt=1)]
    mlp_dropout: Annotated[float, Field(ge=0, lt=1)]

    @property
    def stackable(self) -> bool:
        """Whether the seeds of a GPU train together as one stack."""
        return True

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
        if self.residual == "normalized" and self.norm != "pre":
            raise ValueError(f"residual: normalized starts from the norm before the MLP, but norm is {self.norm}; set norm to pre")
        return self


_NUM_WIDTHS = {"cnn": 2, "lenet": 4, "mlp": None, "rnn": 1, "lstm": 1}


class BaselineSettings(_Settings):
    """A network that is not a transformer. `widths`: channels or units of its layers, from the input on.

    cnn: channels of its two blocks; lenet: channels of its two convolutions and units of its two hidden layers; mlp: units of
    each hidden layer; rnn, lstm: units of the one recurrent layer, which reads an image as 28 rows of 28 pixels.
    """

    architecture: Literal["cnn", "lenet", "mlp", "rnn", "lstm"]
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(min_length=1, strict=False)]

    @property
    def stackable(self) -> bool:
        """Batch norm's running statistics and torch's recurrent layers cannot be stacked; such models train seed by seed."""
        return self.architecture in ("lenet", "mlp")

    @model_validator(mode="after")
    def _possible(self) -> BaselineSettings:
        wanted = _NUM_WIDTHS[self.architecture]
        if wanted is not None and len(self.widths) != wanted:
            raise ValueError(f"widths: {self.architecture} has {wanted} of them, not {len(self.widths)}")
        return self


AnyModelSettings = Annotated[ModelSettings | BaselineSettings, Field(discriminator="architecture")]


class VariantSettings(_Settings):
    """All that decides the result of one variant's stage. Its canonical JSON is the file `configs/VARIANT.json`."""

    data: DataSettings
    train: TrainSettings
    model: AnyModelSettings

    def to_json(self) -> str:
        """Canonical text: sorted keys, one trailing newline, equal for equal settings."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=2) + "\n"

    @property
    def images_shown(self) -> int:
        """Training images that a seed is shown in all its epochs, each as often as it is shown."""
        return self.train.epochs * (self.train.epoch_images or TRAINING_IMAGES[self.data.dataset])

    @property
    def config_hash(self) -> str:
        """sha256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def training_hash(self) -> str:
        """sha256 over what decides the training of one seed: the settings without the seeds, 64 hexadecimal digits.

        An option at its default does not count. So an option that is added later, with a default that changes nothing, leaves the
        hashes of earlier trainings as they are.
        """
        settings = self.model_dump(mode="json", exclude_defaults=True, exclude={"train": {"seeds"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


if TYPE_CHECKING:
    Measure = str
else:
    Measure = Literal[tuple(MEASURES)]
Rule = Literal["equivalent", "less", "more", "at least", "resembles", "ratio", "exponent"]
Figure = Literal["curves", "epoch_time", "position_similarity", "measure", "data_size", "shifts", "attention_maps"]


class ComparisonSettings(_Settings):
    """One measurable part of a claim: `rule` says how `variant` has to stand to `reference` in `measure`.

    Attributes:
        minus: a second pair (variant, reference), whose difference is taken from the first pair's: a difference of differences.
        bound: the margin, in the measure's own unit (accuracy as a fraction).
        between: the claim's two ends, for `ratio` and `exponent`.
    """

    rule: Rule
    measure: Measure
    variant: str
    reference: str | None = None
    minus: Annotated[tuple[str, str], Field(strict=False)] | None = None
    bound: Annotated[float, Field(allow_inf_nan=False)] | None = None
    between: Annotated[tuple[float, float], Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _possible(self) -> ComparisonSettings:
        if (self.reference is None) != (self.rule == "at least"):
            raise ValueError(f"reference: {'at least compares with its bound alone' if self.reference else f'{self.rule} needs one'}")
        if self.variant == self.reference:
            raise ValueError(f"reference: {self.reference} cannot be compared with itself")
        own = MEASURES[self.measure].rule
        if self.rule in TIMING_RULES:
            if self.bound is not None:
                raise ValueError(f"bound: {self.rule} has none; give the two ends between which it has to lie")
            if self.between is None or not self.between[0] < self.between[1]:
                raise ValueError(f"between: {self.rule} needs two ends in rising order, for example [1.0, .inf]")
        elif self.between is not None:
            raise ValueError(f"between: {self.rule} has none; give a bound instead")
        if own is not None and self.rule != own:
            raise ValueError(f"rule: {self.rule} is not for {self.measure}; use {own}")
        if self.rule in (*TIMING_RULES, "resembles") and own != self.rule:
            judged = " or ".join(name for name, measure in MEASURES.items() if measure.rule == self.rule)
            raise ValueError(f"measure: {self.rule} judges {judged}, not {self.measure}")
        if self.rule in ("equivalent", "at least", "resembles") and self.bound is None:
            raise ValueError(f"bound: {self.rule} needs one")
        if self.rule == "equivalent" and self.bound is not None and self.bound <= 0:
            raise ValueError("bound: equivalent needs one above 0")
        if self.minus is not None and self.rule not in ("equivalent", "less", "more"):
            raise ValueError(f"minus: {self.rule} compares one pair only")
        return self


class ClaimSettings(_Settings):
    """A sentence somebody wrote, and what would show it right or wrong.

    Attributes:
        measured: what the comparisons measure, in words.
        margin: why the bounds are what they are.
        images_shown: training images that each side has to be shown before the claim is judged; None is the study's own number.
    """

    source: Annotated[str, Field(min_length=1)]
    sentence: Annotated[str, Field(min_length=1)]
    measured: Annotated[str, Field(min_length=1)]
    margin: Annotated[str, Field(min_length=1)]
    comparisons: Annotated[tuple[ComparisonSettings, ...], Field(min_length=1, strict=False)]
    images_shown: Annotated[int, Field(ge=1)] | None = None


class ExperimentSettings(_Settings):
    """A question, and the variants and claims that answer it.

    Attributes:
        measure: what its table and its tests are about, besides accuracy.
        labels: what the page calls a variant, where not by its name.
    """

    title: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    baseline: str
    variants: Annotated[tuple[str, ...], Field(min_length=2, strict=False)]
    measure: Measure = "accuracy"
    labels: dict[str, str] = {}
    figures: Annotated[tuple[Figure, ...], Field(strict=False)] = ("curves", "epoch_time")
    claims: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_validator("measure")
    @classmethod
    def _of_each_seed(cls, measure: Measure) -> Measure:
        if MEASURES[measure].values is None:
            raise ValueError(f"is {measure}, which is no measure of each seed and stands in claims only; name another, such as accuracy")
        return measure

    def label(self, variant: str) -> str:
        """What the experiment's page calls the variant."""
        return self.labels.get(variant, variant)


class Params(_Settings):
    """The whole of params.yaml.

    Attributes:
        variants: each variant's difference to `base`, as written.
        images_shown: training images that each side of a comparison has to be shown before a claim is judged.
        looks: numbers of seeds at which claims are judged, rising; empty where all seeds count.
        preview: why this study is not the full one (shown on every page), or None.
        profile: name of the profile that made it; None for the root's own params.yaml.
    """

    data: DataSettings
    train: TrainSettings
    base: ModelSettings
    variants: dict[str, dict[str, Any]]
    experiments: dict[str, ExperimentSettings]
    claims: dict[str, ClaimSettings]
    timing: TimingSettings
    images_shown: Annotated[int, Field(ge=1)]
    looks: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(strict=False)] = ()
    preview: str | None = None
    profile: str | None = None

    @field_validator("looks")
    @classmethod
    def _rising(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if list(looks) != sorted(set(looks)):
            raise ValueError(f"has to be in rising order, each number once, for example {sorted(set(looks))}")
        return looks

    def resolve(self, variant: str) -> VariantSettings:
        """Settings of one variant.

        Raises:
            UserError: the name is unknown, or base and difference together are impossible.
        """
        if variant not in self.variants:
            raise UserError(f"There is no variant {variant!r}{nearest(variant, self.variants)}.")
        difference = self.variants[variant]
        key = f"variants.{variant}"
        architecture = difference.get("architecture", "vit")
        if architecture != "vit" and str(architecture) not in _NUM_WIDTHS:
            choices = ["vit", *_NUM_WIDTHS]
            raise UserError(f"{key}.architecture is {architecture!r}, which is not a choice{nearest(architecture, choices)}.")
        model: type[ModelSettings | BaselineSettings] = ModelSettings if architecture == "vit" else BaselineSettings
        for name in difference:
            if name not in _OVERRIDES and name not in model.model_fields:
                if name in ModelSettings.model_fields:
                    raise UserError(f"{key}.{name} is an option of the vision transformer, which {architecture} does not have; remove it.")
                if name in BaselineSettings.model_fields:
                    raise UserError(f"{key}.{name} is not an option of the vision transformer; remove it, or set architecture.")
                raise UserError(f"{key}.{name} is not an option of a variant{nearest(name, [*model.model_fields, *sorted(_OVERRIDES)])}.")
        own = {name: value for name, value in difference.items() if name in model.model_fields}
        try:
            settings = model.model_validate(self.base.model_dump() | own if model is ModelSettings else own)
            changed = {name: value for name, value in difference.items() if name in _OVERRIDES}
            train = TrainSettings.model_validate(self.train.model_dump() | changed)
        except ValidationError as error:
            raise UserError(_sentence(error, key, model)) from None
        available = TRAINING_IMAGES[self.data.dataset]
        if train.train_images is not None and train.train_images > available:
            where = key if "train_images" in difference else "train"
            raise UserError(
                f"{where}.train_images is {train.train_images:,}, but {self.data.dataset} has {available:,} training images; "
                f"the nearest valid value is {available}."
            )
        return VariantSettings(data=self.data, train=train, model=settings)

    def timed_otherwise(self) -> list[str]:
        """The timing stage's subjects that are other networks than the variants of their names."""
        shared = [subject for subject in self.timing.subjects if subject in self.variants]
        return [subject for subject in shared if self.timing.model(subject, self.base) != self.resolve(subject).model]

    def probed(self, probe: Probe) -> tuple[str, ...]:
        """The variants, in order, whose trained models an experiment or a claim wants tested under shifts, or for their attention."""
        figure = {"shifts": "shifts", "attention": "attention_maps"}[probe]
        named: set[str | None] = set()
        for experiment in self.experiments.values():
            if figure in experiment.figures or MEASURES[experiment.measure].probe == probe:
                named |= {*experiment.variants, experiment.baseline}
        for claim in self.claims.values():
            for comparison in claim.comparisons:
                if MEASURES[comparison.measure].probe == probe:
                    named |= {comparison.variant, comparison.reference, *(comparison.minus or ())}
        chosen = (variant for variant in self.variants if variant in named)
        if probe == "attention":
            return tuple(variant for variant in chosen if isinstance(self.resolve(variant).model, ModelSettings))
        return tuple(chosen)


_OVERRIDES = TrainSettings.model_fields.keys()


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


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, every variant included.

    Raises:
        UserError: one sentence about the first fault, with the path of its key.
    """
    return parse(read(Path(path)))


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


def parse(raw: Any) -> Params:
    """Checks what params.yaml holds (a mapping, as YAML gives it). Raises UserError as `load` does."""
    if not isinstance(raw, Mapping):
        raise UserError("params.yaml has to be a mapping with the keys data, train, base, variants, experiments and claims.")
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
    for subject in params.timing.subjects:
        params.timing.model(subject, params.base)
    return params


def _check_names(params: Params) -> None:
    if not params.variants:
        raise UserError("variants is empty in params.yaml; name at least one, for example `base: {}`.")
    for kind, names in (("variants", params.variants), ("experiments", params.experiments), ("claims", params.claims)):
        for name in names:
            if not _NAME.fullmatch(name):
                better = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or f"{kind[:-1]}-1"
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
                raise UserError(f"{key} names the variant {variant!r}, which variants does not have{nearest(variant, params.variants)}.")
        if experiment.baseline not in experiment.variants:
            raise UserError(
                f"{key}.baseline is {experiment.baseline!r}, which is not among its variants; add it there or choose one of them."
            )
        twice = [variant for variant in experiment.variants if experiment.variants.count(variant) > 1]
        if twice:
            raise UserError(f"{key}.variants names {twice[0]!r} more than once; list each variant once.")
        for variant in experiment.labels:
            if variant not in experiment.variants:
                raise UserError(f"{key}.labels names {variant!r}, which is not among its variants{nearest(variant, experiment.variants)}.")
        for claim in experiment.claims:
            if claim not in params.claims:
                raise UserError(f"{key}.claims names {claim!r}, which claims does not have{nearest(claim, params.claims)}.")


def nearest(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the valid one that looks most like it, else all of them when they are few."""
    choices = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    if close:
        return f"; the nearest is {close[0]!r}"
    return f"; the choices are {', '.join(choices)}" if 0 < len(choices) <= 16 else ""


def _sentence(error: ValidationError, prefix: str, model: type[BaseModel]) -> str:
    """The first fault of a validation as one sentence."""
    # A misspelt key shows as one unknown and one missing key: the unknown one is what the user wrote.
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
        return f"{key} is {given!r}, which is not a choice{nearest(given, choices)}."
    if kind == "value_error":
        message = str(context["error"])
        inner = message.split(": ", 1)
        # Messages of a whole model start with the key they are about.
        if len(inner) == 2 and inner[0] in _KEYS:
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
        return f"{key} is {given!r}, but has to be {allowed}{closest}."
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
        return f"{key} is {given!r}, but has to be {expected}."
    return f"{key} is {given!r}: {fault['msg']}."


_KEYS = frozenset().union(
    *(settings.model_fields for settings in (ModelSettings, BaselineSettings, TrainSettings, TimingSettings, ComparisonSettings)),
)


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


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings with its dotted key: {"train": {"epochs": 3}} gives ("train.epochs", 3)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
