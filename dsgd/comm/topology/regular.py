"""Random regular graphs: few neighbours each, and short paths between all ranks.

Problem: a graph of constant degree on which mixing does not slow down as ranks are added. Almost every random regular
graph is one: its second eigenvalue tends to 2 sqrt(d - 1) / d (Friedman 2008).

Update: every rank has d open ends, which are joined in random pairs; pairs that would join a rank with itself or with
a neighbour go back, and a graph that gets stuck or is not connected is thrown away.

Source: Steger and Wormald 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from dsgd.errors import InvalidParameterError

_MOST_DRAWS: Final = 1000


@lru_cache(maxsize=64)
def random_regular_graph(degree: int, seed: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the neighbours of every rank, ascending."""
    if degree >= size - 1:
        everybody = range(size)
        return tuple(tuple(peer for peer in everybody if peer != rank) for rank in everybody)
    rng = np.random.default_rng((seed, size, degree))
    for _ in range(_MOST_DRAWS):
        neighbours = _draw_pairing(rng, degree, size)
        if neighbours is not None and (degree < 2 or _is_connected(neighbours)):
            return tuple(tuple(sorted(found)) for found in neighbours)
    raise InvalidParameterError(
        f"RandomRegular(degree={degree}, seed={seed}): no connected graph on {size} ranks was found in {_MOST_DRAWS} "
        "draws. Take another seed or a degree of 3 or more."
    )


def _draw_pairing(rng: np.random.Generator, degree: int, size: int) -> list[set[int]] | None:
    """Return a random graph by joining open ends at random, in pairs that are not joined yet; None if it got stuck."""
    neighbours: list[set[int]] = [set() for _ in range(size)]
    ends = np.repeat(np.arange(size), degree)
    while ends.shape[0] > 1:
        ends = rng.permutation(ends)
        left = [] if ends.shape[0] % 2 == 0 else [int(ends[-1])]
        for one, other in zip(ends[0:-1:2].tolist(), ends[1::2].tolist(), strict=True):
            if one == other or other in neighbours[one]:
                left += [one, other]
            else:
                neighbours[one].add(other)
                neighbours[other].add(one)
        stuck = len(left) == ends.shape[0]
        if stuck and all(one == other or other in neighbours[one] for one in left for other in left):
            return None
        ends = np.array(left)
    # Of an odd number of ends one stays open.
    return neighbours


def _is_connected(neighbours: Sequence[set[int]]) -> bool:
    reached, front = {0}, [0]
    while front:
        new = neighbours[front.pop()] - reached
        reached |= new
        front += new
    return len(reached) == len(neighbours)
