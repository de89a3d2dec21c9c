"""Steps of synchronous SGD beside those of torch's DistributedDataParallel, over a link of 1 Gbit/s.

Two hosts are network namespaces of this machine, with network cards that a token bucket limits, those of
`benchmarks.communication.hosts`. On each a worker process trains the network of `benchmarks.dnn.ddp` with twice the
channels and a wide hidden layer, 5 MB of parameters: by DDP over gloo with its own buckets and with small ones, and by
the rank loop with whole gradients, with buckets, with these beside the backward pass, and compressed. They take turns,
and the table has the median step of each, what part of the step of DDP (the faster of both) that is, and the megabytes
that a rank sends in a step; for DDP that is what a ring takes.

    sudo python -m benchmarks run link --rate 1gbit --hidden 400 --batch 64 --repeats 5 --out rows.jsonl
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from distributed import Client

from benchmarks.common.measuring import Options, Rows, gloo, table
from benchmarks.common.suite import child
from benchmarks.communication.hosts import START_S, Hosts, check_machine, cluster
from benchmarks.dnn.ddp import by_ddp, by_rank_loop, network, nothing, own_rows
from dsgd.compress import ErrorFeedback, GTopK, Half, PowerSGD
from dsgd.runtime import run_on_cluster
from dsgd.runtime.rank import Rank

PAGE = "torch"
QUICK_S = 50
QUICK = "one short turn"
REPEATS = (5, 1)

CHANNELS = 32
#: What takes turns: for DDP the options of its wrapper, for the rank loop those of `MinibatchSGD`.
DDP: Mapping[str, Mapping[str, Any]] = {"DDP": {}, "DDP, buckets of 1 MB": {"bucket_cap_mb": 1}}
RANK_LOOP: Mapping[str, Mapping[str, Any]] = {
    "whole gradients": {},
    "buckets of 1 MB, afterwards": {"bucket_bytes": 2**20},
    "buckets of 1 MB, beside": {"bucket_bytes": 2**20, "overlap": True},
    "Half()": {"compressor": Half()},
    "Half(), buckets, beside": {"compressor": Half(), "bucket_bytes": 2**20, "overlap": True},
    "ErrorFeedback(PowerSGD(4))": {"compressor": ErrorFeedback(PowerSGD(4))},
    "GTopK(0.01)": {"compressor": GTopK(0.01)},
}


def measure(rank: Rank, data: Any, store: str, hidden: int, batch: int, steps: int, turns: int) -> Any:
    """Return (seconds of a step, bytes sent in it) of every turn by name; a rank program."""
    del data
    make = partial(network, CHANNELS, hidden)
    whole = 4.0 * sum(parameter.numel() for parameter in make().parameters())
    with gloo(store, rank.number, rank.size, "eth0"):
        X, y = own_rows(rank.number, steps * batch)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*DDP, *RANK_LOOP)}
        for _ in range(turns + 1):
            for name, options in DDP.items():
                found[name].append((by_ddp(X, y, batch, make, **options)[0], whole))
            for name, options in RANK_LOOP.items():
                before = rank.ledger.records().totals["bytes_sent"]
                seconds = by_rank_loop(rank, X, y, batch, make, **options)[0]
                sent = rank.ledger.records().totals["bytes_sent"] - before
                found[name].append((seconds, sent / steps))
    return {name: turns[1:] for name, turns in found.items()}  # the first turn loads libraries


def inside(options: Options) -> None:
    """Measure on the cluster at the address given and print one JSON line; runs on host 0."""
    with Client(options.inside[0], timeout=START_S) as client, tempfile.TemporaryDirectory() as folder:
        client.wait_for_workers(2, timeout=START_S)
        arguments = (str(Path(folder) / "store"), options.hidden, options.batch, options.steps, options.repeats)
        gang = run_on_cluster(measure, [], client=client, pack=nothing, args=arguments, n_ranks=2)
    print(json.dumps(gang.value), flush=True)


OPTIONS = {
    "--rate": {"default": "1gbit", "help": "bits per second of the network cards (default: %(default)s)"},
    "--hidden": {"type": int, "default": 400, "help": "units of the hidden layer (default: %(default)s)"},
    "--batch": {"type": int, "default": 64, "help": "rows of a rank in a step (default: %(default)s)"},
    "--steps": {"type": int, "default": 20, "help": "steps of a turn (default: %(default)s)"},
}


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.hidden, options.batch, options.steps = 100, 8, 3
    check_machine()
    given = [f"--{name}={getattr(options, name)}" for name in ("rate", "hidden", "batch", "steps", "repeats")]
    with Hosts(3, options.rate) as hosts, cluster(hosts, 1, 1) as (scheduler, _):
        with hosts.start(0, child(__name__, [scheduler], *given), stdout=subprocess.PIPE) as process:
            text = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(f"The client on host 0 ended with status {process.returncode}.")
    found: dict[str, list[tuple[float, float]]] = json.loads(text)
    steps = {name: median(seconds for seconds, _ in turns) for name, turns in found.items()}
    theirs = min(steps[name] for name in DDP)
    facts = {"rate": options.rate, "hidden": options.hidden, "batch": options.batch, "torch": torch.__version__}
    title = f"2 hosts, {options.rate}, {options.batch} rows of a rank in a step, {options.hidden} hidden units"
    with table(title, "way", "ms/step:.1f", "of DDP:.2f", "MB sent:.2f") as line:
        for name, turns in found.items():
            n_bytes = median(sent for _, sent in turns)
            line(name, 1e3 * steps[name], steps[name] / theirs, n_bytes / 1e6)
            rows.add(way=name, step_s=steps[name], of_ddp=steps[name] / theirs, bytes_sent=n_bytes, **facts)
