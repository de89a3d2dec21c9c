"""Numbers of ranks on the page ``/metrics`` of Dask's workers; see `dsgd.runtime.metrics`.

Problem: seconds and bytes are in the ledgers of ranks, which the client gets when a fit ends. Who runs a cluster wants
to see them while it trains, and those of all fits together.

Method: the meters of a worker know the ledgers of the ranks that run and keep the sums of those that have ended. They
are read when somebody looks at the page, from another thread: a number may be a round old. Ranks do nothing for it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from dsgd.ledger import PHASES, RankLedger
from dsgd.runtime.metrics import as_family, register

_SENT: Final = {"algorithm": ("bytes_sent", "messages"), "control": ("control_bytes_sent", "control_messages")}


class RankMeters:
    """What the ranks of one worker have done since it began; sums over all jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[RankLedger] = []
        self._ended: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def n_running(self) -> int:
        """How many ranks and servers run."""
        return len(self._running)

    def begin(self, ledgers: Collection[RankLedger]) -> None:
        """Follow the ledgers of ranks that begin."""
        with self._lock:
            self._running += ledgers

    def end(self, ledgers: Collection[RankLedger], refused: Mapping[str, int]) -> None:
        """Keep the sums of ranks that have ended, and let go of their ledgers."""
        with self._lock:
            for ledger in ledgers:
                self._running.remove(ledger)
                self._ended.update(ledger.totals())
            self.refused.update(refused)

    def totals(self) -> Counter[str]:
        """Return the sums over all ranks so far, by the names of `RankRecords.totals`."""
        with self._lock:
            found = Counter(self._ended)
            for ledger in self._running:
                found.update(ledger.totals())
        return found


class RankCollector:
    """The numbers of all workers of this process."""

    def __init__(self) -> None:
        self.sources: list[RankMeters] = []

    def describe(self) -> list[Any]:
        """Return nothing: what there is to collect is known to nobody else."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the present numbers."""
        meters = list(self.sources)
        if not meters:
            return
        totals: Counter[str] = sum((each.totals() for each in meters), Counter())
        yield as_family("dsgd_worker_ranks", sum(each.n_running for each in meters))
        yield as_family("dsgd_rounds_total", totals["rounds"])
        yield as_family("dsgd_phase_seconds_total", {phase: totals[f"{phase}_s"] for phase in PHASES})
        yield as_family("dsgd_sent_bytes_total", {kind: totals[names[0]] for kind, names in _SENT.items()})
        yield as_family("dsgd_messages_total", {kind: totals[names[1]] for kind, names in _SENT.items()})
        yield as_family("dsgd_refused_total", sum((each.refused for each in meters), Counter()))


_collector: Final = RankCollector()


def expose(meters: RankMeters) -> None:
    """Show the numbers of a worker, too."""
    _collector.sources.append(meters)
    register(_collector)


def withdraw(meters: RankMeters) -> None:
    """Show the numbers of a worker no more: it closes."""
    if meters in _collector.sources:
        _collector.sources.remove(meters)
