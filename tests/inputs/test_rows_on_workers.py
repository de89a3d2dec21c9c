"""Rows that stay on the workers of a cluster between fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from dsgd import Rows, SGDClassifier, SGDRegressor
from dsgd.comm.memory.segment import shared_folder
from dsgd.errors import InvalidParameterError
from dsgd.inputs import shared
from dsgd.inputs.blocks import Spread
from dsgd.inputs.sources import scatter_rows
from dsgd.runtime.gang.cluster import Cluster
from dsgd.runtime.worker.plugin import store_of
from dsgd.svm import SVC
from gang_cluster import client_fixture, cluster_fixture, start_cluster, wait_until

pytestmark = pytest.mark.cluster
cluster = cluster_fixture(2)
client = client_fixture(2)

PARAMETERS: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}


def make(n: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels."""
    X = np.random.default_rng(5).standard_normal((n, 6))
    return X, (X[:, 0] > X[:, 1] ** 2 - 1).astype(int)


def n_kept(dask_worker: Any) -> int:
    """Return how many packed forms a worker keeps."""
    return len(store_of(dask_worker).packed._kept)


def packed_bytes(model: Any) -> int:
    """Return the bytes that workers have packed, or that were sent to them."""
    return sum(e["bytes"] for e in model.fit_report_["stages"] if e["stage"] in {"pack", "hash", "hand over", "fetch"})


@pytest.mark.parametrize("kind", ["arrays", "collections", "futures"])
@pytest.mark.parametrize("options", [{}, {"early_stopping": True}, {"n_jobs": 1}], ids=str)
def test_a_second_fit_finds_rows_packed(client: Client, kind: str, options: dict[str, Any]) -> None:
    X, y = make()
    given: tuple[Any, Any] = (X, y)
    if kind == "collections":
        given = da.from_array(X, chunks=(300, -1)), da.from_array(y, chunks=300)
    elif kind == "futures":
        given = client.scatter([(X[:500], y[:500]), (X[500:], y[500:])], hash=False), None
    plain = SGDClassifier(**PARAMETERS, **options, client=client).fit(*given)
    with Rows(*given, client=client) as rows:
        fits = [SGDClassifier(**PARAMETERS, **options).fit(rows) for _ in range(3)]
        # At every fit Dask chooses again where the blocks of a collection are, and so which rank trains on them.
        expected = fits[0] if kind == "collections" else plain
        for model in fits:
            assert model.coef_.tobytes() == expected.coef_.tobytes()
            assert model.intercept_.tobytes() == expected.intercept_.tobytes()
        assert packed_bytes(fits[0]) >= X.nbytes
        assert packed_bytes(fits[1]) == packed_bytes(fits[2]) == 0
        # Other parameters that packing does not know of need nothing either; a regression has other targets.
        assert packed_bytes(SGDClassifier(**PARAMETERS, **options, alpha=0.01, loss="log_loss").fit(rows)) == 0
        assert set(client.run(n_kept).values()) <= {0, 1}
        other = SGDClassifier(**{**PARAMETERS, **options, "random_state": 1}).fit(rows)
        assert packed_bytes(other) > 0
        assert set(client.run(n_kept).values()) <= {0, 1}
    wait_until(lambda: set(client.run(n_kept).values()) != {0}, 30.0)


def test_regression_after_classification(client: Client) -> None:
    X, y = make()
    with Rows(X, y, client=client, keep=2) as rows:
        for _ in range(2):
            classifier = SGDClassifier(**PARAMETERS).fit(rows)
            regressor = SGDRegressor(**PARAMETERS).fit(rows)
        assert packed_bytes(classifier) == packed_bytes(regressor) == 0
        assert regressor.coef_.tobytes() == SGDRegressor(**PARAMETERS, client=client).fit(X, y).coef_.tobytes()
        assert classifier.score(rows) == classifier.score(X, y)


def test_a_worker_that_is_lost_takes_nothing_with_it() -> None:
    X, y = make()
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        rows = Rows(X, y, client=client)
        first = SGDClassifier(**PARAMETERS, n_jobs=2).fit(rows)
        client.restart_workers(sorted(client.nthreads())[:1], raise_for_error=True)
        wait_until(lambda: len(client.nthreads()) != 2, 60.0)
        again = SGDClassifier(**PARAMETERS, n_jobs=2).fit(rows)
        assert again.coef_.tobytes() == first.coef_.tobytes()
        assert packed_bytes(again) >= X.nbytes
        rows.release()


def test_rows_belong_to_their_cluster(client: Client, cluster: Any) -> None:
    X, y = make(200)
    with Rows(X, y, client=client) as rows:
        with (
            Client(cluster, set_as_default=False) as other,
            pytest.raises(InvalidParameterError, match="another cluster"),
        ):
            SGDClassifier(client=other).fit(rows)
        with pytest.raises(InvalidParameterError, match="Set its client to the same one"):
            SVC().fit(rows)
        assert SVC(client=client).fit(rows).score(rows) == SVC(client=client).fit(X, y).score(X, y)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_large_arrays_reach_workers_of_this_host_through_shared_memory(client: Client) -> None:
    """They lie in a segment that has no name any more, and the model is that of rows that were sent."""
    X, y = make(60_000)
    futures, _ = scatter_rows(Cluster(client), X, y, None, Spread(seed=0))
    held = client.run(_mappings)
    assert set(held.values()) == {1}
    assert not [path for path in shared_folder().glob("dsgd-*") if path.stat().st_size > 0.45 * X.nbytes]
    handed = SGDClassifier(**PARAMETERS, client=client).fit(X, y)
    with mock.patch.object(shared, "_FROM_BYTES", 2 * X.nbytes):
        sent = SGDClassifier(**PARAMETERS, client=client).fit(X, y)
    assert handed.coef_.tobytes() == sent.coef_.tobytes()
    for model in (handed, sent):
        assert read_bytes(model) == {"here": X.nbytes, "there": 0}
    with Rows(X, y, client=client) as rows:
        assert read_bytes(SGDClassifier(**PARAMETERS).fit(rows)) == {"here": 0, "there": 0}
    del futures
    wait_until(lambda: set(client.run(_mappings).values()) == {0}, 30.0)


def read_bytes(model: Any) -> dict[str, int]:
    """Return how many bytes of rows a fit has read to check and to hash them, in this process and on workers."""
    found = {"here": 0, "there": 0}
    for entry in model.fit_report_["stages"]:
        if entry["stage"] in ("check", "hash"):
            found["here" if entry["where"] == "client" else "there"] += entry["bytes"]
    return found


def _mappings() -> int:
    """Return how many large segments without a name this process has mapped."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines() if "/dsgd-" in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[-1].endswith("(deleted)")]
    return sum(last - first > 1 << 20 for first, last in ends)
