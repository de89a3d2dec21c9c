"""Gossip beside all-reduce on simulated ranks: undisturbed, with one slow link, and with ranks that stall.

Sixteen ranks train ijcnn1 on a virtual clock, over 10 GbE. In one case the link between the first two hosts is a
hundred times as slow as the others; in another a row takes ten microseconds of work and the time of a round is
multiplied by a factor with a heavy tail (`dsgd.sim.HeavyTail`), drawn for every rank and round. Prints the virtual
milliseconds per epoch, and their ratio to those of the undisturbed run of the same kind; writes the training loss by
seconds.

    python -m benchmarks run gossip --out docs/figures/gossip.jsonl
    python docs/figures/gossip.py
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from benchmarks.common.measuring import Options, Rows, report
from benchmarks.training.accuracy import split
from dsgd import SGDClassifier
from dsgd.sim import NETWORKS, Compute, HeavyTail, Link, SimulatedCluster
from dsgd.sync import DPSGD, SGP, LocalSGD, OverlapSGP

PAGE = "strategies"
QUICK_S = 15
QUICK = "fewer rows"

N_RANKS, N_EPOCHS, EVERY = 16, 6, 256
STRATEGIES: dict[str, Any] = {
    "all-reduce": LocalSGD(EVERY),
    "D-PSGD, ring": DPSGD(EVERY),
    "SGP": SGP(EVERY),
    "overlap SGP": OverlapSGP(EVERY, delay=2),
}


def cases() -> dict[str, dict[str, Any]]:
    """Return the parameters of the cluster in each case; of each pair the first is the undisturbed one."""
    network = NETWORKS["10GbE"]
    usual = network.between
    slow = Link(byte_s=100 * usual.byte_s, overhead_s=100 * usual.overhead_s, latency_s=100 * usual.latency_s)
    work = Compute(row_s=1e-5)
    return {
        "undisturbed": {"network": network},
        "one slow link": {"network": network.with_link(0, 1, slow)},
        "more work": {"network": network, "compute": work},
        "ranks that stall": {"network": network, "compute": work, "stragglers": HeavyTail(1.5)},
    }


def run(arguments: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y, X_test, y_test = split("ijcnn1")
    if arguments.quick:
        X, y = X[:8000], y[:8000]
    usual: dict[str, float] = {}
    columns = "case | strategy | ms an epoch = epoch_ms:.2f | of undisturbed = times:.2f | accuracy = score:.2%"
    with report(rows, f"{N_RANKS} simulated ranks", columns) as add:
        for (case, options), (name, strategy) in product(cases().items(), STRATEGIES.items()):
            cluster = SimulatedCluster(N_RANKS, **options)
            model = SGDClassifier(sync=strategy, client=cluster, max_iter=N_EPOCHS, tol=None, random_state=0).fit(X, y)
            curve = [(record["seconds"], record["train_loss"]) for record in model.fit_report_["epochs"]]
            epoch_ms = 1e3 * curve[-1][0] / N_EPOCHS
            if case in ("undisturbed", "more work"):
                usual[name] = epoch_ms
            score = model.score(X_test, y_test)
            taken = {"epoch_ms": epoch_ms, "usual_ms": usual[name], "times": epoch_ms / usual[name]}
            add(case=case, strategy=name, **taken, score=score, curve=curve)
