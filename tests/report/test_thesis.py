"""The page beside the thesis has the claims of the thesis, and no other's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.params import Params
from pipeline.report import pages
from pipeline.report.text import NBSP
from pipeline.study.claims import judge
from tests.made_up import table


def _text(files: dict[str, Any]) -> str:
    return str(files["thesis.md"].decode().replace(NBSP, " "))


def test_the_page_has_every_claim_of_the_thesis_and_the_ratios_that_it_asks_for(study: Params, make_timings: Callable[..., Any]) -> None:
    timings = make_timings(loop=1.3, patch_14=0.2, noise=1e-5)
    another = study.claims["T3"].model_copy(update={"source": "my thesis, 5.1"})
    claims = study.claims | {"M1": another}
    judgements = [judge(id, claim, {}, {"cuda": timings}, images_shown=study.images_shown) for id, claim in claims.items()]
    places = {one.id: f"experiments/x.md#{one.id}" for one in judgements}
    page = _text(pages._thesis(study, {}, judgements, places, timings))
    theirs = [id for id, claim in study.claims.items() if claim.source.removeprefix("this project, of ").startswith("thesis, ")]
    assert {first[1 : first.index("]")] for first in table(page, "| claim |")} == {*theirs}
    assert len(theirs) > 20
    ratios = [line.split(" | ") for line in page.splitlines() if line.startswith(("| cls-loop | first", "| patch-14 | patch-7"))]
    assert [float(cells[2].split(" ")[0]) for cells in ratios] == pytest.approx([1.3, 0.2 / 0.4], rel=0.01)
    assert pages._thesis(study, {}, [one for one in judgements if one.id == "M1"], places, timings) == {}
