"""What workers, scheduler and clients tell each other on a cluster of processes, beside what they do in simulation."""

from __future__ import annotations

import functools
import os
import signal
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from distributed import Client

import gang_programs as programs
from dsgd.runtime import messages
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN
from gang_cluster import client_fixture, cluster_fixture, on_ranks, once, signal_rank, wait_until
from simulation.gangs import play
from simulation.nodes import Scheduler
from simulation.product import simulated

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


class Listener:
    """What passes between the scheduler of one cluster and each worker of a job, in order."""

    def __init__(self, scheduler: Any) -> None:
        self.heard: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._places: dict[tuple[str, int], str] = {}
        for op in (messages.MEMBER_EVENT, messages.MEMBER_END):
            self._tap(scheduler.stream_handlers, op)
        for op in ("dsgd_admit", "dsgd_join", "dsgd_finish"):
            self._tap(scheduler.handlers, op)
        plugin = scheduler.plugins[SCHEDULER_PLUGIN]
        self._send, self._remove = plugin.registry._send, plugin.remove_worker
        plugin.registry._send, plugin.remove_worker = self._order, self._left

    def _tap(self, table: Any, op: str) -> None:
        handler = table[op]

        @functools.wraps(handler)
        def call(*args: Any, **message: Any) -> Any:
            job = message["job_id"]
            if op == "dsgd_admit":
                self._places.update({(job, k): worker for k, (worker, *_) in enumerate(message["members"])})
            elif message.get("event") is None:
                self.heard[job, self._places[job, message["member"]]].append(op)
            return handler(*args, **message)

        table[op] = call

    def _order(self, worker: str, message: dict[str, Any]) -> None:
        self.heard[message["job_id"], worker].append(message["action"])
        self._send(worker, message)

    def _left(self, scheduler: Any, worker: str, **more: Any) -> None:
        for (_, place), heard in self.heard.items():
            if place == worker:
                heard.append("left")
        self._remove(scheduler, worker, **more)

    def successions(self) -> set[tuple[str, str]]:
        """Return what came right after what."""
        return {pair for heard in self.heard.values() for pair in pairwise(["", *heard])}


def test_what_passes_on_a_cluster_passes_in_simulation(cluster: Any, client: Client, monkeypatch: Any) -> None:
    """In fits that lose a worker, or none, nothing follows on anything that it never follows on in simulation."""
    on_ranks(client, programs.count_starts, 0.1)  # installs the plugins
    real = Listener(cluster.scheduler)
    for policy in ("restart", "shrink"):
        on_ranks(client, programs.count_starts, 0.1)
        kill = once(lambda: signal_rank(client, 1))
        with pytest.warns(RuntimeWarning, match="was lost"):
            on_ranks(client, programs.count_starts, 1.0, on_event=kill, on_failure=policy)
        client.wait_for_workers(3)
    assert sum(("abort" in heard) for heard in real.heard.values()) == 4

    listeners: list[Listener] = []
    install = Scheduler.add_plugin

    async def add_plugin(self: Scheduler, plugin: Any) -> None:
        is_new = not self.plugins
        await install(self, plugin)
        listeners.extend([Listener(self)] if is_new else [])

    monkeypatch.setattr(Scheduler, "add_plugin", add_plugin)
    with simulated():
        for seed in range(200):
            play(seed)
    assert real.successions() <= set().union(*(listener.successions() for listener in listeners))


def test_blocks_of_a_lost_worker(client: Client) -> None:
    """Dask computes a block again whose last holder has died, and tells the client that a sent one is gone."""
    worker = min(client.nthreads())
    sent = client.scatter(-1, workers=[worker])
    computed = client.submit(abs, -1, workers=[worker], allow_other_workers=True)
    assert computed.result() == 1
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
    wait_until(lambda: sent.status != "cancelled")
    wait_until(lambda: computed.status != "finished")
    client.wait_for_workers(3)
