"""Encoding and decoding, charged to the ledger in seconds and to a virtual clock in elements.

On a real rank the clock has moved by itself. A simulated one is charged for the elements that were passed over, at the
price of a parameter (`dsgd.sim.Compute`): the whole vector where it is encoded or decoded, the entries alone where they
are few and have places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dsgd.collectives.group import Group
from dsgd.ledger import ENCODE

__all__ = ["encoding"]

ResultT = TypeVar("ResultT")


def encoding(group: Group, n_elements: int, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns, and charge it as encoding.

    Parameters
    ----------
    group : Group
        Whose rank works.
    n_elements : int
        Elements that are passed over, each time counted.
    work : callable
        What is done.
    """
    ledger = group.ledger
    start = ledger.clock() if ledger.timing else 0.0
    result = work()
    group.transport.worked(params=n_elements)
    if ledger.timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    return result
