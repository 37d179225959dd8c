"""Fine-tuning at another size of images: from networks that were trained at 28 pixels, beside networks trained anew.

`python -m docs.method.sizes` trains base in build/size-28, scales MNIST to 20 and to 40 pixels, and trains both kinds of network on it in
build/size-20 and build/size-40 (half an hour of two cores; one of them: `python -m docs.method.sizes 20`). It writes each epoch's test
error into docs/sizes.csv, and docs/sizes.md with its figure from that; `--page` writes the page alone. As Dosovitskiy et al. 2021, section
3.2, do, learned position vectors are interpolated by the places of the patches, and the head begins anew.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from docs.method.judge_rates import table, write_with_picture
from docs.method.rates import run
from pipeline import params
from pipeline.data import datasets
from pipeline.evaluation.classification import scale
from pipeline.measures.definitions import FloatArray
from pipeline.models import build
from pipeline.models.positions import interpolated
from pipeline.params import ModelSettings, Params
from pipeline.report.figures import panels
from pipeline.report.figures.base import Picture
from pipeline.report.figures.panels import Line, Panel
from pipeline.report.text import digits, estimate, listed
from pipeline.runner import seeds
from pipeline.study import load
from pipeline.study.effects import contrast, mapped
from pipeline.study.statistics import LEVEL
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import replacing
from pipeline.system.paths import ARRAYS, FINISHED, TRAININGS
from pipeline.training import pretrained

DOCS = Path(__file__).parents[1]
TABLE, PAGE = DOCS / "sizes.csv", DOCS / "sizes.md"
SIZES, SEEDS, EPOCHS = (20, 40), 6, 10
ANEW, TUNED = "anew", "fine-tuned"


def train(study: Params, begun: Path, size: int) -> pd.DataFrame:
    """A row for each start, seed and epoch; epoch 0 is the test before any training at this size.

    Args:
        begun: where base was trained at 28 pixels.
    """
    directory, model = begun.with_name(f"size-{size}"), study.resolve("base").model
    assert isinstance(model, ModelSettings)
    data = datasets.load(begun / ARRAYS)
    images = [scale(torch.from_numpy(of), size).round().byte().numpy() for of in (data.train_images, data.test_images)]
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / "mnist.npz") as file, file.open("wb") as opened:
        np.savez(opened, train_images=images[0], train_labels=data.train_labels, test_images=images[1], test_labels=data.test_labels)

    weights = seeds.load_weights(begun / TRAININGS / f"base{seeds.SUFFIX}", range(SEEDS), begun / FINISHED)
    weights["position"] = interpolated(weights["position"], size // model.patch, has_cls=model.has_cls)
    each = [{name: value[seed] for name, value in weights.items()} for seed in range(SEEDS)]
    name = pretrained.write(f"mnist-base-{size}", build(model), each, directory)

    images_here = {"dataset": "npz", "path": str(directory / "mnist.npz"), "size": size, "channels": 1, "classes": 10}
    run(directory.name, {"seeds": SEEDS, "epochs": EPOCHS}, {"base": {}, TUNED: {"pretrained": name}}, data=images_here)

    test = torch.from_numpy(images[1])[:, None].float() / 255
    rows = [(size, TUNED, seed, 0, untrained_error(model.at_size(size), one, test, data.test_labels)) for seed, one in enumerate(each)]
    for start, variant in ((ANEW, "base"), (TUNED, TUNED)):
        errors = load(directory).trainings[variant].test_error
        rows += [(size, start, seed, epoch, error) for seed, row in enumerate(errors) for epoch, error in enumerate(row.tolist(), 1)]
    return pd.DataFrame(rows, columns=["size", "start", "seed", "epoch", "test_error"])


@torch.no_grad()
def untrained_error(model: ModelSettings, weights: dict[str, Tensor], images: Tensor, labels: npt.NDArray[np.uint8]) -> float:
    """The test error at another size, before any training at it."""
    network = build(model).eval()
    network.load_state_dict(weights)
    predicted = torch.cat([network(batch).argmax(1) for batch in images.split(500)])
    return float((predicted.numpy() != labels).mean())


def curves(of: pd.DataFrame, size: int) -> dict[str, FloatArray]:
    """Test errors (seed, epoch) by start; fine-tuned ones with epoch 0."""
    return {
        start: of[(of["size"] == size) & (of["start"] == start)].pivot(index="seed", columns="epoch", values="test_error").to_numpy()
        for start in (ANEW, TUNED)
    }


def picture(of: pd.DataFrame) -> Picture:
    caption = (
        "Test error after each epoch at another size of images, mean over six seeds with its 95 % interval: networks that start from "
        "weights trained at 28 pixels, and networks that start anew. Epoch 0, and what lies above the axis, is not drawn; the table has it."
    )
    drawn = []
    for size in of["size"].unique().tolist():
        found = curves(of, size)
        lines = [
            Line("trained anew", tuple(range(1, EPOCHS + 1)), found[ANEW], is_baseline=True),
            Line("fine-tuned from 28 pixels", tuple(range(1, EPOCHS + 1)), found[TUNED][:, 1:]),
        ]
        drawn.append(Panel(f"{size} x {size} pixels: test error (%)", "epoch", lines, "errors", "epochs"))
    return Picture(caption, partial(panels.draw, drawn), "sizes")


def page(of: pd.DataFrame, made: Picture) -> str:
    rows, answers = [], []
    for size in of["size"].unique().tolist():
        found = curves(of, size)
        for epoch in (0, 1, 3, 5, EPOCHS):
            tuned = found[TUNED][:, epoch]
            cells = [f"{size} x {size}", epoch, f"{100 * tuned.mean():.2f} ± {100 * tuned.std(ddof=1):.2f}"]
            if epoch:
                anew = found[ANEW][:, epoch - 1]
                ratio = contrast(np.log(tuned), np.log(anew))
                ends = ratio.interval(LEVEL)
                assert ends is not None  # six seeds differ
                cells += [
                    f"{100 * anew.mean():.2f} ± {100 * anew.std(ddof=1):.2f}",
                    estimate(math.exp(ratio.mean), mapped(ends, math.exp), digits),
                ]
            rows.append(cells if epoch else [*cells, "-", "-"])
        beside = []  # errors of those trained anew after some epochs, over those after one of fine-tuning
        for epoch in (3, 5, EPOCHS):
            ratio = contrast(np.log(found[ANEW][:, epoch - 1]), np.log(found[TUNED][:, 1]))
            ends = ratio.interval(LEVEL)
            assert ends is not None
            beside.append(f"{estimate(math.exp(ratio.mean), mapped(ends, math.exp), digits)} times as many after {epoch}")
        when = f"where networks trained anew make {listed(beside)} epochs"
        begun, ended = (f"{100 * found[TUNED][:, epoch].mean():.1f} %" for epoch in (0, 1))
        answers.append(f"at {size} x {size} pixels from {begun} of errors to {ended}, {when}")
    missing = [f"{size} x {size}" for size in SIZES if size not in of["size"].to_numpy()]
    return "\n".join(
        [
            "# Fine-tuning at another size of images",
            "",
            f"**An epoch of fine-tuning brings the base, trained on MNIST's 28 x 28 pixels, to another size: {'; '.join(answers)}.**",
            "",
            f"![{made.caption.split(':')[0]}](sizes.png)",
            "",
            f"*{made.caption}*",
            "",
            *table(["images", "epoch", "fine-tuned: error, %", "anew: error, %", "errors, fine-tuned over anew"], "rrrrr", rows),
            "",
            f"Means and standard deviations over {SEEDS} seeds, ratios with 95 % intervals (Welch). All trainings have {EPOCHS} epochs, a "
            "third of the study's, at its constant rate. Images are scaled bilinearly, and patches keep their four pixels, so their number "
            "changes. Learned position vectors are interpolated by the places of the patches, and the head begins anew "
            "(Dosovitskiy et al. 2021, section 3.2); epoch 0 has the old head, before any training at that size. A fine-tuned network has "
            "had thirty epochs of 28 x 28 pixels before. These trainings explore: they decide no claim. What networks do at other sizes "
            "without training there: [lengths](../reports/experiments/lengths.md)."
            + (f" Not trained yet: {listed(missing)} pixels." if missing else ""),
            "",
            "`python -m docs.method.sizes` trains all of it and writes this page; `--page` writes it from [sizes.csv](sizes.csv).",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.method.sizes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, metavar="SIZE", help="side of the images in pixels")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from docs/sizes.csv")
    given = parser.parse_args(argv)
    if not {*given.sizes} <= {*SIZES}:
        raise UserError(f"Images are scaled to {' or '.join(map(str, SIZES))} pixels: name one of them, or none for all.")
    if not given.page:
        begun = run("size-28", {"seeds": SEEDS}, {"base": {}})
        for size in given.sizes:
            found = [train(params.load(), begun, size)]
            if TABLE.exists():
                kept = pd.read_csv(TABLE)
                found.append(kept[kept["size"] != size])
            with replacing(TABLE) as file:
                pd.concat(found).sort_values("size", kind="stable").to_csv(file, index=False)
    of = pd.read_csv(TABLE)
    made = picture(of)
    write_with_picture(PAGE, page(of, made), made)


if __name__ == "__main__":
    run_command(main)
