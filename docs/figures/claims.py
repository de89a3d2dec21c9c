"""Write the table of docs/claims.rst from the rows of a run, which the pages of sources show too.

dsgd claims --out claims/ && python docs/figures/claims.py claims/      # another run, of all or of some
python docs/figures/claims.py                                           # the registry has changed
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dsgd.study.claims import MEASURES, chosen, claims_of, overview_table
from dsgd.study.frame.rows import ROWS_FILE, read_rows

HERE = Path(__file__).parent
ROWS = HERE / "claims.jsonl"
_KEPT = ("key", "measure", "seconds", "claims", "when", "commit", "machine")


def tables() -> dict[str, str]:
    """Return the tables by the name of their file."""
    statements = chosen()
    claims, made = claims_of(read_rows(ROWS), statements), {}
    for name, arithmetic in (("claims-verdicts.csv", False), ("claims-arithmetic.csv", True)):
        table = overview_table(claims, statements, arithmetic=arithmetic)
        made[name] = _text([column.capitalize() for column in table.columns], table.rows)
    return made


def _text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["–" if cell == "-" else cell for cell in row] for row in rows)  # a lone hyphen begins a list
    return text.getvalue()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = {row["measure"]: row for path in (ROWS, Path(sys.argv[1]) / ROWS_FILE) for row in read_rows(path)}
        kept = [{name: found[measure][name] for name in _KEPT} for measure in MEASURES if measure in found]
        ROWS.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    for name, content in tables().items():
        (HERE / name).write_text(content, encoding="utf-8")
