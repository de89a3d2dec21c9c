"""Write the table of sources of docs/claims.rst from the registry; a test holds that it is what the registry says.

python docs/figures/claims.py
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from dsgd.study.claims import MEASURE_OF
from dsgd.study.published import SOURCES, STATEMENTS

HERE = Path(__file__).parent


def tables() -> dict[str, str]:
    """Return the tables by the name of their file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Source", "Class", "Switched on by", "Claims", "Measured by"])
    for source in SOURCES.values():
        own = [key for key, statement in STATEMENTS.items() if statement.source == source]
        measures = dict.fromkeys(MEASURE_OF[key].name for key in own)
        writer.writerow(
            [
                f"{source.system} (``{source.key}``)",
                f"``{source.implemented_by.removeprefix('dsgd.')}``",
                f"``{source.switched_on}``",
                len(own),
                ", ".join(measures),
            ]
        )
    return {"claims-sources.csv": text.getvalue()}


if __name__ == "__main__":
    for name, content in tables().items():
        (HERE / name).write_text(content, encoding="utf-8")
