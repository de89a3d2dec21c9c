"""Kernel SVMs on worker processes: one and two ranks side by side, and what each way of solving says on the wire.

Worker processes of a LocalCluster, one thread each, train `dsgd.svm.SVC` on a generated set, by blocks; one and two
ranks take turns, and medians are compared. What two processes gain that never speak is measured beside it, as cores
that are shared with other machines may be worth less than two. Then the published pairwise algorithm and the block
solver train on a smaller set of the same kind, with two ranks, and their ledgers are compared: seconds that ranks
compute, move bytes and wait; bytes, messages and rounds.

Run: ``python benchmarks/svm_cluster.py --out rows.jsonl``; ``--quick`` takes few rows and one repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import Rows
from distributed import Client, LocalCluster
from sklearn.datasets import make_classification

from dsgd.svm import SVC
from dsgd.svm.kernels.functions import Kernel, prepare
from dsgd.svm.kernels.rows import span
from dsgd.svm.kernels.sums import weighted_sums
from dsgd.svm.kernels.threads import open_pool

CACHE_MB = 400
BURST_S = 0.4


def generated(n: int) -> tuple[Any, Any]:
    """Return a noisy problem of n rows and 20 features, that of ``svm_peers.py``."""
    return make_classification(n, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.01, random_state=0)


@contextlib.contextmanager
def cluster(n_workers: int) -> Iterator[Client]:
    """Give worker processes of one thread each, with everything compiled and loaded."""
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as local,
        Client(local) as client,
    ):
        X, y = generated(400)
        SVC(cache_size=0.1, elimination="aggressive", n_jobs=1, client=client).fit(X, y)
        SVC(max_iter=20, tol=100.0, solver="pairwise", n_jobs=1, client=client).fit(X, y)
        yield client


def processor_seconds() -> float:
    """Return the processor time that this process has used."""
    return time.process_time()


def values_per_second() -> float:
    """Return how many kernel values this process computes and sums per second, as the solver does."""
    kernel, X = Kernel("rbf", gamma=0.05), np.random.default_rng(0).normal(size=(4096, 20))
    rows, coefs, sums, count = prepare(kernel, X, np.float64, sparse=False), np.ones((256, 1)), np.zeros((4096, 1)), 0
    with open_pool(1) as pool:
        begin = time.perf_counter()
        while time.perf_counter() < begin + BURST_S:
            weighted_sums(
                kernel,
                lambda start, stop: span(rows, start, stop),
                coefs,
                lambda start, stop: span(rows, start, stop),
                sums,
                np.float64,
                pool,
            )
            count += len(coefs) * len(sums)
        return count / (time.perf_counter() - begin)


def independent_speedup(client: Client) -> float:
    """Return how much more all worker processes compute at once than one alone, without a word between them."""
    together = client.run(values_per_second)
    alone = [client.run(values_per_second, workers=[worker])[worker] for worker in together]
    return float(sum(together.values()) / statistics.mean(alone))


def run(client: Client, X: Any, y: Any, **options: Any) -> tuple[float, float, SVC]:
    """Fit once; return the seconds it took, the processor time of the busiest worker process, and the model."""
    model = SVC(n_jobs=1, client=client, **options)
    before, begin = client.run(processor_seconds), time.perf_counter()
    model.fit(X, y)
    seconds, after = time.perf_counter() - begin, client.run(processor_seconds)
    return seconds, max(after[worker] - before[worker] for worker in after), model


def solver_seconds(model: SVC) -> float:
    """Return the seconds of the solver alone, without placing the rows."""
    return float(model.elimination_history_[0][-1].seconds)


def add(
    rows: Rows,
    case: str,
    seconds: list[float],
    used: list[float],
    solver: list[float],
    model: SVC,
    n: int,
    **more: Any,
) -> None:
    """Write one row."""
    totals = model.ledger_.totals()
    rows.add(
        case=case,
        ranks=model.fit_report_["ranks"],
        n=n,
        d=20,
        solver=model.solver,
        seconds=statistics.median(seconds),
        all_seconds=seconds,
        solver_seconds=statistics.median(solver),
        busiest_processor_seconds=statistics.median(used),
        objective=model.dual_objective_,
        gap=model.gap_,
        n_iter=int(np.sum(model.n_iter_)),
        kernel_evaluations=model.n_kernel_evaluations_,
        **totals,
        **more,
    )


def compare_ranks(n: int, repeats: int, cache_mb: float, rows: Rows) -> None:
    """Train by blocks on one and on two ranks, interleaved."""
    X, y = generated(n)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    solver: dict[int, list[float]] = {1: [], 2: []}
    busy: dict[int, list[float]] = {1: [], 2: []}
    models: dict[int, SVC] = {}
    most: list[float] = []
    # One cluster at a time: an idle worker takes some hundredths of a core, which two ranks on two cores do not have.
    for _ in range(repeats):
        for n_ranks in (1, 2):
            with cluster(n_ranks) as client:
                took, used, models[n_ranks] = run(client, X, y, cache_size=cache_mb / n_ranks)
                seconds[n_ranks].append(took)
                busy[n_ranks].append(used)
                solver[n_ranks].append(solver_seconds(models[n_ranks]))
                if n_ranks == 2:
                    most.append(independent_speedup(client))
    for n_ranks, model in models.items():
        add(rows, "ranks", seconds[n_ranks], busy[n_ranks], solver[n_ranks], model, n, independent_speedup=most)
    whole = {k: statistics.median(v) for k, v in seconds.items()}
    alone = {k: statistics.median(v) for k, v in solver.items()}
    used_s = {k: statistics.median(v) for k, v in busy.items()}
    totals = models[2].ledger_.totals()
    spread = abs(models[1].dual_objective_ / models[2].dual_objective_ - 1)
    print(
        f"block, n={n}: 1 rank {whole[1]:.2f} s, 2 ranks {whole[2]:.2f} s ({whole[1] / whole[2]:.2f}x; two processes "
        f"that never speak {statistics.median(most):.2f}x, at least {min(most):.2f}x); solver alone "
        f"{alone[1]:.2f} and {alone[2]:.2f} s ({alone[1] / alone[2]:.2f}x); processor time of the busiest "
        f"{used_s[1]:.2f} and {used_s[2]:.2f} s ({used_s[1] / used_s[2]:.2f}x); {totals['rounds']:.0f} rounds, "
        f"{totals['bytes_sent'] / 1e6:.1f} MB in {totals['messages']:.0f} messages; objectives {spread:.0e}"
    )


def compare_solvers(n: int, rows: Rows) -> None:
    """Train by blocks and by pairs on two ranks, and print where the time went."""
    X, y = generated(n)
    with cluster(2) as client:
        for name, elimination in (("block", "auto"), ("pairwise", "none"), ("pairwise", "average")):
            took, used, model = run(client, X, y, solver=name, elimination=elimination, cache_size=CACHE_MB / 2)
            add(rows, f"{name} {elimination}", [took], [used], [solver_seconds(model)], model, n)
            totals = model.ledger_.totals()
            busy = totals["compute_s"] + totals["encode_s"]
            spoken = totals["wire_s"] + totals["wait_s"]
            print(
                f"{name}, elimination {elimination}, n={n}, 2 ranks: {took:.2f} s, communication "
                f"{100 * spoken / (busy + spoken):.0f} % of rank time (wire {totals['wire_s']:.2f} s, wait "
                f"{totals['wait_s']:.2f} s, compute {busy:.2f} s); {totals['rounds']:.0f} rounds, "
                f"{totals['bytes_sent'] / 1e6:.2f} MB in {totals['messages']:.0f} messages, "
                f"{model.n_kernel_evaluations_ / 1e6:.0f}e6 kernel values, objective {model.dual_objective_:.6f}"
            )


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per measurement to this file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the comparison of ranks")
    parser.add_argument("--pairwise-rows", type=int, default=4_000, help="rows of the comparison of solvers")
    parser.add_argument("--only", choices=["ranks", "solvers"], help="one comparison only")
    parser.add_argument("--quick", action="store_true", help="3000 and 600 rows, one repeat")
    arguments = parser.parse_args()
    rows = Rows("svm_cluster", arguments.out)
    if (os.cpu_count() or 1) < 2:
        print("one core only: two ranks cannot be faster here")
    quick = arguments.quick
    if arguments.only != "solvers":
        compare_ranks(3000 if quick else arguments.rows, 1 if quick else arguments.repeats, CACHE_MB, rows)
    if arguments.only != "ranks":
        compare_solvers(600 if quick else arguments.pairwise_rows, rows)


if __name__ == "__main__":
    main()
