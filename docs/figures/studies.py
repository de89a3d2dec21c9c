"""Draw the figures of the docs that are those of a study, from STUDY.jsonl, rows of ``dsgd study``.

python docs/figures/studies.py msf study/rows.jsonl    # keep these rows, and draw
python docs/figures/studies.py msf                     # draw from what was kept
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dsgd.report import Figure
from dsgd.report.png import draw
from dsgd.study import (
    collectives,
    dnn,
    failures,
    features,
    gtopk,
    msf,
    scaling,
    speedup,
    strategies,
    transports,
    tuning,
    variance,
)
from dsgd.study.frame.rows import Row, read_rows
from dsgd.study.frame.study import study_page

HERE: Final = Path(__file__).parent


def _strategies(rows: Sequence[Row]) -> Sequence[Figure]:
    return study_page(strategies.STUDY.demo(), rows).figures


def _variance(rows: Sequence[Row]) -> Sequence[Figure]:
    return study_page(variance.STUDY, rows).figures


def _features(rows: Sequence[Row]) -> Sequence[Figure]:
    return study_page(features.STUDY, rows).figures


def _tuning(rows: Sequence[Row]) -> Sequence[Figure]:
    return study_page(tuning.STUDY.replace(network="10GbE"), rows).figures


#: By study: what makes its figures of rows, and the pictures by the names of those figures.
SHOWN: Final[dict[str, tuple[Callable[[Sequence[Row]], Sequence[Figure]], dict[str, str]]]] = {
    "collectives": (
        lambda rows: study_page(collectives.STUDY, rows).figures,
        {"collectives": "collectives"},
    ),
    "dnn": (lambda rows: study_page(dnn.STUDY, rows).figures, {"pareto": "dnn"}),
    "failures": (lambda rows: study_page(failures.STUDY, rows).figures, {"failures": "failures"}),
    "features": (_features, {f"features_{name}": f"features-{name}" for name in ("steps", "speedup", "machines")}),
    "gtopk": (lambda rows: study_page(gtopk.STUDY, rows).figures, {"courses": "gtopk"}),
    "msf": (lambda rows: study_page(msf.STUDY, rows).figures, {"msf": "msf"}),
    "scaling": (
        lambda rows: study_page(scaling.STUDY, rows).figures,
        {name: f"scaling-{name}" for name in ("speedup", "ratio", "groups", "step")},
    ),
    "speedup": (lambda rows: study_page(speedup.STUDY, rows).figures, {"speedup_seconds": "speedup"}),
    "strategies": (_strategies, {"pareto": "strategies"}),
    "transports": (
        lambda rows: study_page(transports.STUDY.demo(), rows).figures,
        {f"transports_{name}": f"transports-{name}" for name in ("messages", "copies", "training")},
    ),
    "tuning": (_tuning, {"tuning_seconds": "tuning"}),
    "variance": (_variance, {"variance": "variance"}),
}


def main() -> None:
    """Keep rows, if some are given, and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=SHOWN)
    parser.add_argument("rows", nargs="?", type=Path, help="rows.jsonl of another run")
    options = parser.parse_args()
    kept = HERE / f"{options.study}_study.jsonl"
    if options.rows is not None:
        short = [shorten(row) for row in read_rows(options.rows)]
        kept.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in short), encoding="utf-8")
    figures, names = SHOWN[options.study]
    rows = read_rows(kept)
    if options.study == "tuning":
        (HERE / "tuning-regret.csv").write_text(regrets(rows), encoding="utf-8")
    for figure in figures(rows):
        if figure.name in names:
            (HERE.parent / "_static" / f"{names[figure.name]}.png").write_bytes(draw(figure))


def shorten(row: Row) -> Row:
    """Return a row whose command names no folder."""
    return row | {"command": row["command"].partition(" --out")[0]}


def regrets(rows: Sequence[Row]) -> str:
    """Return the table of rules on the page of periods."""
    table, text = tuning.regret_table(rows), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["regret", *table.columns[1:]])
    for rule, *cells in table.rows:
        shown = ["–" if cell == "-" else cell for cell in cells]  # a lone hyphen begins a list
        writer.writerow([f"`{type(tuning.RULES[rule]).__name__}`", *shown])
    return text.getvalue()


if __name__ == "__main__":
    main()
