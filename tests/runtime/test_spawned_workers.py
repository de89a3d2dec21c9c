"""Workers that begin as on a real cluster: new processes, which have imported and compiled nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import pytest
from distributed import Client

import gang_programs as programs
from gang_cluster import assert_clean, on_ranks, start_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_spawned_workers_without_kernels_on_disk_share_memory(tmp_path: Path) -> None:
    """Two processes with one empty cache fill it, and their sums have the bits of TCP."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),
        start_cluster(2, env=environment) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        # Those of other tests are forked from a server that has imported everything.
        assert not any(client.run(lambda: "worker_image" in sys.modules).values())
        sums = [on_ranks(client, programs.sums_of, (0, 3, 300001), transport=name) for name in ("shm", "tcp")]
        assert_clean(client)
    assert [stat["transport"] for found in sums for stat in found.stats] == ["shm", "shm", "tcp", "tcp"]
    assert sums[0].value == sums[1].value
    assert list(tmp_path.rglob("*.kernel"))
