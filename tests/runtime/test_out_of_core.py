"""Rows on the disks of the workers: the model of a fit in memory to the bit, in memory that is bounded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

import gang_programs as programs
from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.errors import MemoryLimitError
from dsgd.inputs.shared import SpooledBlock, spool, visit
from dsgd.kernel_approximation import RandomFeatures
from dsgd.sync import MinibatchSGD
from gang_cluster import assert_clean, on_ranks, put_blocks, start_cluster, wait_until

pytestmark = pytest.mark.cluster

OPTIONS: dict[str, Any] = {"alpha": 1e-2, "max_iter": 3, "tol": None, "random_state": 0}
LIMIT_MB = 650


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers put their files."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def cluster(folder: Path, data: Any) -> Iterator[LocalCluster]:
    """Two workers that a nanny kills when they use more than they may."""
    # Compiling a kernel takes more memory than these workers have to spare: they find all of them on disk.
    for rows in (data[0], data[0].astype(np.float32), sp.csr_array(data[0])):
        for sync in (50, MinibatchSGD(batch=64)):
            SGDClassifier(**OPTIONS, early_stopping=True, n_jobs=2, sync=sync).fit(rows, data[1])
    settings = {"temporary-directory": str(folder)}
    with dask.config.set(settings), start_cluster(2, memory_limit=f"{LIMIT_MB}MB") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client that leaves nothing behind."""
    with Client(cluster, set_as_default=False) as client:
        yield client
        assert_clean(client)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """A problem of 3,000 rows, a third of its entries zero, with whole numbers to make rows repeat."""
    rng = np.random.default_rng(0)
    X = rng.integers(-1, 2, (3000, 12)) * rng.random((3000, 12)).round(1)
    return X, np.where(X[:, 0] + X[:, 1] > rng.normal(0, 0.1, 3000), "yes", "no").astype(object)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("options", [{"sync": 50}, {"early_stopping": True}, {"sync": MinibatchSGD(batch=64)}], ids=str)
def test_the_model_is_that_of_a_fit_in_memory(client: Client, data: Any, sparse: bool, options: dict[str, Any]) -> None:
    """Dense and sparse rows on disk give the bits of those in memory: coefficients, losses and validation scores."""
    X, y = data
    X = sp.csr_array(X) if sparse else X
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], len(y))
    models = [
        SGDClassifier(**OPTIONS, **options, client=Gang(client, out_of_core=on_disk)).fit(X, y, sample_weight=weights)
        for on_disk in (False, True)
    ]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert models[0].loss_curve_ == models[1].loss_curve_
    scores = [[record["validation_score"] for record in m.fit_report_["epochs"]] for m in models]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    "options",
    [
        {"n_jobs": 2},
        {"n_jobs": 2, "sync": 20, "shuffle": False, "features": RandomFeatures(300, gamma=2.0)},
        {"loss": "softmax", "shuffle": False},
    ],
    ids=str,
)
def test_rows_of_this_process_may_lie_in_a_file(data: Any, options: dict[str, Any]) -> None:
    """Without a cluster, on threads, the model is that of rows in memory to the bit."""
    X = data[0]
    models = [
        SGDClassifier(**OPTIONS, **options, client=Gang(out_of_core=on_disk)).fit(X, np.digitize(X[:, 0], [-0.3, 0.3]))
        for on_disk in (False, True)
    ]
    assert models[0].coef_.tobytes() == models[1].coef_.tobytes()


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
def test_a_memory_map_is_walked_where_it_lies(tmp_path: Path) -> None:
    """Rows of a numpy.memmap that may be written to (mode "c" is enough) are not copied when they keep their order."""
    from dsgd.local import make_shard

    np.arange(24, dtype=np.float32).tofile(tmp_path / "rows")
    X = np.memmap(tmp_path / "rows", np.float32, "c", shape=(6, 4))
    assert np.shares_memory(make_shard(X, np.ones(6), shuffle=False).values, X)
    model = SGDRegressor(**OPTIONS, shuffle=False).fit(X, np.arange(6.0))
    assert np.array_equal(model.coef_, SGDRegressor(**OPTIONS, shuffle=False).fit(np.array(X), np.arange(6.0)).coef_)


@pytest.mark.slow
def test_more_rows_than_memory(folder: Path) -> None:
    """A third more than a worker may use trains on it, block by block and epoch by epoch, and leaves no file."""
    blocks = [dask.delayed(make_rows, pure=False)(k) for k in range(4 * LIMIT_MB // 3 // 16)]
    settings = {"temporary-directory": str(folder)}
    with (
        dask.config.set(settings),
        start_cluster(1, memory_limit=f"{LIMIT_MB}MB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        model = SGDClassifier(client=Gang(client, out_of_core=True), **{**OPTIONS, "max_iter": 2}).fit(blocks)
        (stats,) = model.fit_report_["stats"]
        assert stats["rows"] == 4096 * len(blocks)
        assert model.fit_report_["peak_rss_bytes"] < LIMIT_MB * 10**6
        assert model.score(*make_rows(1000)) > 0.9
        wait_until(lambda: files_of_workers(client))
    assert not list(folder.rglob("dsgd-*"))


def make_rows(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 16 MB of rows, made in little time, no two of them equal."""
    rng = np.random.default_rng(k)
    X = np.resize(rng.standard_normal(65_537, np.float32), (4096, 1024))
    X[:, 0] = rng.standard_normal(4096, np.float32) * 8.0
    return X, X[:, 0] > 0


def test_more_rows_than_memory_are_refused_in_memory(client: Client) -> None:
    """The refusal names bytes needed and available and the way out; rows of known size are not even computed."""
    X = da.zeros((150_000, 2048), chunks=(4096, -1), dtype=np.float32)
    with pytest.raises(MemoryLimitError, match=r"1,228,800,000 bytes\) and has [\d,]+ MiB .*out_of_core=True"):
        SGDClassifier(**OPTIONS, client=client).fit(X, da.zeros(150_000, chunks=4096))
    blocks = [dask.delayed(make_rows, pure=False)(k) for k in range(25)]
    with pytest.raises(MemoryLimitError, match=r"rank 0 on worker tcp://.*, with 25 blocks, needs .*out_of_core=True"):
        SGDClassifier(**OPTIONS, client=client, n_jobs=1).fit(blocks)


def test_workers_that_dask_has_paused_are_named(client: Client) -> None:
    """Where Dask has paused all workers, the error says that memory is full, and not that there are none."""
    blocks = put_blocks(client, 2)
    client.run(set_pause_fraction, 0.01)
    try:
        wait_until(lambda: [state for state in states_of_workers(client) if state != "paused"])
        with pytest.raises(MemoryLimitError, match="Dask has paused all 2 workers"):
            on_ranks(client, programs.add_up, blocks=blocks)
    finally:
        client.run(set_pause_fraction, 0.8)
        wait_until(lambda: [state for state in states_of_workers(client) if state != "running"])
    assert on_ranks(client, programs.add_up, blocks=blocks).value.size


def set_pause_fraction(fraction: float, dask_worker: Any) -> None:
    dask_worker.memory_manager.memory_pause_fraction = fraction


def states_of_workers(client: Client) -> list[str]:
    states: list[str] = client.run_on_scheduler(
        lambda dask_scheduler: [w.status.name for w in dask_scheduler.workers.values()]
    )
    return states


def files_of_workers(client: Client) -> list[str]:
    """Return the nameless files that workers have shard."""
    return [line for lines in client.run(mapped_files).values() for line in lines]


def mapped_files() -> list[str]:
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line and "scratch" in line
    ]


def test_a_killed_worker_leaves_no_file(client: Client, folder: Path) -> None:
    """Blocks on disk have no name, so SIGKILL frees their room; Dask makes them again elsewhere."""
    futures = client.compute([dask.delayed(spool_rows)(k) for k in range(8)])
    wait_until(lambda: [future for future in futures if future.status != "finished"], timeout_s=30.0)
    assert {future.type for future in futures} == {SpooledBlock}
    assert len(files_of_workers(client)) >= 8
    victim = next(iter(client.who_has(futures).values()))[0]
    pid = client.run(os.getpid, workers=[victim])[victim]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: [v for v in client.who_has(futures).values() if not v or victim in v], timeout_s=30.0)
    assert not list(folder.rglob("dsgd-*"))
    futures.clear()
    wait_until(lambda: len(client.nthreads()) < 2, timeout_s=30.0)
    wait_until(lambda: files_of_workers(client))


def spool_rows(k: int) -> Any:
    return spool((*make_rows(k), None))


def test_blocks_keep_what_they_hold(tmp_path: Path) -> None:
    """A block on disk gives back its rows, labels of any kind and weights, also after it was released and pickled."""
    import pickle

    X = sp.csr_array(np.eye(4, 3))
    y, weights = np.array(["a", "b", "c", None], object), np.arange(4.0)
    for rows in (X, X.toarray()[:, ::-1], np.arange(8).reshape(4, 2)):
        block = spool((rows, y, weights), str(tmp_path))
        assert isinstance(block, SpooledBlock)
        for seen in (*visit([block]), *visit([block]), pickle.loads(pickle.dumps(block))):
            assert (seen[0] != rows).sum() == 0
            assert seen[0].dtype == rows.dtype
            assert list(seen[1]) == list(y)
            assert np.array_equal(seen[2], weights)
    assert spool((np.array([["text"]]), None, None), str(tmp_path))[0] == "text"
    assert not list(tmp_path.iterdir())
