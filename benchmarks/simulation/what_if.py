"""What `Ledger.what_if` says of a run with other settings, beside that run.

In each case runs with several periods are made, and with a compressor and, where ranks are simulated, other ranks and
networks; each is the median one of three. Every run with a period is asked for all the others. Two, three and four
workers exchange over TCP; workers in namespaces of 100 Mbit/s and of 1 Gbit/s (``--only 100mbit 1gbit``, which needs
root, see ``hosts``) are asked for the other rate too. The table has the median of measured over predicted seconds, the
share of intervals that hold what was measured (four of five is the aim), and how wide they are: upper over lower end.

Margins of intervals were chosen on some machines. So the second table chooses them anew from every other change of the
real runs, by a factor with which four of five intervals hold, and counts how many of the rest hold with it.

    python -m benchmarks run what_if --out what_if.jsonl
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, table, workers
from benchmarks.common.suite import child
from benchmarks.communication import hosts
from dsgd import Gang, SGDClassifier
from dsgd.compress import parse_compressor
from dsgd.sim import Link, Network, RunRecord, SimulatedCluster
from dsgd.study.frame.data import place
from dsgd.sync import LocalSGD

PAGE = "ledger"
QUICK_S = 30
QUICK = "one turn, fewer periods"
REPEATS = (2, 1)
WORKERS = {"workers": 2, "three": 3, "four": 4}
#: Bytes that a network card sends in a second.
RATES = {"100mbit": 1.25e7, "1gbit": 1.25e8}
USUAL_CASES = ("threads", *WORKERS, "simulated")
CASES = (*USUAL_CASES, *RATES)
QUICK_CASES = ("threads", "workers", "simulated")

N_ROWS, N_FEATURES = 40_000, 100
PERIODS, QUICK_PERIODS = (16, 64, 256, 1024), (64, 1024)
COMPRESSOR = "topk:0.1"
FITS = 3
NETWORKS = ("1GbE", "10GbE", "WAN")
# Rounds of cores that take turns, and of slow networks, are long.
EPOCHS, FEW_EPOCHS = 10, 3


def generated() -> tuple[Any, Any]:
    """Return the rows and their labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES))
    return X, X[:, 0] + 0.5 * rng.standard_normal(N_ROWS) > 0


@contextmanager
def place_of(case: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield what is fitted, and where an estimator runs."""
    if case in WORKERS:
        with workers(WORKERS[case]) as client:
            yield on_workers(client, WORKERS[case], EPOCHS if case == "workers" else FEW_EPOCHS)
    else:
        where = (
            {"n_jobs": 2} if case == "threads" else {"client": SimulatedCluster(8, "1GbE", stragglers="exponential")}
        )
        yield generated(), {**where, "max_iter": EPOCHS}


def on_workers(client: Any, n: int, epochs: int) -> tuple[Any, dict[str, Any]]:
    """Return rows that workers hold, and how they exchange."""
    blocks, _ = place(client, generated(), n, "contiguous")
    return (blocks, None), {"client": Gang(client, transport="tcp"), "max_iter": epochs}


def usual_of(rows: Any, where: dict[str, Any], every: int, compressor: str | None = None) -> RunRecord:
    """Return the record of the fit of the median time, of some: other load of a machine changes single ones twofold."""
    sync = LocalSGD(every, compressor=None if compressor is None else parse_compressor(compressor))
    records = []
    for _ in range(1 if isinstance(where.get("client"), SimulatedCluster) else FITS):
        ledger = SGDClassifier(tol=None, random_state=0, sync=sync, **where).fit(*rows).ledger_
        records.append(ledger.record(ledger))
    usual: RunRecord = sorted(records, key=lambda record: record.seconds)[len(records) // 2]
    return usual


def answers(case: str, rows: Any, where: dict[str, Any], options: Options) -> Iterator[dict[str, Any]]:
    """Yield what is said of each change of each run, and what the changed run took, where this case has it."""
    cluster, periods = where.get("client"), QUICK_PERIODS if options.quick else PERIODS
    for compressor in (None, COMPRESSOR):
        usual_of(rows, where, periods[0], compressor)  # compiles
    for turn in range(1 if isinstance(cluster, SimulatedCluster) else options.repeats):
        plain = {every: usual_of(rows, where, every) for every in periods}
        for every, record in plain.items():
            asked: list[tuple[dict[str, Any], float | None]] = [({}, record.seconds)]
            asked += [({"every": other}, plain[other].seconds) for other in periods if other != every]
            asked += [({"compressor": COMPRESSOR}, usual_of(rows, where, every, COMPRESSOR).seconds)]
            if isinstance(cluster, SimulatedCluster):
                others: list[dict[str, Any]] = [*({"network": name} for name in NETWORKS), {"ranks": 2}, {"ranks": 32}]
                for change in others:
                    there = {**where, "client": replace(cluster, **change)}
                    asked.append((change, usual_of(rows, there, every).seconds))
            # What a run of the other rate took is known when that is over.
            asked += [({"network": rate}, None) for rate in RATES if case in RATES and rate != case]
            for change, taken_s in asked:
                real: Any = {name: network_of(value) if value in RATES else value for name, value in change.items()}
                told = record.what_if(**real)
                yield {
                    "case": case, "turn": turn, "every": every, "change": change, "measured_s": taken_s,
                    "predicted_s": told.seconds, "low_s": told.low, "high_s": told.high, "recorded_s": told.recorded_s,
                }  # fmt: skip


def network_of(rate: str) -> Network:
    """Return what a user would say of the network of namespaces: its rate, and a typical latency."""
    link = Link(byte_s=1.0 / RATES[rate], overhead_s=2e-5, latency_s=1e-5)
    return Network(rate, link, link)


def between_hosts(rate: str, options: Options) -> Iterator[dict[str, Any]]:
    """Yield the answers of two workers in namespaces with cards of this rate."""
    arguments = ["--repeats", str(options.repeats), *(["--quick"] if options.quick else [])]
    with hosts.Hosts(3, rate) as made, hosts.cluster(made, 1, 1) as (scheduler, environment):
        command = child(__name__, [scheduler, rate], *arguments)
        with made.start(0, command, stdout=subprocess.PIPE, env=environment) as client:
            assert client.stdout is not None
            yield from map(json.loads, client.stdout)
        if client.returncode:
            raise RuntimeError(f"The client on host 0 ended with status {client.returncode}.")


def inside(options: Options) -> None:
    """Print the answers of the workers at an address, a JSON line each. Runs on host 0."""
    from distributed import Client

    scheduler, rate = options.inside
    with Client(scheduler, timeout=hosts.START_S) as client:
        client.wait_for_workers(2, timeout=hosts.START_S)
        for answer in answers(rate, *on_workers(client, 2, FEW_EPOCHS), options):
            print(json.dumps(answer), flush=True)


def asked_of(case: str, options: Options) -> Iterator[dict[str, Any]]:
    """Yield the answers of a case."""
    if case in RATES:
        yield from between_hosts(case, options)
        return
    with place_of(case) as (data, where):
        yield from answers(case, data, where, options)


def run(options: Options, rows: Rows) -> None:
    if set(options.only) & set(RATES):
        hosts.check_machine()
    found, plain = list[dict[str, Any]](), dict[tuple[str, int, int], float]()
    for one in chain.from_iterable(asked_of(case, options) for case in options.only):
        found.append(one)
        if one["measured_s"] is not None:
            rows.add(**one)
        if not one["change"]:
            plain[one["case"], one["turn"], one["every"]] = one["measured_s"]
    for one in found:
        if one["measured_s"] is None:
            one["measured_s"] = plain.get((one["change"]["network"], one["turn"], one["every"]))
            rows.add(**one)
    show([one for one in found if one["measured_s"] is not None])


def outside(one: dict[str, Any]) -> float:
    """Return by which factor an interval must be wider to hold what was measured; 1 or less where it does."""
    return float(max(one["low_s"] / one["measured_s"], one["measured_s"] / one["high_s"]))


def show(found: Sequence[dict[str, Any]]) -> None:
    """Print both tables."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["case"], next(iter(one["change"]), "nothing")), []).append(one)
    heads = ("questions", "measured/predicted:.2f", "worst error:.0%", "held", "high/low:.1f")
    with table("what_if, beside the run", "case", "changed", *heads) as line:
        for (case, what), asked in groups.items():
            line(
                case,
                what,
                len(asked),
                median(one["measured_s"] / one["predicted_s"] for one in asked),
                max(abs(one["predicted_s"] / one["measured_s"] - 1.0) for one in asked),
                f"{sum(outside(one) <= 1 + 1e-9 for one in asked)} of {len(asked)}",
                median(one["high_s"] / one["low_s"] for one in asked),
            )
    factors = [outside(one) for one in found if one["change"] and one["case"] != "simulated"]
    if not factors:
        return
    halves = factors[::2], factors[1::2], factors[::2]
    with table("margins of every other change, on the rest", "chosen on", "factor:.2f", "held of the rest") as line:
        for name, (half, rest) in zip(("even", "odd"), pairwise(halves), strict=True):
            factor = float(np.quantile(half, 0.8))
            line(name, factor, f"{sum(value <= factor for value in rest)} of {len(rest)}")
