"""The ledger of one rank, while it trains: what is charged and counted in every round.

Problem: a round may take a microsecond, and a clock that is read ten times costs as much; a run may have millions of
rounds, whose records would fill the memory.

Method: bytes and messages are always exact. Seconds are exact while rounds are long; when a round is so short that
reading the clock would cost more than one per cent of it, one round in a few is timed and stands for those up to the
next timed one. Records are kept in a fixed number of slots: when they are full every second one is dropped, so memory
is bounded however long the run is, and totals stay exact.

The model is the context meter of `distributed.metrics`, smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsgd.stages import work_clock
from dsgd.types import FloatMatrix, IntVector

COMPUTE: Final = 0
ENCODE: Final = 1
WIRE: Final = 2
WAIT: Final = 3
CONTROL: Final = 4
PHASES: Final = ("compute", "encode", "wire", "wait", "control")
#: Rounds in which nothing is sent for the algorithm: what ranks say before the first step; the sums of an epoch's end;
#: a model brought together only to be scored; states that are kept; and that a rank is done.
CONTROL_OPS: Final = frozenset({"setup", "control", "look", "keep", "leave"})
_N_TIMED: Final = 4  # phases of rounds that were done in one go: no control is in them

# What a timed round costs beyond an untimed one: some ten clock reads and as many additions, measured at about 2 us.
_TIMING_COST_S: Final = 2e-6
_TIMING_SHARE: Final = 0.01
_MAX_STRIDE: Final = 64
_MAX_RECORDS: Final = 16_384
_N_RECENT: Final = 64
# Of rounds that were done in one go, those that say where their time went.
_USUAL: Final = 0.99

#: A record of a round.
RECORD_DTYPE: Final = np.dtype(
    [
        ("round", np.int64),
        ("op", "U12"),
        ("compute_s", np.float64),
        ("encode_s", np.float64),
        ("wire_s", np.float64),
        ("wait_s", np.float64),
        ("control_s", np.float64),
        ("bytes_sent", np.int64),
        ("messages", np.int64),
        ("control_bytes_sent", np.int64),
        ("control_messages", np.int64),
    ]
)
#: What is counted: of the algorithm, and of control.
SENT: Final = ("bytes_sent", "messages", "control_bytes_sent", "control_messages")


@dataclass(frozen=True)
class RankRecords:
    """The records of one rank: totals, and one record per kept round.

    - `records`, shape (n_records,): one row per kept round: round, op, seconds per phase, bytes and messages sent.
    - `epochs`, shape (n_epochs, 2): bytes sent and seconds of communication (wire and wait) of each epoch of
      training, without control. What brings the models of ranks together after the last one is in `totals` alone.
    """

    rank: int
    totals: dict[str, float]
    records: NDArray[Any]
    epochs: FloatMatrix = field(default_factory=lambda: np.zeros((0, 2)))


class RankLedger:
    """The running ledger of one rank; written by one thread.

    Code on the hot path reads the clock only where `timing` is true::

        ledger.begin_round("sync")
        start = ledger.clock() if ledger.timing else 0.0
        ...  # work
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - start)
        ledger.count(n_bytes)          # always: bytes are exact
        ledger.end_round()
    """

    def __init__(
        self, rank: int, clock: Callable[[], float] = work_clock, timing_cost_s: float = _TIMING_COST_S
    ) -> None:
        self.rank = rank
        self.clock = clock
        self._timing_cost_s = timing_cost_s
        self.timing = True
        self.rounds = 0
        self.recent: deque[tuple[float, float, float, float, float]] = deque(maxlen=_N_RECENT)
        self._op = ""
        self._round_number = 0
        self._begin = 0.0
        self._stride = 1
        self._next_timed = 0  # the synchronisation that is timed next, counted as `rounds` counts
        self._n_timed = 0
        self._last_seconds = [0.0] * len(PHASES)
        self._seconds = [0.0] * len(PHASES)
        self._shares = [1.0, 0.0, 0.0, 0.0]  # of the phases in rounds that were done in one go
        self._is_control = False
        # Numbers, not lists: a round may take a microsecond, and control is in few of them.
        self._bytes = self._messages = self._control_bytes = self._control_messages = 0
        self._total_seconds = [0.0] * len(PHASES)
        self._total_sent = [0] * len(SENT)
        self._at_epochs: list[tuple[float, float]] = []  # what was sent, and taken by it, until the end of each
        self._records = np.zeros(256, dtype=RECORD_DTYPE)
        self._n_records = 0
        self._keep_every = 1

    @property
    def round_number(self) -> int:
        """Number of the present round, of whatever kind, from 0."""
        return self._round_number

    def begin_round(self, op: str) -> None:
        """Open a round."""
        self._op = op
        if op == "sync":
            self.timing, self._is_control = self.rounds >= self._next_timed, False
        else:
            # These are few; timing all of them keeps the sampling of the others unbiased.
            self.timing = op != "setup"
            self._is_control = op in CONTROL_OPS
        if self.timing:
            self._begin = self.clock()

    def charge(self, phase: int, seconds: float) -> None:
        """Add seconds to a phase of the present round, or to control; left out where the round is not timed."""
        if self.timing:
            self._seconds[CONTROL if self._is_control else phase] += seconds

    @property
    def is_control(self) -> bool:
        """Whether what is charged and sent now is control."""
        return self._is_control

    def charged(self, phase: int) -> float:
        """Return what a phase of the present round has been charged so far; with control, that of all phases."""
        return self._seconds[CONTROL if self._is_control else phase]

    def recharge(self, phase: int, seconds: float) -> None:
        """Replace what a phase of the present round has been charged so far; left out where it is not timed."""
        if self.timing:
            self._seconds[CONTROL if self._is_control else phase] = seconds

    def count(self, n_bytes: int, messages: int = 1) -> None:
        """Add bytes and messages sent in the present round."""
        if self._is_control:
            self._control_bytes += n_bytes
            self._control_messages += messages
        else:
            self._bytes += n_bytes
            self._messages += messages

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take what is sent in a ``with`` block for control, in a round of the algorithm: a word in between."""
        before, self._is_control = self._is_control, True
        try:
            yield
        finally:
            self._is_control = before

    def end_round(self, round_s: float | None = None) -> None:
        """Close the present round, of so many seconds or those since it began, and add it to the totals."""
        is_sync = self._op == "sync"
        totals = self._total_sent
        totals[0] += self._bytes
        totals[1] += self._messages
        totals[2] += self._control_bytes
        totals[3] += self._control_messages
        if self.timing:
            # A timed synchronisation stands for those up to the next timed one.
            scale = self._stride if is_sync else 1
            for phase, seconds in enumerate(self._seconds):
                self._total_seconds[phase] += seconds * scale
            if self._n_timed % self._keep_every == 0:
                sent = (self._bytes, self._messages, self._control_bytes, self._control_messages)
                self._store((self._round_number, self._op, *self._seconds, *sent))
            self._n_timed += 1
            if is_sync:
                self._last_seconds = self._seconds
                self._next_timed = self.rounds + scale
                round_s = self.clock() - self._begin if round_s is None else round_s
                compute_s, encode_s, wire_s, wait_s, _ = self._seconds
                self.recent.append((compute_s, encode_s, wire_s, wait_s, round_s))
                self._choose_stride(round_s)
            self._seconds = [0.0] * len(PHASES)
        self.rounds += is_sync
        self._round_number += 1
        self._bytes = self._messages = self._control_bytes = self._control_messages = 0
        self._is_control = False

    @contextmanager
    def round(self, op: str) -> Iterator[None]:
        """Open a round for a ``with`` block, and close it behind it; the two calls themselves are quicker."""
        self.begin_round(op)
        yield
        self.end_round()

    def total_s(self, phase: int) -> float:
        """Return the seconds of a phase in all rounds that are over."""
        # The last timed round may stand for rounds that have yet to come.
        surplus = max(self._next_timed - self.rounds, 0)
        return max(self._total_seconds[phase] - self._last_seconds[phase] * surplus, 0.0)

    def totals_s(self) -> Sequence[float]:
        """Return the seconds of each phase in all rounds that are over, in the order of `PHASES`."""
        return [self.total_s(phase) for phase in range(len(PHASES))]

    def add_timed_rounds(self, n_bytes: int, messages: int, seconds: FloatMatrix) -> None:
        """Add synchronisations that were all timed, as if each had been opened, charged and ended."""
        for compute_s, wire_s, wait_s, round_s in seconds.tolist():
            self.begin_round("sync")
            self.count(n_bytes, messages)
            if self.timing:
                self._seconds[COMPUTE], self._seconds[WIRE], self._seconds[WAIT] = compute_s, wire_s, wait_s
            self.end_round(round_s)

    def add_rounds(
        self, n: int, n_bytes: int, messages: int, elapsed_s: float, offsets: IntVector, seconds: FloatMatrix
    ) -> None:
        """Add n synchronisations that were done in one go.

        - `seconds`, shape (n_timed, 4): compute, encode, wire and wait of these. The longest one in a hundred
          is left out of the shares: a rank that loses its core in the middle of a round of a microsecond would
          show as a thousand rounds.
        """
        lines = seconds.tolist()
        self._make_room(len(lines))
        kept = slice(-self._n_timed % self._keep_every, None, self._keep_every)
        self._n_timed += len(lines)
        numbers = offsets[kept]
        records = self._records[self._n_records : self._n_records + len(numbers)]
        records["round"], records["op"] = self._round_number + numbers, "sync"
        for name, column in zip(PHASES[:_N_TIMED], seconds[kept].T, strict=True):
            records[f"{name}_s"] = column
        records["control_s"] = 0.0
        for name, sent in zip(SENT, (n_bytes, messages, 0, 0), strict=True):
            records[name] = sent
        self._n_records += len(numbers)
        self.recent.extend((*line, sum(line)) for line in lines[-_N_RECENT:])
        if lines:
            # Sorted here: numpy's quantile takes longer than many a round.
            ascending = seconds.sum(axis=1).argsort()
            usual = seconds[ascending[: int(_USUAL * (len(lines) - 1)) + 1]].sum(axis=0).tolist()
            spent = sum(usual)
            self._shares = [part / spent for part in usual] if spent > 0 else self._shares
        for phase, share in enumerate(self._shares):
            self._total_seconds[phase] += elapsed_s * share
        self.rounds += n
        self._next_timed += n  # they were timed apart: none of the others stands for them
        self._round_number += n
        self._total_sent[0] += n * n_bytes
        self._total_sent[1] += n * messages

    def end_epoch(self) -> None:
        """Close an epoch of training, between two rounds."""
        spent = sum(self.total_s(phase) for phase in (WIRE, WAIT))
        self._at_epochs.append((self._total_sent[0], spent))

    def totals(self) -> dict[str, float]:
        """Return the sums over all rounds that are over, by the names of `RankRecords.totals`.

        Another thread may ask, too: what it gets may be a round old.
        """
        totals: dict[str, float] = {f"{name}_s": seconds for name, seconds in zip(PHASES, self.totals_s(), strict=True)}
        return totals | {**dict(zip(SENT, self._total_sent, strict=True)), "rounds": self.rounds}

    def records(self) -> RankRecords:
        """Return the account so far."""
        # Seconds are estimates, which may go back a little.
        ends: FloatMatrix = np.array([(0.0, 0.0), *self._at_epochs])
        epochs = np.maximum(ends[1:] - ends[:-1], 0.0)
        return RankRecords(self.rank, self.totals(), self._records[: self._n_records].copy(), epochs)

    def _choose_stride(self, round_s: float) -> None:
        # Only ever move by one power of two, so that one slow or fast round does not decide.
        wanted = self._timing_cost_s / (_TIMING_SHARE * max(round_s, 1e-9))
        if wanted > self._stride and self._stride < _MAX_STRIDE and self.rounds >= 2 * self._stride:
            self._stride *= 2
        elif self._stride > 1 and wanted < self._stride / 4:
            self._stride //= 2

    def _store(self, record: tuple[Any, ...]) -> None:
        self._make_room(1)
        self._records[self._n_records] = record
        self._n_records += 1

    def _make_room(self, n: int) -> None:
        """Make room for the records of n more rounds; every second record is dropped where there are too many."""
        while self._n_records - (-n // self._keep_every) > len(self._records):
            if len(self._records) < _MAX_RECORDS:
                self._records = np.concatenate([self._records, np.zeros_like(self._records)])
                continue
            half = self._records[: self._n_records : 2].copy()
            self._n_records = len(half)
            self._records[: self._n_records] = half
            self._keep_every *= 2
