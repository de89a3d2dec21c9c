"""What `Ledger.what_if` says of a run with other settings, beside that run.

For each case a run is made, the median one of three, and asked for runs with other periods, compressors and, where it
is simulated, ranks and networks. Then each of these is made. The table has the median of measured over predicted
seconds, the share of intervals that hold what was measured (four of five is the aim), and how wide they are: upper over
lower end.

    python -m benchmarks run what_if --out what_if.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, table, workers
from dsgd import Gang, SGDClassifier
from dsgd.compress import parse_compressor
from dsgd.sim import RunRecord, SimulatedCluster
from dsgd.sync import LocalSGD

PAGE = "ledger"
QUICK_S = 30
QUICK = "one turn, fewer periods"
REPEATS = (2, 1)
CASES = ("threads", "workers", "simulated")

N_ROWS, N_FEATURES = 40_000, 100
PERIODS, QUICK_PERIODS = (16, 64, 256, 1024), (64, 1024)
COMPRESSOR = "topk:0.1"
FITS = 3
NETWORKS = ("1GbE", "10GbE", "WAN")


@contextmanager
def cluster_of(case: str) -> Iterator[dict[str, Any]]:
    """Yield where an estimator runs."""
    if case == "workers":
        with workers(2) as client:
            yield {"client": Gang(client, transport="tcp")}
    else:
        yield {"n_jobs": 2} if case == "threads" else {"client": SimulatedCluster(8, "1GbE", stragglers="exponential")}


def record_of(X: Any, y: Any, where: dict[str, Any], every: int, compressor: str | None = None) -> RunRecord:
    """Return the record of a fit."""
    sync = LocalSGD(every, compressor=None if compressor is None else parse_compressor(compressor))
    model = SGDClassifier(max_iter=10, tol=None, random_state=0, sync=sync, **where).fit(X, y)
    found: RunRecord = model.ledger_.record(model.ledger_)
    return found


def usual_of(*given: Any, n: int = FITS) -> RunRecord:
    """Return the record of the fit of the median time, of some: other load of a machine changes single ones twofold."""
    return sorted((record_of(*given) for _ in range(n)), key=lambda record: record.seconds)[n // 2]


def questions(case: str, periods: tuple[int, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the period of a run, and what is asked of it."""
    yield from ((a, {"every": b}) for a, b in product(periods, periods) if a != b)
    yield from ((every, {"compressor": COMPRESSOR}) for every in periods)
    if case == "simulated":
        yield from ((every, {"network": name}) for every in periods for name in NETWORKS)
        yield from ((every, {"ranks": n}) for every in periods for n in (2, 32))


def measured_s(X: Any, y: Any, where: dict[str, Any], every: int, change: dict[str, Any]) -> float:
    """Return the seconds of a run with a change."""
    cluster = where.get("client")
    if isinstance(cluster, SimulatedCluster):
        where = {
            "client": SimulatedCluster(
                change.get("ranks", cluster.ranks),
                change.get("network", cluster.network),
                stragglers=cluster.stragglers,
            )
        }
    n = 1 if isinstance(cluster, SimulatedCluster) else FITS
    return usual_of(X, y, where, change.get("every", every), change.get("compressor"), n=n).seconds


def run(options: Options, rows: Rows) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES))
    y = X[:, 0] + 0.5 * rng.standard_normal(N_ROWS) > 0
    periods = QUICK_PERIODS if options.quick else PERIODS
    found: dict[tuple[str, str], list[tuple[float, float, float, float, float]]] = {}
    for case in options.only:
        with cluster_of(case) as where:
            for compressor in (None, COMPRESSOR):
                record_of(X, y, where, periods[0], compressor)  # compiles
            for turn in range(1 if case == "simulated" else options.repeats):
                base = {every: usual_of(X, y, where, every) for every in periods}
                for every in periods:
                    same = base[every].what_if()
                    found.setdefault((case, "nothing"), []).append(
                        (base[every].seconds, same.seconds, same.low, same.high, base[every].seconds)
                    )
                for every, change in questions(case, periods):
                    told = base[every].what_if(**change)
                    taken_s = measured_s(X, y, where, every, change)
                    what = next(iter(change))
                    found.setdefault((case, what), []).append(
                        (taken_s, told.seconds, told.low, told.high, told.recorded_s)
                    )
                    about = {"case": case, "turn": turn, "every": every, "change": change}
                    found_s = {
                        "measured_s": taken_s,
                        "predicted_s": told.seconds,
                        "low_s": told.low,
                        "high_s": told.high,
                    }
                    rows.add(**about, **found_s, recorded_s=told.recorded_s)
    heads = ("questions", "measured/predicted:.2f", "worst error:.0%", "held", "high/low:.1f")
    with table("what_if, beside the run", "case", "changed", *heads) as line:
        for (case, what), asked in found.items():
            held = sum(low * (1 - 1e-9) <= taken <= high * (1 + 1e-9) for taken, _, low, high, _ in asked)
            line(
                case,
                what,
                len(asked),
                median(taken / told for taken, told, *_ in asked),
                max(abs(told / taken - 1.0) for taken, told, *_ in asked),
                f"{held} of {len(asked)}",
                median(high / low for *_, low, high, _ in asked),
            )
