"""Stage `prepare`: data/raw into data/arrays, and a picture of its first images to reports/data."""

from pathlib import Path

import numpy as np

from pipeline import params
from pipeline.data import own
from pipeline.data.datasets import Dataset, load, prepare
from pipeline.params.data import RECORD
from pipeline.stages import settled
from pipeline.system.errors import UserError, first_line, place, run_command
from pipeline.system.files import replacing, write_json

_COLUMNS = 16
_GAP = 3  # pixels between images
_LABEL = 20  # pixels for the class's number
_GREY = 128  # a label that a white and a black page show alike


def write_samples(dataset: Dataset, shape: params.Shape, path: Path) -> None:
    """Draws the first 16 training images of each class, a row a class with its number, as a PNG on a transparent page."""
    from PIL import Image, ImageDraw, ImageFont

    size, channels, classes = shape[:3]
    step = size + _GAP
    mode, grey = ("LA", (_GREY,)) if channels == 1 else ("RGBA", (_GREY, _GREY, _GREY))
    picture = Image.new(mode, (_LABEL + _COLUMNS * step - _GAP, classes * step - _GAP), (*grey, 0))
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=16)
    for label in range(classes):
        draw.text((0, label * step + size // 2), str(label), fill=(*grey, 255), font=font, anchor="lm")
        for column, index in enumerate(np.flatnonzero(dataset.train_labels == label)[:_COLUMNS]):
            image = dataset.train_images[index]
            image = image if channels == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
            picture.paste(Image.fromarray(image).convert(mode), (_LABEL + column * step, label * step))
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG", optimize=True)


def main(_: list[str]) -> None:
    arrays, data = Path("data/arrays"), params.load().data
    try:
        description = prepare(data, Path("data/raw"), arrays)
    except UserError:
        raise
    except Exception as error:  # a reader may be the user's own
        raise UserError(f"{data.source.reader} failed in {place(error)}{first_line(error)}: mend it, then run it again.") from error
    if data.dataset == "folder":
        description |= {"classes": own.classes(Path("data/raw"))}
        write_json(arrays / "dataset.json", description)
    write_json(RECORD, description)
    dataset = load(arrays)
    write_samples(dataset, data.shape, Path("reports/data/samples.png"))
    train, test = (sum(description["class_counts"][split]) for split in ("train", "test"))
    if data.source.shape is None:
        known = {image.tobytes() for image in dataset.train_images}
        if both := sum(image.tobytes() in known for image in dataset.test_images):
            print(f"warning: {both:,} of the {test:,} test images are training images, too; of these the test error says nothing.")
        if empty := [str(label) for label, count in enumerate(description["class_counts"]["train"]) if not count]:
            print(f"warning: no training image is of class {', '.join(empty)}; is data.classes right?")
    print(f"{description['name']}: {train:,} training and {test:,} test images, digest {description['digest'][:12]}")


if __name__ == "__main__":
    run_command(settled(main))
