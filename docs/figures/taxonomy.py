"""Write the table of docs/strategies.rst that says what kind of method each strategy is, from the classes themselves.

A test holds what the classes declare against simulated gangs, and this table against the classes.

python docs/figures/taxonomy.py
"""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path

from dsgd.sync import STRATEGIES, Taxonomy

HERE = Path(__file__).parent
#: The dimensions, in the order of the columns, but what all strategies have in common.
COLUMNS = {"optimisation": "optimisation", "scheduling": "scheduling", "sends": "sent", "pattern": "pattern"}


def table() -> str:
    """Return the table as CSV: a line for each place in the taxonomy, with the strategies that have it."""
    places: dict[Taxonomy, list[str]] = {}
    for kind in STRATEGIES.values():
        place = kind.taxonomy
        assert place is not None
        places.setdefault(place, []).append(f"`{kind.__name__}`")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["strategies", "parallel by", *COLUMNS.values()])
    order = [field.name for field in fields(Taxonomy)]
    for place in sorted(places, key=lambda one: [getattr(one, name) for name in order]):
        writer.writerow([", ".join(places[place]), place.parallelism, *(getattr(place, name) for name in COLUMNS)])
    return out.getvalue()


def tables() -> dict[str, str]:
    """Return the text of every file by its name."""
    return {"taxonomy.csv": table()}


def main() -> None:
    """Write them."""
    for name, text in tables().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
