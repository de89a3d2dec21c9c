"""Parity of `dsgd.svm.SVC` with LIBSVM (scikit-learn's SVC) on whole real sets, for every way of eliminating samples.

Prints a table, one row per set and preset: rows, classes, the difference of dual objectives relative to LIBSVM's, the
gap over all rows, how many decision values off the margin (more than ten times tol) have the other sign than LIBSVM's,
kernel values computed, samples left out and come back, and seconds beside LIBSVM's. Objectives and gaps are computed
here, from the returned coefficients alone, in float64 with scikit-learn's `rbf_kernel`. Both solve to tol 1e-3. What
misses a limit (objective 1e-5, gap tol, no other sign) is marked with ``<--``, and the exit status is 1.

    DSGD_DATA=... python -m benchmarks run svm/parity --out rows.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm as plain
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.common.rows import Rows
from benchmarks.common.suite import where_found
from benchmarks.common.table import table
from benchmarks.common.timing import timed
from benchmarks.training.accuracy import as_plain
from dsgd.datasets import load
from dsgd.svm import SVC

PAGE = "svm"
QUICK_S = 60
QUICK = "2000 rows of each set"

PRESETS = ["none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto"]
TOL = 1e-3
CHUNK = 1000
N_SIGNS = 5000


@dataclass(frozen=True)
class Case:
    """A set with its parameters; the cache is too small for the kernel matrix of a problem."""

    name: str
    C: float
    gamma: float
    cache_mb: float
    limit: int | None = None
    scale: float = 1.0


CASES = {
    "a9a": Case("a9a", 1.0, 0.05, 100),
    "w8a": Case("w8a", 8.0, 0.02, 100),
    "ijcnn1": Case("ijcnn1", 10.0, 1.0, 100),
    "usps": Case("usps", 10.0, 0.01, 2),
    "letter": Case("letter", 10.0, 0.5, 1),
    "mnist-10k": Case("mnist", 10.0, 0.02, 4, limit=10_000, scale=1 / 255),
    "covtype-20k": Case("covtype-subset", 10.0, 1.0, 50, limit=20_000),
}


def read(case: Case, limit: int | None) -> tuple[Any, Any]:
    """Return rows and labels, CSR with 32-bit indices where the set is sparse."""
    data = load(case.name)
    n = min(len(data.y), case.limit or len(data.y), limit or len(data.y))
    chosen = np.sort(np.random.default_rng(0).permutation(len(data.y))[:n])
    X, y = data.X[chosen], data.y[chosen]
    if sp.issparse(X) and X.nnz > 0.3 * X.shape[0] * X.shape[1]:
        X = X.toarray()
    if not sp.issparse(X):
        return np.asarray(X, dtype=np.float64) * case.scale, y
    return as_plain(sp.csr_matrix(X, dtype=np.float64) * case.scale), y


def pairs(model: Any, y: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield rows, signs and variables of each pair of classes."""
    coef = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else model.dual_coef_
    labels = y[model.support_]
    for a, b in combinations(range(len(model.classes_)), 2):
        rows = np.flatnonzero((y == model.classes_[a]) | (y == model.classes_[b]))
        alpha = np.zeros(len(y))
        for mine, other in ((a, b - 1), (b, a)):
            of = labels == model.classes_[mine]
            alpha[model.support_[of]] = np.abs(coef[other, of])
        yield rows, np.where(y[rows] == model.classes_[a], 1.0, -1.0), alpha[rows]


def certify(model: Any, X: Any, y: Any, case: Case) -> tuple[float, float]:
    """Return the dual objective and the largest gap over all rows."""
    objective, gap = 0.0, 0.0
    for rows, signs, alpha in pairs(model, y):
        used = np.flatnonzero(alpha)
        beta = (signs * alpha)[used]
        u = np.concatenate(
            [
                rbf_kernel(X[rows[k : k + CHUNK]], X[rows[used]], gamma=case.gamma) @ beta
                for k in range(0, len(rows), CHUNK)
            ]
        )
        f = u - signs
        is_full = alpha >= case.C * (1 - 1e-12)
        up = np.where(signs > 0, ~is_full, alpha > 0)
        low = np.where(signs > 0, alpha > 0, ~is_full)
        objective += 0.5 * float(beta @ u[used]) - float(alpha.sum())
        gap = max(gap, float(f[low].max(initial=-np.inf) - f[up].min(initial=np.inf)))
    return objective, gap


def compare(name: str, presets: list[str], limit: int | None, rows: Rows, line: Callable[..., None]) -> bool:
    """Print the lines of one set; return whether all keep their limits."""
    case = CASES[name]
    X, y = read(case, limit)
    options = {"C": case.C, "gamma": case.gamma, "tol": TOL, "decision_function_shape": "ovo"}
    peer = timed(plain.SVC(cache_size=case.cache_mb, **options).fit, X, y)
    theirs, peer_s = peer.value, peer.seconds
    expected, peer_gap = certify(theirs, X, y, case)
    T = X[:N_SIGNS]
    known = theirs.decision_function(T)
    is_fine = True
    for preset in presets:
        taken = timed(SVC(cache_size=case.cache_mb, elimination=preset, **options).fit, X, y)
        ours, seconds = taken.value, taken.seconds
        objective, gap = certify(ours, X, y, case)
        difference = (objective - expected) / abs(expected)
        n_other = int(((ours.decision_function(T) > 0) != (known > 0))[np.abs(known) > 10 * TOL].sum())
        keeps = abs(difference) <= 1e-5 and gap < TOL * (1 + 1e-6) and n_other == 0
        is_fine = is_fine and keeps
        counts = X.shape[0], len(ours.classes_), n_other, ours.n_eliminated_, ours.n_returned_
        figures = difference, gap, ours.n_kernel_evaluations_ / 1e6, seconds, peer_s
        line(name, preset, *counts, *figures, "" if keeps else "<--")
        rows.add(
            case=name,
            preset=preset,
            n=X.shape[0],
            n_classes=len(ours.classes_),
            difference=difference,
            gap=gap,
            peer_gap=peer_gap,
            n_other_sign=n_other,
            n_kernel_evaluations=ours.n_kernel_evaluations_,
            n_eliminated=ours.n_eliminated_,
            n_returned=ours.n_returned_,
            seconds=seconds,
            peer_seconds=peer_s,
        )
    return is_fine


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=PRESETS, help="only these")


def run(options: argparse.Namespace, rows: Rows) -> int:
    """Run all sets and print the table; return 1 if a limit is missed."""
    limit = 2000 if options.quick else None
    counts = ("rows", "classes", "other signs", "left out", "back")
    heads = ("objective:+.1e", "gap:.1e", "1e6 kernel values:.0f", "seconds:.2f", "LIBSVM's:.2f", "")
    with table("beside LIBSVM", "set", "elimination", *counts, *heads) as line:
        missed = 0
        for name in options.only:
            with where_found(name):
                missed |= not compare(name, options.preset, limit, rows, line)
        return int(missed)
