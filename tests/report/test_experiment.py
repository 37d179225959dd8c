"""The tables of an experiment where its variants have different seeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.params import ExperimentSettings, Params
from pipeline.report import experiment
from pipeline.study import Training
from pipeline.study.claims import Finding, Judgement, Verdict, Why
from pipeline.study.effects import look_level, share_contrast
from pipeline.study.statistics import Interval

EXPERIMENT = ExperimentSettings(
    title="One", question="Is it?", source="code", baseline="base", variants=("base", "relu", "mean"), measure="first-epoch loss"
)


def result(study: Params, name: str, seeds: tuple[int, ...]) -> Training:
    """A variant of two epochs, each seed with the same luck whatever seeds stand beside it."""
    luck = np.array([np.random.default_rng([seed, len(name)]).normal(0, 0.01, 2) for seed in seeds])
    levels = {"train_loss": 0.3, "test_loss": 0.3, "test_accuracy": 0.9, "gradient_norm": 1, "seconds": 2}
    record = {"config": study.resolve(name).model_dump(mode="json")}
    return Training(name, record, seeds, {curve: level + luck for curve, level in levels.items()}, 10, 10)


@pytest.mark.parametrize("change", [tuple(range(10)), (9, 2, 4, 0, 6, 8, 1), (20, 21, 3, 4, 5, 6, 7, 8)])
def test_differences_are_welchs_over_the_seeds_of_either_side(study: Params, change: tuple[int, ...]) -> None:
    seeds: dict[str, tuple[int, ...]] = {"base": tuple(range(10)), "relu": change, "mean": (40, 41)}
    runs = {name: result(study, name, own) for name, own in seeds.items()}
    rows: dict[str, Any] = {row.variant: row for row in experiment.rows(study, EXPERIMENT, runs)}
    level = look_level(study.looks)
    ours, theirs = runs["relu"].test_accuracy[:, -1], runs["base"].test_accuracy[:, -1]  # two epochs: the last is the last fifth
    row = rows["relu"]
    assert row.accuracy.summary.n == len(change)
    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(level)
    assert (row.accuracy.difference.interval.low, row.accuracy.difference.interval.high) == pytest.approx((low, high))
    logs = stats.ttest_ind(np.log(1 - ours), np.log(1 - theirs), equal_var=False).confidence_interval(level)
    assert (row.error.difference.interval.low, row.error.difference.interval.high) == pytest.approx(tuple(np.exp(logs)))
    assert row.error.difference.mean == pytest.approx(stats.gmean(1 - ours) / stats.gmean(1 - theirs))
    assert rows["mean"].accuracy.difference.interval is not None  # the two sides need no seed in common
    assert rows["base"].accuracy.difference is None


def test_a_training_is_short_for_the_claims_about_it(study: Params) -> None:
    """T12a speaks of 300,000 images; where no claim is about a training, or only one of full length, the study's 1,800,000 count."""

    def trained(name: str, epochs: int) -> Training:
        run = result(study, name, (0, 1))
        run.record["config"]["train"] |= {"epochs": epochs, "epoch_images": None}
        return dataclasses.replace(run, curves={curve: np.tile(values, (1, epochs))[:, :epochs] for curve, values in run.curves.items()})

    deep, other = trained("depth-6", 5), trained("relu", 5)
    assert (deep.images_shown, study.images_shown) == (300_000, 1_800_000)
    assert not experiment.too_short(study, deep)
    assert experiment.too_short(study, trained("depth-6", 4))
    assert experiment.too_short(study, other)
    assert experiment.too_short(study.model_copy(update={"claims": {}}), deep)
    assert not experiment.too_short(study, trained("relu", 30))


def test_differences_of_shares_are_exact(study: Params) -> None:
    """All six of one side and none of the other have no spread, and still an interval."""
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "relu")}
    runs["relu"].curves["train_loss"][:] = 2.31
    chosen = EXPERIMENT.model_copy(update={"measure": "diverged"})
    row = next(row for row in experiment.rows(study, chosen, runs) if row.variant == "relu")
    found = row.measure.difference
    assert found is not None
    assert found.interval == share_contrast([1.0] * 6, [0.0] * 6).interval(look_level(study.looks))


@pytest.mark.usefixtures("drawn_once")
def test_single_tests_far_off_stand_below_the_table_where_no_curves_are_drawn(study: Params) -> None:
    runs = {}
    for name in ("base", "cnn"):
        long = {curve: np.repeat(values, 4, axis=1) for curve, values in result(study, name, (0, 1)).curves.items()}
        runs[name] = dataclasses.replace(result(study, name, (0, 1)), curves=long)

    def page(name: str) -> str:
        return experiment.render(study, name, runs, [], train_images=None, timed=False)[f"experiments/{name}.md"].decode()

    assert "far above" not in page("data-size")
    runs["cnn"].test_accuracy[1, 4] = 0.25
    (line,) = (line for line in page("data-size").splitlines() if "far above" in line)
    assert line.startswith("*Table 1. ")
    assert line.endswith(
        f" Errors of a seed far above those before and after it: {study.experiments['data-size'].label('cnn')}, seed 1, epoch 5: 75.00 %.*"
    )
    assert page("networks").count("far above") == 1  # in the caption of the curves


def test_variants_of_another_size_are_told(study: Params) -> None:
    runs = {name: result(study, name, (0,)) for name in ("base", "relu", "mean")}
    sizes = {"base": (1000, 100), "relu": (1090, 91), "mean": (2050, 100)}
    for name, (parameters, flops) in sizes.items():
        runs[name] = dataclasses.replace(runs[name], parameters=parameters, flops=flops)

    def told() -> str:
        return experiment.budgets(experiment.rows(study, EXPERIMENT, runs))

    labels = {row.variant: row.label for row in experiment.rows(study, EXPERIMENT, runs)}
    assert told() == f"Sizes beside *{labels['base']}*: *{labels['mean']}* has 2.05 times the parameters."
    runs["relu"] = dataclasses.replace(runs["relu"], parameters=2050)
    assert told().endswith(" have 2.05 times the parameters.")
    runs["relu"] = dataclasses.replace(runs["relu"], flops=50)
    assert "has 2.05 times the parameters and 0.500 times the FLOPs" in told()
    longer = result(study, "relu", (0,))
    longer.record["config"]["train"] |= {"epochs": 2 * study.train.epochs}
    runs["relu"] = dataclasses.replace(longer, parameters=1000, flops=50)
    assert "has 0.500 times the FLOPs and 2.00 times the training images shown" in told()
    del runs["base"]
    assert told() == ""


def test_the_headline_names_who_ends_elsewhere(study: Params) -> None:
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "relu", "mean")}
    for name, shift in (("relu", 0.08), ("mean", -0.3)):
        runs[name].curves["test_accuracy"][:] += shift
    table = experiment.rows(study, EXPERIMENT, runs)
    said = experiment.headline(table)
    labels = {row.variant: row.label for row in table}
    end = 100 * runs["base"].test_accuracy[:, -1].mean()
    assert said.startswith(f"*{labels['base']}* reaches {end:.2f} %; *{labels['relu']}* (+")  # a name is never taken for a word
    more, less = (100 * runs[name].test_accuracy[:, -1].mean() - end for name in ("relu", "mean"))
    assert f"(+{more:.2f} points) reaches more; *{labels['mean']}* (\N{MINUS SIGN}{-less:.2f} points) reaches less." in said
    assert experiment.headline(experiment.rows(study, EXPERIMENT, {})) == ""
    alone = experiment.headline(experiment.rows(study, EXPERIMENT, {"base": runs["base"]}))
    assert alone.endswith("nothing else was run yet.")
    lower = ("max", "first", "heads-1", "heads-2")
    many = runs | {name: result(study, name, tuple(range(6))) for name in lower}
    for name in lower:
        many[name].curves["test_accuracy"][:] -= 0.2
    wide = EXPERIMENT.model_copy(update={"variants": tuple(many)})
    assert ", *max* (" in (said := experiment.headline(experiment.rows(study, wide, many)))
    assert " and 2 others reach less" in said
    four = EXPERIMENT.model_copy(update={"variants": tuple(many)[:-1]})
    assert "others" not in experiment.headline(experiment.rows(study, four, many))
    one = {name: result(study, name, (3,)) for name in ("base", "relu")}
    assert experiment.headline(experiment.rows(study, EXPERIMENT, one)).endswith(
        "one seed per variant does not tell whether the others reach another accuracy."
    )
    beside = EXPERIMENT.model_copy(update={"variants": ("base", "mean", "relu", "max"), "beside": {"relu": "mean", "max": "mean"}})
    close = many | {"max": result(study, "max", tuple(range(6)))}
    close["max"].curves["test_accuracy"][:] -= 0.3  # as mean
    said = experiment.headline(experiment.rows(study, beside, close))
    theirs = 100 * close["mean"].test_accuracy[:, -1].mean()
    by = 100 * close["relu"].test_accuracy[:, -1].mean() - theirs
    assert (
        f" points) reaches less. Beside *{labels['mean']}* ({theirs:.2f} %), *{labels['relu']}* (+{by:.2f} points) reaches more; *" in said
    )
    assert said.endswith("* cannot be told from it.")
    del close["mean"]
    assert "Beside" not in experiment.headline(experiment.rows(study, beside, close))
    short = dataclasses.replace(runs["mean"], curves={curve: values[:, :1] for curve, values in runs["mean"].curves.items()})
    short.record["config"]["train"] |= {"epochs": 1}
    said = experiment.headline(experiment.rows(study, EXPERIMENT, runs | {"mean": short}))
    assert said.endswith(f" reaches more; *{labels['mean']}* saw fewer images and cannot be set beside it.")
    near = {"base": runs["base"], "relu": result(study, "relu", (7, 8))}
    assert "cannot be told from it with these seeds" in experiment.headline(experiment.rows(study, EXPERIMENT, near))


def test_the_line_of_the_pages_own_measure_says_who_has_more_of_it(study: Params) -> None:
    def told(measure: str, **means: float) -> str:
        runs = {name: result(study, name, tuple(range(6))) for name in ("base", "relu", "mean")}
        for name, mean in means.items():
            values = mean * (1 + 0.01 * np.arange(6) / 5)
            runs[name] = dataclasses.replace(runs[name], evaluation={"attention_entropy": values})
        settings = EXPERIMENT.model_copy(update={"measure": measure})
        return experiment.measured_line(measure, experiment.rows(study, settings, runs))

    relu, mean = (study.experiments["stability"].label(name) for name in ("relu", "mean"))
    assert told("attention entropy", base=1.0, relu=2.0, mean=0.5) == (
        f"Attention entropy: *base* has 1.005 nats; *{relu}* (+1.005 nats) has more; *{mean}* (\N{MINUS SIGN}0.502 nats) has less."
    )
    assert told("attention entropy", base=1.0, relu=1.0) == (f"Attention entropy: *base* has 1.005 nats; *{relu}* cannot be told from it.")
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "mean", "relu", "wide-1")}
    for name, value in {"base": 1.0, "mean": 2.0, "relu": 3.0, "wide-1": 4.0}.items():
        runs[name] = dataclasses.replace(runs[name], evaluation={"attention_entropy": value * (1 + 0.01 * np.arange(6) / 5)})
    beside = EXPERIMENT.model_copy(update={"variants": tuple(runs), "measure": "attention entropy", "beside": {"relu": "mean"}})
    assert experiment.measured_line("attention entropy", experiment.rows(study, beside, runs)) == (
        f"Attention entropy: *base* has 1.005 nats; *{mean}* (+1.005 nats) has more. "
        f"Beside *{mean}* (2.010 nats), *{relu}* (+1.005 nats) has more."
    )  # wide-1 saw fewer images than the base
    assert told("attention entropy") == told("attention entropy", relu=1.0) == ""  # nothing to compare with
    # A ratio of 1 is no difference; the gradients of all three are of one size.
    assert told("gradient norm") == f"Gradient norm: *base* has 0.999; *{relu}* and *{mean}* cannot be told from it."


def test_variants_of_other_pages_are_named_with_their_options(study: Params) -> None:
    claims = study.claims
    judged = [Judgement(id, claim, "not run", ()) for id, claim in (("K1b", claims["K1b"]), ("T1a", claims["T1a"]), ("L1b", claims["L1b"]))]
    ours = EXPERIMENT.model_copy(update={"variants": ("base", "linear")})
    assert experiment.elsewhere(study, ours, judged) == {
        "linear-low-rate": "learning_rate: 0.001, schedule: linear",
        "sinusoidal": "position: sinusoidal",
    }
    smaller = study.model_copy(update={"variants": {name: study.variants[name] for name in ("base", "linear", "sinusoidal")}})
    assert list(experiment.elsewhere(smaller, ours, judged)) == ["sinusoidal"]  # a profile may have left the other out


def test_claims_are_the_answer_where_the_first_is_not_about_how_a_training_ends(study: Params) -> None:
    def judged(id: str, verdict: Verdict, effect: float | None) -> Judgement:
        ends = None if effect is None else Interval(effect - 0.01, effect + 0.01, 0.98)
        return Judgement(
            id, study.claims[id], verdict, (Finding(study.claims[id].comparisons[0], verdict, Why.INSIDE, effect=effect, interval=ends),)
        )

    label = study.experiments["lengths"].label
    [(verdict, said)] = experiment.answers([judged("T15", "contradicted", 0.16)], [], label)
    sentence = study.claims["T15"].sentence.removesuffix(".")
    assert (
        said.replace("\N{NO-BREAK SPACE}", " ")
        == f"{sentence} ({label('sinusoidal')}, accuracy at another size: 16.00 % [15.00 to 17.00])."
    )
    assert verdict == "Contradicted"
    assert experiment.answers([judged("T15", "not run", None)], [], label) == []
    both = [judged("T15", "contradicted", 0.16), judged("T1a", "not decided", 0.9)]
    assert [verdict for verdict, _ in experiment.answers(both, [], label)] == ["Contradicted", "Not decided"]
    assert experiment.answered_by_claims(both)
    assert not experiment.answered_by_claims(both[::-1])  # the headline tells what T1a judges
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "sinusoidal", "sincos2d")}
    positions = EXPERIMENT.model_copy(update={"variants": tuple(runs)})
    table = experiment.rows(study, positions, runs)
    assert [verdict for verdict, _ in experiment.answers(both[::-1], table, label)] == ["Contradicted"]
    # What sets two variants beside each other that the headline does not, or one of fewer images, it does not tell.
    between = judged("T10", "supported", 1.0)
    assert [verdict for verdict, _ in experiment.answers([both[1], between], table, label)] == ["Supported"]
    runs["sinusoidal"] = result(study, "sinusoidal", tuple(range(6)))
    runs["sinusoidal"].record["config"]["train"] |= {"epochs": 1}
    observed = dataclasses.replace(both[1].findings[0], verdict="short run")
    short = Judgement("T1a", study.claims["T1a"], "short run", (observed,))
    [(verdict, said)] = experiment.answers([short], experiment.rows(study, positions, runs), label)
    assert verdict == "Short run"
    assert "(observed: " in said
