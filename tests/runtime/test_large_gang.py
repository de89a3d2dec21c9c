"""Gangs of more workers than are all connected from the start, on a cluster whose workers are threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsgd import Gang, SGDClassifier
from dsgd.comm.sockets.mesh import FULL_MESH
from gang_cluster import assert_clean, start_cluster

N_WORKERS = FULL_MESH + 3


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # Without limits: each of these workers counts the memory of the whole process as its own.
    with (
        start_cluster(N_WORKERS, threads_per_worker=1, processes=False, memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def fitted(sync: Any, **where: Any) -> Any:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1100, 6)).astype(np.float32)
    return SGDClassifier(sync=sync, max_iter=2, tol=None, random_state=0, **where).fit(X, X[:, 0] > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync", "transport"), [(32, "auto"), (32, "tcp"), (32, "rpc"), ("sgp", "auto"), ("leader", "auto")]
)
def test_a_large_gang_has_the_model_of_threads(client: Client, sync: Any, transport: Any) -> None:
    """Ranks that connect as they go train the model of as many threads, bit for bit, and leave nothing behind."""
    ours, theirs = fitted(sync, client=Gang(client, transport=transport)), fitted(sync, n_jobs=N_WORKERS)
    assert ours.coef_.tobytes() == theirs.coef_.tobytes()
    for what in ("bytes_sent", "messages", "control_bytes_sent", "control_messages"):
        assert ours.ledger_.totals()[what] == theirs.ledger_.totals()[what]
    assert_clean(client)


@pytest.mark.parametrize("sync", ["asgd", "adpsgd"])
def test_a_large_gang_gets_its_mail(client: Client, sync: str) -> None:
    """Servers, and pairs drawn at random, reach ranks with which nothing was exchanged before."""
    assert np.isfinite(fitted(sync, client=client).coef_).all()
    assert_clean(client)
