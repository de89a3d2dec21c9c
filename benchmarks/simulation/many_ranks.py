"""How long it takes to simulate many ranks, and to predict more, on rows of ijcnn1's shape.

About a hundred synchronisations of local SGD and of minibatch SGD are simulated, seven an epoch; and some of local SGD
with one an epoch, where most of the time goes to what the rank loop does when an epoch ends. Then a hundred rounds of
ten thousand ranks are predicted for several strategies and compressors.

    python -m benchmarks run many_ranks --out many_ranks.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, report, timed
from dsgd import SGDClassifier
from dsgd.compress import ErrorFeedback, GTopK, PowerSGD, TernGrad, TopK
from dsgd.sim import SimulatedCluster, predict
from dsgd.sync import ASGD, DPSGD, SGP, LeaderSGD, LocalSGD, MinibatchSGD

PAGE = "simulator"
QUICK_S = 10
QUICK = "at most 64 ranks simulated"

N_ROWS, N_FEATURES = 50_000, 22
SIZES = (64, 256, 1024)


def cases(size: int) -> Iterator[tuple[str, Any, int]]:
    """Give a name, a strategy and how many epochs."""
    share = -(-N_ROWS // size)
    yield "local SGD, 7 rounds an epoch", LocalSGD(every=-(-share // 7)), 15
    yield "minibatch SGD, 7 rounds an epoch", MinibatchSGD(batch=-(-N_ROWS // 7)), 15
    yield "local SGD, a round an epoch", LocalSGD(every=share), 25


def simulated(sizes: tuple[int, ...], rows: Rows) -> None:
    """Time fits on simulated ranks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES))
    y = np.sign(X[:, 0] + 0.3 * rng.standard_normal(N_ROWS))
    columns = (
        "ranks | training | rounds | seconds:.2f | messages:,.0f | us a rank and round = each_s*1e6:.0f | "
        "virtual s = virtual_s:.3f"
    )
    with report(rows, "simulated ranks, 50,000 x 22", columns, what="simulated") as add:
        for size in (2, *sizes):  # the first loads kernels
            for name, sync, epochs in cases(size):
                model = SGDClassifier(
                    max_iter=epochs, tol=None, random_state=0, sync=sync, client=SimulatedCluster(size)
                )
                took_s, totals = timed(model.fit, X, y).seconds, model.ledger_.totals()
                if size == 2:
                    continue
                rounds, messages = int(totals["rounds"]), totals["messages"] + totals["control_messages"]
                taken = {"seconds": took_s, "each_s": took_s / size / rounds, "virtual_s": model.ledger_.elapsed_s}
                add(ranks=size, training=name, rounds=rounds, messages=messages, **taken)


def predicted(rows: Rows) -> None:
    """Time predictions for ten thousand ranks."""
    strategies = {
        "local SGD": LocalSGD(),
        "local SGD, top-k": LocalSGD(compressor=ErrorFeedback(TopK(0.01))),
        "minibatch SGD, gTop-k": MinibatchSGD(compressor=GTopK(0.01)),
        "minibatch SGD, TernGrad": MinibatchSGD(compressor=TernGrad()),
        "minibatch SGD, PowerSGD": MinibatchSGD(compressor=ErrorFeedback(PowerSGD(2))),
        "leader SGD": LeaderSGD(),
        "gossip": DPSGD(),
        "push-sum": SGP(),
        "a server": ASGD(),
    }
    title, columns = "a hundred rounds of 10,000 ranks, predicted", "training | seconds:.2f | virtual s = virtual_s:.3f"
    with report(rows, title, columns, what="predicted", ranks=10_000, rounds=100) as add:
        for name, sync in strategies.items():
            load = {"n_params": 25_000, "rows": 64, "entries": 64 * 100, "rounds": 100}
            found = timed(predict, SimulatedCluster(10_000, "10GbE", stragglers="exponential"), sync=sync, **load)
            add(training=name, seconds=found.seconds, virtual_s=found.value.seconds)


def run(options: Options, rows: Rows) -> None:
    simulated(SIZES[:1] if options.quick else SIZES, rows)
    predicted(rows)
