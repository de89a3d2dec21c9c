"""SVMs on 1, 2, 4, ... threads: whole fits, and how many times as fast as on one thread, up to the cores there are.

All counts of threads take turns, and each is compared with the fit on one thread of the same turn. A case is a problem
of two classes, whose threads share one solver, but for the pairs of classes, which are solved side by side. The models
are the same to the last bit where no sum of a linear machine is divided among threads; the table says so.

    python -m benchmarks run svm/cores --out rows.jsonl
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, table
from benchmarks.svm.peers import generated
from dsgd.comm.memory.cores import count_cores
from dsgd.datasets import make_like
from dsgd.svm import SVC, LinearSVC

PAGE = "svm"
QUICK_S = 30
QUICK = "a tenth of the rows, one repeat"
REPEATS = (3, 1)


def letters(n: int) -> tuple[Any, Any]:
    """Return n rows of 20 features in 12 classes, which are 66 pairs."""
    return make_classification(n, 20, n_informative=12, n_classes=12, n_clusters_per_class=1, random_state=0)


def webspam(n: int) -> tuple[Any, Any]:
    """Return n rows of the shape of webspam."""
    made = make_like("webspam", n)
    return made.X.astype(np.float32), np.where(np.asarray(made.y) > 0, 1.0, -1.0)


#: name -> (rows, reader, estimator)
CASES: dict[str, tuple[int, Callable[[int], tuple[Any, Any]], Callable[..., Any]]] = {
    "SVC 60k x 20": (60_000, generated, partial(SVC, cache_size=400)),
    "SVC 66 pairs": (24_000, letters, partial(SVC, cache_size=400)),
    "LinearSVC hinge": (350_000, webspam, partial(LinearSVC, loss="hinge", tol=1e-3, random_state=0)),
    "LinearSVC squared": (350_000, webspam, partial(LinearSVC, loss="squared_hinge", tol=1e-3, random_state=0)),
}


def counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and the most."""
    return sorted({most, *(2**k for k in range(most.bit_length()) if 2**k <= most)})


OPTIONS = {
    "--threads": {"type": int, "default": max(2, count_cores()), "help": "the most; all cores by default"},
}


def run(options: Options, rows: Rows) -> None:
    heads = ("seconds:.2f", "processor s:.2f", "times one thread:.2f", "same bits")
    with table("whole fits on threads", "case", "rows", "threads", *heads) as line:
        for name in options.only:
            n, read, make = CASES[name]
            X, y = read(n // 10 if options.quick else n)
            fits = {k: partial(make(n_jobs=k).fit, X, y) for k in counts(options.threads)}
            few = np.argsort(y, kind="stable")[:: max(1, len(y) // 2000)]
            make(n_jobs=2).fit(X[few], y[few])  # compiles and loads
            found = in_turns(fits, options.repeats)
            one = [turn.seconds for turn in found[1]]
            for k, turns in found.items():
                seconds = [turn.seconds for turn in turns]
                is_same = _coefficients(turns[0].value) == _coefficients(found[1][0].value)
                cpu_s = min(turn.cpu_s for turn in turns)
                line(name, len(y), k, median_s(turns), cpu_s, ratio(one, seconds), "yes" if is_same else "no")
                rows.add(case=name, n=len(y), threads=k, seconds=seconds, processor_s=cpu_s, same_bits=is_same)


def _coefficients(model: Any) -> bytes:
    return np.ascontiguousarray(model.dual_coef_ if hasattr(model, "dual_coef_") else model.coef_).tobytes()
