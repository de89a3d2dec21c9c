"""Workers with several threads: as many ranks on each, over one copy of its rows, and the same models."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, SpecCluster, Worker
from sklearn.datasets import make_classification
from threadpoolctl import threadpool_info, threadpool_limits

import gang_programs as programs
from dsgd import SGDClassifier
from dsgd.runtime import Rank, run_on_threads
from dsgd.runtime.pools import limit_pools
from dsgd.svm import SVC, LinearSVC
from dsgd.sync import MinibatchSGD
from gang_cluster import assert_clean, module_client, on_ranks, put_blocks

pytestmark = pytest.mark.cluster

OPTIONS = {"alpha": 1e-2, "max_iter": 4, "tol": None, "random_state": 0}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """A binary problem of 1,000 rows."""
    return make_classification(1000, 10, n_informative=8, class_sep=1.5, random_state=0)


client = module_client(2, threads_per_worker=2)


@contextmanager
def threads_of(*counts: int) -> Iterator[Client]:
    """Give a client of workers in this process, one for each number of threads."""
    workers = {k: {"cls": Worker, "options": {"nthreads": n, "name": str(k)}} for k, n in enumerate(counts)}
    for worker in workers.values():
        worker["options"] |= {"protocol": "inproc", "dashboard": False}  # type: ignore[operator]
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc", "dashboard": False, "dashboard_address": ":0"}}
    with (
        SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(len(counts))
        yield client


@pytest.mark.parametrize("sync", [50, "epoch", MinibatchSGD(batch=20)], ids=repr)
def test_a_layout_of_threads_and_processes_does_not_change_the_model(client: Client, data: Any, sync: Any) -> None:
    """One worker of four threads, two of two, four of one and threads of this process give the same bits."""
    X, y = data
    model = SGDClassifier(**OPTIONS, sync=sync, shuffle=False)
    expected = model.set_params(n_jobs=4).fit(X, y).coef_
    model.set_params(n_jobs=None)
    layouts = {(2, 2): model.set_params(client=client).fit(X, y).coef_}
    assert model.fit_report_["transport"] == "inproc+shm"
    for counts in ((4,), (2, 2), (1, 1, 1, 1)):
        with threads_of(*counts) as threads:
            layouts[counts, "inproc"] = model.set_params(client=threads).fit(X, y).coef_  # type: ignore[index]
    assert {coef.tobytes() for coef in layouts.values()} == {expected.tobytes()}


def test_one_worker_shuffles_as_this_process_does(data: Any) -> None:
    """Rows that lie on one worker are packed as a whole: order and averages are those of threads of this process."""
    X, y = data
    model = SGDClassifier(**OPTIONS, sync=50, average=True)
    expected = model.set_params(n_jobs=3).fit(X, y).coef_
    with threads_of(3) as client:
        found = model.set_params(client=client, n_jobs=None).fit(X, y)
    assert np.array_equal(found.coef_, expected)
    assert found.fit_report_["transport"] == "inproc"


def test_the_ranks_of_a_worker_read_one_copy_of_its_rows(data: Any) -> None:
    """What ranks of one worker train on are neighbouring pieces of the same memory."""
    from dsgd.estimators.packing import Packer
    from dsgd.runtime.train.job import TrainData

    def where(rank: Rank, rows: TrainData) -> Any:
        values = rows.shard.packed(0, rows.n_rows).values
        return rank.group.allgather(np.array([values.__array_interface__["data"][0], values.nbytes]))

    X, y = data
    packer = Packer(np.unique(y), 10, "float64", sparse=False, shuffle=True, seed=0, validation_fraction=0.0)
    with threads_of(3) as client:
        blocks = [client.submit(lambda k=k: (X[k::2], y[k::2], None), pure=False) for k in range(2)]
        places = on_ranks(client, where, blocks=blocks, pack=packer, cut=TrainData.cut).value
    assert places[:, 1].sum() == X.nbytes
    assert list(places[1:, 0]) == list(places[:-1, 0] + places[:-1, 1])


def test_workers_may_have_unequal_threads(data: Any) -> None:
    """A worker of three threads gets three times the rows of a worker of one, and its ranks get equal shares."""
    X, y = data
    with threads_of(1, 3) as client:
        model = SGDClassifier(**OPTIONS, sync=50, client=client).fit(X, y)
        assert_clean(client)
    report = model.fit_report_
    assert (report["ranks"], report["workers"], sorted(report["ranks_per_worker"])) == (4, 2, [1, 3])
    assert [s["rows"] for s in report["stats"]] == [250] * 4
    assert sorted(model.ledger_.per_rank()) == [0, 1, 2, 3]
    assert "4 ranks on 2 workers" in model.ledger_.summary()
    assert model.score(X, y) > 0.7


def test_n_jobs_limits_the_ranks(client: Client, data: Any) -> None:
    """Fewer ranks than threads are spread over the workers; more are refused before anything moves."""
    X, y = data
    for n_jobs, expected in ((1, [1]), (2, [1, 1]), (3, [2, 1]), (-1, [2, 2])):
        report = SGDClassifier(**OPTIONS, n_jobs=n_jobs, client=client).fit(X, y).fit_report_
        assert sorted(report["ranks_per_worker"], reverse=True) == expected
    blocks = put_blocks(client, 4)
    result = on_ranks(client, programs.add_up, blocks=blocks, ranks_per_worker=1)
    assert result.value[0] == 2.0


def test_svms_run_one_rank_per_worker_with_all_its_threads(data: Any) -> None:
    """SVMs keep the threads of a worker for their kernels, and find what they find in this process."""
    X, y = data
    with threads_of(2, 2) as client:
        kernel = SVC(gamma=0.1, client=client).fit(X[:300], y[:300])
        assert kernel.fit_report_["ranks"] == 2
        np.testing.assert_allclose(
            kernel.decision_function(X), SVC(gamma=0.1).fit(X[:300], y[:300]).decision_function(X), atol=1e-2
        )
        linear = LinearSVC(client=client).fit(X, y)
        assert linear.fit_report_["ranks"] == 2
        np.testing.assert_allclose(linear.coef_, LinearSVC().fit(X, y).coef_, atol=1e-3)
        threads = on_ranks(client, lambda rank, data: rank.n_threads, ranks_per_worker=1).value
        assert threads == 2


def test_libraries_are_held_to_the_share_of_a_rank() -> None:
    """BLAS runs no more threads than a rank has while ranks run, and what it had before afterwards."""

    def blas() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    def look(rank: Rank, data: Any) -> list[int]:
        rank.group.barrier()
        return [rank.n_threads, *blas()]

    with threadpool_limits(4):
        before = blas()
        assert set(before) == {4}
        with threads_of(2) as client:
            share, *found = on_ranks(client, look).value
        assert (share, set(found)) == (1, {1})
        assert set(run_on_threads(look, [None] * 64).value) == {1}
        assert blas() == before
        # Two jobs in one process hold it down until both are over, in whatever order they end.
        first, second = limit_pools(3), limit_pools(2)
        first.__enter__()
        with second:
            first.__exit__(None, None, None)
            assert set(blas()) == {2}
        with limit_pools(9):
            assert blas() == before


def test_the_default_clusters_of_dask_train(data: Any) -> None:
    """Client(processes=False), and a LocalCluster that counts the cores itself, run a rank on every thread."""
    X, y = data
    with Client(processes=False, dashboard_address="127.0.0.1:0", set_as_default=False) as client:
        report = SGDClassifier(**OPTIONS, client=client).fit(X, y).fit_report_
        assert report["ranks"] == sum(client.nthreads().values())
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        report = SGDClassifier(**OPTIONS, client=client).fit(X, y).fit_report_
        assert report["ranks"] == sum(client.nthreads().values())
        assert report["workers"] == len(client.nthreads())
