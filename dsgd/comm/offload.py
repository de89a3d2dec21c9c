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


class Schedule(NamedTuple):
    """The messages of a collective, of all ranks.

    - `moves`, shape (n_moves, 4): what a rank does at a time: the rank that it sends to, or -1; bytes of that
      message, its header among them; the rank that it receives from at the same time, or -1; and bytes that it then
      adds up.
    """

    first: IntVector
    moves: IntMatrix
    sent: IntMatrix


class Repeats(NamedTuple):
    """What a rank does around a collective that is repeated.

    - `work`, shape (n, 3): of each time the work before it: rows that a kernel visits, entries of these rows, and
      parameters of the model.
    - `seconds`, shape (n, 4): filled with the seconds of each time: of work, wire and wait, and from its begin to
      its end.
    """

    work: IntMatrix
    seconds: FloatMatrix


class Call(NamedTuple):
    """A collective, as one of the ranks calls it; no rank ends before all have begun."""

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
        """Return when the result is there."""
        ...
