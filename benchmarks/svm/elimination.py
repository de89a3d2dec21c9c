"""Elimination under cache pressure: every preset of `dsgd.svm.SVC` on sets whose kernel does not fit into the cache.

The cache holds the same share of the kernel matrix on all sets, a hundredth unless ``--share`` or ``--megabytes`` say
otherwise. Each fit runs in a process of its own, so that its peak memory can be told; presets of one set take turns.
One line per preset: kernel values computed, in units of n² and against ``none``; median seconds and processor seconds;
steps; samples left out, and those that wrongly were and came back; reconstructions; the difference of the objective
from that of ``none``; and by how much resident memory rose above that of the data, the program and the cache.

The line of a set tells two numbers of kernel values to hold these against. *Least*: what any run must compute that
proves the gap over all samples by their sums. *Oracle*: what this solver takes if it is told which samples end as
support vectors, the same cache given; it solves these alone and then needs the rest of their rows.

``--slower`` compares ``auto`` with ``none`` only, with caches of 1 and 10 per cent and of 200 and 400 megabytes, and
says where it takes more time.

    DSGD_DATA=... python -m benchmarks run svm/elimination --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import make_classification

from benchmarks.common.rows import Rows
from benchmarks.common.suite import child
from benchmarks.common.table import table
from benchmarks.common.timing import timed
from benchmarks.svm.peers import generated
from dsgd.datasets import load
from dsgd.errors import DatasetError

PAGE = "elimination"
QUICK_S = 60
QUICK = "one repeat on 4000 rows under the same pressure"
REPEATS = (3, 1)

PRESETS = ["none", "auto", "multi", "single", "libsvm", "aggressive", "average", "conservative"]


def noisy(n: int) -> tuple[Any, Any]:
    """Return the same with a fifth of the labels drawn at random: more than half of the rows end as vectors."""
    return make_classification(n, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.2, random_state=0)


def checkerboard(n: int) -> tuple[Any, Any]:
    """Return points of a 4 x 4 board."""
    X = np.random.default_rng(1).random((n, 2))
    return X, (np.floor(4 * X).sum(axis=1) % 2).astype(int)


def real(name: str, n: int, positive: Any = None) -> tuple[Any, Any]:
    """Return n rows of a set, drawn with seed 0; with `positive`, that class against the others."""
    data = load(name)
    rows = np.sort(np.random.default_rng(0).permutation(data.X.shape[0])[:n])
    y = data.y[rows] if positive is None else (data.y[rows] == positive).astype(int)
    return data.X[rows], y


#: name -> (rows by number, number of rows, parameters)
CASES: dict[str, tuple[Callable[[int], tuple[Any, Any]], int, dict[str, float]]] = {
    "clean 20k": (generated, 20_000, {"C": 10.0}),
    "clean 60k": (generated, 60_000, {"C": 10.0}),
    "noisy 20k": (noisy, 20_000, {"C": 1.0}),
    "noisy 60k": (noisy, 60_000, {"C": 1.0}),
    "checkerboard 20k": (checkerboard, 20_000, {"C": 100.0, "gamma": 10.0}),
    "a9a csr": (lambda n: real("a9a", n), 32_561, {"C": 1.0}),
    "ijcnn1": (lambda n: real("ijcnn1", n), 49_990, {"C": 10.0, "gamma": 1.0}),
    "w8a csr": (lambda n: real("w8a", n), 49_749, {"C": 8.0}),
    "covtype 20k": (lambda n: real("covtype-subset", n, 1), 20_000, {"C": 10.0}),
}
SHARE = 0.01
QUICK_ROWS = 4000
#: Caches of ``--slower``: shares of the kernel matrix, and megabytes.
SHARES, MEGABYTES = (0.01, 0.1), (200.0, 400.0)


@dataclass(frozen=True)
class Cache:
    """A cache: megabytes, or a share of the kernel matrix."""

    megabytes: float | None = None
    share: float = SHARE

    def of(self, n: int) -> float:
        """Return the megabytes for n samples."""
        return self.megabytes or self.share * 4 * n**2 / 2**20


def measure(name: str, preset: str, cache: Cache, quick: bool) -> dict[str, Any]:
    """Fit once in this process and return what it took."""
    from dsgd.runtime.threads import peak_rss_bytes
    from dsgd.svm import SVC

    read, n, options = CASES[name]
    X, y = read(n)
    if quick:
        X, y = X[:QUICK_ROWS], y[:QUICK_ROWS]
    cache_mb = cache.of(X.shape[0])
    some = np.argsort(y, kind="stable")[:: max(1, len(y) // 3000)]
    SVC(cache_size=0.1, elimination="aggressive").fit(X[some], y[some])  # load compiled code
    before = peak_rss_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken = timed(SVC(cache_size=cache_mb, elimination=preset, **options).fit, X, y)
    model = taken.value
    peak = peak_rss_bytes() - before
    n_told = oracle_values(X, y, model, cache_mb, options) if preset == "none" else None
    (history,) = model.elimination_history_
    active = [record.n_active for record in history]
    return {
        "n": X.shape[0],
        "d": X.shape[1],
        "share": cache_mb * 2**20 / (4 * X.shape[0] ** 2),
        "cache_mb": cache_mb,
        "seconds": taken.seconds,
        "cpu_seconds": taken.cpu_s,
        "kernel_evaluations": model.n_kernel_evaluations_,
        "n_iter": int(model.n_iter_.sum()),
        "n_support": len(model.support_),
        "n_eliminated": model.n_eliminated_,
        "n_returned": model.n_returned_,
        "n_reconstructions": model.n_reconstructions_,
        "least_active": min(active),
        "objective": model.dual_objective_,
        "gap": model.gap_,
        "peak_rise_bytes": peak,
        "oracle_evaluations": n_told,
        "data_bytes": int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sp.issparse(X) else X.nbytes),
    }


def least_values(n: int, n_support: int) -> int:
    """Return how many kernel values any run needs: each between a support vector and a sample once, K being symmetric.

    The gap over all samples is that of sums over the support vectors; a value left out could be any number.
    """
    return n_support * n - n_support * (n_support - 1) // 2


def oracle_values(X: Any, y: Any, model: Any, cache_mb: float, options: dict[str, float]) -> int:
    """Return the kernel values of a run on the support vectors alone, and those between them and the other samples."""
    from dsgd.svm import SVC

    told = SVC(cache_size=cache_mb, elimination="none", **{"gamma": model._gamma, **options})
    n_support = len(model.support_)
    told.fit(X[model.support_], y[model.support_])
    return int(told.n_kernel_evaluations_) + n_support * (X.shape[0] - n_support)


def in_own_process(name: str, preset: str, cache: Cache, quick: bool) -> dict[str, Any]:
    """Run `measure` in a fresh process."""
    size = ["--megabytes", str(cache.megabytes)] if cache.megabytes else ["--share", str(cache.share)]
    command = child(__name__, [name, preset], *size, *["--quick"] * quick)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, presets: list[str], cache: Cache, repeats: int, quick: bool, rows: Rows) -> float:
    """Fit one set with all presets in turn, print their lines and return the time of the last against that of none."""
    runs: dict[str, list[dict[str, Any]]] = {preset: [] for preset in presets}
    for _ in range(repeats):
        for preset in presets:
            runs[preset].append(in_own_process(name, preset, cache, quick))
    none = runs["none"][0]
    times = {p: statistics.median(run["seconds"] for run in runs[p]) for p in presets}
    cpus = {p: statistics.median(run["cpu_seconds"] for run in runs[p]) for p in presets}
    pairs = none["n"] ** 2
    least = least_values(none["n"], none["n_support"])
    told = none["oracle_evaluations"]
    title = (
        f"{name}: n={none['n']}, cache {none['cache_mb']:.3g} MB, {none['share']:.3g} of the kernel; least "
        f"{least / pairs:.3f} n² values ({none['kernel_evaluations'] / least:.2f}x fewer), oracle {told / pairs:.3f} "
        f"({none['kernel_evaluations'] / told:.2f}x fewer)"
    )
    values = ("preset", "n² values:.3f", "times fewer:.2f", "seconds:.2f", "faster:.2f", "cpu s:.2f", "of cpu:.2f")
    counts = ("steps", "SVs", "left out", "returned", "renewed", "objective:.0e", "MB beyond the cache:+.0f")
    with table(title, *values, *counts) as line:
        for preset in presets:
            run = runs[preset][-1]
            apart = abs(run["objective"] - none["objective"]) / abs(none["objective"])
            extra = run["peak_rise_bytes"] / 2**20 - run["cache_mb"]
            fewer, faster = none["kernel_evaluations"] / run["kernel_evaluations"], times["none"] / times[preset]
            rows.add(
                case=name,
                preset=preset,
                **{**run, "seconds": times[preset], "cpu_seconds": cpus[preset]},
                all_seconds=[r["seconds"] for r in runs[preset]],
                least_evaluations=least,
                evaluations_ratio=fewer,
                seconds_ratio=faster,
            )
            kept = ("n_iter", "n_support", "n_eliminated", "n_returned", "n_reconstructions")
            cpu = cpus[preset], cpus["none"] / cpus[preset]
            figures = run["kernel_evaluations"] / pairs, fewer, times[preset], faster, *cpu
            line(preset, *figures, *(run[key] for key in kept), apart, extra)
    return times[presets[-1]] / times["none"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=PRESETS, help="only these, besides none")
    parser.add_argument("--share", nargs="+", type=float, default=[], help="caches as shares of the kernel")
    parser.add_argument("--megabytes", nargs="+", type=float, default=[], help="caches in megabytes")
    parser.add_argument("--slower", action="store_true", help="auto against none with several caches, times only")


def caches_of(options: argparse.Namespace) -> list[Cache]:
    """Return the caches that the options name."""
    return [*map(Cache, options.megabytes), *(Cache(share=share) for share in options.share)]


def inside(options: argparse.Namespace) -> None:
    """Fit once, and print JSON."""
    name, preset = options.inside
    print(json.dumps(measure(name, preset, caches_of(options)[0], options.quick)))


def run(options: argparse.Namespace, rows: Rows) -> None:
    presets, caches = ["none", *(p for p in options.preset if p != "none")], caches_of(options)
    if options.slower:
        presets = ["none", "auto"]
        caches = caches or [*(Cache(share=share) for share in SHARES), *map(Cache, MEGABYTES)]
    found: list[tuple[float, str, Cache]] = []
    for name, cache in product(options.only, caches or [Cache()]):
        try:
            found.append((compare(name, presets, cache, options.repeats, options.quick, rows), name, cache))
        except (RuntimeError, DatasetError) as error:
            print(f"{name} skipped: {str(error).strip().splitlines()[-1]}")
    if options.slower and found:
        ratio, name, cache = max(found, key=lambda each: each[0])
        print(f"auto takes {ratio:.2f} of the time of none at most: {name}, {cache}")
