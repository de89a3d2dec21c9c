"""What observers of a scheduler see: the numbers on its page of metrics, and the log of jobs and detached fits."""

from __future__ import annotations

import urllib.request
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsgd
from dsgd import SGDClassifier
from gang_cluster import assert_clean, start_cluster, wait_until

pytestmark = pytest.mark.cluster


def test_metrics_and_log_follow_jobs_and_fits(rng: np.random.Generator) -> None:
    """Jobs by state, ranks, leases, queue and detached fits are on /metrics of Dask; the log has their changes."""
    X = rng.standard_normal((200, 3))
    y = X[:, 0] > 0
    endless = SGDClassifier(max_iter=10**8, tol=None, sync=16)
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        long = dsgd.submit(endless, X, y, client=client)
        wait_until(lambda: not long.info().epoch)
        short = dsgd.submit(SGDClassifier(max_iter=1, tol=None), X, y, client=client)
        wait_until(lambda: short.info().place != 1)
        found = _metrics(cluster)
        assert (found['dsgd_jobs{state="running"}'], found['dsgd_jobs{state="queued"}']) == (1, 1)
        assert (found["dsgd_ranks"], found["dsgd_leased_workers"]) == (2, 2)
        assert found["dsgd_queue_seconds"] > 0
        assert found['dsgd_detached_fits{state="running"}'] == 2
        long.cancel()
        short.result(timeout=60.0)
        wait_until(lambda: _metrics(cluster)["dsgd_leased_workers"] != 0)
        found = _metrics(cluster)
        assert (found['dsgd_jobs_ended_total{outcome="done"}'], found['dsgd_jobs_ended_total{outcome="failed"}']) == (
            1,
            1,
        )
        assert found['dsgd_detached_fits{state="cancelled"}'] == 1

        records = [record for _, record in client.get_events("dsgd")]
        of_fit = [record for record in records if record.get("fit") == long.id]
        assert [record["state"] for record in of_fit] == ["queued", "running", "cancelled"]
        assert "it was cancelled by" in of_fit[-1]["text"]
        jobs = [record["state"] for record in records if "job" in record]
        assert sorted(jobs) == ["done", "failed", "queued", "queued", "running", "running", "stopping"]
        for fit in (long, short):
            fit.forget()
        assert_clean(client)


def _metrics(cluster: Any) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.scheduler.http_server.port}/metrics", timeout=10.0) as page:
        lines = page.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("dsgd_")]
    return {name: float(value) for name, value in pairs}
