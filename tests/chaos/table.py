"""What a soak has found: ``python -m chaos.table build/soak.jsonl`` prints a line for each fault.

A run that is there several times counts once, as it ended last: what failed may have been mended and run again. That it
has passed since does not show that it was: the last column says how many runs have ever failed.
"""

from __future__ import annotations

import sys

import pandas as pd

_RUN = ["seed_of_soak", "number"]


def tabulate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each fault how many runs ended how, what was wrong with them, and the worst seconds to an end."""
    rows = rows.reindex(columns=[*_RUN, "fault", "outcome", "complaint", "seconds"]).dropna(subset=["number"])
    rows["failed"] = rows.groupby(_RUN)["complaint"].transform("count") > 0
    newest = rows.groupby(_RUN).tail(1)
    by = newest.groupby("fault")
    ends = (pd.crosstab(newest["fault"], newest[what]) for what in ("outcome", "complaint"))
    counts = pd.concat([by.size().rename("runs"), *ends, by["failed"].sum().rename("ever failed")], axis=1)
    counts.loc["all"] = counts.sum()
    return counts.fillna(0).astype(int).assign(worst_s=by["seconds"].max())


if __name__ == "__main__":
    sys.stdout.write(tabulate(pd.read_json(sys.argv[1], lines=True)).to_string(na_rep="") + "\n")
