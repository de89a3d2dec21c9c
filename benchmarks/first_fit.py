"""How long a new user waits: importing dsgd, and the first fit of a fresh process with a cold and a warm kernel cache.

python benchmarks/first_fit.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from common import Rows

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
    begin = time.perf_counter()
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return float(result.stdout), time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per run to this file")
    parser.add_argument("--quick", action="store_true", help="one warm run instead of three")
    arguments = parser.parse_args()
    rows = Rows("first_fit", arguments.out)
    print(f"{'':>20} {'cache':>6} {'seconds':>9} {'whole process':>14}")
    for name, script in SCRIPTS.items():
        with tempfile.TemporaryDirectory() as cache:
            for run in ["cold"] + ["warm"] * (1 if arguments.quick else 3):
                inside, whole = seconds(script, cache)
                rows.add(case=name, cache=run, seconds=inside, process_s=whole)
                print(f"{name:>20} {run:>6} {inside:9.2f} {whole:14.2f}", flush=True)


if __name__ == "__main__":
    main()
