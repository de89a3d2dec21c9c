"""Collectives that a wire runs for the ranks, instead of being asked for one message after another.

Problem: on a wire that takes no real time, a simulated one, a collective of a thousand ranks is ten thousand calls of
`AbstractTransport.exchange`, each with a turn of its own, for a result that is known once all have begun.

Such a wire is told what the messages of all ranks would be, a `Schedule`, and how the result of all is made of what
each has. Network cards that reduce vectors are told the same (collective offload).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from dsgd.types import AnyArray, FloatMatrix, IntMatrix, IntVector

__all__ = ["Call", "Offload", "Repeats", "Schedule"]


class Schedule(NamedTuple):
    """The messages of a collective, of all ranks.

    Parameters
    ----------
    first : array of int, shape (size + 1,)
        Where the moves of each rank begin, and where the last ones end.
    moves : array of int, shape (n_moves, 4)
        What a rank does at a time: the rank that it sends to, or -1; bytes of that message, its header among them; the
        rank that it receives from at the same time, or -1; and bytes that it then adds up.
    sent : array of int, shape (size, 2)
        Bytes and messages that each rank sends.
    """

    first: IntVector
    moves: IntMatrix
    sent: IntMatrix


class Repeats(NamedTuple):
    """What a rank does around a collective that is repeated.

    Parameters
    ----------
    work : array of int, shape (n, 3)
        Of each time the work before it: rows that a kernel visits, entries of these rows, and parameters of the model.
    seconds : array, shape (n, 4)
        Filled with the seconds of each time: of work, wire and wait, and from its begin to its end.
    """

    work: IntMatrix
    seconds: FloatMatrix


class Call(NamedTuple):
    """A collective, as one of the ranks calls it; no rank ends before all have begun.

    Parameters
    ----------
    op : int
        Code of the operation (`dsgd.comm.frames`).
    kind : hashable
        What tells its schedule from others: ranks that are at the same point have equal ones.
    array : array
        What is sent, or something of its dtype and length: equal on all ranks.
    own : object
        What this rank brings, and where it finds the result.
    schedule : callable
        Returns the messages.
    finish : callable
        Takes what all ranks bring, in the order of ranks, and does to it what the messages would.
    repeats : Repeats or None, default None
        How often the messages are sent, if not once, and what is done between them.
    """

    op: int
    kind: Hashable
    array: AnyArray
    own: Any
    schedule: Callable[[], Schedule]
    finish: Callable[[Sequence[Any]], None]
    repeats: Repeats | None = None


class Offload(Protocol):
    """Runs the collectives of one rank."""

    def __call__(self, call: Call) -> None:
        """Return when the result is there.

        Raises
        ------
        AbortedError
            The job has stopped.
        ProtocolError
            Ranks are not at the same point.
        """
        ...
