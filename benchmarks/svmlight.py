"""Reading svmlight files: our reader beside scikit-learn's, on the same text in the same run.

Prints one line per file: megabytes of plain text and the median seconds of scikit-learn's reader, of ours, and of our
parser alone on text that is in memory. Files are taken from the folder DSGD_DATA names; one more is generated.

    python benchmarks/svmlight.py --out rows.jsonl
"""

from __future__ import annotations

import argparse
import bz2
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Rows
from sklearn.datasets import load_svmlight_file

from dsgd.datasets import load_svmlight, make_like, write_svmlight
from dsgd.datasets.parse import parse_bytes

FILES = ("ijcnn1.t.bz2", "a9a.bz2", "news20.bz2", "reuters-money-fx.bz2")


def median_s(run: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def compare(name: str, path: str, text: bytes, repeats: int, rows: Rows) -> str:
    """Time the readers on one plain file; return its line of the table."""
    ours, theirs = load_svmlight(path), load_svmlight_file(path)
    same = all(
        np.array_equal(a, b)
        for a, b in (
            (ours[0].data, theirs[0].data),
            (ours[0].indices, theirs[0].indices),
            (ours[0].indptr, theirs[0].indptr),
            (ours[1], theirs[1]),
        )
    )
    methods: dict[str, Callable[[], Any]] = {
        "scikit-learn": lambda: load_svmlight_file(path),
        "dsgd": lambda: load_svmlight(path),
        "dsgd, parser alone": lambda: parse_bytes(text),
    }
    seconds = {method: median_s(run, repeats) for method, run in methods.items()}
    megabytes = len(text) / 1e6
    for method, value in seconds.items():
        rows.add(case=name, method=method, seconds=value, bytes=len(text), megabytes_per_s=megabytes / value, same=same)
    cells = " ".join(f"{value:18.3f}" for value in seconds.values())
    ratio = seconds["scikit-learn"] / seconds["dsgd"]
    return f"{name:>24} {megabytes:8.1f} {cells} {ratio:8.1f}x {'yes' if same else 'NO':>6}"


def main() -> None:
    """Run all files and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per method and file to this file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat")
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else arguments.repeats
    rows = Rows("svmlight", arguments.out)
    folder = Path(os.environ.get("DSGD_DATA", ""))
    print(f"seconds to read plain svmlight text, median of {repeats}")
    print(f"{'':>24} {'MB':>8} {'scikit-learn':>18} {'dsgd':>18} {'dsgd, parser alone':>18} {'faster':>9} {'same':>6}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in FILES:
            if not (folder / name).is_file():
                print(f"{name:>24} skipped: not in DSGD_DATA")
                continue
            text = bz2.decompress((folder / name).read_bytes())
            path = Path(scratch) / name.removesuffix(".bz2")
            path.write_bytes(text)
            print(compare(path.name, str(path), text, repeats, rows), flush=True)
        made = make_like("epsilon", 1_000)
        path = Path(scratch) / "epsilon-like"
        write_svmlight(made.X, made.y, path)
        print(compare("epsilon-like, 1000 rows", str(path), path.read_bytes(), repeats, rows), flush=True)


if __name__ == "__main__":
    main()
