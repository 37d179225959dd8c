"""params.yaml as a whole: variants, experiments, claims, and how claims are judged."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from pipeline.errors import UserError
from pipeline.measures import MEASURES, TIMING_RULES, Probe
from pipeline.measures.definitions import SIZES
from pipeline.params.architectures import ARCHITECTURES
from pipeline.params.data import DataSettings, ScenesSettings, Settings, shape_context
from pipeline.params.faults import nearest, sentence, shown
from pipeline.params.model import AnyModelSettings, BaselineSettings, CaptionerSettings, ModelSettings, NetworkSettings
from pipeline.params.reading import read
from pipeline.params.timing import TimingSettings
from pipeline.params.train import TrainSettings

MAX_NAME = 100  # characters; file names contain it, and they may have at most 255

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_OVERRIDES = TrainSettings.model_fields.keys()
_NETWORK: TypeAdapter[AnyModelSettings] = TypeAdapter(AnyModelSettings)
_SETTINGS: dict[str, type[ModelSettings | CaptionerSettings | BaselineSettings]] = {"vit": ModelSettings, "captioner": CaptionerSettings}


class VariantSettings(Settings):
    """All settings that decide the result of a variant's train stage. Their canonical JSON is the file `configs/VARIANT.json`."""

    data: DataSettings
    train: TrainSettings
    model: AnyModelSettings
    scenes: ScenesSettings | None = None  # None for a classifier

    @field_validator("model", mode="before")
    @classmethod
    def _fits_the_data(cls, model: Any, info: ValidationInfo) -> Any:
        """Gives the network's settings the shape of the data set, which is not part of their JSON."""
        context = shape_context(info.data.get("data"))
        if isinstance(model, NetworkSettings) and context.get("shape", model.shape) != model.shape:
            model = model.model_dump()
        return _NETWORK.validate_python(model, context=context) if isinstance(model, Mapping) else model

    def to_json(self) -> str:
        """Canonical JSON with sorted keys and one trailing newline; equal for equal settings."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=2) + "\n"

    @property
    def task(self) -> str:
        """What the network is trained for: "classification" or "captioning"."""
        return ARCHITECTURES[self.model.architecture].task

    @property
    def stackable(self) -> bool:
        """Whether the seeds on a GPU train together as one stack."""
        has_batch_norm = isinstance(self.model, ModelSettings) and self.model.has_batch_norm
        return ARCHITECTURES[self.model.architecture].stackable and not has_batch_norm

    @property
    def choices(self) -> int:
        """The number of outcomes that a network chooses from: classes, or words of the vocabulary."""
        return self.model.shape.words if self.scenes else self.model.shape.classes

    @property
    def num_steps(self) -> int:
        """Of the whole training."""
        return self.train.epochs * math.ceil(self.epoch_examples / self.train.batch_size)

    @property
    def taught_epochs(self) -> int:
        """The epochs that minimise a cross-entropy: those before any self-critical ones."""
        return self.train.epochs - self.train.self_critical_epochs

    @property
    def images_shown(self) -> int:
        """Training images, or scenes, that a seed is shown in all its epochs, counting repetitions."""
        return self.train.epochs * self.epoch_examples

    @property
    def training_images(self) -> int:
        """Distinct training images, or scenes, that a seed sees."""
        return self.train.train_images or (self.scenes.train if self.scenes else self.data.count("train"))

    @property
    def epoch_examples(self) -> int:
        """Training images, or scenes, that a seed is shown in an epoch."""
        return self.train.epoch_images or (self.scenes.train if self.scenes else self.data.count("train"))

    @property
    def num_tests(self) -> int:
        """Images, or scenes, in the test after an epoch."""
        return self.scenes.validation if self.scenes else self.data.count("test")

    @property
    def config_hash(self) -> str:
        """sha256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def training_hash(self) -> str:
        """sha256 of the settings that decide the training of one seed, which are all but the seeds; 64 hexadecimal digits.

        Options at their frozen value do not count: a new option keeps the hashes of earlier trainings, another default changes them.
        """
        parts = {name: _counted(part) for name in type(self).model_fields if (part := getattr(self, name)) is not None}
        del parts["train"]["seeds"]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def trained_as(self, config: Mapping[str, Any], *, seeds: bool = False) -> bool:
        """Whether recorded settings are these. What they alone have had its frozen value, or else another `training_hash`.

        Args:
            seeds: whether they have to be of the same seeds, too.
        """
        own, found = (dict(flatten(one)) for one in (self.model_dump(mode="json"), _completed(config)))
        return all((name == "train.seeds" and not seeds) or found.get(name) == value for name, value in own.items())


# What an option was when it came, of each that settings files or older records may leave out. It never changes: trainings with this
# value have keys without the option, and any other default gives another key. A new option with a default needs a line here.
FROZEN: dict[type[Settings], dict[str, Any]] = {
    TrainSettings: {"beta2": 0.999, "self_critical_epochs": 0, "self_critical_rate": 2e-4},
    ModelSettings: {"position_std": 1.0, "norm_kind": "layer", "mlp": "full"},
    ScenesSettings: {"train": 30_000, "validation": 2_000, "test": 5_000, "repeat": 0.25},
}
# Options that are gone, with the value at which the code still computes the same: keys still have it, and records with it are read.
REMOVED: dict[type[Settings], dict[str, Any]] = {}


def _counted(settings: Settings) -> dict[str, Any]:
    """The options that count in a training's key."""
    frozen = FROZEN.get(type(settings), {})
    values = REMOVED.get(type(settings), {}) | settings.model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in frozen or value != frozen[name]}


def _completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings with the options that came later, and without those that are gone."""
    completed = dict(config)
    network = _SETTINGS.get(config["model"]["architecture"], BaselineSettings)
    for name, kind in {"train": TrainSettings, "model": network, "scenes": ScenesSettings}.items():
        if (part := config.get(name)) is not None:
            later = {option: value for option, value in FROZEN.get(kind, {}).items() if option in kind.model_fields}
            gone = REMOVED.get(kind, {}).items()
            completed[name] = later | {option: value for option, value in part.items() if (option, value) not in gone}
    return completed


def recorded(config: Mapping[str, Any], where: str) -> VariantSettings:
    """The settings that a training's record has, of whatever age; `where` names the record.

    Raises:
        UserError: the settings of today have no place for them. Training anew without a word would lose what is finished.
    """
    try:
        return VariantSettings.model_validate_json(json.dumps(_completed(config)))
    except ValidationError as error:
        fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        place = [str(part) for part in fault["loc"]]
        key = ".".join(place[:1] + place[-1:])
        has, mend = {
            "extra_forbidden": (f"has {key} = {shown(fault['input'])}, an option that is gone", "REMOVED, with what the code still does"),
            "missing": (f"lacks {key}, an option that is new", "FROZEN, with what trainings did without it"),
        }.get(fault["type"], (f"has a value of {key} that is no choice any more", "its class again"))
        raise UserError(
            f"{where} {has}: name it in {mend} (pipeline/params/study.py), so that its seeds are kept, or train anew with `REPLAY=0`."
        ) from None


if TYPE_CHECKING:
    Measure = str
else:
    Measure = Literal[tuple(MEASURES)]
Rule = Literal["equivalent", "less", "more", "at least", "ratio", "exponent"]
Figure = Literal[
    "curves", "position_similarity", "measure", "data_size", "shifts", "sizes", "first_steps", "attention_maps", "arithmetic", "captions",
    "gaze", "budget"
]  # fmt: skip


class ComparisonSettings(Settings):
    """One measurable part of a claim: `rule` says how `variant` has to compare with `reference` in `measure`.

    Attributes:
        minus: a second pair (variant, reference), whose difference is subtracted from the first pair's.
        bound: the margin, in the measure's own unit (accuracy as a fraction); a factor if the measure's effects are ratios.
        between: the two ends of the claimed interval, for `ratio` and `exponent`.
        paired: whether equal seeds of both sides are pairs, because their trainings share their subset of the images, or what is
            measured depends on the initial weights alone.
        pairs: for a measure of two curves, (variant, reference) at each point, in rising order; the last is `variant` and `reference`.
    """

    rule: Rule
    measure: Measure
    variant: str
    reference: str | None = None
    minus: Annotated[tuple[str, str], Field(strict=False)] | None = None
    bound: Annotated[float, Field(allow_inf_nan=False)] | None = None
    between: Annotated[tuple[float, float], Field(strict=False)] | None = None
    paired: bool = False
    pairs: Annotated[tuple[Annotated[tuple[str, str], Field(strict=False)], ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _possible(self) -> ComparisonSettings:
        measure = MEASURES[self.measure]
        if (self.reference is None) != (self.rule == "at least" and measure.series is None):
            raise ValueError(f"reference: {'at least compares with its bound alone' if self.reference else f'{self.rule} needs one'}")
        if self.variant == self.reference:
            raise ValueError(f"reference: {self.reference} cannot be compared with itself")
        if self.rule in TIMING_RULES:
            if self.bound is not None:
                raise ValueError(f"bound: {self.rule} has none; give the two ends between which it has to lie")
            if self.between is None or not self.between[0] < self.between[1]:
                raise ValueError(f"between: {self.rule} needs two ends in rising order, for example [1.0, .inf]")
            if self.rule == "ratio" and self.between[0] < 0:
                raise ValueError("between: a ratio of times is above 0; begin with 0 or more")
        elif self.between is not None:
            raise ValueError(f"between: {self.rule} has none; give a bound instead")
        if measure.rule is not None and self.rule != measure.rule:
            raise ValueError(f"rule: {self.rule} is not for {self.measure}; use {measure.rule}")
        if self.rule in TIMING_RULES and measure.rule != self.rule:
            judged = " or ".join(name for name, measure in MEASURES.items() if measure.rule == self.rule)
            raise ValueError(f"measure: {self.rule} judges {judged}, not {self.measure}")
        if self.rule in ("equivalent", "at least") and self.bound is None:
            raise ValueError(f"bound: {self.rule} needs one")
        if self.bound is not None and measure.ratio and self.bound <= 0:
            raise ValueError(f"bound: effects on the {self.measure} are ratios, so it has to be above 0")
        if self.rule == "at least" and self.bound is not None and measure.of_value == "%" and not 0 <= self.bound <= 1:
            raise ValueError(f"bound: {self.bound:g} is no share; 99.5 % is 0.995")
        if self.rule == "equivalent" and self.bound is not None and self.bound <= float(measure.ratio):
            raise ValueError(f"bound: equivalent needs one above {int(measure.ratio)}")
        if self.minus is not None and self.rule not in ("equivalent", "less", "more"):
            raise ValueError(f"minus: {self.rule} compares one pair only")
        if self.minus is not None and not self.paired and len(set(self.variants)) < 4:
            raise ValueError("minus: name four different variants, because unpaired ones count as independent")
        if bool(self.pairs) != (measure.series is not None) or (self.pairs and self.pairs[-1] != (self.variant, self.reference)):
            raise ValueError(f"pairs: {'ends with variant and reference' if measure.series else f'{self.measure} has none'}")
        return self

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that it compares, in order."""
        if self.pairs:
            return tuple(name for pair in self.pairs for name in pair)
        return tuple(name for name in (self.variant, self.reference, *(self.minus or ())) if name is not None)


class ClaimSettings(Settings):
    """A claim of a source, and the comparisons that support or contradict it.

    Attributes:
        quote: the source's words, in its language; None if no source says it.
        translation: the same in English; None if that is its language.
        measured: what the comparisons measure, in words.
        margin: the reason for the bounds.
        any: whether the comparisons of one `variant` have to hold; else all of them have to.
        images_shown: training images that each side has to be shown before the claim is judged; None means the study's number.
        first_seed: the first seed that counts; earlier ones had been seen when the claim was made.
        seen: whether trainings (or timings) count that had been seen when the claim, or its measure, was made.
    """

    source: Annotated[str, Field(min_length=1)]
    quote: Annotated[str, Field(min_length=1)] | None = None
    translation: Annotated[str, Field(min_length=1)] | None = None
    sentence: Annotated[str, Field(min_length=1)]
    measured: Annotated[str, Field(min_length=1)]
    margin: Annotated[str, Field(min_length=1)]
    comparisons: Annotated[tuple[ComparisonSettings, ...], Field(min_length=1, strict=False)]
    any: bool = False
    images_shown: Annotated[int, Field(ge=1)] | None = None
    first_seed: Annotated[int, Field(ge=0)] = 0
    seen: bool = False

    @model_validator(mode="after")
    def _translates_a_quote(self) -> ClaimSettings:
        if self.translation is not None and self.quote is None:
            raise ValueError("translation: there is no quote that it translates; give the quote, or remove it")
        return self


class ExperimentSettings(Settings):
    """A question, and the variants and claims that answer it.

    Attributes:
        measure: the measure of its table and tests, besides accuracy.
        beside: by variant, the one beside which the lead sets it, where that is not the baseline: one that differs from it in less.
        labels: the names of variants on its page, where they differ.
        note: what its design cannot show; stands below the lead. Profiles print it too, so it names no number that they change.
    """

    title: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    baseline: str
    variants: Annotated[tuple[str, ...], Field(min_length=2, strict=False)]
    measure: Measure = "accuracy"
    beside: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    note: str = ""
    figures: Annotated[tuple[Figure, ...], Field(strict=False)] = ("curves",)
    claims: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_validator("measure")
    @classmethod
    def _of_each_seed(cls, measure: Measure) -> Measure:
        if MEASURES[measure].values is None:
            raise ValueError(f"is {measure}, which is no measure of each seed and stands in claims only; name another, such as accuracy")
        return measure

    def label(self, variant: str) -> str:
        """The variant's name on the experiment's page."""
        return self.labels.get(variant, variant)

    def beside_of(self, variant: str) -> str:
        """The variant beside which the lead sets it."""
        return self.beside.get(variant, self.baseline)


class Params(Settings):
    """The whole of params.yaml.

    Attributes:
        variants: each variant as written: its difference to `base`, or to the variant named by its `from`.
        images_shown: training images that each side of a comparison has to be shown before a claim is judged.
        looks: numbers of seeds at which claims are judged, rising; empty if claims are judged once, on all seeds.
        scenes: the numbers of scenes for captioning, and how they are drawn.
        preview: a sentence on every page that says why this study is not the full one, or None.
        profile: name of the profile that made it; None for the params.yaml at the root.
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
    scenes: ScenesSettings = ScenesSettings()
    preview: str | None = None
    profile: str | None = None

    @field_validator("looks")
    @classmethod
    def _rising(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if list(looks) != sorted(set(looks)):
            raise ValueError(f"has to be in rising order, each number once, for example {sorted(set(looks))}")
        return looks

    def ancestry(self, variant: str) -> list[str]:
        """The variant, the one that it starts from, and so on up to the one that starts from the base.

        Raises:
            UserError: a name is unknown, or the names form a cycle.
        """
        if variant not in self.variants:
            raise UserError(f"There is no variant {shown(variant)}{nearest(variant, self.variants)}.")
        names = [variant]
        while (parent := self.variants[names[-1]].get("from")) is not None:
            if not isinstance(parent, str) or parent not in self.variants:
                raise UserError(
                    f"variants.{names[-1]}.from is {shown(parent)}, which variants does not have{nearest(parent, self.variants)}."
                )
            if parent in names:
                circle = " from ".join([*names[names.index(parent) :], parent])
                raise UserError(f"variants.{names[-1]}.from makes a circle ({circle}); let one of them start from the base.")
            names.append(parent)
        return names

    def difference(self, variant: str) -> dict[str, Any]:
        """All options that a variant changes from the base, including those of the variants that it starts from.

        Raises:
            UserError: as `ancestry`.
        """
        merged: dict[str, Any] = {}
        for name in reversed(self.ancestry(variant)):
            merged |= self.variants[name]
        merged.pop("from", None)
        return merged

    def resolve(self, variant: str) -> VariantSettings:
        """The settings of one variant.

        Raises:
            UserError: the name is unknown, or the resulting settings are invalid.
        """
        difference = self.difference(variant)
        key = f"variants.{variant}"
        architecture = difference.get("architecture", "vit")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise UserError(f"{key}.architecture is {shown(architecture)}, which is not a choice{nearest(architecture, ARCHITECTURES)}.")
        model = _SETTINGS.get(architecture, BaselineSettings)
        for name in difference:
            if name not in _OVERRIDES and name not in model.model_fields:
                owner = self._owner(variant, name)
                where = f"{key}.{name}" if owner == variant else f"{key}.{name} (from {owner})"
                if name in ModelSettings.model_fields:
                    raise UserError(f"{where} is an option of the vision transformer, which {architecture} does not have; remove it.")
                if any(name in other.model_fields for other in (CaptionerSettings, BaselineSettings)):
                    network = "the vision transformer" if model is ModelSettings else architecture
                    raise UserError(f"{where} is not an option of {network}; remove it, or set architecture.")
                options = ["from", *model.model_fields, *sorted(_OVERRIDES)]
                raise UserError(f"{where} is not an option of a variant{nearest(name, options)}.")
        own = {name: value for name, value in difference.items() if name in model.model_fields}
        own = self.base.model_dump() | own if model is ModelSettings else own
        try:
            settings = model.model_validate(own, context=shape_context(self.data))
            changed = {name: value for name, value in difference.items() if name in _OVERRIDES}
            train = TrainSettings.model_validate(self.train.model_dump() | changed)
        except ValidationError as error:
            raise UserError(sentence(error, key, model)) from None
        captions = ARCHITECTURES[architecture].task == "captioning"
        examples = "scenes" if captions else "images"
        try:
            available = self.scenes.train if captions else self.data.count("train")
        except UserError:  # the trainer, which has the images, looks again
            available = max(train.train_images or 0, train.batch_size)
        if train.train_images is not None and train.train_images > available:
            where = f"variants.{self._owner(variant, 'train_images')}" if "train_images" in difference else "train"
            raise UserError(
                f"{where}.train_images is {train.train_images:,}, but {self.data.dataset} has {available:,} training {examples}; "
                f"the nearest valid value is {available}."
            )
        if train.self_critical_epochs and not captions:
            raise UserError(f"{key}.self_critical_epochs: {architecture} writes no captions; set it to 0.")
        if train.augment != "none" and captions:
            raise UserError(f"{key}.augment: {architecture} describes scenes, and {train.augment} is for single images; set it to none.")
        resolved = VariantSettings(data=self.data, train=train, model=settings, scenes=self.scenes if captions else None)
        last_batch = (train.epoch_images or available) % train.batch_size or train.batch_size
        if last_batch == 1 and isinstance(settings, ModelSettings) and settings.num_tokens == 1 and settings.has_batch_norm:
            raise UserError(
                f"{key}.norm_kind: batch needs two tokens or more, but an epoch's last batch has one image, which is one token; "
                "set norm_kind to layer, or change batch_size or patch."
            )
        return resolved

    def _owner(self, variant: str, option: str) -> str:
        """The variant that sets an option of `variant`: itself, or the nearest one that it starts from."""
        return next(name for name in self.ancestry(variant) if option in self.variants[name])

    def timed_otherwise(self) -> list[str]:
        """The timing stage's subjects whose network differs from that of the variant with the same name."""
        shared = [subject for subject in self.timing.subjects if subject in self.variants]
        return [subject for subject in shared if self.timing.model(subject, self.base) != self.resolve(subject).model]

    def probed(self, probe: Probe) -> tuple[str, ...]:
        """The variants, in order, that the probe applies to and for which an experiment or a claim uses it."""
        figure = {"shifts": "shifts", "sizes": "sizes", "first_steps": "first_steps", "attention": "attention_maps"}.get(probe)
        named: set[str] = set()
        for experiment in self.experiments.values():
            if figure in experiment.figures or MEASURES[experiment.measure].probe == probe:
                named |= {*experiment.variants, experiment.baseline}
        for claim in self.claims.values():
            for comparison in claim.comparisons:
                if MEASURES[comparison.measure].probe == probe:
                    named |= set(comparison.variants)
        return tuple(variant for variant in self.variants if variant in named and _has(self.resolve(variant), probe))


def _has(settings: VariantSettings, probe: Probe) -> bool:
    """Whether the probe applies to the network."""
    model = settings.model
    if probe == "recurrence":
        return model.architecture in ("rnn", "lstm")
    if probe == "sizes":
        return isinstance(model, ModelSettings) and all(model.serves(size) for size in SIZES)
    if probe == "positions":  # similarities need three patches, and the two-dimensional table needs a width divisible by four
        return isinstance(model, ModelSettings) and model.position != "none" and model.grid > 1 and model.dim % 4 == 0
    if probe == "shifts":
        return settings.task == "classification"
    return probe in ("trace", "first_steps") or (isinstance(model, ModelSettings) and model.has_attention_weights)


# What stages name in dvc.yaml, and what has a default for commits that lack it. DVC knows no defaults.
_FOLLOWED = (("", "looks"), ("", "scenes"), ("", "preview"), ("train", "beta2"))


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, every variant included.

    Raises:
        UserError: one sentence about the first fault, with the path of its key.
    """
    raw = read(Path(path))
    params = parse(raw)
    for section, key in _FOLLOWED:
        if key not in (raw[section] if section else raw):
            dotted = f"{section}.{key}" if section else key
            raise UserError(f"{path} lacks {dotted}, which DVC follows: write it, even where its value is empty.")
    return params


def parse(raw: Any) -> Params:
    """Checks the content of params.yaml, a mapping. Raises UserError as `load` does."""
    if not isinstance(raw, Mapping):
        raise UserError("params.yaml has to be a mapping of settings: `git checkout params.yaml` brings back the last commit's.")
    raw = dict(raw)
    variants = raw.get("variants")
    if isinstance(variants, Mapping):
        # `name:` without a value is the base under another name.
        raw["variants"] = {name: {} if change is None else change for name, change in variants.items()}
    try:
        params = Params.model_validate(raw, context=shape_context(raw.get("data")))
    except ValidationError as error:
        raise UserError(sentence(error, "", Params)) from None
    _check_names(params)
    # Variants that others start from come first, so that a fault names the variant in which it is written.
    for variant in sorted(params.variants, key=lambda name: len(params.ancestry(name))):
        params.resolve(variant)
    for name, experiment in params.experiments.items():
        if len({params.resolve(variant).task for variant in experiment.variants}) > 1:
            raise UserError(
                f"experiments.{name}.variants are captioners and classifiers, which have no measure in common; make an experiment of each."
            )
    for subject in params.timing.subjects:
        params.timing.model(subject, params.base)
    for name, claim in params.claims.items():
        for i, part in enumerate(claim.comparisons):
            for variant in part.variants if MEASURES[part.measure].rule == "ratio" else ():
                if variant in params.variants and variant not in params.timing.subjects:
                    raise UserError(
                        f"claims.{name}.comparisons.{i} speaks of the step time of {variant!r}, which is not among timing.subjects"
                        " and so is not timed; add it there."
                    )
    return params


def _check_names(params: Params) -> None:
    if not params.variants:
        raise UserError("variants is empty in params.yaml; name at least one, for example `base: {}`.")
    for kind, names in (("variants", params.variants), ("experiments", params.experiments), ("claims", params.claims)):
        for name in names:
            if len(name) > MAX_NAME:
                raise UserError(
                    f"{kind}.{name[:MAX_NAME]}...: a name may have at most {MAX_NAME} characters, and this one has {len(name)}."
                )
            if not _NAME.fullmatch(name):
                better = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or f"{kind[:-1]}-1"
                rule = "a name may hold letters, digits, '-' and '_' only" if name[:1] != "-" else "a name cannot start with '-'"
                raise UserError(f"{kind}.{name}: {rule}; {better} would do.")
            if name.lower() in ("yes", "no", "on", "off"):
                raise UserError(f"{kind}.{name}: YAML 1.1 reads this word as true or false; {kind[:-1]}-{name} would do.")
            if name in ("NA", "NULL", "null", "NaN", "nan", "None"):
                raise UserError(f"{kind}.{name}: pandas reads this word as a missing value; {kind[:-1]}-{name} would do.")
    lowered: dict[str, str] = {}
    for name in params.variants:
        if name.lower() in lowered:
            raise UserError(
                f"variants.{name} and variants.{lowered[name.lower()]} differ in case only, which some file systems cannot tell apart."
            )
        lowered[name.lower()] = name
    drawn = {f"experiments.{name}.labels.{one}": text for name, own in params.experiments.items() for one, text in own.labels.items()}
    drawn |= {f"timing.subjects.{name}": params.timing.label(name) for name in params.timing.subjects}
    drawn |= {f"claims.{name}.sentence": claim.sentence for name, claim in params.claims.items()}
    for key, text in drawn.items():
        if text.count("$") > 1:
            raise UserError(f"{key}: figures read what stands between two $ as a formula; write the word instead.")
    for name, experiment in params.experiments.items():
        key = f"experiments.{name}"
        for variant in (*experiment.variants, experiment.baseline):
            if variant not in params.variants:
                raise UserError(
                    f"{key} names the variant {shown(variant)}, which variants does not have{nearest(variant, params.variants)}."
                )
        if experiment.baseline not in experiment.variants:
            raise UserError(
                f"{key}.baseline is {shown(experiment.baseline)}, which is not among its variants; add it there or choose one of them."
            )
        for what in ("variants", "figures", "claims"):
            listed = getattr(experiment, what)
            if twice := [entry for entry in listed if listed.count(entry) > 1]:
                raise UserError(f"{key}.{what} names {shown(twice[0])} more than once; list each once.")
        for variant, reference in experiment.beside.items():
            for named in (variant, reference):
                if named not in experiment.variants:
                    raise UserError(
                        f"{key}.beside names {shown(named)}, which is not among its variants{nearest(named, experiment.variants)}."
                    )
            if variant in (reference, experiment.baseline):
                fault = "itself" if variant == reference else "another variant, but it is the baseline"
                raise UserError(f"{key}.beside sets {variant} beside {fault}; remove that line.")
        for variant in experiment.labels:
            if variant not in experiment.variants:
                raise UserError(
                    f"{key}.labels names {shown(variant)}, which is not among its variants{nearest(variant, experiment.variants)}."
                )
        for claim in experiment.claims:
            if claim not in params.claims:
                raise UserError(f"{key}.claims names {shown(claim)}, which claims does not have{nearest(claim, params.claims)}.")


def load_variant(path: str | Path) -> VariantSettings:
    """Reads `configs/VARIANT.json`, which the resolve stage writes.

    Raises:
        UserError: the file is missing or damaged; the sentence says how to make it again.
    """
    path = Path(path)
    try:
        return VariantSettings.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro resolve` first, or check the variant's name against params.yaml.") from None
    except OSError as error:
        raise UserError(f"{shown(str(path))} cannot be read ({error.strerror}): check the variant's name against params.yaml.") from None
    except (ValidationError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged or of another version: run `dvc repro --force resolve` to write it again.") from None


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings with its dotted key: {"train": {"epochs": 3}} gives ("train.epochs", 3)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
