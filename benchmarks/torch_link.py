"""Steps of synchronous SGD beside those of torch's DistributedDataParallel, over a link of 1 Gbit/s.

Two hosts are network namespaces of this machine, with network cards that a token bucket limits (`hosts.py`). On each a
worker process trains the network of `torch_ddp.py` with twice the channels and a wide hidden layer, 5 MB of
parameters: by DDP over gloo with its own buckets and with small ones, and by the rank loop with whole gradients, with
buckets, with buckets beside the backward pass, and compressed. They take turns, and the table has the median step of
each, what part of the step of DDP (the faster of both) that is, and the megabytes that a rank sends in a step; for DDP
that is what a ring takes.

    sudo python benchmarks/torch_link.py [--rate 1gbit] [--hidden 400] [--batch 64] [--turns 5] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from common import Rows
from distributed import Client
from hosts import START_S, Hosts, check_machine, cluster
from torch_ddp import by_ddp, by_rank_loop, network, nothing, own_rows

from dsgd.compress import ErrorFeedback, GTopK, Half, PowerSGD
from dsgd.runtime import run_on_cluster
from dsgd.runtime.rank import Rank

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
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank.number, world_size=rank.size)
    make = partial(network, CHANNELS, hidden)
    whole = 4.0 * sum(parameter.numel() for parameter in make().parameters())
    try:
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
    finally:
        dist.destroy_process_group()


def inside(options: argparse.Namespace) -> None:
    """Measure on the cluster at ``options.inside`` and print one JSON line; runs on host 0."""
    with Client(options.inside, timeout=START_S) as client, tempfile.TemporaryDirectory() as folder:
        client.wait_for_workers(2, timeout=START_S)
        arguments = (str(Path(folder) / "store"), options.hidden, options.batch, options.steps, options.turns)
        gang = run_on_cluster(measure, [], client=client, pack=nothing, args=arguments, n_ranks=2)
    print(json.dumps(gang.value), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="bits per second of the network cards (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=400, help="units of the hidden layer (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="rows of a rank in a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", help="append one JSON row per way to this file")
    parser.add_argument("--quick", action="store_true", help="one short turn")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.batch, options.steps, options.turns = 100, 8, 3, 1
    if options.inside:
        inside(options)
        return
    check_machine()
    # What workers unpickle lies beside this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    names = ("rate", "hidden", "batch", "steps", "turns")
    given = [f"--{name}={getattr(options, name)}" for name in names]
    with Hosts(3, options.rate) as hosts, cluster(hosts, 1, 1) as scheduler:
        with hosts.start(0, [sys.executable, __file__, f"--inside={scheduler}", *given], stdout=subprocess.PIPE) as run:
            text = run.communicate()[0]
        if run.returncode:
            raise SystemExit(f"torch_link.py: the client on host 0 ended with status {run.returncode}.")
    show(json.loads(text), options)


def show(found: Mapping[str, list[tuple[float, float]]], options: argparse.Namespace) -> None:
    """Print the table, and append its rows to a file."""
    steps = {name: median(seconds for seconds, _ in turns) for name, turns in found.items()}
    theirs = min(steps[name] for name in DDP)
    rows = Rows("torch_link", options.out)
    print(f"2 hosts, {options.rate}, {options.batch} rows of a rank in a step, {options.hidden} hidden units")
    print(f"{'':30} {'ms/step':>8} {'of DDP':>7} {'MB sent':>8}")
    for name, turns in found.items():
        n_bytes = median(sent for _, sent in turns)
        print(f"{name:30} {1e3 * steps[name]:8.1f} {steps[name] / theirs:7.2f} {n_bytes / 1e6:8.2f}")
        rows.add(
            way=name, rate=options.rate, hidden=options.hidden, batch=options.batch, step_s=steps[name],
            of_ddp=steps[name] / theirs, bytes_sent=n_bytes, torch=torch.__version__,
        )  # fmt: skip


if __name__ == "__main__":
    main()
