"""Reading svmlight files: our reader beside scikit-learn's, on the same text in the same run.

Prints one line per file: megabytes of plain text and the median seconds of scikit-learn's reader, of ours, and of our
parser alone on text that is in memory. Files are taken from the folder DSGD_DATA names; one more is generated.

    python -m benchmarks run svmlight --out rows.jsonl
"""

from __future__ import annotations

import bz2
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, table
from dsgd.datasets import load_svmlight, make_like, write_svmlight
from dsgd.datasets.parse import parse_bytes

PAGE = "tables"
QUICK_S = 15
QUICK = "one repeat"
REPEATS = (3, 1)

FILES = ("ijcnn1.t.bz2", "a9a.bz2", "news20.bz2", "reuters-money-fx.bz2")


def compare(name: str, path: str, text: bytes, repeats: int, rows: Rows, line: Callable[..., None]) -> None:
    """Time the readers on one plain file."""
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
    seconds = {method: median_s(turns) for method, turns in in_turns(methods, repeats).items()}
    megabytes = len(text) / 1e6
    for method, value in seconds.items():
        rows.add(case=name, method=method, seconds=value, bytes=len(text), megabytes_per_s=megabytes / value, same=same)
    line(name, megabytes, *seconds.values(), seconds["scikit-learn"] / seconds["dsgd"], "yes" if same else "NO")


def run(options: Options, rows: Rows) -> None:
    folder = Path(os.environ.get("DSGD_DATA", ""))
    heads = ("file", "MB:.1f", "scikit-learn:.3f", "dsgd:.3f", "dsgd, parser alone:.3f", "times faster:.1f", "same")
    title = f"seconds to read plain svmlight text, medians of {options.repeats}"
    with tempfile.TemporaryDirectory() as scratch, table(title, *heads) as line:
        for name in FILES:
            if not (folder / name).is_file():
                print(f"{name} skipped: not in DSGD_DATA")
                continue
            text = bz2.decompress((folder / name).read_bytes())
            path = Path(scratch) / name.removesuffix(".bz2")
            path.write_bytes(text)
            compare(path.name, str(path), text, options.repeats, rows, line)
        made = make_like("epsilon", 1_000)
        path = Path(scratch) / "epsilon-like"
        write_svmlight(made.X, made.y, path)
        compare("epsilon-like, 1000 rows", str(path), path.read_bytes(), options.repeats, rows, line)
