"""Synchronous strategies: when they are due, what they mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.errors import InvalidParameterError
from dsgd.sync import (
    AbstractStrategy,
    AnytimeSGD,
    EpochAveraging,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    RoundClock,
    resolve,
)

STRATEGIES = [
    LocalSGD(every=10),
    LocalSGD(every=10, overlap=True),
    EpochAveraging(),
    OneShotAveraging(),
    MinibatchSGD(batch=10),
    AnytimeSGD(seconds=0.01),
]
rows_of_ranks = st.lists(st.integers(0, 500), min_size=1, max_size=9)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@given(rows=rows_of_ranks, n_epochs=st.integers(1, 4))
def test_training_ends_in_an_exchange(strategy: AbstractStrategy, rows: list[int], n_epochs: int) -> None:
    """Whatever the shards, an epoch has a round, and the last round of training is due."""
    n_rounds = strategy.period.rounds_per_epoch(rows)
    assert n_rounds >= 1
    due = [
        strategy.period.is_due(RoundClock(epoch, number, n_rounds, epoch == n_epochs - 1 and number == n_rounds - 1))
        for epoch in range(n_epochs)
        for number in range(n_rounds)
    ]
    assert due[-1]
    if isinstance(strategy, OneShotAveraging):
        assert sum(due) == 1
    else:
        assert all(due)


@given(rows=rows_of_ranks, every=st.integers(1, 600))
def test_local_sgd_never_lets_a_rank_run_further_than_its_period(rows: list[int], every: int) -> None:
    """No rank works on more than `every` samples between averages, and fewer rounds would break that."""
    n_rounds = LocalSGD(every=every).period.rounds_per_epoch(rows)
    longest = max(n * (k + 1) // n_rounds - n * k // n_rounds for n in rows for k in range(n_rounds))
    assert longest <= every
    if n_rounds > 1:
        assert -(-max(rows) // (n_rounds - 1)) > every


@given(rows=rows_of_ranks, batch=st.integers(1, 600))
def test_a_minibatch_spreads_over_the_ranks(rows: list[int], batch: int) -> None:
    """Every row is used once per epoch, in the fewest batches that keep within the size asked on average."""
    n_rounds = MinibatchSGD(batch=batch).period.rounds_per_epoch(rows)
    assert n_rounds == max(1, -(-sum(rows) // batch))


def test_sync_may_be_written_short() -> None:
    """Integers, names and None mean the strategies they are documented to mean."""
    assert resolve(256) == resolve(np.int64(256)) == LocalSGD(every=256)
    assert resolve(None) == LocalSGD(every=None, rates="pooled")
    assert resolve("epoch") == EpochAveraging()
    assert resolve("one-shot") == OneShotAveraging()
    minibatch = MinibatchSGD(batch=8)
    assert resolve(minibatch) is minibatch


@pytest.mark.parametrize("bad", ["auto?", 2.5, True, LocalSGD, [], np.zeros(2)])
def test_another_sync_is_refused_by_name(bad: Any) -> None:
    """Anything else is refused, and the text lists the choices."""
    with pytest.raises(InvalidParameterError, match="'one-shot'"):
        resolve(bad)
