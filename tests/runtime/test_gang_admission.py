"""Who gets the workers of a real cluster: the queue, its versions, and workers or schedulers that come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import gang_programs as programs
from dsgd import __version__
from dsgd.errors import ClusterError, GangTimeoutError, VersionMismatchError, WorkerLostError
from dsgd.runtime import Timeouts, run_on_cluster
from dsgd.runtime.gang.cluster import prepare_scheduler
from dsgd.runtime.scheduler.plugin import GangSchedulerPlugin
from gang_cluster import (
    assert_clean,
    client_fixture,
    cluster_fixture,
    on_ranks,
    once,
    plugins_of,
    start_cluster,
    wait_until,
)

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(2)
client = client_fixture(2, hurt=True)


class Fit(threading.Thread):
    """A job of another client, in a thread of this process."""

    def __init__(self, cluster: LocalCluster, program: Any = programs.add_up, *args: Any) -> None:
        super().__init__()
        self.cluster, self.program, self.args = cluster, program, args
        self.events: list[Mapping[str, Any]] = []
        self.value: Any = None
        self.error: BaseException | None = None
        self.ended_at = 0.0

    def run(self) -> None:
        """Run the job and keep what comes of it."""
        with Client(self.cluster, set_as_default=False) as own:
            try:
                self.value = run_on_cluster(
                    self.program, [], client=own, pack=programs.keep, args=self.args, on_event=self.events.append
                ).value
            except Exception as error:
                self.error = error
            # Before the client closes, which may take longer than another job.
            self.ended_at = time.monotonic()

    @property
    def place(self) -> int:
        """Last place in the queue that the job was told, 0 if it was told none."""
        return next((event["position"] for event in reversed(self.events) if event.get("phase") == "queued"), 0)

    @property
    def runs(self) -> bool:
        """Whether the program has published something."""
        return any("phase" not in event for event in list(self.events))


def test_the_queue_is_in_order_and_says_where_a_job_is(cluster: LocalCluster, client: Client) -> None:
    """Jobs run in the order they came, each is told its place as it moves up, and none waits longer than it will."""
    first, second, third = (Fit(cluster, programs.spin, 2.0), Fit(cluster), Fit(cluster))
    first.start()
    wait_until(lambda: not first.runs)
    with pytest.raises(GangTimeoutError, match=r"the job waited 0\.1 s for other jobs to release tcp://"):
        on_ranks(client, programs.add_up, timeouts=Timeouts(queue=0.1))
    for fit, place in ((second, 1), (third, 2)):
        fit.start()
        wait_until(lambda fit=fit, place=place: fit.place != place)
    for fit in (first, second, third):
        fit.join()
        assert fit.error is None
    assert first.ended_at < second.ended_at < third.ended_at
    told = [event for event in third.events if event.get("phase") == "queued"]
    assert [event["position"] for event in told] in ([2, 1], [2])
    assert told[0]["text"] == "waiting for workers: 2 belong to other jobs, place 2 in the queue"


def test_a_plugin_registered_again_keeps_its_jobs(cluster: LocalCluster, client: Client) -> None:
    """Another client of this version, or one that insists, changes nothing for the jobs that run and wait."""
    running, waiting = Fit(cluster, programs.spin, 1.5), Fit(cluster)
    running.start()
    wait_until(lambda: not running.runs)
    waiting.start()
    wait_until(lambda: waiting.place != 1)
    before = client.run_on_scheduler(_leases)
    assert set(before) == {"workers", "jobs"}
    prepare_scheduler(client, 20.0)
    assert client.run_on_scheduler(_leases) == before
    client.run_on_scheduler(_register_once_more)
    assert client.run_on_scheduler(_leases) == before
    for fit in (running, waiting):
        fit.join()
        assert fit.error is None
    assert waiting.value[0] == 2


def _leases(dask_scheduler: Any) -> dict[str, Any]:
    (plugin,) = plugins_of(dask_scheduler)
    return {"workers": dict(plugin.registry.leases), "jobs": list(plugin.registry.jobs)}


async def _register_once_more(dask_scheduler: Any) -> None:
    plugin = GangSchedulerPlugin()
    await plugin.start(dask_scheduler)
    dask_scheduler.plugins[plugin.name] = plugin


def test_another_version_with_jobs_is_not_disturbed(client: Client) -> None:
    """While jobs of another version hold workers a fit is refused with both versions; then it takes over."""
    prepare_scheduler(client, 20.0)
    client.run_on_scheduler(_become_old)
    with pytest.raises(
        VersionMismatchError, match=rf"client has dsgd {__version__}, but 1 job\(s\) of dsgd 0\.0\.1 hold"
    ):
        on_ranks(client, programs.add_up)
    assert client.run_on_scheduler(_leases)["workers"] == {"somewhere": "old"}
    client.run_on_scheduler(lambda dask_scheduler: plugins_of(dask_scheduler)[0].registry.close("old"))
    assert on_ranks(client, programs.add_up).value[0] == 2
    assert client.run_on_scheduler(_gang_plugins) == [f"dsgd-gangs-{__version__}"]


def _gang_plugins(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.plugins if name.startswith("dsgd-gangs")]


def _become_old(dask_scheduler: Any) -> None:
    (name,) = _gang_plugins(dask_scheduler)
    plugin = dask_scheduler.plugins["dsgd-gangs-0.0.1"] = dask_scheduler.plugins.pop(name)
    plugin.registry.admit("old", 0, b"t", "somebody", [("somewhere", "host", 1)])


def test_a_client_of_another_version_cannot_register(client: Client) -> None:
    """What a client sends is refused by a scheduler that has another version loaded, and both are named."""
    plugin = GangSchedulerPlugin()
    plugin.sent_by = "99.0"
    with pytest.raises(VersionMismatchError, match=rf"client has dsgd 99\.0, .* has dsgd {__version__} loaded"):
        client.register_plugin(plugin, name="dsgd-gangs-99.0")
    assert "dsgd-gangs-99.0" not in client.run_on_scheduler(_gang_plugins)


def test_a_retired_worker_is_named_as_retired() -> None:
    """Scaling a cluster down by hand during a job is an error that says so, with the worker."""
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        victim = sorted(client.nthreads())[:1]
        retire = once(lambda: client.retire_workers(victim, close_workers=True))
        with pytest.raises(
            WorkerLostError, match=r"worker inproc://.* was retired \(the cluster was scaled down"
        ) as caught:
            on_ranks(client, programs.spin, 60.0, on_event=retire)
        assert [caught.value.worker] == victim
        assert on_ranks(client, programs.add_up).value[0] == 1
        assert_clean(client)


@pytest.mark.parametrize(
    ("where", "call"),
    [("scheduler", "run_function"), ("scheduler", "register_scheduler_plugin"), ("worker", "plugin-add")],
)
def test_a_cluster_that_takes_no_plugins_says_what_to_allow(where: str, call: str) -> None:
    """A call that the scheduler or the workers block is named, with the setting that blocks it."""
    with (
        dask.config.set({f"distributed.{where}.blocked-handlers": [call]}),
        start_cluster(1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(ClusterError, match=rf"{where} blocks '{call}'.*distributed\.{where}\.blocked-handlers"),
    ):
        on_ranks(client, programs.add_up)


def test_a_worker_that_cannot_start_its_rank_is_done_without(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    """A worker that is busy or paused after the job was planned is left out where failures are survived."""
    worker = sorted(client.nthreads())[1]
    release = tmp_path / "release"
    busy = client.submit(programs.await_file, str(release), workers=[worker], pure=False)
    wait_until(lambda: not client.processing()[worker])
    with pytest.warns(RuntimeWarning, match=f"on worker {worker} .* did not start; training goes on with 1 ranks"):
        result = on_ranks(client, programs.add_up, timeouts=Timeouts(peer=1.5), on_failure="restart")
    assert result.value[0] == 1
    assert not busy.done()
    release.touch()
    busy.result()
