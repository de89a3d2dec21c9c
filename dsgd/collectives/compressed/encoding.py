"""Encoding and decoding, charged to the ledger in seconds and to a virtual clock in elements.

On a real rank the clock has moved by itself. A simulated one is charged for the elements that were passed over, at the
price of a parameter (`dsgd.sim.Compute`): the whole vector where it is encoded or decoded, the entries alone where they
are few and have places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dsgd.collectives.group import Group
from dsgd.ledger import ENCODE
from dsgd.types import AnyArray, FloatVector

ResultT = TypeVar("ResultT")


def encoding(group: Group, n_elements: int, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns, and charge it as encoding."""
    ledger = group.ledger
    start = ledger.clock() if ledger.timing else 0.0
    result = work()
    group.transport.worked(params=n_elements)
    if ledger.timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    return result


def encode(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> AnyArray:
    """Return the payload of a vector, and subtract it from the remainder."""

    def work() -> AnyArray:
        payload: AnyArray = compressor.encode(vector, memory)
        if rest is not None:
            compressor.decode(payload, rest, -1.0)
        return payload

    return encoding(group, vector.shape[0] * (1 if rest is None else 2), work)


def decode(group: Group, payloads: list[AnyArray], vector: FloatVector, compressor: Any) -> None:
    """Replace a vector by the sum of what payloads hold, added in their order."""
    n, itemsize = vector.shape[0], vector.itemsize
    # A payload of places and values is about as long as its entries are many; all others hold the whole vector.
    touched = sum(min(n, payload.nbytes // itemsize) if compressor.sparse else n for payload in payloads)

    def work() -> None:
        vector.fill(0.0)
        for payload in payloads:
            compressor.decode(payload, vector, 1.0)

    encoding(group, n + touched, work)
