"""The runs of the study of transports: ways, sizes of messages, models, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun
from dsgd.study.transports.pairs import Amount
from dsgd.study.transports.parties import MODELS, Work

__all__ = ["WAYS", "TransportRun", "TransportStudy", "demo_transport_study"]

#: Ways by name, and what reports call them.
WAYS: Final = MappingProxyType(
    {
        "none": "nothing sent",
        "graph": "task graph",
        "actor": "Dask actor",
        "rpc": "Dask RPC",
        "tls": "TLS",
        "tcp": "TCP",
        "mpi": "MPI",
        "ring": "memory, ring",
        "pulled": "memory, pulled",
        "spin": "memory, spinning",
        "agreed": "slots agreed per message",
        "registered": "slots registered",
    }
)

_PARTS: Final = ("messages", "training", "counts")
_STEPS: Final = {"logistic": 1_000, "cnn": 20, "25M": 2}
# Rounds of tasks take so long that a tenth of the short ones must do.
_STEPS_OF_TASKS: Final = {**_STEPS, "logistic": 100}
# Rounds that are counted: many where other work of the processes would be seen beside the message.
_FEW_FROM_BYTES, _FEW, _MANY = 64_000, 5, 50


@dataclass(frozen=True)
class TransportStudy:
    """A grid of messages between two processes of one machine, of training over them, and of their copies.

    Parameters
    ----------
    ways : sequence of str
        Names of `WAYS`. What needs a package that is not here is left out, and the report says so.
    sizes : sequence of int
        Bytes of a message, multiples of 4.
    models : sequence of {"logistic", "cnn", "25M"}
        What is trained with a parameter server; of the largest, only the messages are made.
    repeats : int
        Repetitions of all that is timed; ways take turns.
    seconds : float
        How long messages of one size are repeated.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """

    ways: Sequence[str] = tuple(WAYS)
    sizes: Sequence[int] = (4, 1_000, 64_000, 1_000_000, 16_000_000, 256_000_000)
    models: Sequence[str] = tuple(MODELS)
    repeats: int = 5
    seconds: float = 0.2

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("ways",),
            least={"sizes": 4, "repeats": 1, "seconds": 0.0},
            choices={"ways": tuple(WAYS), "models": tuple(MODELS)},
        )
        if any(size % 4 for size in self.sizes):
            raise InvalidParameterError(f"TransportStudy(sizes=...) must be multiples of 4 bytes. Got {self.sizes}.")

    def runs(self, part: str, way: str, repeat: int = 0) -> list[TransportRun]:
        """Return the runs of one way that are made together.

        Parameters
        ----------
        part : {"messages", "training", "counts"}
            Whether messages are timed, training is, or messages are counted.
        way : str
            The way.
        repeat : int, default 0
            The repetition.
        """
        works = map(Work.of_model, self.models) if part == "training" else map(Work.of_bytes, sorted(set(self.sizes)))
        return [TransportRun(part, way, work, self._amount(part, way, work), repeat) for work in works]

    def groups(self) -> list[tuple[str, str, int]]:
        """Return part, way and repetition of all runs that are made together, in their order."""
        ways = tuple(dict.fromkeys(self.ways))
        timed = [(part, way, k) for part in _PARTS[:2] for k in range(self.repeats) for way in ways]
        return timed + [("counts", way, 0) for way in ways if way != "none"]

    def count(self) -> int:
        """Return the number of runs."""
        return sum(len(self.runs(*group)) for group in self.groups())

    def _amount(self, part: str, way: str, work: Work) -> Amount:
        if part == "messages":
            return Amount(self.seconds)
        if part == "training":
            return Amount(0.0, (_STEPS_OF_TASKS if way == "graph" else _STEPS)[work.kind])
        return Amount(0.0, _FEW if 4 * work.n >= _FEW_FROM_BYTES else _MANY)


@dataclass(frozen=True)
class TransportRun(AbstractRun):
    """What two parties do over one way.

    Parameters
    ----------
    part, way, work, amount, repeat
        See `TransportStudy.runs`.
    """

    part: str
    way: str
    work: Work
    amount: Amount
    repeat: int

    def settings(self) -> dict[str, Any]:
        """Return everything that decides what is run, as plain values."""
        amount = self.amount.rounds or f"{self.amount.seconds:g} s"
        return {
            "part": self.part, "way": self.way, "work": self.work.kind, "n_bytes": 4 * self.work.n, "amount": amount,
            "repeat": self.repeat,
        }  # fmt: skip


def demo_transport_study() -> TransportStudy:
    """Return a study for two minutes on two cores: messages of up to 16 MB, three repetitions."""
    return TransportStudy(sizes=(4, 64_000, 1_000_000, 16_000_000), repeats=3, seconds=0.1)
