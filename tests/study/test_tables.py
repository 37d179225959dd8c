"""The tables hold a study to the last bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.study import Training, tables
from pipeline.system.files import DamagedError
from pipeline.system.paths import CURVES

NUMBER = st.floats()  # nan and inf are what a loss that was let go may end at
WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), WORD, st.lists(st.integers(), max_size=3)
)
KEY = st.from_regex(r"[a-z]{1,6}", fullmatch=True)


@st.composite
def trainings(draw: st.DrawFn) -> list[Training]:
    found = []
    names = ("shift_1", "ink_correlation")
    for variant in draw(st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,5}", fullmatch=True), min_size=1, max_size=3, unique=True)):
        seeds = tuple(draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=3, unique=True)))
        shape = (len(seeds), draw(st.integers(1, 3)))

        def array(values: st.SearchStrategy[float], shape: tuple[int, ...] = shape) -> np.ndarray:
            size = math.prod(shape)
            return np.array(draw(st.lists(values, min_size=size, max_size=size))).reshape(shape)

        curves = {
            "train_loss": array(NUMBER), "test_loss": array(NUMBER), "test_accuracy": array(st.floats(0, 1)),
            "seconds": array(st.floats(0, 1e6)), "gradient_norm": array(NUMBER),
        }  # fmt: skip
        record = {"variant": variant, "config": {"model": draw(st.dictionaries(KEY, VALUE, min_size=1, max_size=4))}}
        record |= {f"own_{key}": value for key, value in draw(st.dictionaries(KEY, VALUE, max_size=4)).items()}
        columns = draw(st.none() | st.sets(st.sampled_from(names)))
        evaluation = None if columns is None else {name: array(NUMBER, shape[:1]) for name in names if name in columns}
        sizes = draw(st.none() | st.integers(0, 2**40)), draw(st.integers(0, 2**40))
        found.append(Training(variant, record, seeds, curves, *sizes, evaluation))
    return found


@given(written=trainings())
@settings(deadline=None)
def test_what_is_written_is_read_to_the_last_bit(written: list[Training]) -> None:
    texts = tables.render(written)
    found = tables.parse({name: text.encode() for name, text in texts.items()})
    for old, new in zip(written, found, strict=True):
        assert (new.variant, new.seeds, new.parameters, new.flops) == (old.variant, old.seeds, old.parameters, old.flops)
        assert new.record == old.record
        np.testing.assert_equal(dict(new.curves), dict(old.curves))
        np.testing.assert_equal(new.evaluation, old.evaluation)
    assert tables.render(found) == texts


EPOCHS = b"variant,seed,epoch,train_loss,test_loss,test_accuracy,seconds,gradient_norm\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("epochs.csv", None), ("epochs.csv", b"seed\n7\n"),
        ("epochs.csv", EPOCHS + b"base,3,1,1,1,high,1,1\n"),
        ("epochs.csv", EPOCHS + b"base,3,2,1,1,0.9,1,1\n"),
        ("seeds.csv", b"variant,seed,test_accuracy,test_loss\nbase,4,0.75,1\n"),
        ("variants.csv", b"variant,config.model.patch\nother,4\n"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_told(name: str, content: bytes | None) -> None:
    curves = dict.fromkeys(CURVES, np.array([[0.5, 0.75]]))
    base = Training("base", {"variant": "base", "config": {"model": {"patch": 4}}}, (3,), curves, 7, 8, {"shift_1": np.array([0.25])})
    contents = {table: text.encode() for table, text in tables.render([base]).items()}
    contents = {table: text for table, text in (contents | {name: content}).items() if text is not None}
    with pytest.raises(DamagedError):
        tables.parse(contents)
