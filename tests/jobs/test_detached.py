"""Detached fits on a real cluster: their results, ends and traces, and the list of jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dsgd
from detached_estimators import Gated, Raising
from dsgd import SGDClassifier
from dsgd.errors import ClusterError, InvalidDataError, InvalidParameterError, RankError
from dsgd.jobs import DetachedFit, cancel, find_job, list_jobs
from dsgd.svm import SVC
from gang_cluster import client_fixture, cluster_fixture, wait_until

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(2)
client = client_fixture(2, hurt=True)


@pytest.fixture(autouse=True)
def _forgets(client: Client) -> Iterator[None]:
    yield
    for job in list_jobs(client):
        if job.detached:
            dsgd.attach(job.id, client=client).forget()


@pytest.fixture
def rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((400, 6))
    return X, (X @ [2.0, -1.0, 0.5, 0.0, 0.0, 1.0] > 0).astype(int)


def model(**parameters: Any) -> SGDClassifier:
    """Return an estimator that trains briefly."""
    return SGDClassifier(**{"max_iter": 3, "tol": None, "random_state": 0, "sync": 16} | parameters)


def endless() -> SGDClassifier:
    """Return an estimator that trains until it is stopped."""
    return model(max_iter=10**8)


def trains(fit: DetachedFit) -> Callable[[], bool]:
    """Return a function that says whether a fit has not trained an epoch yet."""
    return lambda: not fit.info().epoch


_SUBMIT = """
import sys, time
import numpy as np
import dsgd
from detached_estimators import Gated
from distributed import Client

if __name__ == "__main__":
    address, data, gate = sys.argv[1:]
    arrays = np.load(data)
    inner = dsgd.SGDClassifier(max_iter=3, tol=None, random_state=0, sync=16)
    fit = dsgd.submit(Gated(inner, gate), arrays["X"], arrays["y"], client=Client(address))
    print(fit.id, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_fit_outlives_a_client_that_is_killed(
    client: Client, rows: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """A process that is killed after submit is not needed: another one fetches the model of a plain fit, to the bit."""
    np.savez(tmp_path / "rows.npz", X=rows[0], y=rows[1])
    script = tmp_path / "submits.py"
    script.write_text(textwrap.dedent(_SUBMIT))
    before = set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients)))
    command = [sys.executable, str(script), client.scheduler.address, tmp_path / "rows.npz", tmp_path / "gate"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}) as user:
        assert user.stdout is not None
        fit_id = user.stdout.readline().strip()
        user.kill()
    assert user.returncode == -signal.SIGKILL
    assert fit_id, "the process that submits has failed"
    fit = dsgd.attach(fit_id[:12], client=client)
    wait_until(lambda: [name for name in _clients(client) - before if fit_id not in name])
    assert not fit.done()
    with pytest.raises(TimeoutError):
        fit.result(timeout=0.1)
    (tmp_path / "gate").touch()
    plain = model(client=client).fit(*rows)
    got = fit.result(timeout=60.0).inner
    np.testing.assert_array_equal(got.coef_, plain.coef_)
    np.testing.assert_array_equal(got.intercept_, plain.intercept_)
    assert got.loss_curve_ == plain.loss_curve_
    assert f":{user.pid}" in fit.info().owner


def _clients(client: Client) -> set[str]:
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients)))


def test_the_result_is_that_of_fit(client: Client, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """The model, its parameters, report and ledger are those of a plain fit; its client is that of who fetches it."""
    plain = model(client=client).fit(*rows)
    fit = dsgd.submit(model(), *rows, client=client)
    got = fit.result(timeout=60.0)
    assert set(vars(got)) == set(vars(plain))
    assert got.get_params() == plain.get_params()
    assert got.client is client
    np.testing.assert_array_equal(got.coef_, plain.coef_)
    np.testing.assert_array_equal(got.predict(rows[0]), plain.predict(rows[0]))
    assert got.fit_report_["ranks"] == plain.fit_report_["ranks"]
    assert len(got.ledger_.ranks) == 2
    assert fit.exception() is None
    np.testing.assert_array_equal(fit.result().coef_, plain.coef_)  # it stays until it is forgotten
    fit.forget()
    assert fit.status == "unknown"
    with pytest.raises(ClusterError, match="it was cancelled or forgotten"):
        fit.result()


def test_rows_of_a_client_that_leaves_are_held(
    cluster: LocalCluster, client: Client, rows: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """Persisted collections stay for the fit when their client closes, and are released when it ends."""
    with Client(cluster, set_as_default=False) as other, other.as_current():
        X, y = (da.from_array(part, chunks=(200, *part.shape[1:])).persist() for part in rows)
        plain = model(client=other).fit(X, y)
        fit_id = dsgd.submit(Gated(model(), str(tmp_path / "gate")), X, y, client=other).id
        keys = {future.key for future in other.futures_of([X, y])}
        del X, y
    assert keys <= _tasks(client)
    (tmp_path / "gate").touch()
    got = dsgd.attach(fit_id, client=client).result(timeout=60.0)
    np.testing.assert_array_equal(got.inner.coef_, plain.coef_)
    wait_until(lambda: keys & _tasks(client))


def _tasks(client: Client) -> set[Any]:
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


def test_estimators_inside_others_train_on_the_cluster(client: Client, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """A pipeline is fitted on the cluster where its steps can be, to the model of a plain one; kernel SVMs as well."""
    plain = make_pipeline(StandardScaler(), model(client=client)).fit(*rows)
    pipeline, machine = (
        dsgd.submit(estimator, *rows, client=client)
        for estimator in (make_pipeline(StandardScaler(), model()), SVC(client=client))
    )
    got = pipeline.result(timeout=60.0)
    np.testing.assert_array_equal(got[-1].coef_, plain[-1].coef_)
    assert got[-1].fit_report_["ranks"] == 2
    expected = SVC(client=client).fit(*rows)
    np.testing.assert_array_equal(machine.result(timeout=60.0).dual_coef_, expected.dual_coef_)


def test_errors_arrive_as_they_were_raised(client: Client, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """What fit raises is what result raises, with its type and where it was raised."""
    X, y = rows
    bad, raising = dsgd.submit(model(), X, y * np.nan, client=client), dsgd.submit(Raising(client), X, client=client)
    with pytest.raises(ValueError, match="Input y contains NaN") as caught:
        bad.result(timeout=60.0)
    assert "which drove the fit" in caught.value.__notes__[-1]
    with pytest.raises(RankError, match="ZeroDivisionError"):
        raising.result(timeout=60.0)
    assert isinstance(raising.exception(), RankError)
    assert bad.status == "failed"
    assert "Input y contains NaN." in str(bad.info().failure)
    for fit in (bad, raising):
        fit.forget()
    wait_until(lambda: [key for key in _tasks(client) if "dsgd" in str(key)])


def test_two_users_wait_for_each_other(
    cluster: LocalCluster, client: Client, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    """The list shows the fits of all users with states, places and owners; a cancelled one makes room for the next."""
    with Client(cluster, set_as_default=False) as other:
        long = dsgd.submit(endless(), *rows, client=client)
        wait_until(trains(long))
        short = dsgd.submit(model(), *rows, client=other)
        wait_until(lambda: short.info().place != 1)
        found = {job.id: job for job in list_jobs(other)}
        running, waiting = found[long.id], found[short.id]
        assert (running.state, running.ranks, running.place, running.detached) == ("running", 2, None, True)
        assert running.strategy == "LocalSGD"
        assert running.max_iter == 10**8
        assert (waiting.state, waiting.place, waiting.epoch) == ("queued", 1, None)
        assert waiting.owner.endswith(f":{os.getpid()}")
        assert running.submitted <= waiting.submitted <= time.time()
        assert dsgd.attach(long.id, client=other).cancel()
        assert not long.cancel()
        with pytest.raises(ClusterError, match="it was cancelled or forgotten"):
            long.result(timeout=60.0)
        assert short.result(timeout=60.0).coef_.shape == (1, 6)
    assert long.status == "unknown"


def test_a_job_that_is_not_detached_is_listed_and_cancelled(
    client: Client, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    """A plain fit is listed with its process, cannot be attached to, and raises who has cancelled it."""
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            endless().set_params(client=client).fit(*rows)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    try:
        wait_until(lambda: [] if any(job.state == "running" for job in list_jobs(client)) else ["no job runs"])
        (job,) = [job for job in list_jobs(client) if job.state == "running"]
        assert (job.detached, job.title) == (False, "SGDClassifier")
        with pytest.raises(ClusterError, match="is no detached fit"):
            dsgd.attach(job.id, client=client)
        assert cancel(job.id, client)
    finally:
        thread.join(60.0)
    assert "it was cancelled by" in str(errors[0])
    with pytest.raises(ClusterError, match=r"has no job .*: it has ended"):
        find_job(job.id[:10], client)


def test_the_worker_of_the_driver_is_lost(client: Client, rows: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """Dask runs the fit again elsewhere, to the model of a plain one; what it trains on is still held."""
    fit = dsgd.submit(Gated(model(), str(tmp_path / "gate")), *rows, client=client)
    wait_until(lambda: not fit.info().driver)
    worker = fit.info().driver
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
    wait_until(lambda: fit.info().driver in ("", worker))
    (tmp_path / "gate").touch()
    assert fit.result(timeout=60.0).inner.score(*rows) > 0.8


def test_what_cannot_be_detached_is_refused(client: Client, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """No fit, rows of this process, another client, and an unknown identity each get an error that says so."""
    with pytest.raises(InvalidParameterError, match="with a method fit"):
        dsgd.submit(object(), *rows, client=client)
    with pytest.raises(InvalidDataError, match="belong to this process"):
        dsgd.submit(model(), dsgd.Rows(*rows), client=client)
    with (
        Client(client.scheduler.address, set_as_default=False) as other,
        pytest.raises(InvalidParameterError, match="has another client"),
    ):
        dsgd.submit(model(client=other), *rows, client=client)
    with pytest.raises(ClusterError, match="has no job 'f00'"):
        dsgd.attach("f00", client=client)
