"""What observers of a scheduler see: the numbers on its page of metrics, and the log of jobs and detached fits."""

from __future__ import annotations

import urllib.request
from collections import Counter
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsgd
from dsgd import SGDClassifier
from dsgd.ledger import PHASES, WIRE, RankLedger
from dsgd.runtime.metrics import METRICS
from dsgd.runtime.scheduler.registry import Registry
from dsgd.runtime.worker.store import RankMeters
from gang_cluster import assert_clean, start_cluster, wait_until

pytestmark = pytest.mark.cluster


def test_metrics_and_log_follow_jobs_and_fits(rng: np.random.Generator) -> None:
    """Jobs by state, ranks, leases and queue are on /metrics of Dask; the log has their changes."""
    X = rng.standard_normal((200, 3))
    y = X[:, 0] > 0
    endless = SGDClassifier(max_iter=10**8, tol=None, sync=16)
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        long = dsgd.submit(endless, X, y, client=client)
        wait_until(lambda: not long.info().epoch)
        short = dsgd.submit(SGDClassifier(max_iter=1, tol=None), X, y, client=client)
        wait_until(lambda: short.info().place != 1)
        found = _metrics(cluster.scheduler)
        assert (found['dsgd_jobs{state="running"}'], found['dsgd_jobs{state="queued"}']) == (1, 1)
        assert (found["dsgd_ranks"], found["dsgd_leased_workers"]) == (2, 2)
        assert found["dsgd_queue_seconds"] > 0
        long.cancel()
        short.result(timeout=60.0)
        wait_until(lambda: _metrics(cluster.scheduler)["dsgd_leased_workers"] != 0)
        found = _metrics(cluster.scheduler)
        assert (found['dsgd_jobs_ended_total{outcome="done"}'], found['dsgd_jobs_ended_total{outcome="failed"}']) == (
            1,
            1,
        )

        records = [record for _, record in client.get_events("dsgd")]
        jobs = [record["state"] for record in records if "job" in record]
        assert sorted(jobs) == ["done", "failed", "queued", "queued", "running", "running", "stopping"]
        for fit in (long, short):
            fit.forget()
        assert_clean(client)


def test_workers_show_what_their_ranks_have_done(rng: np.random.Generator) -> None:
    """The page of workers has the sums of the ledgers of all fits, of running ranks too; no metric is missing."""
    X = rng.standard_normal((400, 3))
    y = X[:, 0] > 0
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        short = SGDClassifier(max_iter=3, tol=None, sync=16, client=client)
        short.fit(X, y)
        before = _metrics(*cluster.workers.values())
        totals = short.fit(X, y).ledger_.totals()
        after = _metrics(*cluster.workers.values())
        told = {
            'dsgd_sent_bytes_total{kind="algorithm"}': totals["bytes_sent"],
            'dsgd_sent_bytes_total{kind="control"}': totals["control_bytes_sent"],
            'dsgd_messages_total{kind="algorithm"}': totals["messages"],
            "dsgd_rounds_total": sum(rank.totals["rounds"] for rank in short.ledger_.ranks),
        }
        assert {name: after[name] - before[name] for name in told} == told
        for phase in PHASES:
            name = f'dsgd_phase_seconds_total{{phase="{phase}"}}'
            assert after[name] - before[name] == pytest.approx(totals[f"{phase}_s"])
        assert after["dsgd_worker_ranks"] == 0

        endless = dsgd.submit(SGDClassifier(max_iter=10**8, tol=None, sync=16), X, y, client=client)
        wait_until(lambda: not endless.info().epoch)
        running = _metrics(cluster.scheduler, *cluster.workers.values())
        assert running["dsgd_worker_ranks"] == 2
        assert running["dsgd_rounds_total"] > after["dsgd_rounds_total"]
        endless.cancel()
        wait_until(lambda: _metrics(*cluster.workers.values())["dsgd_worker_ranks"])
        # The scheduler hears of it when ranks have ended.
        wait_until(lambda: 'dsgd_failures_total{kind="stopped"}' not in _metrics(cluster.scheduler))
        shown = _metrics(cluster.scheduler, *cluster.workers.values())
        endless.forget()
        names = {name.partition("{")[0] for name in running | shown}
        # Nobody was refused here.
        assert names == set(METRICS) - {"dsgd_refused_total"}
        assert shown['dsgd_failures_total{kind="stopped"}'] == 1
        assert_clean(client)


def test_meters_keep_what_ranks_have_done_when_they_end() -> None:
    """A counter never falls: not when a rank ends, and not for rounds that stand for later ones."""
    meters, seen = RankMeters(), Counter[str]()
    for _ in range(2):
        ledger = RankLedger(0)
        meters.begin([ledger])
        for _ in range(300):
            with ledger.round("sync"):
                ledger.count(10)
                ledger.charge(WIRE, 1e-6)
            found = meters.totals()
            assert all(found[name] >= n for name, n in seen.items())
            seen = found
        meters.end([ledger], {"stranger": 2})
        assert meters.totals() == found
    assert (meters.totals()["bytes_sent"], meters.totals()["rounds"], meters.n_running) == (6000, 600, 0)
    assert meters.refused == {"stranger": 4}


def test_the_registry_counts_what_happens_to_jobs() -> None:
    """Users' workers, slow ranks, gangs that are formed again, and failures by kind are counted."""
    registry = Registry(lambda worker, message: None, lambda job_id: None)
    registry.admit("a", 0, b"t", "c", [("x", "h", 1), ("y", "h", 1)], label=("fit", "ada@here:1"))
    registry.admit("b", 0, b"t", "c", [("z", "h", 1)], label=("fit", "eve@here:2"))
    assert registry.workers_of_users() == {"ada": 2, "eve": 1}
    registry.publish("a", 0, b"t", 0, {"phase": "straggler", "text": "slow"})
    registry.publish("a", 0, b"wrong", 0, {"phase": "straggler", "text": "slow"})
    registry.admit("a", 1, b"t", "c", [("x", "h", 1)])
    registry.worker_left("x")
    registry.close("a")
    registry.close("b")
    counts = registry.counts
    assert (counts.stragglers, counts.formed_again, counts.failures) == (1, 1, {"lost": 1})
    assert registry.workers_of_users() == {}


def _metrics(*servers: Any) -> dict[str, float]:
    """Return what the pages of these servers say of dsgd; servers of one process share a page."""
    found: dict[str, float] = {}
    for server in servers:
        port = server.http_server.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as page:
            lines = page.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("dsgd_")]
        found |= {name: float(value) for name, value in pairs}
    return found
