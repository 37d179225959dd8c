"""What is timed is what params.yaml says."""

from __future__ import annotations

from pipeline.params import Params
from pipeline.timing.subjects import WAYS, entries


def test_everything_the_claims_speak_of_is_timed(study: Params) -> None:
    listed = entries(study, 16)
    names = [entry.name for entry in listed]
    assert len(set(names)) == len(names)
    compared = {
        subject
        for claim in study.claims.values()
        for part in claim.comparisons
        if part.rule == "ratio"
        for subject in (part.variant, part.reference)
    }
    assert {f"step/published/{subject}" for subject in compared} <= set(names)
    nested = [entry for entry in listed if entry.nested]
    assert [(entry.way, entry.model.cls_insert) for entry in nested] == [("published", "loop")]
    for way in WAYS:
        growth = [entry for entry in listed if (entry.kind, entry.way) == ("growth", way)]
        assert [entry.model.num_tokens for entry in growth] == [4, 16, 49, 196, 784]
        assert {entry.batch for entry in growth} == {16}
    for subject in study.timing.subjects.keys() & study.variants.keys():  # what is timed is what the study trains
        assert {entry.model for entry in listed if entry.subject == subject} == {study.resolve(subject).model}
