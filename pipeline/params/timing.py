"""The settings of the timing stage."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from pipeline.params.data import Settings, Shape
from pipeline.params.model import ModelSettings
from pipeline.params.reading import refuse, sentence
from pipeline.system.errors import UserError


class TimingSettings(Settings):
    """What the timing stage times, and for how long.

    Attributes:
        seconds: limit for all rounds together.
        tokens: numbers of patches in a square grid.
        subjects: where there are none, nothing is timed. Else networks whose training step is timed, each as its difference to `base`,
            or with `from` that of a variant. Each is timed as published and on the fast path. One with `loops: nested` is timed only in
            the reference's way: patches cut one by one, attention image by image, and a softmax before the loss. Of one that writes
            captions the time of writing is taken, by the number of words.
        labels: the names of subjects on the page, where they differ.
    """

    rounds: Annotated[int, Field(ge=1, le=1000)] = 12
    steps: Annotated[int, Field(ge=1, le=10_000)] = 20
    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600
    tokens: Annotated[tuple[int, ...], Field(min_length=2, strict=False)] = (4, 16)
    subjects: dict[str, dict[str, Any]] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)

    @field_validator("tokens")
    @classmethod
    def _grids(cls, tokens: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        size = (info.context or {}).get("shape", Shape()).size
        possible = [n**2 for n in range(1, size + 1) if size % n == 0]
        refuse((not {*tokens} <= {*possible}, f"square patches cut an image into {', '.join(map(str, possible))} tokens"))
        return tuple(sorted(tokens))

    @model_validator(mode="after")
    def _possible(self) -> TimingSettings:
        wrong = [name for name, of in self.subjects.items() if "/" in name or of.get("loops", "nested") != "nested" or {"from"} < of.keys()]
        refuse((wrong, f"subjects: {', '.join(wrong)}: a name holds no '/', loops, if given, are nested, and from stands alone"))
        return self

    def label(self, subject: str) -> str:
        """The subject's name on the timing page."""
        return self.labels.get(subject, subject)

    def is_nested(self, subject: str) -> bool:
        """Whether the subject is computed in the reference's way, in nested loops."""
        return "loops" in self.subjects[subject]

    def model(self, subject: str, base: ModelSettings) -> ModelSettings:
        """The settings of the subject's network, one that is no variant's. Raises UserError if they are invalid."""
        difference = {name: value for name, value in self.subjects[subject].items() if name != "loops"}
        try:
            return base.changed({"normalize": "none"} | difference)  # as published
        except ValidationError as error:
            raise UserError(sentence(error, f"timing.subjects.{subject}", ModelSettings)) from None
