"""A made-up study, as the stages before the report leave it, and how the pages of a report are read."""

import csv
import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.evaluation.evaluate import summarize_votes
from pipeline.evaluation.records import Evaluation, Records
from pipeline.params import ModelSettings, Params, parse
from pipeline.runner import seeds as store
from pipeline.study import Training
from tests.helpers import ROOT, read_study, stored

IMAGES = 500  # test images of a made-up study
INPUTS: dict[str, Any] = {"weights": {}, "data": "d" * 64}  # none were made


def write_run(root: Path, params: Params, variant: str, *, diverged: int = 0) -> None:
    """What train and evaluate leave of one variant, made up and drawn from its name; the first `diverged` seeds' losses end as NaN."""
    settings = params.resolve(variant)
    rng = np.random.default_rng(list(hashlib.sha256(variant.encode()).digest()))
    seeds, epochs, model = settings.train.seeds, settings.train.epochs, settings.model
    floor = 1.2 / math.sqrt(settings.train.train_images) if settings.train.train_images else 0.03  # the share of wrong answers at the end
    rows, right = [], []
    for i, seed in enumerate(seeds):
        luck = rng.normal(0, 0.003)
        for epoch in range(1, epochs + 1):
            lost = i < diverged and epoch > epochs // 3
            error = min(0.9, 0.9 if lost else floor + luck + 0.09 / epoch**1.3 + abs(rng.normal(0, 0.0025)))
            correct = round((1 - error) * IMAGES)
            train_loss = math.nan if lost else 3.2 * (floor * 0.9 / epoch**0.35 + 0.12 / epoch)
            test_loss = math.nan if lost else 3.3 * error * rng.uniform(0.95, 1.05)
            norm = math.inf if lost else rng.uniform(0.5, 0.7) + 1 / epoch
            rows.append((seed, epoch, train_loss, test_loss, correct / IMAGES, norm, 6.5 * rng.uniform(0.97, 1.06)))
        right.append(correct)
    tokens = model.num_tokens if isinstance(model, ModelSettings) else 20
    store.write_record(
        stored(root, variant),
        {
            "training_id": "0" * 32, "variant": variant, "stage": f"train@{variant}", "config": settings.model_dump(mode="json"),
            "config_hash": settings.config_hash, "code_hash": "c" * 64, "data_digest": "d" * 64, "dataset": settings.data.dataset,
            "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False, "device": "cpu",
            "device_name": "Some Processor (2 cores)", "attention": "fused-cpu" if isinstance(model, ModelSettings) else "none",
            "versions": {"python": "3.11.2", "torch": "2.15.0", "numpy": "2.4.0", "numba": "0.61"}, "seeds": list(seeds),
            "started": "2026-01-02T03:04:05Z", "finished": "2026-01-02T03:09:05Z", "epochs": rows,
            "metrics": {"n": len(seeds), "diverged": diverged, "parameters": 20000 + 50 * tokens, "flops": 9000 * tokens},
            "outputs": {"weights": {}},
        },
        {},
    )  # fmt: skip
    labels = (np.arange(IMAGES) % 10).astype(np.uint8)
    hard = np.random.default_rng(7).permutation(IMAGES)  # the same images are hard for all
    predictions = np.tile(labels, (len(seeds), 1))
    for row, correct in zip(predictions, right, strict=True):
        order = hard[np.argsort(np.arange(IMAGES) + rng.normal(0, 15, IMAGES))]
        wrong = order[: IMAGES - correct]
        row[wrong] = (labels[wrong] + 1) % 10
    if settings.task == "captioning":
        with (ROOT / "tables/seeds.csv").open(newline="") as file:
            names = [name for name in next(csv.reader(file)) if name.startswith(("greedy_", "beam_"))]
        Records(root).write(variant, {}, Evaluation(INPUTS, {name: rng.random(len(seeds)).tolist() for name in names}, {}))
        return
    added = (model.num_tokens, model.dim) if isinstance(model, ModelSettings) and model.position != "none" else (0, 0)
    positions = rng.normal(size=(len(seeds), *added)).astype(np.float32)
    arrays = {"labels": labels, "predictions": predictions, "seeds": np.array(seeds), "positions": positions}
    Records(root).write(variant, arrays, Evaluation(INPUTS, {}, summarize_votes(predictions, labels)))


def write_tables(root: Path) -> None:
    """The tables of all trainings, as the evaluate stage writes them."""
    Records(root).write_tables({path.stem: INPUTS for path in sorted((root / "store/trainings").iterdir())})


def write_study(root: Path, seeds: int, epochs: int, **changes: Any) -> None:
    """The real params.yaml with other seeds, epochs and `changes`, and runs of all variants."""
    raw = read_study() | changes
    raw["train"] |= {"seeds": list(range(seeds)), "epochs": epochs}
    for claim in raw["claims"].values():
        claim.pop("first_seed", None)  # nobody has seen these seeds
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    params = parse(raw)
    for variant in params.variants:
        write_run(root, params, variant)
    write_tables(root)


_ODD: dict[str, Any] = {
    "images_shown": 4 * 60_000,
    "looks": [3, 5],
    "variants": {
        "base": {},
        "alone": {"seeds": [3], "position": "sinusoidal"},
        "lost": {"divergence": "record", "norm": "none"},
        "brief": {"epochs": 2},
        "nowhere": {"blocks": 2},
        "words": {
            "architecture": "captioner", "dim": 16, "heads": 2, "mlp_dim": 16, "encoder_blocks": 1, "decoder_blocks": 1, "norm": "pre",
            "position": "learned", "memory": 0, "meshed": False, "dropout": 0.0,
        },
        "net": {"architecture": "cnn_lstm", "widths": [8, 16], "seeds": [0, 1]},
    },
    "experiments": {
        "odd": {
            "title": "Odd *ones* | <b>not</b> bold", "question": "Is `a_b` read as it is?", "source": "a [test](x)", "baseline": "base",
            "variants": ["base", "alone", "lost", "brief", "nowhere"], "labels": {"alone": "one | seed", "lost": "no *norm* <i>"},
            "figures": ["curves", "measure"], "claims": ["O1", "O2", "O3", "O4", "O5", "O6", "O8"],
        },
        "words": {
            "title": "Words", "question": "Which?", "source": "a test", "baseline": "words", "variants": ["words", "net"],
            "measure": "scene accuracy", "claims": ["O7"],
        },
    },
}  # fmt: skip
_ODD_CLAIMS: dict[str, tuple[str, dict[str, Any]]] = {
    "O1": ("One seed | alone decides nothing.", {"rule": "more", "measure": "accuracy", "variant": "alone", "reference": "base"}),
    "O2": ("Losses that end as NaN.", {"rule": "less", "measure": "late train loss", "variant": "lost", "reference": "base"}),
    "O3": ("Two epochs of *four* are short.", {"rule": "less", "measure": "late accuracy", "variant": "brief", "reference": "base"}),
    "O4": ("It was not run.", {"rule": "equivalent", "measure": "late accuracy", "variant": "nowhere", "reference": "base", "bound": 0.01}),
    "O5": ("It diverges more often.", {"rule": "more", "measure": "diverged", "variant": "lost", "reference": "base"}),
    "O6": ("It is <b>timed</b>.", {"rule": "ratio", "measure": "step time", "variant": "cls-loop", "reference": "base", "between": [1, 2]}),
    "O7": ("The captioner is better.", {"rule": "more", "measure": "scene accuracy", "variant": "words", "reference": "net"}),
    "O8": ("The base is right most times.", {"rule": "at least", "measure": "late accuracy", "variant": "base", "bound": 0.5}),
}  # fmt: skip


def write_odd_study(root: Path) -> None:
    """A study of what is rare: a variant of one seed, seeds that diverge, a short run, a variant not run, captioners, markup in names."""
    raw: dict[str, Any] = read_study() | _ODD
    raw["train"] |= {"seeds": list(range(5)), "epochs": 4}
    words = {"source": "a *test* | <b>", "measured": "As it says.", "margin": "None."}
    raw["claims"] = {id: words | {"sentence": said, "comparisons": [one]} for id, (said, one) in _ODD_CLAIMS.items()}
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    params = parse(raw)
    for variant in params.variants:
        if variant != "nowhere":
            write_run(root, params, variant, diverged=3 if variant == "lost" else 0)
    write_tables(root)
    for variant in ("words", "net"):  # what captioners wrote is not here, once the tables have their numbers
        (root / f"store/predictions/{variant}.npz").unlink()


def read(root: Path, page: str) -> str:
    """A page with ASCII minus signs and plain spaces."""
    return (root / "reports" / page).read_text().replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")


def table(page: str, header: str, key: int = 0) -> dict[str, list[str]]:
    """The rows of the tables whose header line holds `header`, by one of their cells, that one left out."""
    lines = page.replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ").splitlines()
    rows = {}
    for start in [i for i, line in enumerate(lines) if line.startswith("|") and header in line]:
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows[cells.pop(key)] = cells
    assert rows
    return rows


def check_links(root: Path) -> None:
    written = list((root / "reports").rglob("*.md"))
    for page in written:
        targets = re.findall(r"\]\(([^)]+)\)", page.read_text())
        assert targets
        for target in targets:
            path, _, anchor = target.partition("#")
            if is_document := "../docs/" in path:
                assert (page.parent / path).resolve().parent == (root / "docs").resolve()
            other = ROOT / "docs" / Path(path).name if is_document else (page.parent / path).resolve() if path else page.resolve()
            assert other.is_file(), target
            assert is_document or other.is_relative_to((root / "reports").resolve())
            if anchor:
                headings = re.findall(r"^#+ (.+)$", other.read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target
    used = {Path(name).name for page in written for name in re.findall(r"^!\[.*\]\((.+\.png)\)$", page.read_text(), flags=re.MULTILINE)}
    drawn = [path for folder in ("experiments/figures", "figures", "timing") for path in (root / "reports" / folder).glob("*.png")]
    assert used == {path.name for path in drawn} | ({"samples.png"} & used)


def check_tables(root: Path) -> None:
    """A browser breaks lines at spaces alone: the widest words of all columns have to fit into 820 pixels, at 8 a letter and 27 a gap."""
    for page in (root / "reports").rglob("*.md"):
        for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE):
            head, marks, *rows = block.splitlines()
            assert re.fullmatch(r"(\|:?-+:?)+\|", marks), block
            assert rows, block
            shown = [re.split(r"(?<!\\)\|", re.sub(r"\]\([^)]*\)|[`*\[]", "", line)) for line in (head, *rows)]
            assert {len(cells) for cells in shown} == {marks.count("|") + 1}, block
            widest = [max(len(word) for cell in column for word in re.split(r"[ -]|<br>", cell)) for column in zip(*shown, strict=True)]
            assert sum(8 * letters + 27 for letters in widest[1:-1]) <= 820, block


def check_text(root: Path) -> None:
    for page in (root / "reports").rglob("*.md"):
        text = page.read_text()
        wrong = r"\b(nan|inf|Undefined)\b|\bNone\b(?! of)|(?<![\d.,])1 (seeds|points|steps|epochs|rounds|variants|claims)\b"
        found = re.search(wrong, text)
        assert not found, f"{page.name}: {text[max(0, found.start() - 80) : found.end() + 80]}"
        folded = text.count("<details>\n<summary>")
        assert folded == text.count("<details>") == text.count("</details>"), page.name
        assert folded == text.count("</summary>\n\n") == text.count("\n\n</details>"), page.name  # else Markdown inside is not read
        for kind in ("Table", "Figure"):
            numbers = [int(number) for number in re.findall(rf"^\*{kind} (\d+)\.", text, flags=re.MULTILINE)]
            assert numbers == list(range(1, len(numbers) + 1)), page.name


def make_run(
    study: Params, name: str, *, epochs: int = 30, seeds: Sequence[int] = range(6), error: float = 0.03, **options: Any
) -> Training:
    """A trained variant whose curves fall to about this test error; a seed has the same luck whatever seeds stand beside it.

    Args:
        options: of `train` that differ from the variant's.
    """
    late = 1 / np.arange(1, epochs + 1)
    luck = np.stack([np.random.default_rng([seed, len(name)]).normal(1, 0.1, epochs) for seed in seeds])
    falls = {"train_loss": (0.05, 0.4), "test_loss": (0.1, 0.3), "test_error": (error, 0.1), "gradient_norm": (1, 0), "seconds": (2, 0)}
    curves = {curve: (start + fall * late) * luck for curve, (start, fall) in falls.items()}
    curves["test_accuracy"] = 1 - curves.pop("test_error")
    settings = study.resolve(name)
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": tuple(seeds), **options})})
    return Training(name, {"config": settings.model_dump(mode="json")}, tuple(seeds), curves, 10_000, 10**6)
