"""Time what two ranks of one host can send each other: every wire of dsgd beside Dask's own, torch's gloo and MPICH.

Two processes (threads for ``inproc``), an all-reduce and a round trip (ping-pong) of float64 vectors from 8 bytes to
64 MB. All methods run in the same call, one after the other. Rows go to ``--out`` as JSON lines, tables to the
terminal. Nothing is asserted.

    python -m benchmarks run transports --quick
    python -m benchmarks run transports --mpi-python ~/mpi/bin/python --out rows.jsonl

``graph``   a round of Dask's task graph: vectors stay on two workers, each round is a task on either
``actor``   a Dask actor on one worker, called from a task on the other (no pause between calls)
``rpc``     `dsgd.comm.wires.rpc` on two workers of a `LocalCluster`: what ranks use where no port can be opened
``inproc``  threads of one process
``tcp``     `dsgd.comm.wires.tcp` over loopback
``tls``     the same, encrypted with certificates as those of a Dask cluster; left out where cryptography is missing
``shm``     `dsgd.comm.wires.shm`, ranks that wait sleep
``spin``    `dsgd.comm.wires.shm` with ``wait="spin"``
``gloo``    ``torch.distributed``, plain processes; left out where torch is missing
``mpi``     mpi4py on MPICH, plain processes; left out where ``--mpi-python`` has no mpi4py or no mpiexec beside it
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.rows import Rows
from benchmarks.common.suite import child
from benchmarks.common.table import table
from benchmarks.common.workers import gloo, in_processes, workers

PAGE = "performance"
QUICK_S = 50
QUICK = "a tenth of the repetitions"
# The two ranks are what runs in parallel.
ONE_THREAD = True

SIZES = {"8 B": 8, "1 KB": 1024, "64 KB": 65536, "1 MB": 10**6, "10 MB": 10**7, "64 MB": 64 * 10**6}
REPEATS_OF = {8: 3000, 1024: 3000, 65536: 1000, 10**6: 200, 10**7: 40, 64 * 10**6: 8}
CASES = ("graph", "actor", "rpc", "inproc", "tcp", "tls", "shm", "spin", "gloo", "mpi")
# What takes so much longer is repeated as much less often.
SLOWER = {"graph": 100, "actor": 10, "rpc": 10}
# What some need beside dsgd; cryptography makes the certificates.
NEEDS = {"tls": "cryptography", "gloo": "torch"}
OPERATIONS = ("allreduce", "pingpong")
N_WARM_UP = 20
LIMIT_S = 300.0

# Seconds of each round, by operation and bytes.
Timings = dict[str, dict[int, list[float]]]


def time_all(
    make: Callable[[str, Any], Callable[[], None]], barrier: Callable[[], None], quick: bool, slower: int = 1
) -> Timings:
    """Time both operations on vectors of all sizes; `make` returns what does one round."""
    found: Timings = {operation: {} for operation in OPERATIONS}
    for operation in OPERATIONS:
        for n_bytes in SIZES.values():
            step = make(operation, np.zeros(n_bytes // 8))
            repeats = max(5, REPEATS_OF[n_bytes] // (slower * (10 if quick else 1)))
            for _ in range(min(N_WARM_UP, repeats)):
                step()
            barrier()
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            found[operation][n_bytes] = seconds
    return found


def time_transport(transport: Any, quick: bool) -> Timings:
    """Time a transport of dsgd, counted and sampled by its ledger as the rank loop does."""
    from dsgd.collectives import Group

    return time_group(Group(transport), quick)


def time_group(group: Any, quick: bool, slower: int = 1) -> Timings:
    transport, ledger = group.transport, group.ledger

    def make(operation: str, vector: Any) -> Callable[[], None]:
        def allreduce() -> None:
            ledger.begin_round("sync")
            group.allreduce(vector)
            ledger.end_round()

        def pingpong() -> None:
            ledger.begin_round("sync")
            if group.rank == 0:
                transport.send(1, vector)
                transport.recv(1, vector)
            else:
                transport.recv(0, vector)
                transport.send(0, vector)
            ledger.end_round()

        return allreduce if operation == "allreduce" else pingpong

    return time_all(make, group.barrier, quick, slower)


def dsgd_rank(method: str, rank: int, pipe: Connection, quick: bool, security: Any) -> None:
    from dsgd.comm.wires import shm, tcp

    def wrap(sock: Any, server_side: bool) -> Any:
        settings = security.get_listen_args("worker") if server_side else security.get_connection_args("worker")
        return settings["ssl_context"].wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)

    options: dict[str, Any] = {"job_id": "bench", "epoch": 0, "token": bytes(32)}
    with tcp.Listener() as listener:
        pipe.send(listener.address)
        addresses = pipe.recv()
        if method in ("shm", "spin"):
            wait: Any = "spin" if method == "spin" else "sleep"
            transport: Any = shm.connect(listener, rank, addresses, wait=wait, **options)
        else:
            transport = tcp.connect(listener, rank, addresses, wrap=wrap if method == "tls" else None, **options)
    found = time_transport(transport, quick)
    transport.close()
    pipe.send(found)


def gloo_rank(method: str, rank: int, pipe: Connection, quick: bool, security: Any) -> None:
    import torch
    import torch.distributed as dist

    def make(operation: str, vector: Any) -> Callable[[], None]:
        tensor = torch.from_numpy(vector)

        def pingpong() -> None:
            if rank == 0:
                dist.send(tensor, 1)
                dist.recv(tensor, 1)
            else:
                dist.recv(tensor, 0)
                dist.send(tensor, 0)

        return (lambda: dist.all_reduce(tensor)) if operation == "allreduce" else pingpong

    pipe.send("ready")
    with gloo(pipe.recv(), rank, 2):
        found = time_all(make, dist.barrier, quick)
    pipe.send(found)


def inside(options: argparse.Namespace) -> None:
    """Run as one of two ranks under mpiexec; rank 0 writes what it measured."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.Get_rank()

    def make(operation: str, vector: Any) -> Callable[[], None]:
        def pingpong() -> None:
            if rank == 0:
                world.Send(vector, 1)
                world.Recv(vector, 1)
            else:
                world.Recv(vector, 0)
                world.Send(vector, 0)

        return (lambda: world.Allreduce(MPI.IN_PLACE, vector)) if operation == "allreduce" else pingpong

    found = time_all(make, world.Barrier, options.quick)
    if rank == 0:
        Path(options.inside[0]).write_text(json.dumps(found))


def time_processes(method: str, quick: bool) -> Timings:
    """Run a rank in each of two processes and return what rank 0 measured."""
    security = None
    if method == "tls":
        from distributed import Security

        security = Security.temporary()
    target = gloo_rank if method == "gloo" else dsgd_rank
    with tempfile.TemporaryDirectory() as folder:
        meeting_file = str(Path(folder) / "meeting")
        found: Timings = in_processes(
            2,
            target,
            lambda rank, pipe: (method, rank, pipe, quick, security),
            lambda addresses: meeting_file if method == "gloo" else addresses,
        )
    return found


def no_rows(blocks: Any, rank_number: int) -> None:
    return None


def time_rank(rank: Any, data: Any, quick: bool, slower: int = 1) -> Timings | None:
    found = time_group(rank.group, quick, slower)
    return found if rank.number == 0 else None


def time_threads(quick: bool) -> Timings:
    from dsgd.runtime import run_on_threads

    found: Timings = run_on_threads(time_rank, [None] * 2, (quick,)).value
    return found


class Partner:
    """An actor that has a vector of its own."""

    def add(self, vector: Any) -> Any:
        """Return the sum of both vectors."""
        return vector + vector

    def echo(self, vector: Any) -> Any:
        """Return what came."""
        return vector


def time_actor(partner: Any, quick: bool) -> Timings:
    def make(operation: str, vector: Any) -> Callable[[], None]:
        call = partner.add if operation == "allreduce" else partner.echo
        return lambda: call(vector).result()

    return time_all(make, lambda: None, quick, SLOWER["actor"])


def add(a: Any, b: Any) -> Any:
    return a + b


def time_graph(client: Any, workers: list[str], quick: bool) -> Timings:
    """Time rounds whose vectors stay on the workers: the client only says what to do and waits."""
    from distributed import wait

    def make(operation: str, vector: Any) -> Callable[[], None]:
        held = [client.submit(np.copy, vector, workers=[worker], pure=False) for worker in workers]

        def allreduce() -> None:
            held[:] = [client.submit(add, *held, workers=[worker], pure=False) for worker in workers]
            wait(held)

        def pingpong() -> None:
            for worker in reversed(workers):
                held[0] = client.submit(np.copy, held[0], workers=[worker], pure=False)
            wait(held)

        return allreduce if operation == "allreduce" else pingpong

    return time_all(make, lambda: None, quick, SLOWER["graph"])


def time_cluster(method: str, quick: bool) -> Timings:
    """Time what goes over the ports of Dask's workers."""
    from dsgd.runtime import run_on_cluster

    with workers(2, set_as_default=method == "graph") as client:
        addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
        if method == "rpc":
            gang = run_on_cluster(
                time_rank, [], client=client, pack=no_rows, args=(quick, SLOWER["rpc"]), transport="rpc"
            )
            found: Timings = gang.value
        elif method == "actor":
            partner = client.submit(Partner, actor=True, workers=addresses[1:])
            found = client.submit(time_actor, partner, quick, workers=addresses[:1]).result()
        else:
            found = time_graph(client, addresses, quick)
    return found


def time_mpi(python: str, quick: bool) -> Timings | None:
    launcher = Path(python).with_name("mpiexec")
    has_mpi = subprocess.run([python, "-c", "import mpi4py, numpy"], capture_output=True, check=False).returncode == 0
    if not (has_mpi and launcher.exists()):
        print("mpi: left out, --mpi-python has no mpi4py, or no mpiexec beside it", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timings.json"
        command = [str(launcher), "-n", "2", *child(__name__, [str(path)], *["--quick"] * quick, python=python)]
        subprocess.run(command, check=True, timeout=LIMIT_S)
        found = json.loads(path.read_text())
    return {op: {int(n_bytes): seconds for n_bytes, seconds in sizes.items()} for op, sizes in found.items()}


def measure(method: str, quick: bool, mpi_python: str) -> Timings | None:
    if method == "inproc":
        return time_threads(quick)
    if method in SLOWER:
        return time_cluster(method, quick)
    if method == "mpi":
        return time_mpi(mpi_python, quick)
    need = NEEDS.get(method)
    if need and importlib.util.find_spec(need) is None:
        print(f"{method}: left out, {need} is not installed", file=sys.stderr)
        return None
    return time_processes(method, quick)


def rows_of(method: str, found: Timings) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "operation": operation,
            "ranks": 2,
            "n_bytes": n_bytes,
            "repeats": len(seconds),
            "median_us": round(statistics.median(seconds) * 1e6, 2),
            "p90_us": round(float(np.quantile(seconds, 0.9)) * 1e6, 2),
            "least_us": round(min(seconds) * 1e6, 2),
            "mb_per_s": round(n_bytes / statistics.median(seconds) / 1e6, 2),
        }
        for operation, sizes in found.items()
        for n_bytes, seconds in sizes.items()
    ]


def show(rows: list[dict[str, Any]], methods: list[str], operation: str) -> None:
    """Print medians and 90 % quantiles in microseconds."""
    found = {(row["method"], row["n_bytes"]): row for row in rows if row["operation"] == operation}
    with table(f"{operation}, median (p90) us", "size", *methods) as line:
        for label, n_bytes in SIZES.items():
            cells = [found[method, n_bytes] for method in methods]
            line(label, *(f"{cell['median_us']:.1f} ({cell['p90_us']:.1f})" for cell in cells))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mpi-python", default=sys.executable, help="an interpreter with mpi4py")


def run(options: argparse.Namespace, rows: Rows) -> None:
    found: list[dict[str, Any]] = []
    methods = []
    for method in options.only:
        timings = measure(method, options.quick, options.mpi_python)
        if timings is not None:
            found += rows_of(method, timings)
            methods.append(method)
    for row in found:
        rows.add(**row)
    for operation in OPERATIONS:
        show(found, methods, operation)
