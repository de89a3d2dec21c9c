"""The page of dsgd on the dashboard of a cluster: it is there, and shows a job that runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dsgd import SGDClassifier
from dsgd.progress import StopTraining
from gang_cluster import start_cluster

pytestmark = pytest.mark.cluster

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_LONGEST_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster with a dashboard."""
    with start_cluster(2, processes=False, dashboard_address="127.0.0.1:0", scheduler_kwargs={}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 20))
    return X, np.where(X[:, 0] > 0, 1, -1)


def _url(cluster: LocalCluster, page: str) -> str:
    # The link of the cluster names the host, where the dashboard does not listen.
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/{page}"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


class Until:
    """Ends training when a process has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.deadline = time.monotonic() + _LONGEST_S

    def on_begin(self, estimator: Any) -> None:
        """Wait for events."""

    def on_event(self, estimator: Any, event: Any) -> None:
        """Look whether it has ended."""
        if self.process.poll() is not None or time.monotonic() > self.deadline:
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Nothing is left to do."""


def test_the_first_job_brings_the_page(cluster: LocalCluster, rows: Any) -> None:
    """Before dsgd is used there is no page; afterwards it answers, and the other pages show the way to it."""
    status, page = _url(cluster, "status"), _url(cluster, "dsgd")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _get(page)
    with Client(cluster, set_as_default=False) as client:
        for _ in range(2):
            SGDClassifier(max_iter=2, tol=None, client=client).fit(*rows)
    assert _get(page).count('href="dsgd"') == _get(status).count('href="dsgd"') == 1


@pytest.mark.slow
def test_a_browser_sees_a_job_that_runs(cluster: LocalCluster, rows: Any) -> None:
    """The table has its line, the bars the seconds of every rank, and the curve falls; nothing is complained about."""
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        pytest.skip(f"needs a browser on the PATH: {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    url = _url(cluster, "dsgd")
    check = Path(__file__).parents[1] / "dashboard_check.py"
    with Client(cluster, set_as_default=False) as client:
        model = SGDClassifier(max_iter=10**7, tol=None, sync=100, random_state=0, client=client)
        model.partial_fit(*rows, classes=[-1, 1])  # the page is there from now on
        browser = subprocess.Popen(
            [sys.executable, str(check), url, executable], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            model.set_callbacks(Until(browser)).fit(*rows)
        finally:
            browser.kill() if browser.poll() is None else None
            out, problems = browser.communicate(timeout=30)
    assert browser.returncode == 0, problems
    assert model.n_iter_ < model.max_iter
    seen: dict[str, Any] = json.loads(out)
    assert "Dsgd" in seen["pages"]
    assert seen["headings"][:4] == ["job", "state", "ranks", "epoch"]
    for line in (seen["first"], seen["later"]):
        assert "SGDClassifier" in line
        assert "running" in line
        assert "LocalSGD" in line
    assert seen["later"] != seen["first"]
    bars = seen["ranks"]["data"][0]
    assert bars["rank"] == [0, 1]
    assert min(bars["compute"]) > 0
    assert min(wire + wait for wire, wait in zip(bars["wire"], bars["wait"], strict=True)) > 0
    assert all(place.startswith("inproc://") for place in bars["place"])
    assert seen["ranks"]["legend"] == [5]
    curve = seen["loss"]["data"][0]
    assert curve["loss"][0][-1] < curve["loss"][0][0]
    assert curve["seconds"][0] == sorted(curve["seconds"][0])
    assert len(seen["inked"]) >= 2
    assert max(seen["inked"]) > 10
    assert seen["said"] == []


def test_a_scheduler_without_a_dashboard_has_no_page(rows: Any) -> None:
    """Where Dask shows no dashboard, as without bokeh, jobs run all the same and there is no page."""
    with start_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        model = SGDClassifier(max_iter=2, tol=None, client=client).fit(*rows)
        assert model.n_iter_ == 2
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(_url(cluster, "dsgd"))
