"""Fits on a cluster that has no workers yet."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from distributed import Client

from dsgd import Gang, SGDClassifier
from dsgd.errors import GangTimeoutError
from dsgd.runtime import Timeouts
from gang_cluster import start_cluster

pytestmark = pytest.mark.cluster


def test_a_fit_asks_for_the_first_worker_and_waits_for_it() -> None:
    """Rows of this process wait for the first worker, and until the deadline, as a task that makes a cluster scale."""
    X, y = np.random.default_rng(0).standard_normal((200, 3)), np.arange(200) % 2
    with start_cluster(0, processes=False) as cluster, Client(cluster) as client:
        model = SGDClassifier(client=Gang(client, timeouts=Timeouts(queue=0.5)), max_iter=2, tol=None)
        with (
            pytest.warns(RuntimeWarning, match="no workers"),
            pytest.raises(GangTimeoutError, match="no worker has begun"),
        ):
            model.fit(X, y)
        coming = threading.Timer(0.3, cluster.scale, [1])
        coming.start()
        with pytest.warns(RuntimeWarning, match="no workers"):
            model.set_params(client=client).fit(X, y)
        coming.join()
    assert model.n_iter_ == 2
