"""Progress of a fit: the seconds of every rank, and the event that rank 0 publishes.

Problem: only a rank knows where its time went, and only rank 0 speaks.

Method: with the control message of an epoch every rank sends rank 0 the seconds of the phases of its ledger. From two
of them rank 0 has the share of communication in between. It makes an event when the last one is 0.2 s old, so
that a fit of very short epochs pays for a few additions in each of them and for five events a second.

Cost: five numbers per rank in a message that is sent anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from dsgd.ledger import PHASES, WAIT, WIRE, RankLedger
from dsgd.progress.event import ProgressEvent
from dsgd.runtime.train.job import EpochRecord
from dsgd.types import FloatMatrix, FloatVector

_PERIOD_S: Final = 0.2


class ProgressAccount:
    """The account of a rank of where its time went and, on rank 0, that of all ranks."""

    def __init__(
        self,
        rows: Sequence[int],
        ledger: RankLedger,
        max_iter: int,
        strategy: str,
        begin_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size, self._longest = len(rows), max(rows, default=0)
        self._ledger, self._max_iter, self._strategy, self._clock = ledger, max_iter, strategy, clock
        # Of one line, until rank 0 has heard of all.
        self._spent: FloatMatrix = np.zeros((1, len(PHASES)))
        self._told: FloatMatrix = self._spent
        self._told_at, self._told_seconds = clock(), begin_s
        self._n_rows = 0.0
        self._rounds = ledger.rounds

    @property
    def is_due(self) -> bool:
        """Whether the last event is so old that there should be another one."""
        return self._clock() - self._told_at >= _PERIOD_S

    def own(self) -> FloatVector:
        """Return the seconds of this rank so far, shape (5,), by phase."""
        return np.array(self._ledger.totals_s())

    def update(self, spent: FloatMatrix | None, n_seen: float) -> None:
        """Take in the seconds of all ranks after an epoch of `n_seen` rows.

        - `spent`, shape (size, 5): what `own` of each rank is, where it is known: on rank 0. Kept until the
          next call.
        """
        if spent is not None:
            self._spent = spent
        self._n_rows += float(n_seen)

    def event(self, record: EpochRecord, period: int | None, *, last: bool) -> ProgressEvent | None:
        """Return what rank 0 tells after an epoch; None while the last event is not old enough."""
        now, rounds = self._clock(), self._ledger.rounds - self._rounds
        self._rounds = self._ledger.rounds
        if not (last or self.is_due):
            return None
        if period is None and rounds:
            period = -(-self._longest // rounds)
        spent = (self._spent - self._told).sum(axis=0)
        total = float(spent.sum())
        event = ProgressEvent(
            epoch=record.epoch,
            max_iter=self._max_iter,
            train_loss=record.train_loss,
            seconds=record.seconds,
            rows_per_s=self._n_rows / max(record.seconds - self._told_seconds, 1e-9),
            comm_share=float(spent[WIRE] + spent[WAIT]) / total if total > 0.0 else 0.0,
            period=period if self._size > 1 else None,
            strategy=self._strategy,
            validation_score=None if np.isnan(record.validation_score) else record.validation_score,
            **{f"{name}_s": tuple(self._spent[:, phase].tolist()) for phase, name in enumerate(PHASES)},
        )
        self._told, self._n_rows = self._spent, 0.0
        self._told_at, self._told_seconds = now, record.seconds
        return event
