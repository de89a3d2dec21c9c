"""The ledger: where the time and the bytes of a training run went.

Each rank keeps a `RankLedger`: seconds of compute (local steps), encode (weighting, packing), wire (bytes moving), wait
(a peer not there yet) and control (see below), with bytes and messages, for every round. A round is the span from one
exchange to the next. When a job ends, the rank ledgers are combined into a `Ledger`, the ``ledger_`` of a fitted
estimator.

Everything sent belongs either to the algorithm or to control. Control is what ranks send to set up, to agree, to
evaluate the model or to save their state, in rounds of their own (`CONTROL_OPS`) or within a round of the algorithm.
Bytes, messages and seconds of control are counted apart: all else is the cost of the method, without what is added.

Problem: a round may take a microsecond, and a clock that is read ten times costs as much; a run may have millions of
rounds, whose records would fill the memory.

Method: bytes and messages are always exact. Seconds are exact while rounds are long; when a round is so short that
reading the clock would cost more than one per cent of it, one round in a few is timed and stands for those up to the
next timed one. Records are kept in a fixed number of slots: when they are full every second one is dropped, so memory
is bounded however long the run is, and totals stay exact. The model is the context meter of `distributed.metrics`.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dsgd.errors import InvalidParameterError, MissingPackageError
from dsgd.stages import Stage, work_clock
from dsgd.types import FloatMatrix, IntVector

if TYPE_CHECKING:
    import pandas as pd


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
        self._at_epochs.append((self._total_sent[0], self.total_s(WIRE) + self.total_s(WAIT)))

    def totals(self) -> dict[str, float]:
        """Return the sums over all rounds that are over, by name; another thread gets what may be a round old."""
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


# Advice is given where another setting takes less than so much of the time; and for communication that is more than the
# first of these shares of the rank-seconds, so that it becomes the second.
_CLEARLY: Final = 0.8
_MUCH, _LITTLE = 0.25, 0.1


@dataclass(frozen=True)
class Ledger:
    """The ledger of a job: the seconds and bytes of every rank.

    Parameters
    ----------
    ranks : sequence of RankRecords
        One entry per rank, in rank order.
    elapsed_s : float
        Wall-clock seconds of the job as the client saw it, including data placement; on a simulated cluster, the
        virtual seconds until the last rank had ended.
    workers : sequence of str
        The worker of each rank if ranks run on workers; each of several threads of a worker is a rank.
    stages : sequence of Stage
        The time and bytes of the whole fit, in the caller's process and on the workers; see `dsgd.stages`.
    dask_bytes : int
        What Dask itself has moved for a job on workers: the plan to each of them, and models and records back. Rows
        that it has moved to the workers are in `stages`.
    record : callable or None
        Makes the `dsgd.sim.RunRecord` of this ledger, which `what_if` asks; None of what is not trained by SGD.

    Examples
    --------
    >>> from dsgd.ledger import Ledger, RankLedger
    >>> ledger = Ledger([RankLedger(0).records()], elapsed_s=0.5)
    >>> ledger.totals()["rounds"]
    0
    """

    ranks: Sequence[RankRecords]
    elapsed_s: float = field(default=0.0)
    workers: Sequence[str] = ()
    stages: Sequence[Stage] = ()
    dask_bytes: int = 0
    record: Callable[[Ledger], Any] | None = field(default=None, repr=False, compare=False)

    def totals(self) -> dict[str, float]:
        """Return the sums over ranks.

        Returns
        -------
        dict
            ``compute_s``, ``encode_s``, ``wire_s``, ``wait_s``, ``bytes_sent`` and ``messages`` of the algorithm,
            ``control_s``, ``control_bytes_sent`` and ``control_messages`` of everything else that ranks exchange (all
            summed over ranks), and ``rounds`` (synchronisations, counted once).
        """
        names = [*(f"{phase}_s" for phase in PHASES), *SENT]
        totals: dict[str, float] = {name: sum(r.totals[name] for r in self.ranks) for name in names}
        totals["rounds"] = max((r.totals["rounds"] for r in self.ranks), default=0)
        return totals

    def per_rank(self) -> dict[int, dict[str, float]]:
        """Return the totals of each rank, by rank."""
        return {r.rank: dict(r.totals) for r in self.ranks}

    def to_frame(self) -> pd.DataFrame:
        """Return the kept records as a pandas frame, one row per rank and round.

        Returns
        -------
        pandas.DataFrame
            Columns ``rank``, ``round``, ``op``, ``compute_s``, ``encode_s``, ``wire_s``, ``wait_s``, ``control_s``,
            ``bytes_sent``, ``messages``, ``control_bytes_sent``, ``control_messages``. Long runs keep a sample of
            their rounds; `totals` always counts all of them.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError(
                "Ledger.to_frame() needs pandas, which is not installed here. Install it with: pip install pandas; or "
                "use the records as they are, structured arrays of numpy: ledger.ranks[0].records."
            ) from error

        frames = [pd.DataFrame(r.records).assign(rank=r.rank) for r in self.ranks]
        columns = ["rank", *(RECORD_DTYPE.names or ())]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)

    def what_if(
        self,
        network: Any = None,
        ranks: int | None = None,
        every: int | None = None,
        compressor: Any = None,
        stragglers: Any = None,
        sync: Any = None,
    ) -> Any:
        """Return what the run would have taken with other settings.

        Its rounds are played again, with the seconds of work that were recorded; see `dsgd.sim.what_if`. Rows are dealt
        anew to other ranks, each with a core as fast as those of the run. How well the model would have been is another
        question.

        Parameters
        ----------
        network : Network or str, optional
            Another network, by itself or by its name: ``"1GbE"``, ``"WAN"``, ...
        ranks : int, optional
            How many ranks.
        every : int, optional
            Rows of a rank between two exchanges.
        compressor : AbstractCompressor or str, optional
            How vectors are encoded, such as ``"topk:0.01"``.
        stragglers : AbstractStragglers or str, optional
            How the work of ranks varies; in a real run, beside what was recorded.
        sync : object, optional
            Another strategy, as estimators take it.

        Returns
        -------
        dsgd.sim.WhatIf
            Seconds with an interval, by phase, bytes, and what this rests on. ``print`` shows it as a text.

        Raises
        ------
        InvalidParameterError
            The model was not trained by SGD; or a parameter is out of range, or does not go with the strategy.
        """
        changes = {"network": network, "ranks": ranks, "every": every, "compressor": compressor}
        changes |= {"stragglers": stragglers, "sync": sync}
        return self._recorded("what_if").what_if(**changes)

    def sweep(self, every: Sequence[int], **changes: Any) -> Any:
        """Return what the run would have taken with each of several periods.

        Parameters
        ----------
        every : sequence of int
            Periods: rows of a rank between two exchanges.
        **changes
            What else would have been different; see `what_if`.

        Returns
        -------
        dsgd.sim.Sweep
            A `dsgd.sim.WhatIf` for each, and the ``knee``. ``print`` shows a table.

        Raises
        ------
        InvalidParameterError
            As for `what_if`.
        """
        return self._recorded("sweep").sweep(every, **changes)

    def diff(self, other: Ledger) -> str:
        """Return a text table of where seconds and bytes went in this run and in another, and what differs.

        Parameters
        ----------
        other : Ledger
            That of another run. Of each phase there is the mean over the ranks of a run.
        """
        head = f"{'':>10} {'this run':>12} {'the other':>12} {'difference':>12} {'ratio':>8}"
        lines, both = [head, "-" * len(head)], (self, other)

        def add(name: str, values: Sequence[float], unit: str = "s") -> None:
            this, that = values
            ratio = f"{that / this:>7.2f}x" if this > 0 else f"{'-':>8}"
            lines.append(f"{name:>10} {this:>10.4g} {unit} {that:>10.4g} {unit} {that - this:>+10.4g} {unit} {ratio}")

        sums = [run.totals() for run in both]
        for phase in PHASES:
            add(phase, [sums[k][f"{phase}_s"] / max(1, len(run.ranks)) for k, run in enumerate(both)])
        add("elapsed", [self.elapsed_s, other.elapsed_s])
        add("sent", [total["bytes_sent"] / 1e6 for total in sums], "M")
        add("rounds", [total["rounds"] for total in sums], " ")
        return "\n".join(
            [*lines, f"seconds in the mean over ranks, {len(self.ranks)} and {len(other.ranks)}; sent in MB"]
        )

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the kept records as a timeline, which ui.perfetto.dev and chrome://tracing open.

        Each rank has a track, on which the phases of its rounds follow each other, and a counter of the bytes it has
        sent. Records have no times of day: every rank begins at zero, and what was not kept is left out.

        Parameters
        ----------
        path : str or os.PathLike
            The file of trace events, JSON.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        events: list[dict[str, Any]] = []
        for one in self.ranks:
            track, at_us, sent = {"pid": 0, "tid": one.rank}, 0.0, 0
            events.append({"ph": "M", "name": "thread_name", **track, "args": {"name": f"rank {one.rank}"}})
            for record in one.records:
                about = {"round": int(record["round"]), "op": str(record["op"])}
                for phase in PHASES:
                    spent_us = 1e6 * float(record[f"{phase}_s"])
                    if spent_us > 0.0:
                        events.append({"ph": "X", "name": phase, **track, "ts": at_us, "dur": spent_us, "args": about})
                        at_us += spent_us
                sent += int(record["bytes_sent"])
                name = f"bytes sent by rank {one.rank}"
                events.append({"ph": "C", "name": name, "pid": 0, "ts": at_us, "args": {"bytes": sent}})
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")

    def _recorded(self, method: str) -> Any:
        if self.record is None:
            raise InvalidParameterError(
                f"Ledger.{method}() plays rounds of SGD, and this ledger knows of none: it is there after a fit of "
                "SGDClassifier and SGDRegressor."
            )
        return self.record(self)

    def summary(self) -> str:
        """Return a text table: a line per rank, the total, the shares of communication and control, and workers.

        Below it is a line for each stage of the fit: its seconds, and the bytes of rows and targets that it handled.
        For stages on workers, these are the seconds of the slowest and the bytes of all. The last line is `advice`, if
        there is any.
        """
        header = " ".join([f"{'rank':>5}", *(f"{name:>11}" for name in (*PHASES, "sent")), f"{'rounds':>9}"])
        lines = [header, "-" * len(header)]
        lines += [_line(str(r.rank), r.totals) for r in self.ranks]
        totals = self.totals()
        lines += ["-" * len(header), _line("all", totals)]
        spent = sum(totals[f"{phase}_s"] for phase in PHASES)
        if spent > 0:
            share = (totals["wire_s"] + totals["wait_s"]) / spent
            lines.append(
                f"communication (wire + wait): {share:.1%} of {spent:.3g} rank-seconds; {self.elapsed_s:.3g} s elapsed"
            )
        if totals["control_messages"]:
            share = totals["control_s"] / spent if spent > 0 else 0.0
            sent = f"{_bytes_text(totals['control_bytes_sent'])} in {totals['control_messages']:.0f} messages"
            lines.append(f"control, beside the algorithm: {share:.1%} of the rank-seconds, {sent}")
        if self.dask_bytes:
            lines.append(f"Dask, beside the ranks: {_bytes_text(self.dask_bytes)} for plan, model and records")
        if self.workers:
            threads = Counter(self.workers).values()
            lines.append(
                f"{len(self.workers)} ranks on {len(threads)} workers ({' + '.join(map(str, threads))} threads)"
            )
        advice = self.advice()
        return "\n".join([*lines, *_stage_lines(self.stages), *(["", advice] if advice else [])])

    def advice(self) -> str:
        """Return in a line which other setting would clearly be faster; empty if none is known to be."""
        totals, spent = self.totals(), [sum(r.totals[f"{phase}_s"] for phase in PHASES) for r in self.ranks]
        longest = max(spent, default=0.0)
        if len(spent) < 2 or longest <= 0.0:
            return ""
        alone = totals["compute_s"]
        if alone < _CLEARLY * longest:
            return (
                f"advice: one rank would take about {alone:.3g} s for the steps of all, and these took {longest:.3g} s."
            )
        if self.record is not None:
            told: str = self.record(self).advice(_CLEARLY)
            return told
        share = sum(totals[f"{phase}_s"] for phase in ("encode", "wire", "wait")) / sum(spent)
        n_epochs = max(len(r.epochs) for r in self.ranks)
        if share <= _MUCH or totals["rounds"] <= n_epochs:
            return ""
        times = 2 ** math.ceil(math.log2(share / (1.0 - share) * (1.0 - _LITTLE) / _LITTLE))
        return (
            f"advice: exchange after {times} times as many rows (sync=...): about {_LITTLE:.0%} of the rank-seconds "
            f"would go to exchanges (encode + wire + wait), and {share:.0%} do."
        )

    def __str__(self) -> str:
        return self.summary()


def _stage_lines(stages: Sequence[Stage]) -> list[str]:
    """Return the lines of a summary that tell of stages."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for stage in stages:
        key = stage.name, "client" if stage.where == "client" else "workers"
        seconds, nbytes = found.get(key, (0.0, 0))
        found[key] = max(seconds, stage.seconds), nbytes + stage.nbytes
    lines = [
        f"{name:>10} {where:>8} {seconds:>10.4f}s {_bytes_text(nbytes) if nbytes else '':>13}"
        for (name, where), (seconds, nbytes) in found.items()
    ]
    return ["", f"{'stage':>10} {'where':>8} {'seconds':>11} {'bytes handled':>13}", *lines] if lines else []


def _line(name: str, totals: dict[str, float]) -> str:
    seconds = " ".join(f"{totals[f'{phase}_s']:>10.4f}s" for phase in PHASES)
    return f"{name:>5} {seconds} {_bytes_text(totals['bytes_sent']):>11} {int(totals['rounds']):>9}"


def _bytes_text(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
