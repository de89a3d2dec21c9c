"""Rounds inside one kernel: the same model, bytes and rounds as without it, and no rank waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd.collectives import Group
from dsgd.comm.frames import AbortFlag
from dsgd.comm.memory.cores import current_core, leave_core
from dsgd.comm.wires import inproc
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
from dsgd.kernels import rounds as kernels
from dsgd.kernels.atomics import core_of, leave_core_in, make_bed
from dsgd.kernels.jit import kernel
from dsgd.local import SGD, Objective, Shard, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime.rank import Rank
from dsgd.runtime.train import TrainJob, TrainResult, fused, visits
from dsgd.runtime.train.fused import FusedRounds
from dsgd.sync import AbstractStrategy, Cut, EpochAveraging, LocalSGD, MinibatchSGD
from gangs import SHARED, connect_shm, connect_tcp, process_gang, raise_first, run_job, run_ranks, run_training

N_FEATURES = 7


def connect(kind: str, n: int, **options: Any) -> list[Any]:
    if kind.startswith("threads"):
        return inproc.connect(n, window=kind == "threads", **options)
    if kind == "tcp":
        return raise_first(connect_tcp(n, **options))
    return raise_first(connect_shm(n, **SHARED[kind](n), **options))


@contextmanager
def gang(kind: str, n: int, **options: Any) -> Iterator[list[Any]]:
    transports = connect(kind, n, **options)
    try:
        yield transports
    finally:
        for transport in transports:
            transport.close()


def shards_of(n_rows: Sequence[int], *, sparse: bool = False, dtype: Any = np.float64, outputs: int = 1) -> list[Shard]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((sum(n_rows), N_FEATURES)).astype(dtype)
    if outputs > 1:
        y = rng.integers(0, outputs, sum(n_rows)).astype(float)
    else:
        y = np.where(X @ rng.standard_normal(N_FEATURES) > 0, 1.0, -1.0)
    shard = make_shard(sp.csr_array(X) if sparse else X, y, rng.uniform(0.5, 1.5, len(y)), dtype=dtype)
    ends = np.cumsum([0, *n_rows])
    return [shard.rows(start, stop) for start, stop in pairwise(ends.tolist())]


def train_on(
    kind: str, shards: Sequence[Shard], strategy: AbstractStrategy, *, outputs: int = 1, average: int = 0
) -> tuple[list[TrainResult], list[dict[str, float]]]:
    """Train for three epochs; return what each rank returned and its totals without the seconds."""
    objective = Objective("hinge", "elasticnet", 1e-3, n_outputs=outputs)
    initial = np.linspace(-1.0, 1.0, n_params(N_FEATURES, outputs))
    job = TrainJob(SGD(objective, average=average), strategy, initial, max_iter=3, tol=None, n_iter_no_change=5)
    with gang(kind, len(shards)) as transports:
        results = raise_first(run_job(transports, shards, job))
        totals = [transport.ledger.records().totals for transport in transports]
    return results, [{name: t[name] for name in ("bytes_sent", "messages", "rounds")} for t in totals]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """By rank, the rounds at which the kernel came back."""
    found: dict[int, list[int]] = {}
    run = FusedRounds.run

    def record(self: FusedRounds, *arguments: Any) -> int:
        number = run(self, *arguments)
        found.setdefault(self._rank.number, []).append(number)
        return number

    monkeypatch.setattr(FusedRounds, "run", record)
    return found


CASES: dict[str, tuple[list[int], dict[str, Any], dict[str, Any]]] = {
    "two": ([60, 60], {}, {}),
    "float32": ([60, 60], {"dtype": np.float32}, {}),
    "sparse": ([50, 71], {"sparse": True}, {"average": 5}),
    "outputs": ([40, 43], {"outputs": 3}, {"outputs": 3}),
    "sparse-outputs": ([40, 43], {"outputs": 3, "sparse": True}, {"outputs": 3, "average": 1}),
    "three": ([20, 33, 41], {"dtype": np.float32}, {}),
    "empty": ([50, 0, 20], {}, {}),
    "five": ([20, 21, 22, 23, 24], {}, {}),
}


@pytest.mark.parametrize("kind", ["threads", "window"])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_changes_no_bit_and_no_count(kind: str, case: str, calls: dict[int, list[int]]) -> None:
    """Model, average, history, bytes, messages and rounds are those of rounds run one by one, on every rank."""
    rows, data, options = CASES[case]
    shards = shards_of(rows, **data)
    strategy = LocalSGD(every=3)
    expected, expected_totals = train_on("threads-asleep", shards, strategy, **options)
    assert not calls
    got, totals = train_on(kind, shards, strategy, **options)
    assert calls
    for one, other in zip(expected, got, strict=True):
        assert one.params.tobytes() == other.params.tobytes()
        assert (one.averaged is None) == (other.averaged is None)
        assert one.averaged is None or one.averaged.tobytes() == other.averaged.tobytes()  # type: ignore[union-attr]
        assert [(r.train_loss, r.dispersion) for r in one.history] == [
            (r.train_loss, r.dispersion) for r in other.history
        ]
    assert totals == expected_totals


@pytest.mark.parametrize("kind", ["threads", "window"])
def test_calls_within_a_long_round_end_where_they_do_outside(
    kind: str, calls: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of many calls of the kernel that takes steps, to whose ends the model owes some of its bits, is fused."""
    shards, strategy = shards_of([60, 47]), LocalSGD(every=20)
    whole, _ = train_on("threads-asleep", shards, strategy)
    monkeypatch.setattr(visits, "_ENTRIES_PER_CALL", 100)
    monkeypatch.setattr(visits, "_ENTRIES_PER_WEIGHT", 0)
    expected, _ = train_on("threads-asleep", shards, strategy)
    assert not calls
    got, _ = train_on(kind, shards, strategy)
    assert calls
    assert [one.params.tobytes() for one in got] == [one.params.tobytes() for one in expected]
    assert got[0].params.tobytes() != whole[0].params.tobytes()


def test_all_ranks_come_back_after_the_same_rounds(
    calls: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 says when a call ends, so that what is done between rounds is done by all at the same one."""
    monkeypatch.setattr(fused, "CALL_S", 0.0)
    train_on("threads", shards_of([40, 30, 35]), LocalSGD(every=2))
    assert calls[0] == calls[1] == calls[2]
    assert calls[0][:3] == [1, 2, 3]


@pytest.mark.parametrize("strategy", [EpochAveraging(), MinibatchSGD(batch=8), LocalSGD(every=1000)])
def test_only_plain_means_after_several_rounds_are_fused(
    strategy: AbstractStrategy, calls: dict[int, list[int]]
) -> None:
    """Other strategies, and epochs of one round, never enter the kernel."""
    train_on("threads", shards_of([40, 30]), strategy)
    assert not calls


@pytest.mark.parametrize(("n_ranks", "fuses"), [(2, True), (3, False)])
def test_long_models_are_fused_where_their_sum_has_no_order(
    n_ranks: int, fuses: bool, calls: dict[int, list[int]]
) -> None:
    """Rings sum the vectors of three ranks in another order, which go the ordinary way; those of two change no bit."""
    n = kernels.SLOT_BYTES // 8 + 1
    rng = np.random.default_rng(0)
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    shards = [make_shard(rng.standard_normal((5, n - 1)), y) for _ in range(n_ranks)]
    job = TrainJob(SGD(Objective("hinge")), LocalSGD(every=1), np.zeros(n), max_iter=2, tol=None, n_iter_no_change=5)
    found = []
    for kind in ("threads-asleep", "threads"):
        with gang(kind, n_ranks) as transports:
            results = raise_first(run_job(transports, shards, job))
            totals = [transport.ledger.records().totals for transport in transports]
        found.append(
            [(one.params.tobytes(), t["bytes_sent"], t["messages"]) for one, t in zip(results, totals, strict=True)]
        )
        assert bool(calls) == (fuses and kind == "threads")
    assert found[0] == found[1]


def test_an_abort_ends_rounds_at_once() -> None:
    """A stopped job is noticed inside the kernel's loop and between its calls."""
    aborts = [AbortFlag(), AbortFlag()]
    with gang("threads", 2, aborts=aborts) as transports:
        calls = [lambda t=t, a=a: run_training(Group(t), a, 1, 10**6) for t, a in zip(transports, aborts, strict=True)]
        timer = threading.Timer(0.3, lambda: [abort.set("enough") for abort in aborts])
        timer.start()
        results = run_ranks(calls)
        timer.join()
    assert all(isinstance(result, AbortedError) and "enough" in str(result) for result in results)


def waiting_rank(transport: Any, abort: AbortFlag) -> Any:
    """Let a rank publish a round that its peer never joins; return what it raises."""
    shard = shards_of([8])[0]
    params = np.zeros(N_FEATURES + 1)
    optimizer = SGD(Objective("hinge"))
    rank = Rank(Group(transport), abort)
    rounds = FusedRounds(rank, transport.window, optimizer, params, params, shard, optimizer.init(shard), 100)
    return rounds.run(0, 4, Cut((0,) * rank.size, 8), 0.5)


@pytest.mark.parametrize("kind", ["threads", "window"])
def test_a_peer_that_does_not_come_is_named(kind: str) -> None:
    """A deadline that passes, a peer that leaves and an abort each end the wait with the error that they are."""
    abort = AbortFlag()
    with (
        gang(kind, 2, timeout_s=0.2, aborts=[abort, AbortFlag()]) as transports,
        pytest.raises(GangTimeoutError, match=r"rank 0 waited 0\.2 s for rank 1"),
    ):
        waiting_rank(transports[0], abort)
    abort = AbortFlag()
    with gang(kind, 2, aborts=[abort, AbortFlag()]) as transports:
        threading.Timer(0.1, transports[1].close).start()
        with pytest.raises(AbortedError, match=r"rank 1 .*went away"):
            waiting_rank(transports[0], abort)
    abort = AbortFlag()
    with gang(kind, 2, aborts=[abort, AbortFlag()]) as transports:
        threading.Timer(0.1, lambda: abort.set("stop here")).start()
        with pytest.raises(AbortedError, match="stop here"):
            waiting_rank(transports[0], abort)


def test_a_counter_that_cannot_be_is_refused() -> None:
    """A peer that has published rounds which this rank has not reached is not at the same point."""
    abort = AbortFlag()
    with gang("window", 2, aborts=[abort, AbortFlag()]) as transports:
        memory = transports[1]._rings[0]._segment.array
        memory[-2 * kernels.box_bytes(kernels.SLOT_BYTES) :] = 77
        memory[-2 * kernels.box_bytes(kernels.SLOT_BYTES) + kernels.GONE_AT :][:8] = 0
        with pytest.raises(ProtocolError, match=r"rank 1 .* has published"):
            waiting_rank(transports[0], abort)


needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs a system that tells of cores, and two of them",
)


@kernel
def leave_core_compiled(bed: int) -> bool:
    """Leave the core as ranks do inside a kernel."""
    return leave_core_in(bed, core_of())


@needs_two_cores
@pytest.mark.parametrize("compiled", [False, True])
def test_a_thread_leaves_its_core_and_keeps_its_rights(compiled: bool) -> None:
    """It goes on elsewhere, may still use all cores that it might before, and one with a single core stays there."""
    bed = make_bed(0)
    leave_core_compiled(bed.ctypes.data)
    allowed = os.sched_getaffinity(0)
    found: list[tuple[bool, bool, set[int]]] = []

    def move(mask: set[int]) -> None:
        os.sched_setaffinity(0, mask)
        core = current_core()
        moved = leave_core_compiled(bed.ctypes.data) if compiled else leave_core(core)
        found.append((moved, current_core() != core, os.sched_getaffinity(0)))

    for mask in (allowed, {min(allowed)}):
        thread = threading.Thread(target=move, args=(mask,))
        thread.start()
        thread.join()
    assert found[0][0]
    assert found[0][2] == allowed
    assert found[1] == (False, False, {min(allowed)})


def test_a_process_killed_in_a_round_is_noticed() -> None:
    """The end of a peer's process ends the rounds of the others within moments, though none of them sleeps."""
    with process_gang(2, "train", timeout_s=60.0, kind="window") as (group, (process,), _):
        threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
        begin = time.monotonic()
        with pytest.raises(AbortedError, match=r"rank 1 .*went away"):
            run_training(group, AbortFlag(), 1, 10**6)
        assert time.monotonic() - begin < 10.0


def test_a_process_stopped_in_a_round_is_caught_by_the_deadline() -> None:
    """A peer that hangs is named when the deadline passes."""
    with process_gang(2, "train", timeout_s=0.5, kind="window") as (group, (process,), _):
        timer = threading.Timer(0.3, os.kill, (process.pid, signal.SIGSTOP))
        timer.start()
        try:
            with pytest.raises(GangTimeoutError, match=r"waited 0\.5 s for rank 1"):
                run_training(group, AbortFlag(), 1, 10**6)
        finally:
            timer.join()
            os.kill(process.pid, signal.SIGCONT)
