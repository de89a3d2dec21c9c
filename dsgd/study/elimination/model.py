"""Predicted times on more ranks: kernel counts of a run divided among them, plus messages.

Problem: two cores can run one and two ranks. The savings on more ranks follow from counts that do not depend on the
machine. With P ranks, L = ceil(log2 P), a latency of alpha seconds per message and beta seconds per byte, the pairwise
solver takes per iteration

    T = 2 (n_active / P) c + L alpha + 2 L (alpha + m beta)

where c is the time of one kernel value and m the bytes of a row: every rank updates its share of the active samples for
the two rows that were chosen (broadcast, twice), and one all-reduce of a few numbers finds the next two. The block
solver takes per round of q variables

    T = E / P c + s + 4 L alpha + q m beta

for the E kernel values of the round and s seconds in which one rank solves a small problem: extremes and candidates are
found, rows and the answer sent, each in L messages. A reconstruction adds an exchange of the changed rows, L alpha
plus their bytes. Over a whole run, the kernel values are those that it counted. `dsgd.study.elimination.rounds` says
more of runs whose phases were measured.

These times are marked as simulated everywhere. They exclude waiting for the slowest rank: all ranks are assumed to have
equal shares of the active samples, as after a rebalancing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsgd.collectives.cost import n_levels
from dsgd.comm.frames import HEADER_BYTES
from dsgd.validation import check_number

__all__ = ["TEN_GIGABIT", "Counts", "Network", "SimulatedTime", "simulate"]

_PAIR_BYTES: Final = 32  # two extremes and their places


@dataclass(frozen=True)
class Network:
    """What a message costs.

    Parameters
    ----------
    name : str
        Its name.
    latency_s : float
        Seconds until the first byte arrives.
    byte_s : float
        Seconds per byte after that.
    """

    name: str
    latency_s: float
    byte_s: float

    def __post_init__(self) -> None:
        check_number("Network(latency_s=...)", self.latency_s, low=0)
        check_number("Network(byte_s=...)", self.byte_s, low=0)


#: TCP between two processes as `dsgd` does it (benchmarks/communication/transports.py), at 10 Gbit/s.
TEN_GIGABIT: Final = Network("25 us, 10 Gbit/s", 25e-6, 0.8e-9)


@dataclass(frozen=True)
class Counts:
    """Counts of a run on one rank.

    Parameters
    ----------
    solver : {"block", "pairwise"}
        Which solver.
    kernel_values : int
        Kernel values computed in all.
    iterations, rounds : int
        Two-variable steps; rounds of exchange (for the pairwise solver the same).
    rows_sent : int
        Rows that every rank must receive, in all.
    reconstructions : int
        How many times indicators were updated.
    row_bytes : float
        Bytes of a row.
    parallel_s : float
        Seconds of the work that ranks divide, on one rank: kernel values and their use.
    serial_s : float
        Seconds of the work that every rank repeats, on one rank.
    """

    solver: str
    kernel_values: int
    iterations: int
    rounds: int
    rows_sent: int
    reconstructions: int
    row_bytes: float
    parallel_s: float
    serial_s: float = 0.0


@dataclass(frozen=True)
class SimulatedTime:
    """Predicted seconds of a run on more ranks.

    Parameters
    ----------
    compute_s, communication_s : float
        Computing and exchanging.
    """

    compute_s: float
    communication_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.compute_s + self.communication_s


def simulate(counts: Counts, ranks: int, network: Network) -> SimulatedTime:
    """Return the predicted seconds on `ranks` ranks of a run with these counts on one rank."""
    check_number("simulate(ranks=...)", ranks, low=1)
    compute = counts.parallel_s / ranks + counts.serial_s
    if ranks == 1:
        return SimulatedTime(compute, 0.0)
    levels, latency, byte = n_levels(ranks), network.latency_s, network.byte_s
    allreduce = levels * (latency + (_PAIR_BYTES + HEADER_BYTES) * byte)
    row = counts.row_bytes * byte
    if counts.solver == "pairwise":
        # Two rows down a tree of L levels, each level a message of a whole row.
        messages = counts.rounds * (allreduce + 2 * levels * latency) + counts.rows_sent * levels * row
    else:
        # The extremes of both sides, the best candidates, their rows, and the answer.
        messages = counts.rounds * (3 * levels * latency + allreduce) + counts.rows_sent * row
    return SimulatedTime(compute, messages + counts.reconstructions * levels * latency)
