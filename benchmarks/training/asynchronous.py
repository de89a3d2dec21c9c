"""Asynchronous methods beside synchronous ones, on a virtual clock, as ranks become uneven.

Sixteen simulated ranks train two epochs of ijcnn1 over 100 GbE, with 64 or 32 rows to a round and twenty microseconds
of work to a row. Prints the virtual seconds: with equal ranks, with times that vary by rank and round, with one rank
that is always slower, and with a heavy tail.

    python -m benchmarks run asynchronous --out rows.jsonl
    python -m benchmarks run asynchronous --only LocalSGD ASGD
"""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from benchmarks.common.measuring import Options, Rows, table
from benchmarks.training.accuracy import split
from dsgd import SGDClassifier
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import ADPSGD, ASGD, AsyncEASGD, BackupWorkers, LocalSGD, MinibatchSGD, StaleSynchronous

PAGE = "asynchronous"
QUICK_S = 15
QUICK = "fewer rows"

N_RANKS, N_EPOCHS = 16, 2
CASES: dict[str, Any] = {
    type(strategy).__name__: strategy
    for strategy in (
        MinibatchSGD(512),
        LocalSGD(64),
        BackupWorkers(32, backups=2),
        StaleSynchronous(32, slack=3),
        ASGD(32),
        AsyncEASGD(64),
        ADPSGD(64),
    )
}
STRAGGLERS = ("none", "exponential", "slow-rank", "heavy-tail")


def run(arguments: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y, *_ = split("ijcnn1")
    if arguments.quick:
        X, y = X[:8000], y[:8000]
    options: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.1, "max_iter": N_EPOCHS, "tol": None}
    with table("virtual seconds", "strategy", *(f"{name}:.3f" for name in STRAGGLERS)) as line:
        for name in arguments.only:
            seconds = []
            for stragglers in STRAGGLERS:
                cluster = SimulatedCluster(N_RANKS, "100GbE", Compute(row_s=2e-5), stragglers)
                model = SGDClassifier(sync=CASES[name], client=cluster, random_state=0, **options).fit(X, y)
                seconds.append(model.fit_report_["epochs"][-1]["seconds"])
                elapsed_s = model.ledger_.elapsed_s
                rows.add(strategy=name, stragglers=stragglers, virtual_s=seconds[-1], elapsed_s=elapsed_s)
            line(name, *seconds)
