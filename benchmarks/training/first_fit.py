"""How long a new user waits: importing dsgd, and the first fit of a fresh process with a cold and a warm kernel cache.

python -m benchmarks run first_fit
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from benchmarks.common.rows import Rows
from benchmarks.common.table import table
from benchmarks.common.timing import timed

PAGE = "performance"
QUICK_S = 55
QUICK = "one warm run instead of three"
REPEATS = (3, 1)

IMPORT = "import time; t = time.perf_counter(); import dsgd; print(time.perf_counter() - t)"
FIT = """
import numpy as np, scipy.sparse as sp
rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 20)).astype(np.float32); y = X[:, 0] > 0
from dsgd import SGDClassifier
import time; t = time.perf_counter()
SGDClassifier(random_state=0).fit({wrap}(X), y)
print(time.perf_counter() - t)
"""
SCRIPTS = {
    "import dsgd": IMPORT,
    "first fit, dense": FIT.format(wrap=""),
    "first fit, sparse": FIT.format(wrap="sp.csr_matrix"),
}


def seconds(script: str, cache: str) -> tuple[float, float]:
    """Return what the script printed, and the seconds of the whole process."""
    options = {"env": {**os.environ, "NUMBA_CACHE_DIR": cache}, "capture_output": True, "text": True, "check": True}
    whole = timed(subprocess.run, [sys.executable, "-c", script], **options)
    return float(whole.value.stdout), whole.seconds


def run(options: argparse.Namespace, rows: Rows) -> None:
    with table("what a new user waits for", "case", "cache", "seconds:.2f", "whole process:.2f") as line:
        for name, script in SCRIPTS.items():
            with tempfile.TemporaryDirectory() as folder:
                for cache in ["cold"] + ["warm"] * options.repeats:
                    inside, whole = seconds(script, folder)
                    rows.add(case=name, cache=cache, seconds=inside, process_s=whole)
                    line(name, cache, inside, whole)
