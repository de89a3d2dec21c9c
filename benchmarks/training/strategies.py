"""Every strategy with its documented hyper-parameters: seconds, bytes and test accuracy on ijcnn1 and a9a.

Prints one line per strategy and gang, and writes one row per run. A strategy passes if its accuracy is within one point
of that of one rank. Ranks are threads of this process; with ``--workers`` they are worker processes of a local cluster,
but for Hogwild, whose ranks share memory: threads of one worker. With ``--simulated`` a gang of ranks on a virtual
clock comes after the others, whose seconds are virtual too. The table of the docs, of which bytes and virtual seconds
are those of simulated ranks, the same on every machine, and the part of it whose seconds depend on the machine:

    python -m benchmarks run strategies --ranks --simulated 2 4 16 --out docs/figures/strategies.jsonl
    python -m benchmarks run strategies --workers --ranks 2 4 --out docs/figures/strategies.jsonl
    python docs/figures/strategies.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from benchmarks.common.measuring import Options, Rows, report, timed, workers
from benchmarks.training.accuracy import split
from dsgd import SGDClassifier
from dsgd.local import Adagrad, Adam, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import EASGD, STRATEGIES, LocalSGD, MinibatchSGD, SlowMo

PAGE = "strategies"
QUICK_S = 10
QUICK = "two ranks and three strategies on ijcnn1"
QUICK_CASES = ("local", "epoch", "dpsgd")

#: What a row has of the ledger: of the algorithm, and of control.
COUNTED = (
    *("bytes_sent", "messages", "rounds", "wait_s", "wire_s"),
    *("control_bytes_sent", "control_messages", "control_s"),
)
MODEL: dict[str, Any] = {"alpha": 1e-4, "max_iter": 20, "tol": None, "random_state": 0}
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

CASES: dict[str, dict[str, Any]] = {
    **{name: {"sync": name, **AT_SERVER.get(name, {})} for name in STRATEGIES},
    **COMBINED,
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
            with workers(n_workers, n_threads) as client:
                yield {"client": client}
        else:
            yield {"n_jobs": self.size}


def train(cases: dict[str, dict[str, Any]], gang: Gang, datasets: list[str], add: Callable[..., None]) -> int:
    """Train all cases on a gang; return how many do not pass."""
    sets = {data: split(data) for data in datasets}
    alone = {d: SGDClassifier(**MODEL).fit(X, y).score(X_test, y_test) for d, (X, y, X_test, y_test) in sets.items()}
    failed = 0
    for shares_memory in (False, True):
        chosen = {name: case for name, case in cases.items() if (case["sync"] == "hogwild") == shares_memory}
        if not chosen:
            continue
        with gang.parameters(shares_memory=shares_memory) as where:
            for (data, (X, y, X_test, y_test)), (name, case) in product(sets.items(), chosen.items()):
                whole = timed(SGDClassifier(**{**MODEL, **case, **where}).fit, X, y)
                model, score = whole.value, whole.value.score(X_test, y_test)
                totals, trained_s = model.ledger_.totals(), model.fit_report_["epochs"][-1]["seconds"]
                passes = bool(score >= alone[data] - 0.01)
                failed += not passes
                kind = {"case": data, "strategy": name, "gang": gang.kind, "ranks": gang.size, "network": gang.network}
                scores = {"score": score, "sequential": alone[data], "gain": score - alone[data], "passes": passes}
                add(**kind, **scores, seconds=whole.seconds, trained_s=trained_s, **{k: totals[k] for k in COUNTED})
    return failed


OPTIONS = {
    "--ranks": {"type": int, "nargs": "*", "default": [2, 4], "help": "of each gang; none for simulated ranks alone"},
    "--workers": {"action": "store_true", "help": "worker processes in the place of threads"},
    "--simulated": {"type": int, "nargs": "*", "default": [], "metavar": "RANKS", "help": "ranks on a virtual clock"},
    "--network": {"default": "10GbE", "help": "of simulated ranks"},
    "--sets": {"nargs": "+", "choices": ["ijcnn1", "a9a", "w8a"], "default": ["ijcnn1", "a9a"]},
}


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.ranks, options.sets = [2], ["ijcnn1"]
    warnings.simplefilter("ignore", ConvergenceWarning)
    cases = {name: CASES[name] for name in options.only}
    gangs = [Gang("workers" if options.workers else "threads", size) for size in options.ranks]
    gangs += [Gang("simulated", size, options.network) for size in options.simulated]
    columns = (
        "data = case | gang | strategy | ranks | accuracy = score:.2%  | - one, points = gain*100:+.2f | "
        "seconds = trained_s:.3f | MB sent = bytes_sent*1e-6:.3f | MB control = control_bytes_sent*1e-6:.3f | "
        "messages:.0f | rounds:.0f"
    )
    with report(rows, "beside one rank", columns) as add:
        failed = sum(train(cases, gang, options.sets, add) for gang in gangs)
    print(f"{failed} of {len(cases) * len(gangs) * len(options.sets)} more than a point below one rank")
