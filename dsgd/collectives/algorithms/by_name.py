"""The plans of all-reduces by the names of their algorithms, as users and the cost model call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsgd.collectives.algorithms.binomial import binomial_plan
from dsgd.collectives.algorithms.double_tree import double_tree_plan
from dsgd.collectives.algorithms.plan import Plan
from dsgd.collectives.algorithms.rabenseifner import rabenseifner_plan
from dsgd.collectives.algorithms.recursive_doubling import doubling_plan
from dsgd.collectives.algorithms.ring import ring_plan
from dsgd.collectives.algorithms.torus import torus_plan

#: What a rank does in an all-reduce of n elements of some bytes, by algorithm: from rank, size, n and bytes.
PLANS: Final[dict[str, Callable[[int, int, int, int], Plan]]] = {
    "recursive_doubling": lambda rank, size, n, itemsize: doubling_plan(rank, size, n),
    "ring": lambda rank, size, n, itemsize: ring_plan(rank, size, n),
    "rabenseifner": lambda rank, size, n, itemsize: rabenseifner_plan(rank, size, n),
    "binomial": lambda rank, size, n, itemsize: binomial_plan(rank, size, n),
    "double_tree": double_tree_plan,
    "torus": lambda rank, size, n, itemsize: torus_plan(rank, size, n),
}
