"""The page beside the thesis: its sentences follow from verdicts, accuracies and timings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline import params
from pipeline.report import pages, thesis
from pipeline.report.text import NBSP
from pipeline.study.claims import Finding, Judgement, Why, judge


def page(study: params.Params, timings: Any, runs: dict[str, Any] | None = None) -> str:
    judgements = {
        id: judge(id, claim, {}, timings, images_shown=study.images_shown, looks=study.looks) for id, claim in study.claims.items()
    }
    places = pages._places(study, judgements, timed=timings is not None)
    files = thesis.render(study, runs or {}, list(judgements.values()), places, timings)
    assert set(files) <= {"thesis.md", "figures/thesis.png", "figures/thesis-dark.png"}
    return files["thesis.md"].decode().replace(NBSP, " ")


def question(said: str, asked: str) -> str:
    (line,) = (line for line in said.splitlines() if line.startswith(f"**{asked}"))
    return line


def ratio(answer: str) -> float:
    """The first ratio of an answer."""
    found = re.search(r" takes ([0-9.]+) \[", answer)
    assert found, answer
    return float(found[1])


def test_open_questions_are_answered_by_the_timings(study: params.Params, make_timings: Callable[..., Any]) -> None:
    said = page(study, make_timings(loop=1.3, patch_14=0.2))
    token, patch = question(said, "Why is an epoch shorter"), question(said, "Why is an epoch with patches of 14")
    assert "**The guess is right.** With the token added image by image, as published, a step takes 1." in token
    assert ratio(token) == pytest.approx(1.3, rel=0.02)
    assert "so what costs is how the token is added, not the token" in token
    assert "**It is the fastest here.** The step of a network with patches of 14 pixels takes 0." in patch
    assert ratio(patch) == pytest.approx(0.2 / 0.4, rel=0.02)

    dear = make_timings(loop=1.3)
    for name in dear.rounds[0]:  # a token that costs something however it is added
        if name in ("step/published/base", "step/published/cls-loop"):
            for seconds in dear.rounds:
                seconds[name] *= 1.1
    token = question(page(study, dear), "Why is an epoch shorter")
    assert "**The guess is right for the larger part.**" in token
    assert token.count("so the way in which the token is added is the larger part of what it costs.") == 1

    said = page(study, make_timings(loop=1.0, patch_14=10.0, noise=0.03))
    token, patch = question(said, "Why is an epoch shorter"), question(said, "Why is an epoch with patches of 14")
    assert "**The guess is not decided.**" in token
    assert "which may be nothing" in token
    assert "**It is the slowest here, too.**" in patch


def test_timings_that_judge_no_claim_answer_no_question(study: params.Params, make_timings: Callable[..., Any]) -> None:
    assert "The two questions" not in page(study, make_timings(rounds=0, disturbed=6))
    changed = replace(make_timings(), changed=frozenset({"step/published/patch-7"}))
    assert "The two questions" not in page(study, changed)
    assert "The two questions" in page(study, replace(changed, changed=frozenset({"step/published/reference"})))


def test_each_claim_of_the_thesis_stands_once(study: params.Params, make_timings: Callable[..., Any]) -> None:
    said = page(study, make_timings())
    own = [id for id, claim in study.claims.items() if "thesis, " in claim.source]
    sentences, tables = said[: said.index("\n## 4.1")], said[said.index("\n## 4.1") :]
    assert all(tables.count(f"[{id}](") == 1 for id in own)
    assert all(sentences.count(f"[{id}](") <= 1 for id in own)
    assert "[K1" not in said
    assert sentences.count("**does not hold on this machine**") == tables.count("**contradicted**")  # only timings
    assert sentences.index("### Not reproduced on this machine") < sentences.index("### To keep")
    assert "### To correct" not in sentences  # only timings contradict, and they are of another machine than the thesis's


def test_claims_are_counted_by_what_became_of_them() -> None:
    def judged(*verdicts: str) -> Any:
        trained, timed = (SimpleNamespace(comparisons=[SimpleNamespace(rule=rule)]) for rule in ("less", "ratio"))
        return [SimpleNamespace(verdict=v.removeprefix("timed "), claim=timed if "timed" in v else trained) for v in verdicts]

    assert thesis._tally(judged("supported")) == "1 holds"
    every = judged("supported", "contradicted", "contradicted", "not decided", "short run", "not settled", "not run")
    assert thesis._tally(every) == "1 holds, 2 do not hold, 3 stay open and 1 was not run"
    every += judged("timed supported", "timed supported", "timed contradicted", "timed not decided", "timed not run")
    said = "1 holds, 2 hold on this machine, 2 do not hold, 1 does not hold on this machine, 4 stay open and 2 were not run"
    assert thesis._tally(every) == said


@pytest.mark.parametrize(
    ("verdicts", "title", "became"),
    [
        (("supported", "supported"), "To keep", ["holds", "holds"]),
        (("contradicted", "supported"), "To qualify", ["does not hold", "holds"]),
        (("supported", "not settled"), "To qualify", ["holds", "stays open"]),
        (("contradicted", "not decided"), "To correct", ["does not hold", "stays open"]),
        (("not run", "contradicted"), "To correct", ["was not run", "does not hold"]),
        (("not decided", "not run"), "To leave open", ["stays open", "was not run"]),
        (("not settled", "not run"), None, []),
    ],
)
def test_a_sentence_stands_where_its_claims_put_it(study: params.Params, verdicts: Any, title: str | None, became: list[str]) -> None:
    def judged(id: str, verdict: Any) -> Judgement:
        claim = study.claims[id].model_copy(update={"seen": id == "T14b"})
        comparison = claim.comparisons[0]
        effect, needed = None if verdict == "not run" else 0.5, 9 if verdict == "not decided" else None
        finding = Finding(comparison, verdict, Why.ACROSS, effect=effect, needed=needed)
        return Judgement(id, claim, verdict, (finding,))

    claims = [judged(id, verdict) for id, verdict in zip(("T14a", "T14b"), verdicts, strict=True)]
    said = thesis.render(study, {}, claims, {"T14a": "a.md", "T14b": "b.md"}, None)["thesis.md"].decode()
    said = said[: said.index("\n## 5")]
    assert re.findall("^### (To [a-z ]+):", said, re.MULTILINE) == ([title] if title else [])
    lines = re.findall(r"^  - \[(T14.)\]\(.\.md\) \*\*(.+?)\*\*: (.*)$", said, re.MULTILINE)
    assert [(id, words) for id, words, _ in lines] == list(zip(("T14a", "T14b"), became, strict=False))
    for (_, words, rest), verdict in zip(lines, verdicts, strict=False):
        assert ("Effect" in rest) == (words != "was not run")
        assert ("; about 9 seeds may decide it" in rest) == (verdict == "not decided")
    assert [id for id, _, rest in lines if " count that had been seen when the claim or its measure was made." in rest] == [
        id for id, _, rest in lines if id == "T14b" and "Effect" in rest
    ]


def test_a_claim_of_another_network_says_so_below_its_sentence(study: params.Params) -> None:
    one = study.claims["T2c"]
    claims = [Judgement("T2c", one, "supported", (Finding(one.comparisons[0], "supported", Why.INSIDE, effect=0.5),))]
    said = thesis.render(study, {}, claims, {"T2c": "a.md"}, None)["thesis.md"].decode()
    assert "*(thesis, 4.2, with the start of Dosovitskiy et al.: another network than the thesis's)* Effect: " in said


@pytest.mark.parametrize(("accuracies", "agrees"), [([0.97, 0.975, 0.98], True), ([0.97, 0.9701, 0.9702], False)])
def test_the_authors_accuracy_beside_single_trainings(study: params.Params, accuracies: list[float], agrees: bool) -> None:
    run = SimpleNamespace(test_accuracy=np.array(accuracies)[:, None])
    said = page(study, None, {"base": run, "first": run})
    word = "one" if agrees else "none"
    assert f"**Its accuracy is {word} that a single training here may reach.** The author reports 97.7 % for the configuration" in said
    assert f"3 seeds of it end at {100 * np.mean(accuracies):.2f} % [" in said
    assert said.count("\n| base | 3 | ") == 3  # with positions, class token and patches
    assert said.count("\n| first | 3 | ") == 1
    assert "sinusoidal |" not in said


def test_one_seed_has_no_interval(study: params.Params) -> None:
    said = page(study, None, {"base": SimpleNamespace(test_accuracy=np.array([[0.5, 0.97]]))})
    assert "one seed of it ends at 97.00 % after 2 epochs" in said
    assert "| base | 1 | 97.00 | - |" in said


def test_a_study_without_the_thesis_says_so(study: params.Params) -> None:
    other = study.model_copy(update={"claims": {id: claim for id, claim in study.claims.items() if "thesis" not in claim.source}})
    assert "No claim of this study is from the thesis." in page(other, None)
