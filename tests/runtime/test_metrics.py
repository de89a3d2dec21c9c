"""What observers of a scheduler see: the numbers on its page of metrics, and the log of jobs and detached fits."""

from __future__ import annotations

import urllib.request
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsgd
from dsgd import SGDClassifier
from dsgd.ledger import PHASES
from dsgd.runtime.metrics import METRICS
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
