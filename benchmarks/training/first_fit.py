"""How long a new user waits: imports, and the first fit of a fresh process with a cold and a warm kernel cache.

The peer is the same fit of scikit-learn in a process of its own, which compiles nothing. Seconds and processor seconds
are those of the fit alone, the last column is all of the process.

python -m benchmarks run first_fit
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks.common.measuring import Options, Rows, table, timed

PAGE = "performance"
QUICK_S = 120
QUICK = "one warm run instead of three"
REPEATS = (3, 1)

PEER = "scikit-learn"
CLOCKS = "import time; t, c = time.perf_counter(), time.process_time()"
PRINT = "print(time.perf_counter() - t, time.process_time() - c)"
FIT = f"""
import numpy as np, scipy.sparse as sp
rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 20)).astype(np.float32); y = (X[:, 0] > 0).astype(float)
from {{package}} import {{name}}
{CLOCKS}
{{name}}({{options}}).fit({{wrap}}(X), y)
{PRINT}
"""
#: Where an estimator is here and in scikit-learn, how it is made, and the form of the rows.
FITS = {
    "SGDClassifier, dense": ("dsgd", "sklearn.linear_model", "SGDClassifier", "random_state=0", ""),
    "SGDClassifier, two threads": ("dsgd", "sklearn.linear_model", "SGDClassifier", "random_state=0, n_jobs=2", ""),
    "SGDClassifier, sparse": ("dsgd", "sklearn.linear_model", "SGDClassifier", "random_state=0", "sp.csr_matrix"),
    "LogisticRegression": ("dsgd.linear_model", "sklearn.linear_model", "LogisticRegression", "", ""),
    "Lasso": ("dsgd.linear_model", "sklearn.linear_model", "Lasso", "alpha=0.01", ""),
    "LinearSVC": ("dsgd.svm", "sklearn.svm", "LinearSVC", "random_state=0", ""),
    "SVC": ("dsgd.svm", "sklearn.svm", "SVC", "", ""),
    "SVR": ("dsgd.svm", "sklearn.svm", "SVR", "", ""),
    "OneClassSVM": ("dsgd.svm", "sklearn.svm", "OneClassSVM", "", ""),
}


def seconds(script: str, cache: str) -> tuple[float, float, float]:
    """Return the seconds and the processor seconds that the script printed, and the seconds of the whole process."""
    options = {"env": {**os.environ, "NUMBA_CACHE_DIR": cache}, "capture_output": True, "text": True, "check": True}
    whole = timed(subprocess.run, [sys.executable, "-c", script], **options)
    inside, processor = map(float, whole.value.stdout.split())
    return inside, processor, whole.seconds


def run(options: Options, rows: Rows) -> None:
    columns = "case", "cache", "seconds:.2f", "processor:.2f", "whole process:.2f"
    with table("what a new user waits for", *columns) as line:

        def measure(case: str, script: str, caches: list[str]) -> None:
            with tempfile.TemporaryDirectory() as folder:
                for cache in caches:
                    inside, processor, whole = seconds(script, folder)
                    rows.add(case=case, cache=cache, seconds=inside, processor_s=processor, process_s=whole)
                    line(case, cache, inside, processor, whole)

        ours = ["cold"] + ["warm"] * options.repeats
        for what in ("import dsgd", "from dsgd import SGDClassifier", "from dsgd.svm import SVC"):
            measure(what, f"{CLOCKS}\n{what}\n{PRINT}", ours[1:])
        measure(
            "import SGDClassifier",
            f"{CLOCKS}\nfrom sklearn.linear_model import SGDClassifier\n{PRINT}",
            [PEER] * len(ours[1:]),
        )
        for case, (package, peer, name, settings, wrap) in FITS.items():
            made = {"name": name, "options": settings, "wrap": wrap}
            measure(case, FIT.format(package=package, **made), ours)
            measure(case, FIT.format(package=peer, **made), [PEER])
