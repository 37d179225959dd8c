"""How many verdicts would not stand if the test images were drawn anew, too.

`python -m docs.method.other_images` widens the interval of every ratio of two networks' test errors that decides a claim. The logarithm
of the ratio of two errors on n images, each a mean over an image's errors e and f (shares of the seeds that are wrong) with means E and
F, has the further variance (e / E - f / F) over the images, divided by n. Images and seeds are crossed, so that this has the noise of
single predictions, which the variance over seeds has, too: by seeds' variance on each image it is taken off once (the variance
components of a two-way layout; Searle, Casella and McCulloch 1992). Predictions are those after the last epoch.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from pipeline.measures import late
from pipeline.params import load
from pipeline.study.claims import DECIDED, QUARTER, judge
from pipeline.study.effects import contrast
from pipeline.study.results import load_current
from pipeline.system.errors import run_command


def main(argv: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m docs.method.other_images", description=(__doc__ or "").split("\n")[0]).parse_args(argv)
    params = load()
    trainings = load_current(params).trainings
    verdicts, lost = 0, []
    for id, claim in params.claims.items():
        judgement = judge(id, claim, trainings, images_shown=params.images_shown, looks=params.looks)
        found = judgement.deciding
        if judgement.verdict not in DECIDED or found.comparison.measure != "late test error" or len(found.comparison.variants) != 2:
            continue
        sides = [
            (trainings[name], [trainings[name].seeds.index(seed) for seed in found.counted[name]]) for name in found.comparison.variants
        ]
        if any(training.predictions is None for training, _ in sides):
            continue
        wrong = [1.0 - np.equal(*training.predictions)[rows] for training, rows in sides]  # (seed, image)
        shares = [of.mean(0) / of.mean() for of in wrong]
        noise = sum(of.var(0, ddof=1).mean() / len(of) / of.mean() ** 2 for of in wrong)
        of_images = max(float(np.var(shares[0] - shares[1], ddof=1) - noise) / len(shares[0]), 0.0)
        estimate = contrast(*(np.log(late(training.test_error)[rows]) for training, rows in sides))
        level = found.levels.outside if judgement.verdict == "contradicted" else found.levels.inside
        half = estimate.half_width(level) / estimate.error * math.hypot(estimate.error, math.sqrt(of_images))
        low, high = (math.log(end) if end > 0 else -math.inf for end in found.region)
        if judgement.verdict == "contradicted":
            stands = estimate.mean - half > high or estimate.mean + half < low
        else:
            ends = (low, high) if judgement.verdict == "supported" else (-math.log(QUARTER), math.log(QUARTER))
            stands = ends[0] < estimate.mean - half and estimate.mean + half < ends[1]
        verdicts += 1
        lost += [] if stands else [id]
    print(f"{verdicts} verdicts on ratios of test errors; with other test images, too, {len(lost)} would not be decided: {', '.join(lost)}")


if __name__ == "__main__":
    run_command(main)
