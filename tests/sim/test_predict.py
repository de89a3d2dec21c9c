"""Costs without training: the seconds of a simulated cluster, by the moves of its collectives alone."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.collectives.cost import ALGORITHMS, allreduce_seconds
from dsgd.errors import InvalidParameterError
from dsgd.sim import Compute, Link, Network, SimulatedCluster, predict

COMPUTE = Compute(entry_s=2e-9, row_s=5e-8, param_s=1e-9, call_s=2e-5, added_byte_s=3e-10)
FAR = Network("far", Link(byte_s=2e-9, overhead_s=5e-5, latency_s=2e-4), Link(byte_s=1e-10, overhead_s=1e-5))
PAIRS = Network("pairs", Link(byte_s=2e-9, overhead_s=5e-5), Link(byte_s=1e-10, overhead_s=1e-5), ranks_per_host=2)
ROUNDS, ROWS, ENTRIES = 4, 30, 900


@pytest.mark.parametrize("stragglers", ["none", "heavy-tail"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seconds_are_those_of_the_simulated_cluster(algorithm, ranks, stragglers):
    """Rounds of work and all-reduce that are run take what is predicted, for every algorithm, and send as much."""
    for network in (FAR, PAIRS):
        cluster = SimulatedCluster(ranks, network, COMPUTE, stragglers, seed=5)

        def program(rank, n):
            vector = np.ones(n)
            for _ in range(ROUNDS):
                rank.ledger.begin_round("sync")
                rank.worked(rows=ROWS, entries=ENTRIES, params=n)
                rank.group.allreduce(vector)
                rank.ledger.end_round()

        gang = cluster.run(program, [203] * ranks, algorithm=algorithm)
        found = predict(
            cluster, n_params=203, rows=ROWS, entries=ENTRIES, rounds=ROUNDS, itemsize=8, algorithm=algorithm
        )
        assert found.seconds == pytest.approx(gang.ledger.elapsed_s, rel=1e-9)
        assert found.n_bytes == gang.ledger.totals()["bytes_sent"]
        assert found.messages == gang.ledger.totals()["messages"]


@pytest.mark.parametrize(("algorithm", "ranks"), [("recursive_doubling", 4096), ("ring", 4096), ("rabenseifner", 512)])
def test_thousands_of_ranks(algorithm, ranks):
    """Many ranks take the closed form of the algorithm, without stragglers and with equal chunks."""
    link = Link(byte_s=1e-9, overhead_s=1e-5)
    cluster = SimulatedCluster(ranks, Network("flat", link, link), Compute(0, 0, 0, 0, 1e-10))
    n = 4096 * 16
    found = predict(cluster, n_params=n, rows=1, entries=0, rounds=100, algorithm=algorithm)
    model = allreduce_seconds(algorithm, 8 * n, ranks, Link(latency_s=1e-5 + 40e-9, byte_s=1e-9, added_byte_s=1e-10))
    assert found.seconds == pytest.approx(100 * model, rel=1e-6)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"n_params": 0}, {"rows": -1}, {"algorithm": "hierarchical"}])
def test_what_cannot_be_predicted_is_refused(options):
    """Numbers that cannot be, and collectives in levels, are refused by name."""
    given = {"n_params": 10, "rows": 1, "entries": 1, "rounds": 1, **options}
    with pytest.raises(InvalidParameterError, match=rf"predict\({next(iter(options))}"):
        predict(SimulatedCluster(4), **given)
