"""What a simulated rank waits for a late peer, and what the network takes from it."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.sim import NETWORKS, SimulatedCluster, SlowRank
from dsgd.sync import ASGD, EASGD, SGP, DiLoCo, LocalSGD, StaleSynchronous
from members import Strategy

BARRIERS = [LocalSGD(every=8), DiLoCo(every=8), EASGD(every=8)]
SERVED = ASGD(batch=8)


def spent(network: str, ranks: int, sync: Strategy, slow: float = 1.0) -> dict[str, float]:
    """Return what ranks with 32 rows each are charged, the last of which may be slow; without servers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((32 * ranks, 5))
    cluster = SimulatedCluster(ranks, network, stragglers=SlowRank(ranks - 1, slow))
    model = SGDClassifier(max_iter=3, tol=None, random_state=0, sync=sync, client=cluster)
    found = [r.totals for r in model.fit(X, np.sign(X[:, 0])).ledger_.ranks[:ranks]]
    return {name: sum(totals[name] for totals in found) for name in ("compute_s", "wire_s", "wait_s")}


@pytest.mark.parametrize("sync", [*BARRIERS, LocalSGD(every=8, overlap=True), SGP(every=8), SERVED], ids=repr)
@pytest.mark.parametrize("ranks", [2, 5, 16])
@pytest.mark.parametrize("network", NETWORKS)
def test_equal_ranks_wait_for_nobody(network, ranks, sync):
    """Where all ranks have as much to do, every second of an exchange is the network's: latency is no wait."""
    found = spent(network, ranks, sync)
    # A server passes over parameters, too, which takes some hundredths of the steps.
    assert found["wait_s"] <= (0.1 * found["compute_s"] if sync is SERVED else 0.0)
    assert found["wire_s"] > 0.0


@pytest.mark.parametrize("sync", [*BARRIERS, StaleSynchronous(batch=8, slack=1)], ids=repr)
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_faster_network_does_not_shorten_the_wait(ranks, sync):
    """Ranks wait for a slow one as long on every network, which adds its seconds to those of the wire."""
    found = [spent(network, ranks, sync, slow=1000.0) for network in ("InfiniBand", "1GbE", "WAN")]
    rel = 1e-6 if sync in BARRIERS else 1e-3  # a server takes what has come first
    assert [one["wait_s"] for one in found] == pytest.approx([found[0]["wait_s"]] * 3, rel=rel)
    assert found[0]["wait_s"] == pytest.approx((ranks - 1) * found[0]["compute_s"], rel=0.01)
    assert found[0]["wire_s"] < found[1]["wire_s"] < found[2]["wire_s"]
