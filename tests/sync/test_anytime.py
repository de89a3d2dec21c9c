"""Rounds that last a fixed time: against a plain-numpy twin on a clock that rows move, and on real clocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gang_programs as programs
from dsgd.collectives import Group
from dsgd.comm.deadlines import Deadlines
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires import inproc
from dsgd.ledger import RankLedger
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime import run_on_threads
from dsgd.runtime.rank import Rank
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, train
from dsgd.runtime.train.state import TrainState
from dsgd.runtime.train.visits import AnytimeRounds
from dsgd.sync import AbstractStrategy, AnytimeSGD, Cut, EpochAveraging
from gangs import raise_first, run_ranks
from reference.anytime import anytime

N_FEATURES = 5
#: Sums and differences of its multiples are exact, so that a twin sees the same clock to the bit.
TICK = 2.0**-10
OPTIMIZER = SGD(Objective("hinge", "l2", 0.1))


def rows_of(rank: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((n_rows, N_FEATURES))
    return X, np.where(X[:, 0] + 0.3 * rng.standard_normal(n_rows) > 0, 1.0, -1.0), rng.uniform(0.2, 1.0, n_rows)


def run_timed(
    n_rows: list[int], costs_s: list[float], seconds: float, n_epochs: int
) -> list[tuple[np.ndarray, list[tuple[int, int]], list[int], np.ndarray]]:
    """Run epochs on ranks whose clocks move with their rows; return model, slices, rounds, last own model."""
    states: list[Any] = [None] * len(n_rows)
    ledgers = [
        RankLedger(rank, clock=lambda rank=rank: costs_s[rank] * (states[rank].t - 1.0)) for rank in range(len(n_rows))
    ]
    transports = inproc.connect(len(n_rows), ledgers=ledgers, window=False)

    def run(number: int) -> Any:
        shard = make_shard(*rows_of(number, n_rows[number]), shuffle=False)
        params, before = np.zeros(n_params(N_FEATURES, 1)), np.zeros(n_params(N_FEATURES, 1))
        state = states[number] = OPTIMIZER.init(shard)
        walk, slices = OPTIMIZER.bind(params, shard, state), []
        at = TrainState(params, state, Cut((0,) * len(n_rows), 1))

        def walk_noting(start: int, stop: int) -> None:
            slices.append((start, stop))
            walk(start, stop)

        rank = Rank(Group(transports[number]), AbortFlag())
        rounds = AnytimeRounds(rank, AnytimeSGD(seconds), seconds, walk_noting, at, shard, 1.0, 10**6)
        n_rounds = []
        for _ in range(n_epochs):
            state.start_epoch()
            n_rounds.append(rounds.run_epoch(sum(n_rows), before, Deadlines(transports[number])))
        return params, slices, n_rounds, before

    return raise_first(run_ranks([lambda number=number: run(number) for number in range(len(n_rows))]))


@given(
    ranks=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([TICK, 3 * TICK, 4 * TICK, 30 * TICK])), min_size=2, max_size=4
    ),
    seconds=st.sampled_from([1.5 * TICK, 12 * TICK, 50 * TICK, 300 * TICK, 7000 * TICK]),
)
@settings(deadline=None, max_examples=60)
def test_the_twin_on_a_clock_that_rows_move(ranks: list[tuple[int, float]], seconds: float) -> None:
    """Models, rows and rounds are those of the twin; all ranks agree on the model and on the end of every epoch."""
    n_rows, costs_s = [n for n, _ in ranks], [cost_s for _, cost_s in ranks]
    results = run_timed(n_rows, costs_s, seconds, 3)
    parts = [rows_of(rank, n) for rank, n in enumerate(n_rows)]
    options = {"loss_name": "hinge", "alpha": 0.1, "schedule": "optimal"}
    model, visits, rounds = anytime(parts, costs_s, seconds, 3, **options)
    for rank, (params, slices, n_rounds, _) in enumerate(results):
        assert n_rounds == rounds
        assert sum(stop - start for start, stop in slices) == sum(done[rank] for done in visits)
        assert params.tobytes() == results[0][0].tobytes()
        np.testing.assert_allclose(params, model, rtol=1e-9, atol=1e-12)


def test_on_a_real_clock_nobody_waits_for_the_slow_rank() -> None:
    """A rank that naps in every call visits few rows; the epochs end all the same, with one model on all ranks."""
    strategy = AnytimeSGD(seconds=0.02)
    result = run_on_threads(programs.train_unevenly, [None] * 2, args=(strategy, 5)).value
    assert result.n_iter == 5
    assert result.n_steps >= 5 * 201


def test_a_rank_alone_walks_its_epochs() -> None:
    """With one rank the clock decides nothing: it is plain SGD."""

    def run(strategy: AbstractStrategy) -> bytes:
        job = TrainJob(OPTIMIZER, strategy, np.zeros(n_params(N_FEATURES, 1)), 3, tol=None, n_iter_no_change=5)
        result: TrainResult = run_on_threads(train, [TrainData(make_shard(*rows_of(0, 90)))], (job,)).value
        return result.params.tobytes()

    assert run(AnytimeSGD(1e-9)) == run(EpochAveraging())
