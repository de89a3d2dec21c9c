"""Time all-reduces: every algorithm of dsgd beside torch's gloo, in the same processes, taking turns.

Every rank is a process with a gang over TCP, one over shared memory and, where torch is installed, gloo's. For each
length all methods sum the same float32 vector, a few times in a row, in turn; what counts is the slowest rank, and of
the repetitions the median. Rows go to ``--out`` as JSON lines, tables to the terminal. Nothing is asserted.

    python -m benchmarks run collectives --ranks 2 --quick
    python -m benchmarks run collectives --ranks 2 4 --only tcp shm gloo --out rows.jsonl
    python -m benchmarks run collectives --packing

``--packing`` measures nothing: for all sets of accelerators of a DGX-1V it prints what spanning trees carry (the least
cut, which `dsgd.collectives.algorithms.packing` reaches) beside rings that are laid one by one, in units of one NVLink;
and for some sets what 16 MiB take on the virtual clock, over packed trees and by every other algorithm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, gloo, in_processes, ratio, table
from dsgd.collectives import Group, choose_algorithm
from dsgd.collectives.algorithms import packing as packings
from dsgd.collectives.cost import ALGORITHMS
from dsgd.runtime import Rank
from dsgd.sim import NETWORKS, Compute, SimulatedCluster

PAGE = "collectives"
QUICK_S = 100
QUICK = "a quarter of the repetitions"
# The ranks are what runs in parallel.
ONE_THREAD = True
CASES = ("tcp", "shm", "gloo")

SIZES = (8, 4_096, 65_536, 1_048_576, 16_777_216)
REPEATS_OF = {8: 60, 4_096: 60, 65_536: 40, 1_048_576: 20, 16_777_216: 6}
BATCH = {8: 30, 4_096: 30, 65_536: 10, 1_048_576: 3, 16_777_216: 1}
WIRES = ("tcp", "shm")
LIMIT_S = 120.0

# Seconds of every repetition, by bytes and method.
Timings = dict[int, dict[str, list[float]]]


def rank_program(rank: int, size: int, pipe: Connection, methods: list[str], quick: bool) -> None:
    from dsgd.comm.wires import shm, tcp

    options: dict[str, Any] = {"job_id": "bench", "epoch": 0, "token": bytes(32), "timeout_s": LIMIT_S}
    transports: dict[str, Any] = {}
    with tcp.Listener() as first, tcp.Listener() as second:
        pipe.send((first.address, second.address))
        addresses, meeting_file = pipe.recv()
        transports["tcp"] = tcp.connect(first, rank, [pair[0] for pair in addresses], **options)
        transports["shm"] = shm.connect(second, rank, [pair[1] for pair in addresses], **options)
    sums: dict[str, Callable[[Any], Any]] = {}
    for wire in WIRES:
        names = [*ALGORITHMS, "auto"] if wire in methods else []
        sums |= {f"{wire} {name}": Group(transports[wire], name, hosts=[0] * size).allreduce for name in names}
    with contextlib.ExitStack() as stack:
        if "gloo" in methods:
            import torch
            import torch.distributed as dist

            stack.enter_context(gloo(meeting_file, rank, size))
            sums["gloo"] = lambda vector: dist.all_reduce(torch.from_numpy(vector))
        found = time_sums(Group(transports["tcp"]), sums, quick)
    for transport in transports.values():
        transport.close()
    pipe.send(found)


def time_sums(group: Group, sums: dict[str, Callable[[Any], Any]], quick: bool) -> Timings:
    """Time all sums in turns, on the slowest rank."""
    found: Timings = {}
    for n_bytes in SIZES:
        vector = np.zeros(n_bytes // 4, dtype=np.float32)
        repeats, batch = max(2, REPEATS_OF[n_bytes] // (4 if quick else 1)), BATCH[n_bytes]
        seconds = np.zeros((repeats + 1, len(sums)))
        for line in seconds:
            for k, sum_up in enumerate(sums.values()):
                group.barrier()
                begin = time.perf_counter()
                for _ in range(batch):
                    sum_up(vector)
                line[k] = (time.perf_counter() - begin) / batch
        group.allreduce(seconds, "max")
        found[n_bytes] = {name: seconds[1:, k].tolist() for k, name in enumerate(sums)}
    return found


def time_ranks(size: int, methods: list[str], quick: bool) -> Timings:
    """Run a process per rank and return what rank 0 measured."""
    with tempfile.TemporaryDirectory() as folder:
        meeting_file = str(Path(folder) / "meeting")
        found: Timings = in_processes(
            size,
            rank_program,
            lambda rank, pipe: (rank, size, pipe, methods, quick),
            lambda addresses: (addresses, meeting_file),
        )
    return found


def show(size: int, found: Timings) -> None:
    """Print the table of so many processes."""
    names = list(next(iter(found.values())))
    title = f"{size} processes, all-reduce of float32, median microseconds of the slowest rank"
    with table(title, "bytes", *(f"{n_bytes:,}" for n_bytes in found)) as line:
        for name in names:
            line(name, *(f"{1e6 * statistics.median(times[name]):,.0f}" for times in found.values()))
        line("auto takes", *(choose_algorithm(n_bytes, size).replace("recursive_", "") for n_bytes in found))
        for wire in WIRES:
            if "gloo" in names and (name := f"{wire} auto") in names:
                line(f"{name} / gloo", *(f"{ratio(times[name], times['gloo']):.2f}" for times in found.values()))


def print_packing() -> None:
    """Print what trees and rings carry in every set of accelerators."""
    heads = ("accelerators", "sets", "no ring", "trees, mean rate:.2f", "ring, mean rate:.2f", "trees faster")
    with table("parts of a DGX-1V, in units of one NVLink", *heads) as line:
        for size in range(2, 9):
            rates = []
            for members in combinations(range(8), size):
                part = packings.subgraph(packings.DGX_1V, members)
                rates.append((max(packings.best_rate(part, root) for root in range(size)), packings.ring_rate(part)))
            trees, rings = np.array(rates).T
            connected = trees > 0
            counts = connected.sum(), (rings[connected] == 0).sum(), (trees > rings)[connected].sum()
            means = trees[connected].mean(), rings[connected].mean()
            line(size, *counts[:2], *means, counts[2])


def print_virtual() -> None:
    """Print what 16 MiB take on the virtual clock."""
    columns: dict[str, dict[str, float]] = {}
    # Accelerators add up at the rate of their memory, three streams of 900 GB/s together.
    compute = Compute(added_byte_s=3.3e-12)
    for members in ((0, 1, 4), (0, 1, 2, 4, 5), tuple(range(8))):
        part = packings.subgraph(packings.DGX_1V, members)
        lanes = tuple(tuple(int(n) for n in row) for row in part)
        network = replace(NETWORKS["NVLink"], name="part", ranks_per_host=len(members), lanes=lanes)
        cluster, packing = SimulatedCluster(len(members), network, compute), packings.pack_trees(part)
        found = {}
        for name in ("packed trees", *ALGORITHMS):

            def program(rank: Rank, data: None, name: Any = name, packing: packings.Packing = packing) -> None:
                vector = np.zeros(2**22, dtype=np.float32)
                if name == "packed trees":
                    packings.tree_allreduce(rank.group.transport, vector, packing)
                else:
                    Group(rank.group.transport, name, hosts=[0] * rank.size).allreduce(vector)

            stats = cluster.run(program, [None] * len(members)).stats
            found[name] = 1e3 * max(stat["virtual_s"] for stat in stats)
        columns["".join(map(str, members))] = found
    title = "16 MiB of float32 on the virtual clock of the links between these accelerators, milliseconds"
    with table(title, "algorithm", *(f"{members}:.2f" for members in columns)) as line:
        for name in ("packed trees", *ALGORITHMS):
            line(name, *(found[name] for found in columns.values()))


OPTIONS = {
    "--ranks": {"type": int, "nargs": "+", "default": [2, 4], "help": "numbers of processes"},
    "--packing": {"action": "store_true", "help": "print what trees and rings carry in a DGX-1V"},
}


def run(options: Options, rows: Rows) -> None:
    if options.packing:
        print_packing()
        print_virtual()
        return
    methods = list(options.only)
    if "gloo" in methods and importlib.util.find_spec("torch") is None:
        print("gloo: left out, torch is not installed", file=sys.stderr)
        methods.remove("gloo")
    for size in options.ranks:
        found = time_ranks(size, methods, options.quick)
        show(size, found)
        for n_bytes, times in found.items():
            for name, seconds in times.items():
                facts = {"ranks": size, "bytes": n_bytes, "method": name, "seconds": statistics.median(seconds)}
                rows.add(**facts, fastest_s=min(seconds))
