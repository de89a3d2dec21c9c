"""Laws, and those of topologies.

What all checks share.

The laws of a topology, for gangs of one to seventeen ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np

from dsgd.comm.topology import AbstractTopology
from dsgd.comm.topology.mixing import mixing_matrix
from dsgd.errors import DsgdError, InvalidParameterError

#: A law: takes the part, raises `AssertionError`.
Check = Callable[[Any], None]


def require(holds: bool, law: str) -> None:
    """Raise `AssertionError` with the law that is broken, also where Python runs without assertions."""
    if not holds:
        raise AssertionError(law)


def check_is_value(part: Any) -> None:
    """The part is a frozen dataclass: it compares, hashes and pickles by its parameters."""
    params = getattr(type(part), "__dataclass_params__", None)
    require(
        is_dataclass(part) and params is not None and params.frozen,
        "it must be a frozen dataclass of its parameters: what changes during training lives in the record of `init`",
    )
    again = pickle.loads(pickle.dumps(part))
    require(again == part and hash(again) == hash(part), "its pickle must be equal to it: workers get it by pickle")


def run_checks(part: Any, kind: type, checks_of: Callable[[Any], list[Check]]) -> None:
    """Run the checks of a part one after the other; an error names the check and the part."""
    require(isinstance(part, kind), f"{part!r} must be an instance of {kind.__name__}")
    for check in checks_of(part):
        try:
            check(part)
        except (AssertionError, InvalidParameterError) as error:  # some laws are those of every fit
            raise AssertionError(f"{check.__name__}: {part!r}: {error}") from error


def fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a record holds, and the records within it, by name."""
    for field in fields(record):
        value = getattr(record, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield from ((f"{field.name}.{name}", inner) for name, inner in fields_of(part))
            else:
                yield field.name, part


_SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 12, 17)


def check_topology(topology: AbstractTopology) -> None:
    """Raise unless a topology satisfies the laws of all topologies of the package.

    Sizes that it refuses by an error of the package are left out, if it takes some.

    Parameters
    ----------
    topology : AbstractTopology
        Any.

    Raises
    ------
    AssertionError
        Names the law, and how it was broken.
    """
    run_checks(topology, AbstractTopology, topology_checks)


def topology_checks(topology: AbstractTopology) -> list[Check]:
    """Return the checks that apply to a topology; each takes the topology and raises `AssertionError`."""
    return [check_is_value, check_edges_match, check_mixing_keeps_the_mean]


def check_edges_match(topology: AbstractTopology) -> None:
    """Every send has a receiver, no rank sends to itself or twice, and the graph repeats after its period."""
    for size, period in _sizes(topology):
        for k in range(period):
            _check_round(topology, size, k)
        first, again = ([topology.out_peers(rank, size, k) for rank in range(size)] for k in (0, period))
        require(first == again, f"of {size} ranks the graph does not repeat after its period of {period} rounds")


def _check_round(topology: AbstractTopology, size: int, k: int) -> None:
    sent = [topology.out_peers(rank, size, k) for rank in range(size)]
    got = [topology.in_peers(rank, size, k) for rank in range(size)]
    for rank, peers in enumerate(sent):
        where = f"of {size} ranks in round {k}, rank {rank}"
        is_list_of_others = len(set(peers)) == len(peers) and set(peers) <= set(range(size)) - {rank}
        require(is_list_of_others, f"{where} sends to {peers}: that must be other ranks, each of them once")
        missing = [peer for peer in peers if rank not in got[peer]]
        require(not missing, f"{where} sends to {missing}, which do not receive from it")
        silent = [peer for peer in got[rank] if rank not in sent[peer]]
        require(not silent, f"{where} receives from {silent}, which do not send to it")
        goes_both_ways = set(peers) == set(got[rank])
        require(goes_both_ways or not topology.symmetric, f"{where} has an edge one way, and says symmetric=True")


def check_mixing_keeps_the_mean(topology: AbstractTopology) -> None:
    """The weights of what a rank sends add up to one; on a symmetric graph, so do those of what it receives."""
    for size, period in _sizes(topology):
        for k in range(period):
            matrix, where = mixing_matrix(topology, size, k), f"of {size} ranks in round {k}"
            require(bool((matrix >= 0.0).all()), f"{where} a weight is negative")
            require(np.allclose(matrix.sum(axis=0), 1.0), f"{where} the mean of all models does not stay")
            takes = not topology.symmetric or np.allclose(matrix.sum(axis=1), 1.0)
            require(bool(takes), f"{where} equal models do not stay equal")


def _sizes(topology: AbstractTopology) -> list[tuple[int, int]]:
    """Return the sizes that it takes, each with its period."""
    found = []
    for size in _SIZES:
        try:
            period = topology.period(size)
            topology.out_peers(0, size, 0)
        except DsgdError:
            continue
        require(period >= 1, f"of {size} ranks its period is {period}")
        found.append((size, period))
    require(bool(found), f"it takes none of {_SIZES} ranks")
    return found
