"""What rows in a file cost beside rows in memory, and data of twice the memory limit trained to the end.

walk     One epoch of hinge loss on one thread over the same rows, in memory and in a file: with the file in the page
         cache of the system (warm) and thrown out of it before every epoch (cold; needs root). Resident memory of the
         process while it walks.
cluster  Two workers, and data of twice what they may use together, made block by block on the workers: what a fit in
         memory answers, and seconds of the second epoch and peak memory of each worker of a fit out of core.

    python -m benchmarks run out_of_core [--quick] [--only walk|cluster]
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.common.measuring import Options, Rows, table, timed, workers
from dsgd.local import SGD, Objective, Residency, Shard
from dsgd.local.ingest import concat_blocks
from dsgd.local.objective import n_params

PAGE = "tables"
QUICK_S = 60
QUICK = "less data"
CASES = ("walk", "cluster")


def status() -> dict[str, int]:
    """Return the memory of this process in bytes: now, its peak, and the part that are mapped files."""
    names = {"VmRSS": "now", "VmHWM": "peak", "RssFile": "files"}
    lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {names[name]: int(value.split()[0]) * 1024 for name, value in lines if name in names}


def evict(shard: Shard) -> None:
    """Throw a mapped shard out of the page cache; what was never written to disk is written first."""
    part = next(line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line)
    shard.release(0, shard.n_rows)
    file = os.open(f"/proc/self/map_files/{part}", os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def epoch(shard: Shard, before: Callable[[], None]) -> tuple[float, int]:
    """Return the seconds of the fastest of three epochs, and the most memory of files that one had resident."""
    optimizer = SGD(Objective(loss="hinge"))
    state = optimizer.init(shard)
    params = np.zeros(n_params(shard.n_features, 1), shard.dtype)
    step = max(1, 2_000_000 // (shard.nnz // shard.n_rows + 16))
    seconds, most, files = [], 0, status()["files"]
    for _ in range(4):
        before()
        state.start_epoch()
        residency, begin = Residency(shard), time.perf_counter()
        for start in range(0, shard.n_rows, step):
            stop = min(start + step, shard.n_rows)
            optimizer.run(params, shard, start, stop, state)
            if start // step % 8 == 0:
                most = max(most, status()["files"] - files)
            residency.at(stop)
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:]), most


def walked(nbytes: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, rows of so many bytes and targets of each kind of rows."""
    rng = np.random.default_rng(0)
    for name, d in (("dense, 22 features", 22), ("dense, 2,000", 2000), ("sparse, 75 of 47,000", 47_000)):
        if name.startswith("dense"):
            n = nbytes // (4 * d)
            X: Any = rng.standard_normal((n, d), dtype=np.float32)
        else:
            n = nbytes // (8 * 75)
            columns = np.sort(rng.integers(0, d, (n, 75), dtype=np.int32), axis=1)
            values = rng.random(n * 75, dtype=np.float32)
            X = sp.csr_array((values, columns.ravel(), np.arange(n + 1) * 75), shape=(n, d))
        yield name, X, np.where(rng.random(n) < 0.5, 1.0, -1.0)


def walk(rows: Rows, nbytes: int, folder: str) -> None:
    """Time an epoch over rows in memory and in a file."""
    heads = ("rows", "where", "million rows/s:.2f", "GB/s:.2f", "of in memory:.0%", "resident MB:.0f")
    with table("one epoch on one thread", *heads) as line:
        for name, X, y in walked(nbytes):
            in_memory = concat_blocks([(X, y, None)])
            base, _ = epoch(in_memory, lambda: None)
            n, size = len(y), in_memory.nbytes
            del in_memory
            packed = timed(concat_blocks, [(X, y, None)], folder=folder)
            shard = packed.value
            del X, y
            measured = [("memory", base, 0), ("file, warm", *epoch(shard, lambda: None))]
            with suppress(OSError, StopIteration):
                measured.append(("file, cold", *epoch(shard, lambda shard=shard: evict(shard))))
            for where, seconds, resident in measured:
                line(name, where, n / seconds / 1e6, size / seconds / 1e9, base / seconds, resident / 2**20)
                rows.add(case="walk", rows=name, where=where, n=n, nbytes=size, seconds=seconds, resident=resident)
            rows.add(case="pack", rows=name, nbytes=size, seconds=packed.seconds)
            line(name, "packed", None, size / packed.seconds / 1e9, None, None)
            del shard, packed


def make_block(k: int, n: int, d: int) -> tuple[Any, Any]:
    """Return block k: n rows of d features and their classes."""
    rng = np.random.default_rng(k)
    X = rng.standard_normal((n, d), dtype=np.float32)
    return X, (X[:, 0] + X[:, 1] > 0).astype(np.int8)


def cluster(rows: Rows, limit_mb: int, folder: str) -> None:
    """Train on twice the memory of a cluster."""
    import dask
    import dask.array as da

    from dsgd import Gang, SGDClassifier
    from dsgd.errors import ClusterError

    n, d = 4096, 1024  # 16 MiB a block
    n_blocks = 2 * 2 * limit_mb // 16
    blocks = [dask.delayed(make_block, pure=False)(k, n, d) for k in range(n_blocks)]
    options = {"max_iter": 3, "tol": None, "random_state": 0}
    with (
        dask.config.set({"temporary-directory": folder}),
        workers(2, memory_limit=f"{limit_mb}MiB") as client,
    ):
        # A small fit first: what follows measures rows and not the loading of libraries.
        small = SGDClassifier(client=client, **options).fit(blocks[:2])
        print(f"two workers of {limit_mb} MiB; with all libraries loaded they use", end=" ")
        print(", ".join(f"{s['now'] / 2**20:.0f} MiB" for s in client.run(status).values()))
        print(f"data: {n_blocks} blocks of 16 MiB, {n_blocks * 16} MiB in all")
        X = da.concatenate(
            [
                da.from_delayed(dask.delayed(make_block, pure=False)(k, n, d)[0], (n, d), np.float32)
                for k in range(n_blocks)
            ]
        )
        y = da.concatenate(
            [da.from_delayed(dask.delayed(make_block, pure=False)(k, n, d)[1], (n,), np.int8) for k in range(n_blocks)]
        )
        try:
            SGDClassifier(client=client, **options).fit(X, y)
        except ClusterError as error:
            print(f"in memory: {error}")
        whole = timed(SGDClassifier(client=Gang(client, out_of_core=True), **options).fit, blocks)
        model, elapsed = whole.value, whole.seconds
        first, second, _ = (record["seconds"] for record in model.fit_report_["epochs"])
        peaks = [s["peak"] for s in client.run(status).values()]
        print(
            f"out of core: {elapsed:.1f} s in all, second epoch {second - first:.2f} s "
            f"({n * n_blocks / (second - first) / 1e6:.2f} million rows/s, "
            f"{n_blocks * 16 / 1024 / (second - first):.2f} GiB/s), peak memory of the workers "
            + ", ".join(f"{p / 2**20:.0f} MiB" for p in peaks)
        )
        rows.add(
            case="cluster",
            limit_mb=limit_mb,
            data_mb=16 * n_blocks,
            seconds=elapsed,
            epoch_s=second - first,
            peaks=peaks,
        )
        del small


OPTIONS = {
    "--folder": {"default": tempfile.gettempdir(), "help": "where files lie; on the disk to measure"},
}


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore")
    if "walk" in options.only:
        walk(rows, (128 if options.quick else 1024) << 20, options.folder)
    if "cluster" in options.only:
        cluster(rows, 650 if options.quick else 1000, options.folder)
