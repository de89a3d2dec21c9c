"""One epoch of SGD: dsgd's kernel beside scikit-learn's SGDClassifier and Vowpal Wabbit, in the same run.

Methods take turns, and the median of each is kept; all of them use one thread.

- dsgd: `SGD.run` over all rows of a shard, from a model of zeros. `make_shard` is timed apart, as row "ingest".
- scikit-learn: ``fit`` with ``max_iter=1, tol=None``, on float32 data in the form it reads without a copy; with its
  default shuffling (a permuted walk), and with ``shuffle=False``. "marginal" is a sixth of what six more epochs add to
  the time of a fit, so without validation of the input.
- Vowpal Wabbit: its best case, ``--sgd`` (no adaptive rates) from its binary cache file, already parsed and in the page
  cache: a sixth of what six more passes add to the time of a run.

The share of memory bandwidth is the bytes an epoch must read over its seconds, against a plain sum over as many bytes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numba import njit
from sklearn.linear_model import SGDClassifier

from benchmarks.common.measuring import Options, Rows, in_turns, report, timed
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.objective import n_params

PAGE = "performance"
QUICK_S = 25
QUICK = "a tenth of the rows"
REPEATS = (9, 3)

ALPHA = 1e-4
EXTRA_PASSES = 6
VW_VALUES = 5_000_000


@njit(fastmath={"reassoc"}, cache=True)
def read_pass(words):
    """Return the sum of a vector: the cheapest work that reads all of it."""
    total = words.dtype.type(0)
    for j in range(np.uint64(words.shape[0])):
        total += words[j]
    return total


def dense_rows(n_rows, n_features, seed):
    """Return float32 rows with a separator, and targets of which a tenth are wrong."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features), np.float32) / np.float32(np.sqrt(n_features))
    y = np.where(X @ rng.standard_normal(n_features, np.float32) > 0, 1.0, -1.0)
    return X, np.where(rng.random(n_rows) < 0.1, -y, y)


def sparse_rows(n_rows, n_features, n_entries, seed):
    """Return float32 CSR rows of unit length with columns drawn by Zipf's law, as in text, and noisy targets."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(1, rng.poisson(1.4 * n_entries, n_rows))
    ranks = np.exp(rng.random(lengths.sum()) * np.log(n_features)).astype(np.int64) - 1
    columns = rng.permutation(n_features)[ranks].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    X = scipy.sparse.csr_array((rng.random(columns.size, np.float32), columns, indptr), shape=(n_rows, n_features))
    X.sum_duplicates()
    norms = np.sqrt(X.multiply(X).sum(axis=1))
    X.data /= np.repeat(norms.astype(np.float32), np.diff(X.indptr))
    X = scipy.sparse.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    y = np.where(X @ rng.standard_normal(n_features).astype(np.float32) > 0, 1.0, -1.0)
    return X, np.where(rng.random(n_rows) < 0.1, -y, y)


def dsgd_epoch(X, y, loss):
    """Return a function that times one epoch of ours, and the shard."""
    shard = make_shard(X, y)
    optimizer = SGD(Objective(loss, alpha=ALPHA))

    def epoch() -> float:
        params = np.zeros(n_params(shard.n_features, 1), shard.dtype)
        state = optimizer.init(shard)
        state.start_epoch()
        return timed(optimizer.run, params, shard, 0, shard.n_rows, state).seconds

    epoch()
    return epoch, shard


def sklearn_fit(X, y, loss, max_iter, shuffle):
    """Return the seconds of a fit of scikit-learn's."""
    peer = SGDClassifier(loss=loss, alpha=ALPHA, max_iter=max_iter, tol=None, shuffle=shuffle, random_state=0)
    return timed(peer.fit, X, y).seconds


def vw_pass(X, y, loss, folder: Path):
    """Return a function that times one pass of Vowpal Wabbit over its cache of (some of) the rows; None if missing."""
    try:
        from vowpalwabbit import Workspace
    except ImportError:
        return None
    n_rows = int(
        min(X.shape[0], max(100, VW_VALUES // (X.nnz / X.shape[0] if scipy.sparse.issparse(X) else X.shape[1])))
    )
    head = scipy.sparse.csr_array(X[:n_rows])
    text, cache = folder / "rows.vw", folder / "rows.cache"
    with text.open("w") as file:
        for i in range(n_rows):
            part = slice(head.indptr[i], head.indptr[i + 1])
            pairs = " ".join(f"{j}:{v:.6g}" for j, v in zip(head.indices[part], head.data[part], strict=True))
            file.write(f"{int(y[i])} | {pairs}\n")
    options = (
        f"--quiet --no_stdin --sgd --holdout_off -b 18 --loss_function {'logistic' if loss == 'log_loss' else loss}"
    )

    def run(passes: int) -> float:
        def work() -> None:
            workspace = Workspace(f"{options} -d {text} --cache_file {cache} --passes {passes}")
            workspace.finish()

        return timed(work).seconds

    run(2)
    text.write_text("")
    return lambda: (run(1 + EXTRA_PASSES) - run(1)) / EXTRA_PASSES * X.shape[0] / n_rows


def measure(case: str, X, y, loss: str, repeats: int, with_vw: bool) -> list[dict[str, Any]]:
    """Return the rows of one data set."""
    epoch, shard = dsgd_epoch(X, y, loss)
    buffer = np.ones(shard.nbytes // 4, np.float32)
    read_pass(buffer)
    methods: dict[str, Callable[[], float]] = {
        "dsgd": epoch,
        "dsgd ingest": lambda: timed(make_shard, X, y).seconds,
        "read pass": lambda: timed(read_pass, buffer).seconds,
        "scikit-learn": lambda: sklearn_fit(X, y, loss, 1, True),
        "scikit-learn shuffle=False": lambda: sklearn_fit(X, y, loss, 1, False),
        "scikit-learn marginal": lambda: (
            (sklearn_fit(X, y, loss, 1 + EXTRA_PASSES, True) - sklearn_fit(X, y, loss, 1, True)) / EXTRA_PASSES
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        if with_vw:
            vw = vw_pass(X, y, loss, Path(folder))
            if vw is None:
                print("vowpalwabbit is not installed: its row is skipped.")
            else:
                methods["vowpal wabbit"] = vw
        turns = in_turns(methods, repeats)
    found = {name: statistics.median(each.value for each in taken) for name, taken in turns.items()}
    facts = {"case": case, "loss": loss, "bytes": shard.nbytes, "rows": shard.n_rows, "features": shard.n_features}
    facts |= {"nnz": shard.nnz, "repeats": repeats}
    return [
        facts | {
            "method": method, "seconds": value, "times_dsgd": value / found["dsgd"],
            "ns_per_row": 1e9 * value / shard.n_rows, "bandwidth_share": found["read pass"] / value,
            "gb_per_s": shard.nbytes / value / 1e9,
        }
        for method, value in found.items()
    ]  # fmt: skip


OPTIONS = {
    "--no-vw": {"action": "store_true", "help": "leave Vowpal Wabbit out"},
    "--loss": {"default": "hinge", "choices": ["hinge", "log_loss"]},
}


def run(options: Options, rows: Rows) -> None:
    share = 10 if options.quick else 1
    cases = {
        "dense 22": lambda: dense_rows(200_000 // share, 22, 0),
        "dense 2000": lambda: dense_rows(10_000 // share, 2_000, 1),
        "sparse 47k": lambda: sparse_rows(50_000 // share, 47_236, 75, 2),
    }
    columns = (
        "method | ms = seconds*1e3:.2f | ns/row = ns_per_row:.1f | x dsgd = times_dsgd:.2f | GB/s = gb_per_s:.1f | "
        "of read pass = bandwidth_share:.0%"
    )
    for case, build in cases.items():
        found = measure(case, *build(), options.loss, options.repeats, not options.no_vw)
        n, n_bytes = found[0]["rows"], found[0]["bytes"]
        shape = f"{n} rows, {found[0]['nnz'] / n:.1f} entries each, {n_bytes / 1e6:.1f} MB"
        with report(rows, f"{case}: {shape}, {options.loss}, medians of {options.repeats}", columns) as add:
            for row in found:
                add(**row)
