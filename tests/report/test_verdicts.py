"""The forest plot of all verdicts: where each effect stands, in which colour, and what lies beyond its edge."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from pipeline.params import ClaimSettings
from pipeline.report.figures import verdicts
from pipeline.report.figures.base import COLOURS, INK, MUTED, png
from pipeline.study.claims import Finding, Judgement, Verdict, Why
from pipeline.study.statistics import Interval

BLUE, ORANGE = COLOURS[:2]


def judgement(id: str, verdict: Verdict, effect: float, low: float, high: float, **comparison: Any) -> Judgement:
    claim = ClaimSettings.model_validate({
        "source": "a test", "sentence": "It is.", "measured": "Accuracy.", "margin": "None.",
        "comparisons": [{"measure": "late test error", "variant": "one", "reference": "other"} | comparison],
    })  # fmt: skip
    return Judgement(
        id,
        claim,
        verdict,
        (Finding(claim.comparisons[0], verdict, Why.INSIDE, effect=effect, interval=Interval(low, high)),),
    )


SIMILAR: dict[str, Any] = {"rule": "equivalent", "bound": 1.25}
LESS: dict[str, Any] = {"rule": "less", "bound": 0.8}
ALL = [
    judgement("A", "supported", 1.0, 0.9, 1.1, **SIMILAR),
    judgement("B", "contradicted", 1.5625, 1.25, 2.0, **LESS),
    judgement("C", "not decided", 1.25, 1.0, 4.0, **SIMILAR),
    judgement("D", "short run", 0.2, 0.1, 0.3, **LESS),
    judgement("E", "not settled", 0.8, 0.7, 0.9, **LESS),
]


def drawn(judgements: list[Judgement], *, sentences: bool = False) -> Figure:
    picture = verdicts.forest(judgements, sentences=sentences)
    assert picture is not None
    return picture.draw()


def of_row(figure: Figure, row: int) -> tuple[list[float], str, dict[str, float]]:
    """Ends of the interval's line, its colour, and the markers by kind with where they stand."""
    lines = [line for line in figure.axes[0].lines if set(line.get_ydata()) == {row} and len(line.get_ydata()) < 3]
    (interval,) = (line for line in lines if len(line.get_xdata()) == 2)
    markers = {str(line.get_marker()): float(line.get_xdata()[0]) for line in lines if len(line.get_xdata()) == 1}
    colours = {to_hex(line.get_color()) for line in lines}
    assert len(colours) == 1
    return [float(x) for x in interval.get_xdata()], colours.pop(), markers


def test_effects_stand_in_margins_in_the_colour_of_their_verdict() -> None:
    figure = drawn(ALL)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"{id}  one / other, test error" for id in "ABCDE"]
    margin = math.log(1.25)
    ends, colour, markers = of_row(figure, 0)
    assert ends == pytest.approx([math.log(0.9) / margin, math.log(1.1) / margin])
    assert colour == to_hex(BLUE)
    assert markers == {"o": pytest.approx(0, abs=1e-9)}
    ends, colour, markers = of_row(figure, 1)
    assert ends == pytest.approx([1, math.log(2) / margin])
    assert colour == to_hex(ORANGE)
    assert markers == {"o": pytest.approx(2)}
    assert of_row(figure, 2)[1] == to_hex(INK)
    assert of_row(figure, 3)[1] == of_row(figure, 4)[1] == to_hex(MUTED)


def test_what_lies_beyond_the_edge_is_an_arrow() -> None:
    figure = drawn(ALL)
    ends, _, markers = of_row(figure, 2)  # to a ratio of 4, which is 6.2 margins
    assert ends == pytest.approx([0, verdicts.REACH])
    assert markers == {"o": pytest.approx(1), ">": verdicts.REACH}
    ends, _, markers = of_row(figure, 3)  # all of it, 5.4 margins and more to the left
    assert ends == [-verdicts.REACH, -verdicts.REACH]
    assert markers == {"<": -verdicts.REACH}


def test_the_region_is_where_the_claim_puts_the_effect() -> None:
    bars = drawn(ALL).axes[0].patches
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]  # type: ignore[attr-defined]
    assert spans == [
        pytest.approx((-1, 1)),
        (-4, pytest.approx(-1)),
        pytest.approx((-1, 1)),
        (-4, pytest.approx(-1)),
        (-4, pytest.approx(-1)),
    ]


def test_a_bound_without_a_margin_stands_at_one() -> None:
    reached = judgement("F", "supported", 0.997, 0.996, 0.998, rule="at least", bound=0.995, measure="late accuracy", reference=None)
    figure = drawn([reached])
    ends, _, markers = of_row(figure, 0)
    assert markers == {"o": pytest.approx(3)}  # the bound lies two half-widths below the effect
    assert ends == pytest.approx([2, 4])
    (bar,) = figure.axes[0].patches
    assert bar.get_x() == pytest.approx(1)  # type: ignore[attr-defined]


def test_at_least_a_difference_has_that_as_its_margin() -> None:
    """Two points less, where one point more is claimed, stand at -2, and an interval without 0 does not cross it."""
    less = judgement("G", "contradicted", -0.02, -0.03, -0.01, rule="at least", bound=0.01, measure="own-image deletion", reference=None)
    ends, _, markers = of_row(drawn([less]), 0)
    assert ends == pytest.approx([-3, -1])
    assert markers == {"o": pytest.approx(-2)}


def test_claims_without_an_effect_have_no_line() -> None:
    claim = ALL[0].claim
    nothing = Judgement("G", claim, "not run", (Finding(claim.comparisons[0], "not run", Why.NO_RESULTS),))
    assert verdicts.forest([nothing]) is None
    assert len(drawn([nothing, ALL[0]]).axes[0].get_yticks()) == 1


def test_a_long_label_loses_its_reference_and_no_part_of_a_word() -> None:
    long = "a-name-of-a-variant-that-fills-half-of-a-label"
    shown = [
        judgement("H", "supported", 1.0, 0.9, 1.1, **SIMILAR, variant="depth-12-post-norm", reference="depth-12-post-norm-low-rate"),
        judgement("I", "supported", 1.0, 0.9, 1.1, **SIMILAR, variant=long, reference=f"{long}-2"),
    ]
    assert [label.get_text() for label in drawn(shown).axes[0].get_yticklabels()] == [
        "H  depth-12-post-norm / depth-12-post-norm-low-rate, test error",
        f"I  {long} / \N{HORIZONTAL ELLIPSIS}, test error",
    ]


def test_a_page_holds_sixty_claims() -> None:
    drawing = verdicts.forest(12 * ALL)
    assert drawing is not None
    width, height = Image.open(io.BytesIO(png(drawing.draw))).size
    assert height * 830 / width <= 1500  # pixels of a page that shows it 830 wide


def test_a_row_may_have_the_claims_own_words() -> None:
    one = judgement("T7", "supported", 1.0, 0.9, 1.1, **SIMILAR)
    words = "Of a sentence that is longer than a row is wide, each line ends with a whole word."
    many = Judgement("T8", one.claim.model_copy(update={"sentence": 3 * words}), one.verdict, one.findings)
    figure = drawn([one, many], sentences=True)
    short, long = (label.get_text() for label in figure.axes[0].get_yticklabels())
    assert short == "T7  It is"
    assert len(long.splitlines()) == verdicts._SENTENCE_LINES
    assert long.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert set(long.replace(" \N{HORIZONTAL ELLIPSIS}", "").split()) <= {"T8", *(3 * words).split()}
