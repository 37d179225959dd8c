"""params.yaml and claims.yaml: what a variant is, what a change reaches, and that what cannot be is refused by its key."""

import copy
import difflib
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas._libs.parsers import STR_NA_VALUES

from pipeline import params
from pipeline.commands.profiles import write_settings
from pipeline.data.datasets import load
from pipeline.measures import PROBES, TIMING_RULES
from pipeline.params import data
from pipeline.system.errors import UserError
from tests.helpers import STUDY


def put(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a place such as "claims/W1/comparisons/0/rule"."""
    changed = copy.deepcopy(raw)
    *parents, last = path.split("/")
    inner: Any = changed
    for parent in parents:
        inner = inner[int(parent) if isinstance(inner, list) else parent]
    inner[last] = value
    return changed


def refusal(raw: Any) -> str:
    with pytest.raises(UserError) as caught:
        params.parse(raw)
    assert len(str(caught.value)) < 500
    return str(caught.value)


class TestTheStudy:
    """The repository's own."""

    def test_all_of_it_is_in_use(self, study: params.Params) -> None:
        assert study.preview is None
        # A claim belongs to an experiment, unless the timing page judges it.
        told = {claim for one in study.experiments.values() for claim in one.claims}
        timed = {name for name, claim in study.claims.items() if all(part.rule in TIMING_RULES for part in claim.comparisons)}
        assert told | timed == set(study.claims)

    def test_it_is_the_published_configuration(self, study: params.Params) -> None:
        train, base = study.train, study.base
        assert (train.epochs, train.batch_size, train.learning_rate, train.seeds) == (30, 128, 0.005, tuple(range(6)))
        assert (base.patch, base.dim, base.heads, base.blocks, base.mlp_dim, base.num_tokens) == (4, 32, 8, 3, 32, 50)
        assert study.images_shown == 30 * 60_000  # thesis, 4.1.1

    def test_every_training_is_as_long_as_its_claims_speak_of(self, study: params.Params) -> None:
        for name, claim in study.claims.items():
            trained = [part for part in claim.comparisons if part.rule not in TIMING_RULES]
            for variant in {name for part in trained for name in part.variants} & study.variants.keys():
                assert study.resolve(variant).images_shown >= (claim.images_shown or study.images_shown), name

    def test_dvc_changes_the_lines_that_it_is_asked_to_change(self, tmp_path: Path) -> None:
        """`dvc exp run -S` writes the file anew; it has the form that DVC's writer leaves."""
        from dvc.utils.serialize import modify_yaml

        path = Path(shutil.copy(STUDY / "params.yaml", tmp_path))
        before = path.read_text(encoding="utf-8").splitlines()
        with modify_yaml(path) as values:
            values["train"]["epochs"] = 2
        after = path.read_text(encoding="utf-8").splitlines()
        changed = [line[:13] for line in difflib.unified_diff(before, after, n=0) if line[:3] not in ("---", "+++") and line[0] in "+-"]
        assert changed == ["-  epochs: 30", "+  epochs: 2 "]


class TestVariants:
    def test_a_variant_is_the_base_and_its_difference(self, own: dict[str, Any]) -> None:
        study = params.parse(own)
        first = study.resolve("first").model
        assert first.model_dump() == study.base.model_dump() | {"pool": "first", "cls_insert": "none"}
        assert isinstance(first, params.ModelSettings)
        assert first.num_tokens == 4
        wide = study.resolve("wide").train
        assert wide.model_dump() == study.train.model_dump() | {"seeds": (0, 1, 2, 3)}

    def test_or_that_of_the_one_that_it_names(self, own: dict[str, Any]) -> None:
        study = params.parse(put(own, "variants/more", {"from": "deep", "seeds": 3, "mlp_dim": 24}))
        assert params.parse(put(own, "variants/again", None)).resolve("again").model == study.base
        assert study.difference("more") == {"mlp_dim": 24, "seeds": 3, "blocks": 2}
        assert study.resolve("deep").train.seeds == (0, 1, 2, 3)

    def test_another_network_takes_nothing_of_the_transformer(self, own: dict[str, Any]) -> None:
        study = params.parse(own)
        assert study.resolve("cnn-100").model == params.BaselineSettings(architecture="cnn", widths=(2, 3))
        captioner = study.resolve("caption-m2").model
        assert captioner.model_dump() == own["variants"]["caption"] | {"memory": 2, "meshed": True, "normalize": "none"}
        assert [study.resolve(name).stackable for name in ("base", "cnn", "caption")] == [True, False, False]
        assert [study.resolve(name).task for name in ("base", "caption")] == ["classification", "captioning"]

    def test_images_are_counted_in_the_arrays(self, own: dict[str, Any], arrays: Path, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(data, "COUNTED", data.COUNTED[:2])  # those of the folder alone: a study of the digits has them, too
        (tmp_path / "data").mkdir()
        settings = params.parse(own).resolve("base").model_copy(update={"data": params.DataSettings(dataset="digits")})
        with pytest.raises(UserError, match="dvc repro prepare"):
            _ = settings.images_shown
        (tmp_path / "data" / "arrays").symlink_to(arrays)
        loaded = load(arrays)
        assert (settings.training_images, settings.num_tests) == (len(loaded.train_labels), len(loaded.test_labels))
        assert settings.images_shown == 2 * len(loaded.train_labels)
        repeated = settings.model_copy(update={"train": settings.train.model_copy(update={"train_images": 9, "epoch_images": 50})})
        assert (repeated.training_images, repeated.images_shown, repeated.num_steps) == (9, 100, 2)
        held_out = settings.model_copy(update={"train": settings.train.model_copy(update={"validation": 37})})
        assert held_out.training_images == len(loaded.train_labels) - 37 == held_out.epoch_examples

    def test_settings_outlive_their_file(self, tmp_path: Path, own: dict[str, Any]) -> None:
        study, hashes = params.parse(own), set()
        for variant in study.variants:
            path = tmp_path / f"{variant}.json"
            path.write_text(study.resolve(variant).to_json())
            assert params.load_variant(path) == study.resolve(variant)
            assert params.load_variant(path).config_hash == hashlib.sha256(path.read_bytes()).hexdigest()
            hashes.add(study.resolve(variant).config_hash)
        assert len(hashes) == len(study.variants)
        for content in (b"{}", b"\xff", None):
            path.write_bytes(content) if content else path.unlink()
            with pytest.raises(UserError, match="`dvc repro --force resolve`"):
                params.load_variant(path)


@pytest.mark.parametrize(
    ("path", "value", "reached"),
    [
        ("base/activation", "relu", {"base", "first", "fixed", "wide", "deep"}),
        ("train/learning_rate", 0.004, {"base", "first", "fixed", "wide", "deep", "cnn", "cnn-100", "caption", "caption-m2"}),
        ("train/seeds", [0, 1, 2], {"base", "first", "fixed", "cnn", "cnn-100", "caption", "caption-m2"}),
        ("scenes/train", 200, {"caption", "caption-m2"}),
        ("claims/W1/comparisons/0/bound", 0.9, set()),
        ("preview", "A part.", set()),
    ],
)
def test_a_change_reaches_the_variants_that_it_decides(own: dict[str, Any], path: str, value: Any, reached: set[str]) -> None:
    before, after = params.parse(own), params.parse(put(own, path, value))
    assert {name for name in own["variants"] if before.resolve(name).config_hash != after.resolve(name).config_hash} == reached


def test_probed_is_what_a_figure_or_claim_asks_about_and_what_has_it(own: dict[str, Any]) -> None:
    def probed(**experiment: Any) -> dict[str, list[str]]:
        changed = own | {"claims": {}, "experiments": {"networks": own["experiments"]["networks"] | {"figures": []} | experiment}}
        study = params.parse(changed)
        return {probe: list(study.probed(probe)) for probe in PROBES if study.probed(probe)}

    everything = own["experiments"]["networks"]["variants"]
    assert probed() == {}
    assert probed(figures=["shifts"]) == {"shifts": everything}
    assert probed(figures=["attention_maps"]) == {"attention": ["base", "first", "fixed"]}  # only transformers have them
    assert probed(figures=["position_similarity"]) == {"positions": ["base", "first"]}  # a fixed table is known
    assert probed(measure="learned similarity to the 1-D table") == {"positions": ["base", "first"]}
    own["variants"]["first"]["pretrained"] = "base-01234567"  # whose start is not what the probe compares with
    assert probed(measure="saturated attention") == {"saturation": ["base", "fixed"]}
    assert probed(measure="unstable") == {"trace": everything}
    shifted = {"rule": "less", "measure": "accuracy lost to shifts", "variant": "gone", "reference": "wide"}
    claims = {"W1": own["claims"]["W1"] | {"comparisons": [shifted, shifted | {"variant": "cnn", "reference": "caption"}]}}
    assert params.parse(own | {"experiments": {}, "claims": claims}).probed("shifts") == ("wide", "cnn")  # a captioner has none


# The place of a fault, the value there, and the key that the sentence begins with.
FAULTS: list[tuple[str, Any, str]] = [
    ("trian", {}, "trian: there is no such key; the nearest is 'train'."),
    ("variants/x", {"epoch": 3}, "variants.x.epoch: vit has no such option; the nearest is 'epochs'."),
    ("variants/x", {"architecture": "lstn"}, "variants.x.architecture: there is no 'lstn'; the nearest is 'lstm'."),
    ("variants/x", {"architecture": "cnn", "widths": [12]}, "variants.x.widths: "),
    ("variants/x", {"from": "wid"}, "variants.x.from: there is no variant 'wid'; the nearest is 'wide'."),
    ("variants/wide", {"from": "deep"}, "variants.deep.from"),
    ("variants/wide", {"epochs": 0}, "variants.wide.epochs"),  # not those that start from it
    ("variants/x", {"heads": 3}, "variants.x.heads: "),
    ("variants/x", {"attention": "uniform", "memory": 4}, "variants.x.memory: "),
    ("variants/x", {"from": "caption", "augment": "affine"}, "variants.x.augment"),
    ("variants/x", {"train_images": 60_001}, "variants.x.train_images: mnist has 60,000 of them."),
    ("variants/" + 300 * "a", {}, "variants: 'aaa"),
    ("variants", {}, "variants"),
    ("base/dim", True, "base.dim"),
    ("train/learning_rate", "1e-3", "train.learning_rate: '1e-3' is text to YAML"),
    ("data", {"dataset": "npz", "path": "x.npz", "channels": 1, "classes": 3}, "data.size: npz needs it"),
    ("data", {"dataset": "npz", "size": 28, "channels": 1, "classes": 3}, "data.path: npz needs one"),
    ("data/classes", 11, "data.classes: mnist has its own"),
    ("train/seeds", [1, 2, 1], "train.seeds: one is listed"),
    ("train/epoch_images", 10**400, "train.epoch_images"),
    ("looks", [1, 6], "looks.0"),
    ("experiments/width/measure", "test eror", "experiments.width.measure: there is no 'test eror'; the nearest is 'late test error'."),
    ("experiments/width/variants", ["base", "wid"], "experiments.width.variants: there is no 'wid'; the nearest is 'wide'."),
    ("experiments/width/variants", ["base", "wide", "deep", "caption"], "experiments.width.variants: captioners"),
    ("experiments/width/variants", ["base", "wide", "base"], "experiments.width.variants: 'base' is listed more than once."),
    ("variants", {"base": {}, True: {}}, "variants: the name True is no text to YAML; put it in quotes."),
    ("experiments/width/claims", ["W2"], "experiments.width.claims: there is no 'W2'"),
    ("timing/tokens", [4, 50], "timing.tokens: square patches cut an image into 1, 4, 16, 49, 196, 784 tokens"),
    ("timing/subjects/new", {"pach": 7}, "timing.subjects.new.pach"),
    ("timing/subjects/new", {"from": "cn"}, "timing.subjects.new.from: there is no variant 'cn'; the nearest is 'cnn'"),
    ("timing/subjects/new", {"from": ["cnn"]}, "timing.subjects.new.from: there is no variant ['cnn']"),
    ("timing/subjects/new", {"from": "cnn", "dim": 8}, "timing.subjects: new: "),
    ("timing/subjects/new", {"mlp": "none"}, "timing.subjects.new: of transformers only those"),
    ("timing/subjects", {"cnn": {"from": "cnn"}}, "timing.subjects.cnn: the first one is a transformer"),
    ("timing/subjects", {"loop": {"loops": "nested"}}, "timing.subjects.loop: the first one is a transformer"),
    ("variants/new", {"from": ["cnn"]}, "variants.new.from: there is no variant ['cnn']"),
    ("experiments/width/measure", "step time", "experiments.width.measure: step time is no measure of each seed"),
    ("train/validation", 60_000, "variants.base.validation: 60,000 held out are all training images of mnist"),
]
PAIR = {"rule": "less", "measure": "accuracy", "variant": "first", "reference": "base"}
WRONG_COMPARISONS = [
    ("bond", {"bond": 0.1}),
    ("bound", {"rule": "equivalent"}),
    ("reference", {"reference": None}),
    ("pairs", {"rule": "at least", "measure": "data for equal accuracy", "bound": 1.25}),
    ("rule", {"rule": "ratio", "between": [1.0, 2.0]}),
    ("rule", {"rule": "at least", "measure": "time to an accuracy", "reference": None, "bound": 0.5}),
    ("bound", {"bound": 5.0}),  # points, where a fraction is meant
    ("bound", {"bound": -5.0}),
    ("paired", {"measure": "diverged", "paired": True}),  # shares have exact intervals
]
FAULTS += [("claims/W1/comparisons", [PAIR | change], f"claims.W1.comparisons.0.{key}") for key, change in WRONG_COMPARISONS]


@pytest.mark.parametrize(("path", "value", "start"), FAULTS)
def test_a_fault_is_named_by_its_key(own: dict[str, Any], path: str, value: Any, start: str) -> None:
    assert refusal(put(own, path, value)).startswith(start)


def test_what_is_missing_is_named(own: dict[str, Any], tmp_path: Path) -> None:
    assert refusal({name: value for name, value in own.items() if name != "data"}).startswith("data: ")
    with pytest.raises(UserError, match=r"There is no params\.yaml in .*: run the command from the repository's root"):
        params.load(tmp_path / "params.yaml")


def test_claims_lie_in_a_file_of_their_own_or_beside_the_rest(own: dict[str, Any], tmp_path: Path) -> None:
    """The older form, of one file, is read too; what both files have is refused."""
    apart = {key: own[key] for key in ("experiments", "claims")}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({key: value for key, value in own.items() if key not in apart}))
    assert params.load(tmp_path / "params.yaml").claims == {}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(apart))
    assert params.load(tmp_path / "params.yaml") == params.parse(own)
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(apart | {"looks": [2]}))
    with pytest.raises(UserError, match=r"claims\.yaml has looks too"):
        params.load(tmp_path / "params.yaml")


@pytest.mark.parametrize("content", [b"", b"- 1", b"base: {a: [}", b"x: {a: 1, a: 3}", b"d: 2026-02-30", b"data: \0", b"\xff\xfed\0"])
def test_what_is_no_such_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        params.load(tmp_path / "params.yaml")
    assert caught.value.status == 2


VALUES = ["cnn", "lstm", "mlp", "captioner", "sgd", "noam", "post", "none", "normalized", 0.1, [12, 26]]
ANYTHING = (
    st.none() | st.integers(-3, 40) | st.floats() | st.text(max_size=6) | st.lists(st.integers(), max_size=2) | st.sampled_from(VALUES)
)
KINDS = (params.ModelSettings, params.CaptionerSettings, params.BaselineSettings, params.TrainSettings)
OPTIONS = sorted({name for kind in KINDS for name in kind.model_fields})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(change=st.dictionaries(st.sampled_from(OPTIONS), ANYTHING, max_size=4))
def test_any_difference_is_accepted_or_refused_in_one_sentence(own: dict[str, Any], change: dict[str, Any]) -> None:
    changed = own | {"variants": {"x": change}, "experiments": {}, "claims": {}}
    try:
        settings = params.parse(changed).resolve("x")
    except UserError:
        assert refusal(changed).startswith("variants.x")
        return
    taken = settings.model.model_dump(mode="json") | settings.train.model_dump(mode="json")
    written = change
    if isinstance(count := change.get("seeds"), int):  # a number of seeds stands for as many, from 0 on
        written = change | {"seeds": list(range(count))}
    assert {name: taken[name] for name in change} == written
    assert params.VariantSettings.model_validate_json(settings.to_json()) == settings


def test_names_stay_names(own: dict[str, Any], tmp_path: Path) -> None:
    """What either YAML takes for a number, a date or nothing is read as it was written; what pandas takes for no value is refused."""
    for name in ("1e3", "1_000", "0x1f", "1:30", "yes", "2026-01-01", "~", "010", "0o7", ".inf", "null"):
        written = {"variants": {name: {"from": name}}}
        write_settings(tmp_path, written)
        assert params.read(tmp_path / "params.yaml") == written
    for name in STR_NA_VALUES:
        refusal(put(own, "variants", own["variants"] | {name: {"mlp_dim": 4}}))
