"""params.yaml and claims.yaml as a whole: variants, experiments, claims, and how claims are judged."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from pipeline.measures import MEASURES, TIMING_RULES, Probe
from pipeline.measures.definitions import SIZES
from pipeline.params.architectures import ARCHITECTURES
from pipeline.params.data import DataSettings, ScenesSettings, Settings, shape_context
from pipeline.params.model import ModelSettings, NetworkSettings, settings_class
from pipeline.params.reading import nearest, read, refuse, sentence, shown
from pipeline.params.timing import TimingSettings
from pipeline.params.train import TrainSettings
from pipeline.params.variant import VariantSettings
from pipeline.system.errors import UserError

# What params.yaml may leave out. The classes have no defaults for it, because a record of a training has every option.
DEFAULTS: dict[str, dict[str, Any]] = {
    "train": {
        "seeds": 6, "epochs": 30, "batch_size": 128, "learning_rate": 0.001, "optimizer": "adam", "momentum": 0.0, "weight_decay": 0.0,
        "clip_norm": None, "schedule": "constant", "warmup": 0.0, "train_images": None, "epoch_images": None, "augment": "none",
        "divergence": "stop",
    },
    "base": {
        "architecture": "vit", "patch": 4, "dim": 32, "heads": 4, "blocks": 3, "mlp_dim": 64, "attention": "full", "position": "learned",
        "pool": "cls", "cls_insert": "expand", "cls_init": "normal", "norm": "pre", "norm_eps": 1e-5, "final_norm": True,
        "residual": "input", "score_scale": True, "memory": 0, "activation": "gelu", "embed": "linear", "dropout": 0.0,
        "attention_dropout": 0.0, "mlp_dropout": 0.0,
    },
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_][\w-]{0,99}", re.ASCII)  # files are called so
_MISSING = {"NA", "NULL", "null", "NaN", "nan", "None"}  # to pandas, which reads the tables
_OVERRIDES = TrainSettings.model_fields.keys()
DECISIVE = {"comparisons", "any", "images_shown", "first_seed", "device"}  # of a claim: what its verdict depends on


if TYPE_CHECKING:
    Measure = str
else:
    Measure = Literal[tuple(MEASURES)]
Rule = Literal["equivalent", "less", "more", "at least", "ratio", "exponent"]
Figure = Literal[
    "curves", "position_similarity", "measure", "data_size", "shifts", "sizes", "first_steps", "attention_maps", "arithmetic", "captions",
    "gaze", "budget", "errors",
]  # fmt: skip


class ComparisonSettings(Settings):
    """One measurable part of a claim: `rule` says how `variant` has to compare with `reference` in `measure`.

    Attributes:
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
    bound: Annotated[float, Field(allow_inf_nan=False)] | None = None
    between: Annotated[tuple[float, float], Field(strict=False)] | None = None
    paired: bool = False
    pairs: Annotated[tuple[Annotated[tuple[str, str], Field(strict=False)], ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _possible(self) -> ComparisonSettings:
        measure, timed = MEASURES[self.measure], self.rule in TIMING_RULES
        alone = self.rule == "at least" and measure.series is None
        low, high = self.between or (0.0, 0.0)
        most = 1.0 if measure.of_value == "%" and (alone or not measure.ratio) else math.inf
        least = float(measure.ratio) if self.rule == "equivalent" else 0.0 if measure.ratio or (alone and most == 1) else -most
        at_most = f", and at most {most:g}" if most < math.inf else ""
        refuse(
            ((self.reference is None) != alone, f"reference: {self.rule} {'compares with its bound alone' if alone else 'needs one'}"),
            (self.variant == self.reference, f"reference: {self.reference} cannot be compared with itself"),
            (self.rule != measure.rule and bool(measure.rule or timed), f"rule: {self.rule} does not judge {self.measure}"),
            (alone and measure.per_step, f"rule: {self.rule} does not judge {self.measure}"),
            (self.paired and (alone or timed or measure.share), "paired: it is for two sides of values; set it to false"),
            (timed == (self.between is None), f"between: {self.rule} {'needs its two ends' if timed else 'has a bound instead'}"),
            (timed and not (low < high and (low >= 0 or self.rule != "ratio")), "between: its ends rise, of a ratio from 0 on"),
            (timed and self.bound is not None, f"bound: {self.rule} has two ends instead, between"),
            (self.rule in ("equivalent", "at least") and self.bound is None, f"bound: {self.rule} needs one"),
            (self.bound is not None and not least < self.bound <= most, f"bound: it is above {least:g}{at_most}"),
            (
                self.pairs[-1:] != ((self.variant, self.reference),) * (measure.series is not None),
                "pairs: those of a measure of two curves end with variant and reference; others have none",
            ),
        )
        return self

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that it compares, in order."""
        return tuple(name for pair in self.pairs or ((self.variant, self.reference),) for name in pair if name is not None)


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
        device: on which kind of device its source timed, if it is a claim about time.
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
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def digest(self) -> str:
        """Of what decides its verdict: sides, measures, rules, bounds, length and first seed, but for defaults. None of its words."""
        decisive = self.model_dump(mode="json", include=DECISIVE, exclude_defaults=True)
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


class ExperimentSettings(Settings):
    """A question, and the variants and claims that answer it.

    Attributes:
        measure: the measure of its table and tests, besides accuracy.
        beside: by variant, the one beside which the lead sets it, where that is not the baseline: one that differs from it in less.
        labels: the names of variants on its page, where they differ.
        lead: by variant, what its page says first of it, as the subject of a sentence.
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
    lead: dict[str, str] = Field(default_factory=dict)
    note: str = ""
    figures: Annotated[tuple[Figure, ...], Field(strict=False)] = ("curves", "errors")
    claims: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def label(self, variant: str) -> str:
        """The variant's name on the experiment's page."""
        return self.labels.get(variant, variant)

    def beside_of(self, variant: str) -> str:
        """The variant beside which the lead sets it."""
        return self.beside.get(variant, self.baseline)


Rising = Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(strict=False), AfterValidator(lambda looks: tuple(sorted({*looks})))]


class Params(Settings):
    """The whole of params.yaml and claims.yaml.

    Attributes:
        title: of the study, on its pages and in MLflow; None for the one that this repository began with.
        variants: each variant as written: its difference to `base`, or to the variant named by its `from`.
        images_shown: training images that each side of a comparison has to be shown before a claim is judged.
        looks: numbers of seeds at which claims are judged, rising; empty if claims are judged once, on all seeds.
        ranking: what a part is taken away or exchanged for, and the variants (without, with) whose test errors that compares.
        scenes: the numbers of scenes for captioning, and how they are drawn.
        preview: a sentence on every page that says why this study is not the full one, or None.
        profile: name of the profile that made it; None for the params.yaml at the root.
    """

    data: DataSettings
    train: TrainSettings
    base: ModelSettings
    variants: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    title: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    timing: TimingSettings = TimingSettings()
    images_shown: Annotated[int, Field(ge=1)] = 1
    experiments: dict[str, ExperimentSettings] = Field(default_factory=dict)
    claims: dict[str, ClaimSettings] = Field(default_factory=dict)
    ranking: dict[str, Annotated[tuple[str, str], Field(strict=False)]] = Field(default_factory=dict)
    looks: Rising = ()
    scenes: ScenesSettings = ScenesSettings()
    preview: str | None = None
    profile: str | None = None

    @field_validator("variants", mode="before")
    @classmethod
    def _bare(cls, variants: Any) -> Any:
        """`name:` without a value is the base under another name."""
        return {name: {} if own is None else own for name, own in variants.items()} if isinstance(variants, Mapping) else variants

    def difference(self, variant: str, *below: str) -> dict[str, Any]:
        """All options that a variant changes from the base, including those of the variants that it starts from.

        Args:
            below: the variants that start from it, the nearest first.

        Raises:
            UserError: a name is unknown, or the names form a cycle.
        """
        key = f"variants.{below[0]}.from: there" if below else "There"
        if variant not in list(self.variants):  # a list has no hash
            raise UserError(f"{key} is no variant {shown(variant)}{nearest(variant, self.variants)}.")
        own = dict(self.variants[variant])
        if (parent := own.pop("from", None)) is None:
            return own
        if parent in (variant, *below):
            raise UserError(f"variants.{variant}.from: {parent} starts from it; let one of them start from the base.")
        return self.difference(parent, variant, *below) | own

    def resolve(self, variant: str) -> VariantSettings:
        """The settings of one variant.

        Raises:
            UserError: the name is unknown, or the resulting settings are invalid.
        """
        difference, key = self.difference(variant), f"variants.{variant}"
        architecture = difference.get("architecture", "vit")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise UserError(f"{key}.architecture: there is no {shown(architecture)}{nearest(architecture, ARCHITECTURES)}.")
        model, captions = settings_class(architecture), ARCHITECTURES[architecture].task == "captioning"
        for name in difference.keys() - model.model_fields.keys() - _OVERRIDES:
            options = ["from", *model.model_fields, *sorted(_OVERRIDES)]
            raise UserError(f"{key}.{name}: {architecture} has no such option{nearest(name, options)}.")
        changed = {name: difference.pop(name) for name in [*difference] if name in _OVERRIDES}
        shared = self.base.model_dump() if model is ModelSettings else {} if captions else {"normalize": self.base.normalize}
        try:
            settings = model.model_validate(shared | difference, context=shape_context(self.data))
            train = TrainSettings.model_validate(self.train.model_dump() | changed)
        except ValidationError as error:
            raise UserError(sentence(error, key, model)) from None
        counted = captions or self.data.source.shape is not None
        try:
            available = self.scenes.train if captions else self.data.count("train") - train.validation
        except UserError:
            counted = False
        if not counted:  # the trainer, which has the images, looks again
            available = max(train.train_images or 0, train.batch_size)
        besides = " besides those held out" if train.validation else ""
        for fault, said in (
            (available < 1, f"validation: {train.validation:,} held out are all training images of {self.data.dataset}"),
            ((train.train_images or 0) > available, f"train_images: {self.data.dataset} has {available:,} of them{besides}"),
            (train.validation and captions, f"validation: {architecture} has validation scenes already; set it to 0"),
            (train.self_critical_epochs and not captions, f"self_critical_epochs: {architecture} writes no captions; set it to 0"),
            (train.augments and captions, "augment, crop and flip are for single images; leave them out"),
            (settings.normalize != "none" and captions, "normalize: captioners read pixels in [0, 1]; set it to none"),
        ):
            if fault:
                raise UserError(f"{key}.{said}.")
        data = DataSettings(**self.data.model_dump())  # without the path
        return VariantSettings(data=data, train=train, model=settings, scenes=self.scenes if captions else None)

    def claims_of(self, variant: str) -> tuple[str, ...]:
        """Digests of the claims that compare the variant, each once, in order of the alphabet."""
        return tuple(sorted({one.digest for one in self.claims.values() if any(variant in part.variants for part in one.comparisons)}))

    def timed_otherwise(self) -> list[str]:
        """The timing stage's subjects whose network differs from that of the variant with the same name."""
        shared = [subject for subject in self.timing.subjects if subject in self.variants]
        return [subject for subject in shared if self.timed(subject) != self.resolve(subject).model]

    def timed(self, subject: str) -> NetworkSettings:
        """The settings of a timed network. Raises UserError if they are invalid, or if it cannot be computed as published."""
        variant, key = self.timing.subjects[subject].get("from"), f"timing.subjects.{subject}"
        if variant is not None and variant not in list(self.variants):
            raise UserError(f"{key}.from: there is no variant {shown(variant)}{nearest(variant, self.variants)}.")
        model = self.timing.model(subject, self.base) if variant is None else self.resolve(variant).model
        if isinstance(model, ModelSettings) and (model.attention not in ("full", "sliced") or model.mlp == "none"):
            raise UserError(f"{key}: of transformers only those with full or sliced attention and an MLP are timed; remove it.")
        return model

    def probed(self, probe: Probe) -> tuple[str, ...]:
        """The variants, in order, that the probe applies to and for which an experiment or a claim uses it."""
        figure = {"attention": "attention_maps", "positions": "position_similarity"}.get(probe, probe)
        drawn = (one for one in self.experiments.values() if figure in one.figures or MEASURES[one.measure].probe == probe)
        parts = (part for claim in self.claims.values() for part in claim.comparisons if MEASURES[part.measure].probe == probe)
        named = {variant for one in drawn for variant in one.variants} | {variant for one in parts for variant in one.variants}
        return tuple(variant for variant in self.variants if variant in named and has_probe(self.resolve(variant), probe))


def has_probe(settings: VariantSettings, probe: Probe) -> bool:
    """Whether the probe applies to the network."""
    model = settings.model
    if probe in ("saturation", "recurrence") and settings.train.pretrained:
        return False  # they compare with a start from drawn weights
    if probe == "recurrence":
        return model.architecture in ("rnn", "lstm")
    if probe == "sizes":
        return isinstance(model, ModelSettings) and all(model.serves(size) for size in SIZES)
    if probe == "positions":  # similarities need three patches
        return isinstance(model, ModelSettings) and model.position == "learned" and model.grid > 1
    if probe == "shifts":
        return settings.task == "classification"
    return probe in ("trace", "first_steps") or (isinstance(model, ModelSettings) and model.has_attention_weights)


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, and claims.yaml beside it if there is one; every variant included.

    Raises:
        UserError: one sentence about the first fault, with the path of its key.
    """
    return parse(read_both(Path(path)))


def read_both(path: Path) -> dict[str, Any]:
    """The content of a params.yaml and of the claims.yaml beside it as one mapping, not checked. Raises UserError as `load` does."""
    whole: dict[str, Any] = {}
    for file in (path, *filter(Path.exists, [path.with_name("claims.yaml")])):
        part = read(file) or {}
        if not isinstance(part, dict) or part.keys() & whole.keys():
            fault = f"has {', '.join(part.keys() & whole.keys())} too" if isinstance(part, dict) else "is no mapping of settings"
            raise UserError(f"{file} {fault}: `git checkout {file}` brings back the last commit's.")
        whole |= part
    return whole


def parse(raw: Mapping[str, Any]) -> Params:
    """Checks the settings of a whole study. Raises UserError as `load` does."""
    filled = {name: of | part for name, of in DEFAULTS.items() if isinstance(part := raw.get(name) or {}, dict)}
    try:
        params = Params.model_validate({**raw, **filled}, context=shape_context(raw.get("data")))
    except ValidationError as error:
        raise UserError(sentence(error, "", Params)) from None
    if fault := next(_misnamed(params), None):
        raise UserError(f"{fault}.")
    # Variants that start from no other come first, so that a fault names the variant in which it is written.
    tasks = {name: params.resolve(name).task for name in sorted(params.variants, key=lambda name: "from" in params.variants[name])}
    for name, experiment in params.experiments.items():
        if len({tasks[variant] for variant in experiment.variants}) > 1:
            raise UserError(f"experiments.{name}.variants: captioners and classifiers have no measure in common.")
    timed = [(subject, params.timed(subject)) for subject in params.timing.subjects]
    for name, model in timed[:1]:
        if not isinstance(model, ModelSettings) or params.timing.is_nested(name):
            raise UserError(f"timing.subjects.{name}: the first one is a transformer without loops, over which the page sets the others.")
    return params


def _misnamed(params: Params) -> Iterator[str]:
    """Names that no file can have, and references to what is not there. Claims may speak of variants that are not there."""
    for kind in ("variants", "experiments", "claims"):
        for name in getattr(params, kind):
            if not _NAME.fullmatch(name) or name in _MISSING:
                yield f"{kind}: {shown(name)} is no name: up to 100 letters, digits, '-' and '_', and not what pandas reads as missing"
    wants = params.data.source.shape is None
    if wants == (params.data.path is None) and (wants or params.data.source.torchvision is None):
        yield f"data.path: {params.data.dataset} {'needs one: where it lies' if wants else 'reads no files; leave it out'}"
    for name, own in params.experiments.items():
        inside = [own.baseline, *own.labels, *own.lead, *own.beside, *own.beside.values()]
        for key, wanted, there in (
            (".variants", own.variants, params.variants), (".claims", own.claims, params.claims), ("", inside, own.variants)
        ):  # fmt: skip
            for one in wanted:
                if one not in there:
                    yield f"experiments.{name}{key}: there is no {one!r}{nearest(one, there)}"
                if key and wanted.count(one) > 1:
                    yield f"experiments.{name}{key}: {one!r} is listed more than once"
        if own.measure in MEASURES and MEASURES[own.measure].values is None:
            yield f"experiments.{name}.measure: {own.measure} is no measure of each seed"


def load_variant(path: str | Path) -> VariantSettings:
    """Reads `configs/VARIANT.json`, which the resolve stage writes.

    Raises:
        UserError: the file is missing or damaged; the sentence says how to make it again.
    """
    try:
        return VariantSettings.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no UTF-8, or of another version
        raise UserError(f"{path} cannot be read: run `dvc repro --force resolve` to write it again, or check the name.") from None
