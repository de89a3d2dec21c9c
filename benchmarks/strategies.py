"""Every strategy with its documented hyper-parameters: seconds, bytes and test accuracy on ijcnn1 and a9a.

Prints one line per strategy and gang, and writes one row per run. A strategy passes if its accuracy is within one point
of that of one rank. Ranks are threads of this process; with ``--workers`` they are worker processes of a local cluster,
but for Hogwild, whose ranks share memory: threads of one worker. With ``--simulated`` a gang of ranks on a virtual
clock comes after the others, whose seconds are virtual too. The table of the docs, and the part of it whose seconds
depend on the machine:

    python benchmarks/strategies.py --workers --ranks 2 4 --simulated 16 --out docs/figures/strategies.jsonl
    python benchmarks/strategies.py --workers --ranks 2 4 --out docs/figures/strategies.jsonl
    python docs/figures/strategies.py
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
#: Where a server takes steps by gradients that come late, or few steps by the mean of many, the default schedule, which
#: counts steps, is too large for too long.
AT_SERVER: dict[str, dict[str, Any]] = {
    **{name: {"eta0": 0.5, **WITH_RATE} for name in ("asgd", "dc-asgd", "stale-synchronous")},
    "backup-workers": {"eta0": 2.0, **WITH_RATE},
}
#: What is run beside all strategies with their defaults: local rules, and a batch that is scaled and warmed up.
COMBINED: dict[str, dict[str, Any]] = {
    "local + momentum": {"sync": LocalSGD(), "optimizer": Momentum(0.9), "eta0": 0.5, **WITH_RATE},
    "local + adagrad": {"sync": LocalSGD(), "optimizer": Adagrad(), "eta0": 2.0, **WITH_RATE},
    "local + adam": {"sync": LocalSGD(), "optimizer": Adam(), "eta0": 0.1, **WITH_RATE},
    "eamsgd": {"sync": EASGD(), "optimizer": Momentum(0.9, nesterov=True), "eta0": 0.5, **WITH_RATE},
    "slowmo + momentum": {"sync": SlowMo(), "optimizer": Momentum(0.9), "eta0": 0.5, **WITH_RATE},
    "minibatch 512, scaled": {"sync": MinibatchSGD(512, base_batch=32, warmup=5.0), "eta0": 0.5, **WITH_RATE},
}


@dataclass(frozen=True)
class Gang:
    """So many ranks of a kind: threads, workers, or simulated over a network."""

    kind: str
    size: int
    network: str = ""

    @contextmanager
    def parameters(self, *, shares_memory: bool) -> Iterator[dict[str, Any]]:
        """Give the parameters of an estimator that make it run on this gang."""
        if self.kind == "simulated":
            yield {"client": SimulatedCluster(self.size, self.network)}
        elif self.kind == "workers":
            n_workers, n_threads = (1, self.size) if shares_memory else (self.size, 1)
            options = {"n_workers": n_workers, "threads_per_worker": n_threads, "dashboard_address": "127.0.0.1:0"}
            with LocalCluster(**options) as cluster, Client(cluster) as client:
                yield {"client": client}
        else:
            yield {"n_jobs": self.size}


def run(
    cases: dict[str, dict[str, Any]], gang: Gang, datasets: list[str], rows: Rows, say: Callable[[str], None]
) -> int:
    """Run all cases on a gang; return how many do not pass."""
    sets = {data: split(data) for data in datasets}
    alone = {d: SGDClassifier(**OPTIONS).fit(X, y).score(X_test, y_test) for d, (X, y, X_test, y_test) in sets.items()}
    failed = 0
    for shares_memory in (False, True):
        chosen = {name: case for name, case in cases.items() if (case["sync"] == "hogwild") == shares_memory}
        if not chosen:
            continue
        with gang.parameters(shares_memory=shares_memory) as where:
            for data, (X, y, X_test, y_test) in sets.items():
                for name, case in chosen.items():
                    begin = time.perf_counter()
                    model = SGDClassifier(**{**OPTIONS, **case, **where}).fit(X, y)
                    seconds, score = time.perf_counter() - begin, model.score(X_test, y_test)
                    totals = model.ledger_.totals()
                    passes = score >= alone[data] - 0.01
                    failed += not passes
                    trained_s = model.fit_report_["epochs"][-1]["seconds"]
                    rows.add(
                        case=data,
                        strategy=name,
                        gang=gang.kind,
                        ranks=gang.size,
                        network=gang.network,
                        score=score,
                        sequential=alone[data],
                        passes=bool(passes),
                        seconds=seconds,
                        trained_s=trained_s,
                        **{key: totals[key] for key in ("bytes_sent", "messages", "rounds", "wait_s", "wire_s")},
                    )
                    verdict = "" if passes else "  more than a point below"
                    say(
                        f"{data:>8} {gang.kind:>9} {gang.size:5d} {name:>22} {100 * score:8.2f} "
                        f"{100 * (score - alone[data]):+7.2f} {trained_s:9.3f} {totals['bytes_sent'] / 1e6:10.3f} "
                        f"{totals['messages']:9.0f} {totals['rounds']:8.0f}{verdict}"
                    )
    return failed


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per run to this file")
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[2, 4], help="of each gang; none for simulated ranks alone"
    )
    parser.add_argument("--workers", action="store_true", help="worker processes in the place of threads")
    parser.add_argument(
        "--simulated", type=int, nargs="*", default=[], metavar="RANKS", help="ranks on a virtual clock"
    )
    parser.add_argument("--network", default="10GbE", help="of simulated ranks")
    parser.add_argument("--dataset", action="append", choices=["ijcnn1", "a9a", "w8a"])
    parser.add_argument("--only", action="append", help="only these strategies, by name")
    parser.add_argument("--quick", action="store_true", help="two ranks and three strategies on ijcnn1")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.dataset = [2], ["ijcnn1"]
        arguments.only = arguments.only or ["local", "epoch", "dpsgd"]
    arguments.dataset = arguments.dataset or ["ijcnn1", "a9a"]
    warnings.simplefilter("ignore", ConvergenceWarning)
    cases: dict[str, dict[str, Any]] = {name: {"sync": name, **AT_SERVER.get(name, {})} for name in STRATEGIES}
    cases |= COMBINED
    cases = {name: case for name, case in cases.items() if not arguments.only or name in arguments.only}
    rows = Rows("strategies", arguments.out)
    titles = f"{'data':>8} {'gang':>9} {'ranks':>5} {'strategy':>22} {'accuracy':>8} {'- one':>7} {'seconds':>9}"
    print(f"{titles} {'MB sent':>10} {'messages':>9} {'rounds':>8}")
    gangs = [Gang("workers" if arguments.workers else "threads", size) for size in arguments.ranks]
    gangs += [Gang("simulated", size, arguments.network) for size in arguments.simulated]
    say = partial(print, flush=True)
    failed = sum(run(cases, gang, arguments.dataset, rows, say) for gang in gangs)
    print(f"{failed} of {len(cases) * len(gangs) * len(arguments.dataset)} more than a point below one rank")


if __name__ == "__main__":
    main()
