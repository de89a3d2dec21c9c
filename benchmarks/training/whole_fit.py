"""Where a whole fit goes: the stages of fits on threads and workers, for rows of four shapes, beside scikit-learn's.

A fit is what a user waits for: checks, the order of rows, copies and hand-over, and then training. The ways are one
thread and two, two worker processes that are sent arrays, two that have the rows already, and one thread with its rows
in a file.
Methods take turns, and the stages are those of the fit of median length.

- bound: the seconds in which the bytes that the stages of a process count could be read at the speed of a plain sum on
  one core; of the workers and the client the longer one.
- memory: the most that a fit has added to the memory of the process, or of all workers, over the bytes of the rows.
- claimed: the seconds of all stages of the client but "other", over the wall clock around ``fit``.

    python -m benchmarks run whole_fit [--quick] [--only "dense 22"] [--epochs 5]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, table, timed, workers
from benchmarks.training.kernels import dense_rows, read_pass, sparse_rows

PAGE = "performance"
QUICK_S = 45
QUICK = "a twentieth of the rows, one turn"
REPEATS = (5, 1)

#: Rows of each shape, in thousands, and what makes so many.
SHAPES: dict[str, tuple[int, Callable[[int], Any]]] = {
    "dense 22": (1_000, lambda n: dense_rows(n, 22, 0)),
    "dense 2000": (40, lambda n: dense_rows(n, 2_000, 1)),
    "CSR 254": (280, lambda n: sparse_rows(n, 254, 20, 2)),
    "CSR 100k": (150, lambda n: sparse_rows(n, 100_000, 60, 3)),
}
CASES = SHAPES
PEER = "scikit-learn"
WAYS = ("1 thread", "2 threads", "2 workers, arrays sent", "2 workers, rows there", "1 thread, out of core")
N_WORKERS = 2


def nbytes_of(X: Any) -> int:
    """Return the bytes of rows."""
    return sum(part.nbytes for part in ((X.data, X.indices, X.indptr) if hasattr(X, "indptr") else (X,)))


def forget_peak(dask_worker: Any = None) -> int:
    """Reset the peak memory of this process; return its present memory, in bytes."""
    with suppress(OSError):  # not every system lets it
        Path("/proc/self/clear_refs").write_text("5")
    return memory()["VmRSS"]


def memory(dask_worker: Any = None) -> dict[str, int]:
    """Return the memory of this process and its peak, in bytes."""
    lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in lines if name in ("VmRSS", "VmHWM")}


def bandwidth(nbytes: int = 1 << 28) -> float:
    """Return the bytes a second of a plain sum over so many bytes, more than caches hold; the best of five."""
    buffer = np.ones(nbytes // 4, np.float32)
    read_pass(buffer)
    return nbytes / min(timed(read_pass, buffer).seconds for _ in range(5))


def rows_there(client: Any, X: Any, y: Any) -> list[Any]:
    """Return blocks that lie on the workers, four on each."""
    edges = np.linspace(0, len(y), 4 * N_WORKERS + 1).astype(int)
    homes = sorted(client.nthreads())
    blocks: list[Any] = []
    for k, (start, stop) in enumerate(pairwise(edges)):
        home = homes[k * N_WORKERS // (len(edges) - 1)]
        blocks += client.scatter([(X[start:stop], y[start:stop])], workers=[home], hash=False)
    return blocks


class Measured:
    """The fits of one shape.

    Parameters
    ----------
    client : distributed.Client
        Two workers.
    X, y : array
        Rows and targets.
    options : dict
        Of the estimators.
    """

    def __init__(self, client: Any, X: Any, y: Any, options: dict[str, Any]) -> None:
        from dsgd import Gang, SGDClassifier

        blocks = rows_there(client, X, y)
        self._client, self._X = client, X
        self.methods: dict[str, Callable[[], Any]] = {
            PEER: lambda: Peer(**options).fit(X, y),
            WAYS[0]: lambda: self._fit(SGDClassifier(**options), X, y),
            WAYS[1]: lambda: self._fit(SGDClassifier(**options, n_jobs=2), X, y),
            WAYS[2]: lambda: self._fit(SGDClassifier(**options, client=client), X, y),
            WAYS[3]: lambda: self._fit(SGDClassifier(**options, client=client), blocks, None),
            WAYS[4]: lambda: self._fit(SGDClassifier(**options, client=Gang(out_of_core=True)), X, y),
        }

    def _fit(self, model: Any, X: Any, y: Any) -> Any:
        """Return the stages of a fit, and the most memory that it took in this process and on the workers."""
        before = forget_peak(), sum(self._client.run(forget_peak).values()) if model.client else 0
        found = timed(model.fit, X, y)
        peaks = memory()["VmHWM"], sum(m["VmHWM"] for m in self._client.run(memory).values()) if model.client else 0
        taken = [max(0, peak - start) / nbytes_of(self._X) for peak, start in zip(peaks, before, strict=True)]
        return found.seconds, found.value.fit_report_["stages"], taken


def summary_of(name: str, fits: Sequence[Any], speed: float) -> dict[str, Any]:
    """Return the row of a way to fit: that of the fit of median length."""
    seconds, stages, (here, there) = sorted(fits, key=lambda fit: fit[0])[len(fits) // 2]
    sums: dict[str, int] = {}
    for entry in stages:
        sums[entry["where"]] = sums.get(entry["where"], 0) + entry["bytes"]
    local = sums.pop("client")
    claimed = sum(entry["seconds"] for entry in stages if entry["where"] == "client" and entry["stage"] != "other")
    return {
        "way": name,
        "seconds": seconds,
        "claimed": claimed / seconds,
        "bound_s": (local + max(sums.values(), default=0)) / speed,
        "memory_here": here,
        "memory_there": there,
        "stages": stages,
    }


def show_stages(case: str, found: Sequence[dict[str, Any]]) -> None:
    """Print seconds and speed of every stage of every way; of the workers, those of the slowest."""
    with table(f"{case}: stages", "way", "where", "stage", "ms:.1f", "MB:.1f", "GB/s:.2f", "of the fit:.1%") as line:
        for row in found:
            slowest: dict[tuple[str, str], dict[str, Any]] = {}
            for entry in row["stages"]:
                key = "client" if entry["where"] == "client" else "worker", entry["stage"]
                if key not in slowest or entry["seconds"] > slowest[key]["seconds"]:
                    slowest[key] = entry
            for (where, stage), entry in slowest.items():
                if entry["seconds"] >= 0.005 * row["seconds"]:
                    seconds, nbytes = entry["seconds"], entry["bytes"]
                    size = (nbytes / 1e6, nbytes / seconds / 1e9) if nbytes else (None, None)
                    line(row["way"], where, stage, 1e3 * seconds, *size, seconds / row["seconds"])


OPTIONS = {
    "--epochs": {"type": int, "default": 5, "metavar": "N", "help": "epochs of a fit (default: %(default)s)"},
}


def run(options: Options, rows: Rows) -> None:
    import dask

    heads = ("way", "s:.3f", "x scikit-learn:.2f", "bound s:.3f", "memory here:.2f", "on workers:.2f", "claimed:.1%")
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set({"temporary-directory": folder}),
        workers(N_WORKERS, set_as_default=False) as client,
    ):
        for case in options.only:
            thousands, build = SHAPES[case]
            X, y = build(thousands * (50 if options.quick else 1000))
            nbytes = nbytes_of(X)
            speed = bandwidth()
            fits = Measured(client, X, y, {"max_iter": options.epochs, "tol": None, "random_state": 0})
            turns = in_turns(fits.methods, options.repeats, warm_up=1)
            peer_s = median_s(turns.pop(PEER))
            found = [summary_of(way, [each.value for each in taken], speed) for way, taken in turns.items()]
            title = f"{case}: {len(y)} rows, {nbytes / 1e6:.0f} MB, {options.epochs} epochs, {speed / 1e9:.1f} GB/s"
            with table(title, *heads) as line:
                line(PEER, peer_s, 1.0, None, None, None, None)
                rows.add(case=case, way=PEER, seconds=peer_s, nbytes=nbytes, epochs=options.epochs)
                for row in found:
                    rows.add(case=case, nbytes=nbytes, epochs=options.epochs, bandwidth=speed, peer_s=peer_s, **row)
                    memory_of = row["memory_here"], row["memory_there"] or None
                    ratio = peer_s / row["seconds"]
                    line(row["way"], row["seconds"], ratio, row["bound_s"], *memory_of, row["claimed"])
            show_stages(case, found)
            del X, y, fits
