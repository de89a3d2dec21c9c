"""Methods that wait for nobody beside those that do, on a virtual clock, as ranks become uneven.

Sixteen simulated ranks train two epochs of ijcnn1 over 100 GbE, with 64 or 32 rows to a round and twenty microseconds
of work to a row. Prints the virtual seconds: with ranks that are alike, with times of a round that vary anew for every
rank and round, with one rank that is always slower, and with a heavy tail.

    python benchmarks/asynchronous.py --out rows.jsonl
    python benchmarks/asynchronous.py --only LocalSGD ASGD
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from accuracy import split
from common import Rows
from sklearn.exceptions import ConvergenceWarning

from dsgd import SGDClassifier
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import ADPSGD, ASGD, AsyncEASGD, BackupWorkers, LocalSGD, MinibatchSGD, StaleSynchronous

N_RANKS, N_EPOCHS = 16, 2
STRATEGIES: list[Any] = [
    MinibatchSGD(512),
    LocalSGD(64),
    BackupWorkers(32, backups=2),
    StaleSynchronous(32, slack=3),
    ASGD(32),
    AsyncEASGD(64),
    ADPSGD(64),
]
STRAGGLERS = ("none", "exponential", "slow-rank", "heavy-tail")


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="only the strategies of these names")
    parser.add_argument("--out", help="append one JSON row per run to this file")
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = Rows("asynchronous", arguments.out)
    X, y, *_ = split("ijcnn1")
    if arguments.quick:
        X, y = X[:8000], y[:8000]
    options: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.1, "max_iter": N_EPOCHS, "tol": None}
    print(f"{'virtual seconds':18}" + "".join(f"{name:>13}" for name in STRAGGLERS))
    for strategy in STRATEGIES:
        name = type(strategy).__name__
        if arguments.only and name not in arguments.only:
            continue
        print(f"{name:18}", end="", flush=True)
        for stragglers in STRAGGLERS:
            cluster = SimulatedCluster(N_RANKS, "100GbE", Compute(row_s=2e-5), stragglers)
            model = SGDClassifier(sync=strategy, client=cluster, random_state=0, **options).fit(X, y)
            seconds = model.fit_report_["epochs"][-1]["seconds"]
            rows.add(strategy=name, stragglers=stragglers, virtual_s=seconds, elapsed_s=model.ledger_.elapsed_s)
            print(f"{seconds:13.3f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
