"""Rank programs on real worker processes: what goes right."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, __version__, get_client, worker_client

import gang_programs as programs
from dsgd import Gang, SGDClassifier
from dsgd.errors import (
    ClusterError,
    ClusterUnreachableError,
    InvalidDataError,
    InvalidParameterError,
    VersionMismatchError,
)
from dsgd.runtime import Timeouts, client_for, client_of, close_own_cluster, connect_client, run_on_cluster
from dsgd.runtime.gang import cluster as cluster_module
from gang_cluster import client_fixture, cluster_fixture, on_ranks, once, put_blocks, start_cluster, wait_until

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, None])
@pytest.mark.parametrize("n_blocks", [0, 1, 7])
def test_every_block_is_seen_by_one_rank(client: Client, n_ranks: int | None, n_blocks: int) -> None:
    """For any number of ranks, empty and uneven ones included, the sum over blocks is right."""
    blocks = put_blocks(client, n_blocks)
    size = n_ranks or 3
    result = on_ranks(client, programs.add_up, blocks=blocks, n_ranks=n_ranks)
    assert result.value.tolist() == [size, size * (size - 1) / 2, n_blocks, sum(12 * k for k in range(n_blocks))]
    assert [stat["rank"] for stat in result.stats] == list(range(size))
    assert sum(stat["n_blocks"] for stat in result.stats) == n_blocks
    assert len({stat["worker"] for stat in result.stats}) == size


def test_every_transport_gives_the_same_bits(client: Client) -> None:
    """Workers of one host share memory unless told otherwise; what they sum does not depend on it."""
    wires = {"auto": "shm", "spin": "shm", "shm": "shm", "tcp": "tcp", "rpc": "rpc"}
    results = {name: on_ranks(client, programs.sums_of, (3, 1000, 50_001), transport=name) for name in wires}
    assert all({s["transport"] for s in results[name].stats} == {wire} for name, wire in wires.items())
    assert len({tuple(result.value) for result in results.values()}) == 1
    assert len({result.ledger.totals()["bytes_sent"] for result in results.values()}) == 1
    with pytest.raises(InvalidParameterError, match="transport"):
        on_ranks(client, programs.add_up, transport="smoke")


def test_workers_without_room_for_shared_memory_use_tcp(client: Client) -> None:
    """A full shared folder costs speed, not the job, unless shared memory was requested."""
    client.run(programs.fill_shared_memory, True)
    try:
        result = on_ranks(client, programs.add_up)
        assert result.value[0] == 3
        assert {stat["transport"] for stat in result.stats} == {"tcp"}
        with pytest.raises(ClusterError, match="share memory"):
            on_ranks(client, programs.add_up, transport="shm")
    finally:
        client.run(programs.fill_shared_memory, False)


def test_ranks_have_a_window_where_each_has_a_core(client: Client) -> None:
    """Workers of one host see each other's vectors if all may use as many cores as there are ranks; not over TCP."""
    first = min(client.nthreads())
    client.run(programs.believe, 3)
    try:
        assert on_ranks(client, programs.sees_all).value
        assert not on_ranks(client, programs.sees_all, transport="tcp").value
        client.run(programs.believe, 2, workers=[first])
        assert not on_ranks(client, programs.sees_all).value
    finally:
        client.run(programs.believe, CPU_COUNT)


def test_blocks_that_lie_together_are_spread(client: Client) -> None:
    """Blocks move from a worker that holds all of them to the others."""
    worker = sorted(client.scheduler_info(n_workers=-1)["workers"])[0]
    blocks = [client.submit(np.full, (5, 3), k, workers=[worker]) for k in range(6)]
    pack = lambda blocks, rank: [(block, None, None) for block in blocks]  # noqa: E731
    result = on_ranks(client, programs.add_up, blocks=blocks, pack=pack)
    assert [stat["n_blocks"] for stat in result.stats] == [2, 2, 2]
    assert result.value[3] == 15 * sum(range(6))


def test_a_block_that_no_worker_takes_is_an_error(client: Client) -> None:
    """Sending ends with the deadline of the job, and the error says what was in the way."""
    blocks = put_blocks(client, 1)
    blocks[0].cancel()
    wait_until(lambda: client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))

    def reload(index: int) -> Any:
        raise OSError("the connection is closed")

    with pytest.raises(ClusterError, match=r"block 0 could not be sent to any worker.*connection is closed"):
        on_ranks(client, programs.add_up, blocks=blocks, reload=reload, timeouts=Timeouts(peer=1))


def test_the_account_and_the_stats_come_home(client: Client) -> None:
    """The ledger has every rank with bytes and rounds, and the stats have rows, host and peak memory."""
    result = on_ranks(client, programs.spin, 0.05, blocks=put_blocks(client, 5), pack=programs.count_rows)
    assert [records.rank for records in result.ledger.ranks] == [0, 1, 2]
    assert result.ledger.elapsed_s > 0.05
    assert [stat["rows"] for stat in result.stats] == [4 * stat["n_blocks"] for stat in result.stats]
    assert all(stat["host"] == "127.0.0.1" and stat["peak_rss_bytes"] > 1e6 for stat in result.stats)
    counted = on_ranks(client, programs.add_up).ledger.totals()
    assert counted["rounds"] == 1
    assert counted["bytes_sent"] > 3 * 32


def test_what_dask_moves_is_counted(client: Client) -> None:
    """Plans and outcomes take bytes, which the summary tells; a fit in this process has none."""
    X = np.random.default_rng(0).standard_normal((9_000, 5))
    model = SGDClassifier(sync=1, max_iter=2, tol=None, client=client).fit(X, X[:, 0] > 0)
    assert model.ledger_.dask_bytes > 0
    assert "Dask, beside the ranks: " in model.ledger_.summary()
    assert SGDClassifier(max_iter=2, tol=None, n_jobs=2).fit(X, X[:, 0] > 0).ledger_.dask_bytes == 0


def test_progress_reaches_the_caller(client: Client) -> None:
    """Events arrive as plain values, in the caller's thread, thinned out but with the last one."""
    seen: list[tuple[Any, int]] = []
    on_ranks(client, programs.publish_all, on_event=lambda event: seen.append((dict(event), threading.get_ident())))
    assert seen[-1][0] == {"number": 199, "loss": 0.5, "name": "x", "none": None}
    assert 2 <= len(seen) < 50
    assert {ident for _, ident in seen} == {threading.get_ident()}


def test_another_version_on_the_workers_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both versions, before anything runs."""
    mine = cluster_module.local_versions()
    monkeypatch.setattr(cluster_module, "local_versions", lambda: {**mine, "dsgd": "99.0"})
    with pytest.raises(VersionMismatchError, match=r"client has dsgd 99\.0.*scheduler has dsgd"):
        on_ranks(client, programs.add_up)


def test_a_worker_without_dsgd_is_left_out() -> None:
    """It is named once and the others do the work; where no worker has it that is an error."""
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        one, two = sorted(client.nthreads())
        client.run(_hide, workers=[two])
        with pytest.warns(RuntimeWarning, match=f"worker {two} cannot import dsgd .*: left out") as caught:
            assert run_on_cluster(programs.add_up, [], client=client, pack=programs.keep).value[0] == 1
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert run_on_cluster(programs.add_up, [], client=client, pack=programs.keep).value[0] == 1
        with pytest.raises(VersionMismatchError, match=f"worker {two} cannot import dsgd"):
            run_on_cluster(programs.add_up, [], client=Gang(client, workers=[two]), pack=programs.keep)
        assert run_on_cluster(programs.add_up, [], client=Gang(client, workers=[one]), pack=programs.keep).value[0] == 1


def test_jobs_keep_to_the_workers_that_are_meant() -> None:
    """By name, address or resource, or by an annotation of Dask; none that fits is an error that says so."""
    options = {"processes": False, "resources": {"slots": 2}}
    with start_cluster(2, **options) as cluster, Client(cluster, set_as_default=False) as client:
        one, _two = sorted(client.nthreads())

        def places(workers: Any = None) -> list[str]:
            found = on_ranks(client, programs.add_up, workers=workers)
            return [str(stats["worker"]) for stats in found.stats]

        assert places([one]) == [one]
        assert len(places(["0"])) == 1
        assert len(places({"slots": 1})) == 2
        with dask.annotate(workers=[one], resources={"slots": 1}):
            assert places() == [one]
        for nobody in (["elsewhere"], {"slots": 3}, {"GPU": 1}):
            with pytest.raises(ClusterError, match="no worker of the cluster is meant by workers="):
                places(nobody)
        for wrong in ("one", [], {"slots": "two"}, 3):
            with pytest.raises(InvalidParameterError, match=r"Gang\(workers=\.\.\.\) must be a list of names"):
                places(wrong)


@pytest.mark.parametrize("client_of_task", [client_for, worker_client, lambda: nullcontext(get_client())])
def test_a_fit_inside_a_task(client: Client, client_of_task: Any) -> None:
    """A task on a worker with one thread leaves it to the ranks, whatever client it uses, and its rows reach them."""
    X, y = np.random.default_rng(0).normal(size=(30_000, 8)), np.arange(30_000) % 2

    def task() -> Any:
        with client_of_task() as inner:
            return SGDClassifier(client=inner, max_iter=1, tol=None, random_state=0).fit(X, y).coef_

    there = client.submit(task, pure=False).result(60.0)
    here = SGDClassifier(client=client, max_iter=1, tol=None, random_state=0).fit(X, y).coef_
    assert there.tobytes() == here.tobytes()


def _hide() -> None:
    import sys

    sys.modules["hidden dsgd"] = sys.modules.pop("dsgd.runtime.worker.member", None)  # type: ignore[assignment]
    sys.modules["dsgd.runtime.worker.member"] = None  # type: ignore[assignment]


def test_a_leased_worker_is_not_scaled_away(cluster: LocalCluster, client: Client) -> None:
    """While a job runs, adaptive scaling finds no worker to take."""
    spared: list[Any] = []
    ask = partial(client.run_on_scheduler, lambda dask_scheduler: list(dask_scheduler.workers_to_close(n=1)))
    on_ranks(client, programs.spin, 0.5, on_event=once(lambda: spared.append(ask())))
    assert spared == [[]]


def test_bad_requests_are_refused(client: Client) -> None:
    """Wrong clients, too many ranks and mismatched sizes get an error that says what to do."""
    run: Any = run_on_cluster
    with pytest.raises(InvalidParameterError, match=r"must be a distributed\.Client or None, got str"):
        run(programs.add_up, [], client="tcp://127.0.0.1:1", pack=programs.keep)
    with pytest.raises(ClusterError, match="4 ranks need 4 threads"):
        run(programs.add_up, [], client=client, pack=programs.keep, n_ranks=4)
    with pytest.raises(InvalidParameterError, match="block_rows"):
        run(programs.add_up, [], client=client, pack=programs.keep, block_rows=[1])
    with pytest.raises(ZeroDivisionError):
        run(programs.add_up, [client.submit(lambda: 1 / 0)], client=client, pack=programs.keep)


def test_an_unreachable_scheduler_is_named() -> None:
    """Connecting to an address without a listener fails within the given time, with the address."""
    with pytest.raises(ClusterUnreachableError, match=r"127\.0\.0\.1:9"):
        connect_client("tcp://127.0.0.1:9", timeout_s=0.3)


def test_clients_are_found_or_made(cluster: LocalCluster) -> None:
    """The client passed wins, then the current one; without any, a cluster is started and closed again."""
    assert client_of(None) is None
    with Client(cluster) as current:
        assert client_of(None) is current
        with Client(cluster, set_as_default=False) as other, client_for(other) as found:
            assert found is other
    with pytest.raises(ClusterUnreachableError, match="closed"):
        client_of(current)
    with client_for(n_workers=1) as own:
        assert on_ranks(own, programs.add_up).value[0] == 1
    assert own.status == "closed"
    assert connect_client(cluster.scheduler_address).close() is None


def test_a_cluster_that_fits_start_by_themselves_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Fits on lazy rows without a client share one cluster, which says once that it is there, until it is closed."""
    X = da.from_array(np.arange(40.0).reshape(20, 2), chunks=(10, 2))
    y = da.from_array(np.arange(20) % 2, chunks=10)
    with caplog.at_level("WARNING", logger="dsgd"):
        with client_for() as first:
            pass
        SGDClassifier(max_iter=2, tol=None).fit(X, y)
        with client_for() as second:
            assert second is first
        assert [record.message.split(":")[0] for record in caplog.records] == ["no client=..."]
    first.cluster.close()  # as when somebody else ends it
    with client_for() as third:
        assert third is not first
        SGDClassifier(max_iter=2, tol=None).fit(X, y)
    close_own_cluster()
    close_own_cluster()
    assert third.status == "closed"


@pytest.mark.skipif(
    tuple(map(int, __version__.split(".")[:2])) < (2026, 7), reason="Dask before 2026.7 starts such processes for ever"
)
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    """Worker processes run the script that starts them: what it lacks is said once, and nothing else is printed."""
    script = tmp_path / "script.py"
    script.write_text("from dsgd.runtime import client_for\nwith client_for():\n    print('never')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.rstrip().splitlines()[-1].startswith("dsgd.errors.ClusterError: no worker processes")
    assert "if __name__ == '__main__':" in done.stderr
    assert "distributed.nanny" not in done.stderr


def test_targets_given_twice_start_no_processes(caplog: pytest.LogCaptureFixture) -> None:
    """A list of names for rows is refused at once."""
    with caplog.at_level("WARNING", logger="dsgd"), pytest.raises(InvalidDataError, match="y and sample_weight"):
        SGDClassifier().fit(["a", "b"], [0, 1])
    assert not caplog.records
