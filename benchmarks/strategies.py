"""Every strategy with its defaults: seconds, bytes and test accuracy on ijcnn1 and a9a.

Prints one line per strategy and number of ranks, and writes one row per run. A strategy passes if its accuracy is
within one point of that of one rank. Ranks are threads of this process; with ``--workers`` they are worker processes of
a local cluster, with ``--simulated`` ranks on a virtual clock, whose seconds are virtual too.

    python benchmarks/strategies.py --out rows.jsonl
    python benchmarks/strategies.py --simulated 16 --network 1GbE
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accuracy import split
from common import Rows
from distributed import Client, LocalCluster
from sklearn.exceptions import ConvergenceWarning

from dsgd import SGDClassifier
from dsgd.local import Adagrad, Adam, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import EASGD, STRATEGIES, LocalSGD, MinibatchSGD, SlowMo

OPTIONS: dict[str, Any] = {"alpha": 1e-4, "max_iter": 20, "tol": None, "random_state": 0}
WITH_RATE = {"learning_rate": "invscaling", "power_t": 0.25}
#: What is run beside all strategies with their defaults: local rules, and a batch that is scaled and warmed up.
COMBINED: dict[str, dict[str, Any]] = {
    "local + momentum": {"sync": LocalSGD(), "optimizer": Momentum(0.9), "eta0": 0.5, **WITH_RATE},
    "local + adagrad": {"sync": LocalSGD(), "optimizer": Adagrad(), "eta0": 2.0, **WITH_RATE},
    "local + adam": {"sync": LocalSGD(), "optimizer": Adam(), "eta0": 0.1, **WITH_RATE},
    "eamsgd": {"sync": EASGD(), "optimizer": Momentum(0.9, nesterov=True), "eta0": 0.5, **WITH_RATE},
    "slowmo + momentum": {"sync": SlowMo(), "optimizer": Momentum(0.9), "eta0": 0.5, **WITH_RATE},
    "minibatch 512, scaled": {"sync": MinibatchSGD(512, base_batch=32, warmup=5.0), "eta0": 0.5, **WITH_RATE},
}


@contextmanager
def gang_of(size: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Give the parameters of an estimator that make it run on so many ranks."""
    if arguments.simulated:
        yield {"client": SimulatedCluster(size, arguments.network)}
    elif arguments.workers:
        options = {"n_workers": size, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            yield {"client": client}
    else:
        yield {"n_jobs": size}


def run(
    cases: dict[str, dict[str, Any]], size: int, arguments: argparse.Namespace, rows: Rows, say: Callable[[str], None]
) -> int:
    """Run all cases on so many ranks; return how many do not pass."""
    failed = 0
    with gang_of(size, arguments) as gang:
        for data in arguments.dataset:
            X, y, X_test, y_test = split(data)
            alone = SGDClassifier(**OPTIONS).fit(X, y).score(X_test, y_test)
            for name, case in cases.items():
                begin = time.perf_counter()
                model = SGDClassifier(**{**OPTIONS, **case, **gang}).fit(X, y)
                seconds, score = time.perf_counter() - begin, model.score(X_test, y_test)
                totals = model.ledger_.totals()
                passes = score >= alone - 0.01
                failed += not passes
                trained_s = model.fit_report_["epochs"][-1]["seconds"]
                rows.add(
                    case=data,
                    strategy=name,
                    ranks=size,
                    simulated=bool(arguments.simulated),
                    workers=arguments.workers,
                    score=score,
                    sequential=alone,
                    seconds=seconds,
                    trained_s=trained_s,
                    **{key: totals[key] for key in ("bytes_sent", "messages", "rounds", "wait_s", "wire_s")},
                )
                verdict = "" if passes else "  more than a point below"
                say(
                    f"{data:>8} {size:5d} {name:>22} {100 * score:8.2f} {100 * (score - alone):+7.2f} {trained_s:9.3f} "
                    f"{totals['bytes_sent'] / 1e6:10.3f} {totals['messages']:9.0f} {totals['rounds']:8.0f}{verdict}"
                )
    return failed


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per run to this file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--workers", action="store_true", help="worker processes in the place of threads")
    parser.add_argument("--simulated", type=int, metavar="RANKS", help="so many ranks on a virtual clock")
    parser.add_argument("--network", default="1GbE", help="of simulated ranks")
    parser.add_argument("--dataset", action="append", choices=["ijcnn1", "a9a", "w8a"])
    parser.add_argument("--only", action="append", help="only these strategies, by name")
    arguments = parser.parse_args()
    arguments.dataset = arguments.dataset or ["ijcnn1", "a9a"]
    warnings.simplefilter("ignore", ConvergenceWarning)
    cases: dict[str, dict[str, Any]] = {name: {"sync": name} for name in STRATEGIES} | COMBINED
    cases = {name: case for name, case in cases.items() if not arguments.only or name in arguments.only}
    rows = Rows("strategies", arguments.out)
    titles = f"{'data':>8} {'ranks':>5} {'strategy':>22} {'accuracy':>8} {'- one':>7} {'seconds':>9} {'MB sent':>10}"
    print(f"{titles} {'messages':>9} {'rounds':>8}")
    sizes = [arguments.simulated] if arguments.simulated else arguments.ranks
    failed = sum(run(cases, size, arguments, rows, lambda line: print(line, flush=True)) for size in sizes)
    print(f"{failed} of {len(cases) * len(sizes) * len(arguments.dataset)} more than a point below one rank")


if __name__ == "__main__":
    main()
