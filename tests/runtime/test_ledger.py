"""The ledger: what it adds up, what it keeps, and what it leaves out."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

import numpy as np
import pytest

from dsgd.errors import MissingPackageError
from dsgd.ledger import COMPUTE, CONTROL_OPS, ENCODE, WAIT, WIRE, Ledger, RankLedger


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def __call__(self) -> float:
        """Return the time it is told."""
        self.reads += 1
        return self.now


def run_rounds(
    ledger: RankLedger, clock: FakeClock, n_rounds: int, round_s: Callable[[int], float], op: str = "sync"
) -> None:
    for number in range(n_rounds):
        ledger.begin_round(op)
        clock.now += round_s(number)
        if ledger.timing:
            ledger.charge(COMPUTE, round_s(number))
        ledger.count(100)
        ledger.end_round()


def test_phases_bytes_and_rounds_add_up() -> None:
    """Seconds go to the phase they are charged to, and bytes, messages and rounds are counted."""
    ledger = RankLedger(3)
    for _ in range(2):
        ledger.begin_round("sync")
        for phase, seconds in ((COMPUTE, 1.0), (ENCODE, 2.0), (WIRE, 3.0), (WAIT, 4.0)):
            ledger.charge(phase, seconds)
        ledger.count(10)
        ledger.count(5, messages=2)
        ledger.end_round()
    assert ledger.records().totals == {
        "compute_s": 2.0,
        "encode_s": 4.0,
        "wire_s": 6.0,
        "wait_s": 8.0,
        "control_s": 0.0,
        "bytes_sent": 30,
        "messages": 6,
        "control_bytes_sent": 0,
        "control_messages": 0,
        "rounds": 2,
    }


def test_only_synchronisations_count_as_rounds() -> None:
    """The exchange in which a model is collected costs seconds and bytes but is no round."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, 3, lambda _: 1.0, op="collect")
    totals = ledger.records().totals
    assert totals["rounds"] == 0
    assert totals["bytes_sent"] == 300
    assert totals["compute_s"] == 3.0


@pytest.mark.parametrize("op", sorted(CONTROL_OPS - {"setup"}))
def test_control_is_counted_apart(op: str) -> None:
    """What is sent and spent in rounds of control is no part of the algorithm's, and so it is in the records."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, 3, lambda _: 1.0, op=op)
    run_rounds(ledger, clock, 2, lambda _: 0.5)
    totals = ledger.records().totals
    assert (totals["bytes_sent"], totals["messages"], totals["rounds"]) == (200, 2, 2)
    assert (totals["control_bytes_sent"], totals["control_messages"]) == (300, 3)
    assert (totals["compute_s"], totals["control_s"]) == (1.0, 3.0)
    records = ledger.records().records
    assert records["control_s"].tolist() == [1.0] * 3 + [0.0] * 2
    assert records["control_bytes_sent"].tolist() == [100] * 3 + [0] * 2
    assert records["bytes_sent"].tolist() == [0] * 3 + [100] * 2


def test_set_up_and_words_aside_are_control() -> None:
    """Set-up is control although nobody times it, and so is a word aside in a round of the algorithm."""
    ledger = RankLedger(0)
    ledger.begin_round("setup")
    ledger.count(321)
    ledger.end_round()
    ledger.begin_round("sync")
    ledger.count(4000)
    with ledger.aside():
        ledger.count(50_000)
        ledger.charge(WAIT, 2.0)
    ledger.count(600_000)
    ledger.charge(WAIT, 1.0)
    ledger.end_round()
    totals = ledger.records().totals
    assert (totals["bytes_sent"], totals["messages"]) == (604_000, 2)
    assert (totals["control_bytes_sent"], totals["control_messages"]) == (50_321, 2)
    assert (totals["wait_s"], totals["control_s"]) == (1.0, 2.0)


def test_a_word_aside_ends_with_its_block() -> None:
    """What is sent after a word of control, in the same round, is the algorithm's again, also if that word failed."""
    ledger = RankLedger(0)
    ledger.begin_round("sync")
    with pytest.raises(ValueError, match="lost"), ledger.aside():
        raise ValueError("lost")
    ledger.count(7)
    ledger.end_round()
    assert ledger.records().totals["bytes_sent"] == 7


def test_long_rounds_are_all_timed() -> None:
    """Where the clock costs nothing compared with the round, every round is timed and kept."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, 500, lambda _: 1e-3)
    records = ledger.records()
    assert records.totals["compute_s"] == pytest.approx(0.5)
    assert records.records["round"].tolist() == list(range(500))


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 50, 999, 1000, 1001, 5003])
def test_short_rounds_are_sampled_and_their_total_is_right(n_rounds: int) -> None:
    """Rounds shorter than the clock allows are sampled, yet equal rounds add up to exactly their sum."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, n_rounds, lambda _: 2e-6)
    records = ledger.records()
    assert records.totals["compute_s"] == pytest.approx(n_rounds * 2e-6)
    assert records.totals["bytes_sent"] == 100 * n_rounds
    assert records.totals["rounds"] == n_rounds
    if n_rounds > 1000:
        assert len(records.records) < n_rounds / 10


def test_sampling_follows_the_length_of_rounds() -> None:
    """After rounds turn long again, all of them are timed, and the total is within the few that were sampled."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, 2000, lambda _: 2e-6)
    run_rounds(ledger, clock, 2000, lambda _: 1e-3)
    before = len(ledger.records().records)
    run_rounds(ledger, clock, 100, lambda _: 1e-3)
    assert len(ledger.records().records) == before + 100
    assert ledger.records().totals["compute_s"] == pytest.approx(2.104, abs=2 * 64e-3)


def test_a_sampled_ledger_rarely_reads_the_clock() -> None:
    """Ten thousand rounds of two microseconds read the clock a few hundred times."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    run_rounds(ledger, clock, 10_000, lambda _: 2e-6)
    assert clock.reads < 1000


def test_charges_in_an_untimed_round_are_left_out() -> None:
    """Seconds charged in a round that another one stands for do not leak into the next timed round."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    for _ in range(4000):
        ledger.begin_round("sync")
        clock.now += 2e-6
        ledger.charge(COMPUTE, 2e-6)
        ledger.end_round()
    assert ledger.records().totals["compute_s"] == pytest.approx(4000 * 2e-6)


def test_records_are_bounded_and_spread_over_the_run() -> None:
    """A long run keeps a bounded number of records, evenly spread, and exact totals."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    n_rounds = 40_000
    ledger.begin_round("control")
    ledger.end_round()
    run_rounds(ledger, clock, n_rounds, lambda _: 1e-3)
    records = ledger.records()
    assert 8_000 <= len(records.records) <= 16_384
    assert np.unique(np.diff(records.records["round"])).size == 1
    assert records.records["round"][-1] > n_rounds * 0.99
    assert records.totals["compute_s"] == pytest.approx(n_rounds * 1e-3)
    assert set(records.records["op"][1:]) == {"sync"}


def test_a_job_adds_up_its_ranks_and_counts_rounds_once() -> None:
    """Totals are sums over ranks, rounds those of any rank, and per_rank gives them one by one."""
    clock = FakeClock()
    ledgers = [RankLedger(rank, clock) for rank in range(3)]
    for ledger in ledgers:
        run_rounds(ledger, clock, 4, lambda _: 0.5)
    job = Ledger([ledger.records() for ledger in ledgers], elapsed_s=3.0)
    assert job.totals() == {
        "compute_s": 6.0,
        "encode_s": 0.0,
        "wire_s": 0.0,
        "wait_s": 0.0,
        "control_s": 0.0,
        "bytes_sent": 1200,
        "messages": 12,
        "control_bytes_sent": 0,
        "control_messages": 0,
        "rounds": 4,
    }
    assert job.per_rank()[2]["compute_s"] == 2.0
    assert list(job.per_rank()) == [0, 1, 2]


def test_the_summary_names_ranks_totals_and_the_share_of_communication() -> None:
    """The text table has a line per rank, a total, and says how much of the time was communication."""
    ledger = RankLedger(0)
    ledger.begin_round("sync")
    ledger.charge(COMPUTE, 3.0)
    ledger.charge(WIRE, 0.5)
    ledger.charge(WAIT, 0.5)
    ledger.count(2_500_000)
    ledger.end_round()
    text = str(Ledger([ledger.records()], elapsed_s=4.0))
    assert "compute" in text
    assert "2.5 MB" in text
    assert "25.0%" in text
    assert text.splitlines()[-2].split()[0] == "all"


def test_the_summary_says_what_control_has_cost() -> None:
    """Control has a column of seconds and a line of its own; what is called sent is the algorithm's."""
    ledger = RankLedger(0)
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


def test_an_empty_ledger_is_all_zeros() -> None:
    """A job that recorded nothing has zero totals, a summary and an empty frame."""
    empty = Ledger([])
    assert set(empty.totals().values()) == {0}
    assert "rank" in empty.summary()
    assert RankLedger(0).records().records.shape == (0,)


def test_the_frame_has_one_row_per_rank_and_round() -> None:
    """to_frame gives the records with their rank."""
    pd = pytest.importorskip("pandas")
    clock = FakeClock()
    ledgers = [RankLedger(rank, clock) for rank in range(2)]
    for ledger in ledgers:
        run_rounds(ledger, clock, 3, lambda _: 0.5)
    frame = Ledger([ledger.records() for ledger in ledgers]).to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["rank"].tolist() == [0, 0, 0, 1, 1, 1]
    assert frame["compute_s"].sum() == 3.0
    assert list(frame.columns[:3]) == ["rank", "round", "op"]
    assert Ledger([]).to_frame().empty


def test_records_pickle() -> None:
    """What a rank brings home survives the way to the client."""
    ledger = RankLedger(1)
    ledger.begin_round("sync")
    ledger.count(7)
    ledger.end_round()
    job = pickle.loads(pickle.dumps(Ledger([ledger.records()], elapsed_s=1.0)))
    assert job.totals()["bytes_sent"] == 7


def test_rounds_in_one_go_share_what_they_took() -> None:
    """Time, bytes and rounds done in one go are exact; phases share the time as the usual ones of the samples do."""
    ledger = RankLedger(0)
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


def test_rounds_in_one_go_leave_the_sampling_of_others_alone() -> None:
    """The ordinary round after thousands in one go stands for itself."""
    clock = FakeClock()
    ledger = RankLedger(0, clock)
    ledger.add_rounds(10_000, 0, 0, 0.0, np.arange(0), np.zeros((0, 4)))
    ledger.begin_round("sync")
    assert ledger.timing
    ledger.charge(COMPUTE, 0.5)
    ledger.end_round()
    assert ledger.records().totals["compute_s"] == 0.5


def test_a_frame_needs_pandas_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas the error says what to install, and that the records can be had as they are."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    ledger = Ledger([RankLedger(0).records()])
    with pytest.raises(MissingPackageError, match=r"pip install pandas.*ledger\.ranks\[0\]\.records") as raised:
        ledger.to_frame()
    assert isinstance(raised.value, ImportError)
    assert ledger.ranks[0].records.shape == (0,)


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
