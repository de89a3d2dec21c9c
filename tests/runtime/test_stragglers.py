"""Slow ranks are found by their pace and named; uneven shards and short runs are none."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import gang_programs as programs
from dsgd.errors import StragglerWarning
from dsgd.ledger import COMPUTE, RankLedger
from dsgd.runtime import progress, run_on_cluster, run_on_threads
from dsgd.runtime.progress import Straggler, StragglerWatch, slowdowns
from gang_cluster import assert_clean, start_cluster


class Gang:
    """Watches of some ranks, on one clock, over rounds whose compute seconds and rows are given."""

    def __init__(self, size: int) -> None:
        self.now = 0.0
        self.ledgers = [RankLedger(rank) for rank in range(size)]
        self.watches = [StragglerWatch(rank, size, self.ledgers[rank], lambda: self.now) for rank in range(size)]

    def epoch(self, seconds: list[float], rows: list[int], n_rounds: int = 10, took_s: float = 1.0) -> list[Straggler]:
        """Let an epoch pass; return whom rank 0 newly found."""
        for ledger, own_s in zip(self.ledgers, seconds, strict=True):
            ledger.begin_round("local")
            ledger.charge(COMPUTE, own_s)
            ledger.end_round()
        self.now += took_s
        paces = np.array([watch.pace(n) for watch, n in zip(self.watches, rows, strict=True)])
        window_s = sum(watch.window_s for watch in self.watches)
        found = [watch.update(None if rank else paces, window_s, n_rounds) for rank, watch in enumerate(self.watches)]
        assert not any(found[1:]), "only rank 0 hears of others"
        assert not any(watch.found for watch in self.watches[1:])
        return found[0]


def test_a_slow_rank_is_found_once_and_remembered() -> None:
    """A rank that takes three times as long per row is found after 20 rounds and two seconds, and told of once."""
    gang = Gang(4)
    assert gang.epoch([0.2, 0.2, 0.6, 0.2], [100] * 4) == []
    assert gang.epoch([0.2, 0.2, 0.6, 0.2], [100] * 4) == [Straggler(2, pytest.approx(3.0), 20, 2.0)]
    assert gang.epoch([0.2, 0.2, 0.8, 0.2], [100] * 4, 20, 2.0) == []
    assert gang.watches[0].found[2].slowdown == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("seconds", "rows", "n_rounds", "took_s"),
    [
        ([0.9, 0.3, 0.3], [300, 100, 100], 40, 3.0),  # more rows, not slower
        ([0.5, 0.3, 0.3], [100] * 3, 40, 3.0),  # a little slower
        ([0.3, 0.1, 0.1], [100] * 3, 40, 3.0),  # slow, but hardly busy
        ([1.8, 0.6, 0.6], [100] * 3, 19, 3.0),  # too few rounds to say
        ([1.8, 0.6, 0.6], [100] * 3, 40, 1.9),  # too short to say
        ([1.8, 0.0, 0.0], [100, 0, 0], 40, 3.0),  # no other rank to compare with
    ],
)
def test_who_is_no_straggler(seconds: list[float], rows: list[int], n_rounds: int, took_s: float) -> None:
    """More rows, small differences, idle ranks and short windows are no reason to warn."""
    assert Gang(3).epoch(seconds, rows, n_rounds, took_s) == []


def test_few_ranks() -> None:
    """With two ranks the faster one is what the other is compared with; a single one is no straggler."""
    assert [slow.rank for slow in Gang(2).epoch([3.0, 1.0], [100, 100], 20, 4.0)] == [0]
    assert Gang(1).epoch([3.0], [100], 100, 1e9) == []


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 1000)), min_size=1, max_size=9))
def test_slowdowns_are_about_a_median_of_one(ranks: list[tuple[float, int]]) -> None:
    """At least half of the busy ranks are as fast as the median or slower, and as many as fast or faster."""
    seconds, rows = np.array(ranks, dtype=float).T
    found = slowdowns(seconds, rows)
    busy = [rank for rank, (own_s, n_rows) in enumerate(ranks) if n_rows > 0 and own_s / n_rows > 0]
    assert list(found) == (busy if len(busy) > 1 else [])
    values = np.array(list(found.values()))
    if values.size and np.isfinite(values).all():
        assert 2 * np.sum(values >= 1.0) >= values.size
        assert 2 * np.sum(values <= 1.0) >= values.size


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let watches of this process judge after a fifth of a second."""
    monkeypatch.setattr(progress, "_MIN_WINDOW_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_threads_tell_of_a_straggler() -> None:
    """The rank loop finds the slow rank, publishes it at once, and brings it home."""
    events: list[Mapping[str, Any]] = []
    result = run_on_threads(programs.train_unevenly, [None] * 3, on_event=events.append).value
    assert [slow.rank for slow in result.stragglers] == [1]
    (told,) = [event for event in events if event.get("phase") == "straggler"]
    assert told["rank"] == 1
    assert told["slowdown"] > 2.0
    assert told["text"].startswith("rank 1 is slow: over ")


@pytest.mark.cluster
@pytest.mark.usefixtures("impatient")
def test_a_cluster_names_the_worker_of_a_straggler() -> None:
    """The client is warned with rank, worker and host, at the line that called the library, and gets an event."""
    events: list[Mapping[str, Any]] = []
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = run_on_cluster(
                programs.train_unevenly, [], client=client, pack=programs.keep, on_event=events.append
            )
        assert_clean(client)
    (told,) = [event for event in events if event.get("phase") == "straggler"]
    worker = result.stats[1]["worker"]
    assert (told["rank"], told["worker"], told["host"]) == (1, worker, result.stats[1]["host"])
    (warning,) = [one for one in caught if one.category is StragglerWarning]
    assert str(warning.message) == told["text"]
    assert str(warning.message).startswith(f"rank 1 on worker {worker} (host ")
    assert warning.filename == __file__
