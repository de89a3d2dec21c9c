"""Time an all-reduce between two ranks: ours over TCP and in process, torch gloo, and a round of the Dask task graph.

All methods run in the same call, one after the other, on the same float64 vectors. Rows go to ``--out`` as JSON lines,
a table to the terminal. Nothing is asserted.

    python benchmarks/collectives.py --quick
    python benchmarks/collectives.py --out rows.jsonl

What is timed, at rank 0, between two barriers of sizes up to 16 MB:

``tcp``     two processes, `dsgd.collectives.Group.allreduce` over `dsgd.comm.tcp`, in a round of the ledger
``inproc``  the same between two threads
``gloo``    two plain processes, ``torch.distributed.all_reduce``; left out where torch is missing
``graph``   a `LocalCluster` of two worker processes: scatter the vector, one task per worker, gather, add on the client
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# One thread per process: the two ranks are what runs in parallel.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from common import Rows  # noqa: E402

from dsgd.collectives import Group  # noqa: E402
from dsgd.comm import inproc, tcp  # noqa: E402

SIZES = {"8 B": 8, "1 KB": 1024, "64 KB": 64 * 1024, "1 MB": 1024**2, "16 MB": 16 * 1024**2}
METHODS = ("tcp", "inproc", "gloo", "graph")
LIMIT_S = 600.0
N_WARM_UP = 20


def n_repeats(n_bytes: int, quick: bool) -> int:
    full = {8: 5000, 1024: 5000, 64 * 1024: 2000, 1024**2: 300, 16 * 1024**2: 30}[n_bytes]
    return max(10, full // 10) if quick else full


def time_rounds(step: Callable[[], None], barrier: Callable[[], None], repeats: int) -> list[float]:
    """Return the seconds of each round, after a warm-up."""
    for _ in range(min(N_WARM_UP, repeats)):
        step()
    barrier()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    barrier()
    return seconds


def time_group(group: Group, quick: bool) -> dict[int, list[float]]:
    """Time the all-reduce of a group, counted and sampled by its ledger as the rank loop does."""
    results = {}
    for n_bytes in SIZES.values():
        vector = np.zeros(n_bytes // 8)
        ledger = group.ledger

        def step(vector: Any = vector, ledger: Any = ledger) -> None:
            ledger.begin_round("sync")
            group.allreduce(vector)
            ledger.end_round()

        results[n_bytes] = time_rounds(step, group.barrier, n_repeats(n_bytes, quick))
    return results


def tcp_rank(rank: int, pipe: Connection, quick: bool) -> None:
    with tcp.Listener() as listener:
        pipe.send(listener.address)
        transport = tcp.connect(listener, rank, pipe.recv(), job_id="bench", epoch=0, token=bytes(32))
    results = time_group(Group(transport), quick)
    transport.close()
    pipe.send(results)


def gloo_rank(rank: int, pipe: Connection, quick: bool) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    pipe.send("ready")
    meeting_file = pipe.recv()
    # Without this gloo resolves the host's name, which not every machine can.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=2)
    results = {}
    for n_bytes in SIZES.values():
        tensor = torch.zeros(n_bytes // 8, dtype=torch.float64)
        results[n_bytes] = time_rounds(
            lambda tensor=tensor: dist.all_reduce(tensor), dist.barrier, n_repeats(n_bytes, quick)
        )
    dist.destroy_process_group()
    pipe.send(results)


def time_processes(target: Callable[[int, Connection, bool], None], quick: bool) -> dict[int, list[float]]:
    """Run a rank in each of two processes and return what rank 0 measured."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(2):
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=target, args=(rank, theirs, quick), daemon=True))
                processes[-1].start()
                theirs.close()
                pipes.append(ours)
            told = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(told if told[0] != "ready" else str(Path(folder) / "meeting"))
            found: list[dict[int, list[float]]] = [pipe.recv() for pipe in pipes]
            return found[0]
        finally:
            for process in processes:
                process.join(10.0)
                if process.is_alive():
                    process.kill()
                    process.join()


def time_threads(quick: bool) -> dict[int, list[float]]:
    transports = inproc.connect(2, timeout_s=LIMIT_S)
    results: list[dict[int, list[float]]] = [{}, {}]

    def run(rank: int) -> None:
        results[rank] = time_group(Group(transports[rank]), quick)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results[0]


def add_one(vector: Any) -> Any:
    return vector + 1.0


def time_graph(quick: bool) -> dict[int, list[float]]:
    from dask.distributed import Client, LocalCluster

    results: dict[int, list[float]] = {}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        workers = list(client.scheduler_info()["workers"])
        for n_bytes in SIZES.values():
            state = {"model": np.zeros(n_bytes // 8)}

            def step(state: dict[str, Any] = state) -> None:
                model = client.scatter(state["model"], broadcast=True, hash=False)
                tasks = [client.submit(add_one, model, workers=[w], pure=False) for w in workers]
                parts = client.gather(tasks)
                state["model"] = parts[0] + parts[1]

            repeats = {8: 60, 1024: 60, 64 * 1024: 60, 1024**2: 30, 16 * 1024**2: 10}[n_bytes]
            results[n_bytes] = time_rounds(step, lambda: None, max(5, repeats // 4) if quick else repeats)
    return results


def measure(method: str, quick: bool) -> dict[int, list[float]] | None:
    if method == "tcp":
        return time_processes(tcp_rank, quick)
    if method == "inproc":
        return time_threads(quick)
    if method == "graph":
        return time_graph(quick)
    if importlib.util.find_spec("torch") is None:
        print("gloo: left out, torch is not installed", file=sys.stderr)
        return None
    return time_processes(gloo_rank, quick)


def rows_of(method: str, results: dict[int, list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "ranks": 2,
            "n_bytes": n_bytes,
            "repeats": len(seconds),
            "median_us": round(statistics.median(seconds) * 1e6, 2),
            "p90_us": round(float(np.quantile(seconds, 0.9)) * 1e6, 2),
        }
        for n_bytes, seconds in results.items()
    ]


def table(rows: list[dict[str, Any]], methods: list[str]) -> str:
    """Return medians and 90 % quantiles in microseconds, and how many times longer the others take than tcp."""
    found = {(row["method"], row["n_bytes"]): row for row in rows}
    ratios = [m for m in methods if m in ("gloo", "graph") and "tcp" in methods]
    lines = [
        f"{'size':>6} "
        + " ".join(f"{f'{m} median (p90) us':>26}" for m in methods)
        + "".join(f" {f'{m} / tcp':>12}" for m in ratios)
    ]
    for label, n_bytes in SIZES.items():
        cells = [found[m, n_bytes] for m in methods]
        shown = [f"{cell['median_us']:.1f} ({cell['p90_us']:.1f})" for cell in cells]
        text = " ".join(f"{cell:>26}" for cell in shown)
        text += "".join(
            f" {found[m, n_bytes]['median_us'] / found['tcp', n_bytes]['median_us']:>12.1f}" for m in ratios
        )
        lines.append(f"{label:>6} {text}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--out", help="append rows to this file, one JSON object per line")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated; default: %(default)s")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    methods = []
    for method in options.methods.split(","):
        if method not in METHODS:
            parser.error(f"--methods: unknown method {method!r}; choose from {', '.join(METHODS)}")
        results = measure(method, options.quick)
        if results is not None:
            rows += rows_of(method, results)
            methods.append(method)
    kept = Rows("collectives", options.out)
    for row in rows:
        kept.add(**row)
    print(table(rows, methods))


if __name__ == "__main__":
    main()
