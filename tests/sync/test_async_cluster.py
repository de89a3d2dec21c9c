"""Ranks and servers on worker processes: mailboxes of their own, whatever the layout and the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsgd import Gang, SGDClassifier
from dsgd.sync import ADPSGD, ASGD, DPSGD, AsyncEASGD, Hogwild, StaleSynchronous
from gang_cluster import assert_clean, module_client

pytestmark = pytest.mark.cluster


client = module_client(2, threads_per_worker=2, set_as_default=True)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 8))
    return X, (X @ rng.standard_normal(8) > 0).astype(int)


def fit(client: Client, strategy: Any, transport: Any = "auto", **options: Any) -> SGDClassifier:
    X, y = rows()
    clf = SGDClassifier(
        max_iter=3, tol=None, random_state=0, sync=strategy, client=Gang(client, transport=transport), **options
    ).fit(X, y)
    assert clf.score(X, y) > 0.95
    assert_clean(client)
    return clf


@pytest.mark.parametrize("strategy", [ASGD(16), StaleSynchronous(16), AsyncEASGD(), ADPSGD(), DPSGD()], ids=repr)
def test_every_rank_of_every_worker_has_a_mailbox(client: Client, strategy: Any) -> None:
    """Threads of two workers, with a server where there is one, train together and leave nothing behind."""
    clf = fit(client, strategy)
    assert clf.fit_report_["ranks"] == 4
    assert len(clf.ledger_.ranks) == 4 + strategy.n_servers
    assert [records.rank for records in clf.ledger_.ranks] == list(range(4 + strategy.n_servers))


@pytest.mark.parametrize(("transport", "n_jobs"), [("rpc", 2), ("tcp", 3)])
def test_messages_take_the_way_that_there_is(client: Client, transport: Any, n_jobs: int) -> None:
    """Mailboxes go through the ports of the workers where nothing else may be used; workers may run unequal numbers."""
    clf = fit(client, ASGD(64), transport, n_jobs=n_jobs)
    assert transport in clf.fit_report_["transport"]
    assert len(clf.ledger_.ranks) == n_jobs + 1


def test_a_model_is_shared_by_the_threads_of_one_process_alone(client: Client) -> None:
    """Without locks works on the threads of one worker; on several it is refused, and the text says what to do."""
    with pytest.raises(ValueError, match="not all threads of one process"):
        fit(client, Hogwild())
    assert_clean(client)
