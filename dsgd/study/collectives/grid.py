"""The runs of the study of collectives: transports, ranks, lengths and algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.collectives.model import ALGORITHMS, FlatAlgorithm
from dsgd.errors import InvalidParameterError
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun

__all__ = ["WIRES", "CollectiveRun", "CollectiveStudy", "demo_collective_study"]

#: Threads of this process, and worker processes over shared memory, polled shared memory and TCP.
WIRES: Final = ("inproc", "shm", "spin", "tcp")


@dataclass(frozen=True)
class CollectiveStudy:
    """A grid of all-reduces of float32 vectors.

    Parameters
    ----------
    wires : sequence of {"inproc", "shm", "spin", "tcp"}
        What vectors travel over.
    ranks : sequence of int
        Numbers of ranks, 2 or more: threads, or worker processes of one thread each.
    sizes : sequence of int
        Bytes of the vectors, multiples of 4.
    algorithms : sequence of str
        How they are summed.
    repeats : int
        Repetitions of each sum; the algorithms take turns.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """

    wires: Sequence[str] = ("inproc", "shm", "tcp")
    ranks: Sequence[int] = (2, 4, 8)
    sizes: Sequence[int] = (8, 512, 4_096, 32_768, 262_144, 2_097_152, 16_777_216)
    algorithms: Sequence[FlatAlgorithm] = ALGORITHMS
    repeats: int = 30

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("wires", "ranks", "sizes", "algorithms"),
            least={"ranks": 2, "sizes": 4, "repeats": 1},
            choices={"wires": WIRES, "algorithms": ALGORITHMS},
        )
        if any(size % 4 for size in self.sizes):
            raise InvalidParameterError(f"CollectiveStudy(sizes=...) must be multiples of 4 bytes. Got {self.sizes}.")

    def gangs(self) -> list[tuple[str, int]]:
        """Return the wires and ranks in the order in which they are run: grouped by ranks, which share workers."""
        return [(wire, ranks) for ranks in sorted(set(self.ranks)) for wire in dict.fromkeys(self.wires)]

    def runs(self, wire: str, ranks: int) -> list[CollectiveRun]:
        """Return the runs of one gang."""
        return [
            CollectiveRun(wire, ranks, size, algorithm, self.repeats)
            for size in sorted(set(self.sizes))
            for algorithm in dict.fromkeys(self.algorithms)
        ]

    def count(self) -> int:
        """Return the number of runs."""
        return sum(len(self.runs(*gang)) for gang in self.gangs())


@dataclass(frozen=True)
class CollectiveRun(AbstractRun):
    """One sum, made several times.

    Parameters
    ----------
    wire : str
        What vectors travel over.
    ranks : int
        How many ranks.
    n_bytes : int
        Bytes of the vector.
    algorithm : str
        How it is summed.
    repeats : int
        How often.
    """

    wire: str
    ranks: int
    n_bytes: int
    algorithm: FlatAlgorithm
    repeats: int

    def settings(self) -> dict[str, Any]:
        """Return everything that decides what is run, as plain values."""
        return dict(vars(self))


def demo_collective_study() -> CollectiveStudy:
    """Return a study for two cores and a minute."""
    return CollectiveStudy(wires=("inproc", "shm"), ranks=(2, 4), sizes=(8, 4_096, 65_536, 1_048_576), repeats=20)
