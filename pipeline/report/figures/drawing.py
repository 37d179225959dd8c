"""Figures before they are drawn, and the table of those that an experiment may name in params.yaml."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.params import ExperimentSettings, Figure
from pipeline.report.figures.style import THEMES, Theme
from pipeline.study import Training


@dataclass(frozen=True)
class Drawing:
    """A figure before it is drawn.

    Attributes:
        alt: text for readers who cannot see the figure.
        caption: the text below the figure.
        draw: makes the PNG.
        name: of the files, without ending; of an experiment's figure only the part that distinguishes several of one kind.
    """

    alt: str
    caption: str
    draw: Callable[[Theme], bytes]
    name: str = ""

    def _file(self, folder: str, theme: Theme) -> str:
        return f"{folder}/{self.name}{'-dark' if theme == 'dark' else ''}.png"

    def files(self, folder: str) -> dict[str, bytes]:
        """The pictures for light and dark pages, by their path."""
        return {self._file(folder, theme): self.draw(theme) for theme in THEMES}

    def markdown(self, folder: str) -> str:
        """The picture for light and for dark pages, as GitHub shows it. `folder`: their path from the page."""
        return (
            f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{self._file(folder, "dark")}">\n'
            f'  <img src="{self._file(folder, "light")}" width="830" alt="{html.escape(self.alt)}">\n</picture>'
        )


@dataclass(frozen=True)
class Material:
    """What an experiment's figures are made of.

    Attributes:
        name: the experiment's name.
        runs: its variants that were trained, in its order.
        train_images: size of the whole training set; None where it is not known.
    """

    name: str
    experiment: ExperimentSettings
    runs: Sequence[Training]
    train_images: int | None = None

    def label(self, run: Training) -> str:
        return self.experiment.label(run.variant)

    def is_baseline(self, run: Training) -> bool:
        return run.variant == self.experiment.baseline


def pictures(drawings: Sequence[Drawing], folder: str) -> dict[str, bytes]:
    """The pictures of all drawings for light and dark pages, by their path."""
    return {path: content for drawing in drawings for path, content in drawing.files(folder).items()}


Make = Callable[[Material], list[Drawing]]
REGISTERED: dict[Figure, Make] = {}


def figure(name: Figure) -> Callable[[Make], Make]:
    """Registers the function that makes an experiment's figures of this name; it returns none where there is nothing to draw yet."""

    def register(make: Make) -> Make:
        REGISTERED[name] = make
        return make

    return register


def drawings(kind: Figure, material: Material) -> list[Drawing]:
    """The figures of one kind."""
    if not material.runs:
        return []
    named = [material.name, kind.replace("_", "-")]
    return [replace(made, name="-".join([*named, *filter(None, [made.name])])) for made in REGISTERED[kind](material)]
