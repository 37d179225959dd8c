"""An experiment to hand in, in build/export/NAME: one HTML file with its figures inside, the figures as PDF, the tables as CSV and LaTeX.

python -m pipeline.commands.export --experiment=positions
"""

import argparse
import itertools
import re
from base64 import b64encode
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from pipeline.commands.profiles import from_root
from pipeline.params import load, nearest
from pipeline.report import pages, text
from pipeline.report.figures.base import pdf
from pipeline.study.results import load_current
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_bytes
from pipeline.system.paths import ARRAYS

FOLDER = Path("build/export")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.export", description="An experiment's page as files to hand in.")
    parser.add_argument("--experiment", required=True, metavar="NAME")
    name, params = parser.parse_args(argv).experiment, load()
    if name not in params.experiments:
        raise UserError(f"There is no experiment {name!r}{nearest(name, params.experiments)}: `make export EXPERIMENT=name`.")
    if not ARRAYS.exists():
        raise UserError("The data, whose images some figures show, are not here: run `dvc repro prepare`, then export again.")
    page, pictures, tables = pages.Report(params, load_current(params).trainings).experiment(name, alone=True)
    if not tables:
        raise UserError(f"None of the variants of {name} was trained yet: `make repro` trains them.")
    drawn = {picture.name: b64encode(picture.png(pages.REPORTS / f"experiments/figures/{picture.name}.png")) for picture in pictures}
    files = {f"{name}.html": html(page.decode(), {name: content.decode() for name, content in drawn.items()}).encode()}
    files |= {f"{picture.name}.pdf": pdf(picture.draw) for picture in pictures}
    for number, table in enumerate(tables, 1):
        frame, columns = pd.DataFrame(table.rows, columns=list(table.head)), "l" + "r" * (len(table.head) - 1)
        numbers = frame.to_csv(index=False, lineterminator="\n").replace(text.MINUS, "-").replace(text.NBSP, " ")
        label = f"tab:{name}-{number}"
        caption = re.sub(r"[%&#$_]", r"\\\g<0>", f"{table.title}.")  # which pandas does not escape
        latex = frame.to_latex(index=False, escape=True, caption=caption, label=label, column_format=columns)  # for booktabs
        files |= {f"table-{number}.csv": numbers.encode()}
        files |= {f"table-{number}.tex": latex.replace(text.MINUS, "$-$").replace(text.NBSP, "~").encode()}
    for file, content in files.items():
        path = FOLDER / name / file
        write_bytes(path, content)
        print(f"{from_root(path)}  {len(content) / 1e3:,.1f} kB")


def html(page: str, pictures: dict[str, str]) -> str:
    """A page of Markdown as one HTML file that needs no other. `pictures`: by name, PNG in base 64."""
    inside = re.sub(r"\(figures/([^)]+)\.png\)", lambda found: f"(data:image/png;base64,{pictures[found[1]]})", page)
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(inside.replace("<details>", "<details open>"))
    for token, after in itertools.pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", text.slug(after.content))
    title, body = page.partition("\n")[0].removeprefix("# "), parser.renderer.render(tokens, parser.options, {})
    return text.environment().get_template("export.html.j2").render(title=title, body=body)


if __name__ == "__main__":
    run_command(main)
