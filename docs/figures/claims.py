"""Write the tables of docs/claims.rst: the sources from the registry, the verdicts from the rows of a run.

dsgd claims --out claims/ && python docs/figures/claims.py claims/      # another run
python docs/figures/claims.py                                           # the registry has changed
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dsgd.study.claims import MEASURE_OF, chosen, claims_of, overview_table
from dsgd.study.frame.rows import ROWS_FILE, read_rows
from dsgd.study.published import SOURCES, STATEMENTS

HERE = Path(__file__).parent
ROWS = HERE / "claims.jsonl"
_KEPT = ("key", "measure", "seconds", "claims", "when", "commit", "machine")


def tables() -> dict[str, str]:
    """Return the tables by the name of their file."""
    statements = chosen()
    verdicts = overview_table(claims_of(read_rows(ROWS), statements), statements)
    return {
        "claims-sources.csv": _text(
            ["Source", "Proposes", "Class", "Switched on by", "Claims", "Measured by"], _sources()
        ),
        "claims-verdicts.csv": _text([name.capitalize() for name in verdicts.columns], verdicts.rows),
    }


def _sources() -> Iterable[Sequence[str]]:
    for source in SOURCES.values():
        own = [key for key, statement in STATEMENTS.items() if statement.source == source]
        measures = dict.fromkeys(MEASURE_OF[key].name for key in own)
        yield (
            f"{source.system} (``{source.key}``)",
            source.proposes,
            f"``{source.implemented_by.removeprefix('dsgd.')}``",
            f"``{source.switched_on}``",
            str(len(own)),
            ", ".join(measures),
        )


def _text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kept = [{name: row[name] for name in _KEPT} for row in read_rows(Path(sys.argv[1]) / ROWS_FILE)]
        ROWS.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    for name, content in tables().items():
        (HERE / name).write_text(content, encoding="utf-8")
