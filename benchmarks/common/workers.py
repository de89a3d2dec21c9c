"""Worker processes of a local cluster, and plain processes that meet."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any


@contextmanager
def workers(n: int, threads: int = 1, *, set_as_default: bool = True, **options: Any) -> Iterator[Any]:
    """Give a client of a `distributed.LocalCluster` of `n` worker processes; `options` are the cluster's."""
    from distributed import Client, LocalCluster

    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL, **options}
    with (
        LocalCluster(n_workers=n, threads_per_worker=threads, **options) as cluster,
        Client(cluster, set_as_default=set_as_default) as client,
    ):
        yield client


def in_processes(
    size: int,
    target: Callable[..., None],
    arguments: Callable[[int, Connection], Sequence[Any]],
    meet: Callable[[list[Any]], Any],
) -> Any:
    """Run a rank in each of several fresh processes; return what that of rank 0 has sent in the end.

    Parameters
    ----------
    size : int
        How many.
    target : callable
        What a process runs. It sends where it can be found, receives what `meet` returns, and sends what it has found.
    arguments : callable
        Returns the arguments of `target` for a rank and its end of the pipe.
    meet : callable
        Takes what the ranks have sent at first.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=target, args=tuple(arguments(rank, theirs))))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        common = meet([pipe.recv() for pipe in pipes])
        for pipe in pipes:
            pipe.send(common)
        found = [pipe.recv() for pipe in pipes]
        return found[0]
    finally:
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def gloo(store: str, rank: int, size: int, interface: str = "lo") -> Iterator[None]:
    """Join torch's gloo, whose ranks meet in the file `store`, with one thread each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Without this gloo resolves the host's name, which not every machine can.
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
