"""The ledger: what it adds up, what it keeps, and what it leaves out."""

from __future__ import annotations

import time

import numba
import numpy as np
import pytest

from dsgd.ledger import COMPUTE, CONTROL_OPS, ENCODE, WAIT, WIRE, Ledger, RankLedger
from gangs import raise_first, run_ranks


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def __call__(self) -> float:
        """Return the time it is told."""
        self.reads += 1
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(clock: FakeClock) -> RankLedger:
    """A ledger on this clock."""
    return RankLedger(0, clock)


def run_rounds(ledger: RankLedger, clock: FakeClock, n_rounds: int, round_s: float, op: str = "sync") -> None:
    for _ in range(n_rounds):
        ledger.begin_round(op)
        clock.now += round_s
        ledger.charge(COMPUTE, round_s)
        ledger.count(100)
        ledger.end_round()


def test_phases_bytes_and_rounds_add_up(ledger: RankLedger) -> None:
    """Seconds go to the phase they are charged to; bytes, messages and rounds are counted, of ranks each round once."""
    for _ in range(2):
        ledger.begin_round("sync")
        for phase, seconds in ((COMPUTE, 1.0), (ENCODE, 2.0), (WIRE, 3.0), (WAIT, 4.0)):
            ledger.charge(phase, seconds)
        ledger.count(10)
        ledger.count(5, messages=2)
        ledger.end_round()
    ledger.begin_round("collect")  # is no round
    ledger.end_round()
    totals = ledger.records().totals
    assert {name: n for name, n in totals.items() if n} == {
        "compute_s": 2.0, "encode_s": 4.0, "wire_s": 6.0, "wait_s": 8.0, "bytes_sent": 30, "messages": 6, "rounds": 2
    }  # fmt: skip
    job = Ledger([ledger.records()] * 3)
    assert job.totals() == {name: n if name == "rounds" else 3 * n for name, n in totals.items()}
    assert job.per_rank()[0] == totals
    empty = Ledger([])
    assert set(empty.totals().values()) == {0}
    assert "rank" in empty.summary()


@pytest.mark.parametrize("op", sorted(CONTROL_OPS - {"setup"}))
def test_control_is_counted_apart(ledger: RankLedger, clock: FakeClock, op: str) -> None:
    """What is sent and spent in rounds of control is no part of the algorithm's, and so it is in the records."""
    run_rounds(ledger, clock, 3, 1.0, op=op)
    run_rounds(ledger, clock, 2, 0.5)
    totals = ledger.records().totals
    assert (totals["bytes_sent"], totals["messages"], totals["rounds"]) == (200, 2, 2)
    assert (totals["control_bytes_sent"], totals["control_messages"]) == (300, 3)
    assert (totals["compute_s"], totals["control_s"]) == (1.0, 3.0)
    records = ledger.records().records
    assert records["control_s"].tolist() == [1.0] * 3 + [0.0] * 2
    assert records["control_bytes_sent"].tolist() == [100] * 3 + [0] * 2
    assert records["bytes_sent"].tolist() == [0] * 3 + [100] * 2


def test_set_up_and_words_aside_are_control(ledger: RankLedger) -> None:
    """Set-up is control although nobody times it, and so is a word aside, which ends with its block or fails."""
    ledger.begin_round("setup")
    ledger.count(321)
    ledger.end_round()
    ledger.begin_round("sync")
    ledger.count(4000)
    with ledger.aside():
        ledger.count(50_000)
        ledger.charge(WAIT, 2.0)
    with pytest.raises(ValueError, match="lost"), ledger.aside():
        raise ValueError("lost")
    ledger.count(600_000)
    ledger.charge(WAIT, 1.0)
    ledger.end_round()
    totals = ledger.records().totals
    assert (totals["bytes_sent"], totals["messages"]) == (604_000, 2)
    assert (totals["control_bytes_sent"], totals["control_messages"]) == (50_321, 2)
    assert (totals["wait_s"], totals["control_s"]) == (1.0, 2.0)


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 50, 999, 1000, 1001, 5003])
def test_short_rounds_are_sampled_and_their_total_is_right(ledger: RankLedger, clock: FakeClock, n_rounds: int) -> None:
    """Rounds shorter than the clock allows are sampled, yet equal ones add up to their sum, whatever is charged."""
    run_rounds(ledger, clock, n_rounds, 2e-6)
    records = ledger.records()
    assert records.totals["compute_s"] == pytest.approx(n_rounds * 2e-6)
    assert records.totals["bytes_sent"] == 100 * n_rounds
    assert records.totals["rounds"] == n_rounds
    if n_rounds > 1000:
        assert len(records.records) < n_rounds / 10
        assert clock.reads < n_rounds / 5


def test_records_are_bounded_and_spread_over_the_run(ledger: RankLedger, clock: FakeClock) -> None:
    """A long run keeps a bounded number of records, evenly spread, and exact totals."""
    n_rounds = 40_000
    ledger.begin_round("control")
    ledger.end_round()
    run_rounds(ledger, clock, n_rounds, 1e-3)
    records = ledger.records()
    assert 8_000 <= len(records.records) <= 16_384
    assert np.unique(np.diff(records.records["round"])).size == 1
    assert records.records["round"][-1] > n_rounds * 0.99
    assert records.totals["compute_s"] == pytest.approx(n_rounds * 1e-3)
    assert set(records.records["op"][1:]) == {"sync"}


def test_the_summary_says_what_control_has_cost(ledger: RankLedger) -> None:
    """Control has a column of seconds and a line of its own; what is called sent is the algorithm's."""
    for op, n_bytes in (("sync", 2_500_000), ("control", 4_200)):
        ledger.begin_round(op)
        ledger.charge(WIRE, 1.0)
        ledger.count(n_bytes)
        ledger.end_round()
    lines = str(Ledger([ledger.records()], elapsed_s=2.0)).splitlines()
    assert lines[0].split() == ["rank", "compute", "encode", "wire", "wait", "control", "sent", "rounds"]
    assert lines[2].split()[1:] == ["0.0000s", "0.0000s", "1.0000s", "0.0000s", "1.0000s", "2.5", "MB", "1"]
    assert lines[-2].startswith("communication (wire + wait): 50.0%")
    assert lines[-1] == "control, beside the algorithm: 50.0% of the rank-seconds, 4.2 kB in 1 messages"


def test_rounds_in_one_go_share_what_they_took(ledger: RankLedger) -> None:
    """Time, bytes and rounds done in one go are exact; phases share the time as the usual ones of the samples do."""
    samples = np.tile([3.0, 1.0, 0.0, 4.0], (200, 1)) * 1e-7
    samples[7, 0] = 0.5  # lost its core
    ledger.add_rounds(10_000, 30, 2, 0.004, np.arange(25, 10_025, 50), samples)
    ledger.add_rounds(5, 30, 2, 0.004, np.arange(0), samples[:0])
    records = ledger.records()
    assert records.totals["rounds"] == 10_005
    assert records.totals["bytes_sent"] == 10_005 * 30
    assert records.totals["messages"] == 2 * 10_005
    seconds = [records.totals[f"{phase}_s"] for phase in ("compute", "encode", "wire", "wait")]
    np.testing.assert_allclose(seconds, 0.008 * np.array([3.0, 1.0, 0.0, 4.0]) / 8.0)
    assert records.records["round"].tolist() == list(range(25, 10_025, 50))


@pytest.mark.parametrize(
    ("compute", "communication", "rounds", "epochs", "said"),
    [
        (1.0, 4.0, 64, 2, "one rank would take about 2 s for the steps of all, and these took 5 s"),
        (3.0, 2.0, 64, 2, "exchange after 8 times as many rows (sync=...): about 10% of the rank-seconds"),
        (3.0, 2.0, 2, 2, ""),  # a round an epoch cannot be longer
        (9.0, 1.0, 64, 2, ""),
    ],
)
def test_a_summary_ends_with_advice(compute: float, communication: float, rounds: int, epochs: int, said: str) -> None:
    """Fewer ranks where they take longer than one would, longer periods where ranks communicate much; else none."""
    ranks = []
    for number in range(2):
        ledger = RankLedger(number)
        for k in range(rounds):
            ledger.begin_round("sync")
            ledger.charge(COMPUTE, compute / rounds)
            ledger.charge(WIRE, communication / rounds)
            ledger.end_round()
            if (k + 1) % (rounds // epochs) == 0:
                ledger.end_epoch()
        ranks.append(ledger.records())
    advice = Ledger(ranks, 5.0).advice()
    assert advice.startswith("advice: " + said) if said else not advice
    assert Ledger(ranks, 5.0).summary().endswith(advice)
    assert not Ledger(ranks[:1], 5.0).advice()


def test_compiling_in_a_round_is_no_work() -> None:
    """What a rank compiles in a round, or waits for while another thread compiles it, is charged to no phase."""
    double = numba.njit(lambda values: np.sort(2.0 * values))

    def program(ledger: RankLedger) -> float:
        begin = time.perf_counter()
        ledger.begin_round("sync")
        start = ledger.clock()
        double(np.zeros(3))
        ledger.charge(COMPUTE, ledger.clock() - start)
        ledger.end_round()
        return time.perf_counter() - begin

    ledgers = [RankLedger(number) for number in range(2)]
    seconds = raise_first(run_ranks([lambda ledger=ledger: program(ledger) for ledger in ledgers]))
    for ledger, taken_s in zip(ledgers, seconds, strict=True):
        assert 0.0 <= ledger.totals()["compute_s"] < 0.2 * taken_s
