"""Collectives of all ranks as one call each, for wires that run collectives (`dsgd.comm.base`).

Problem: such a wire wants the messages of all ranks and the results of all, where `dsgd.collectives.Group` knows what
one rank has.

Method: a `Call` for each collective, of the messages in `schedule` and the results in `whole`. Both are of the same
algorithm, so that costs and bits are those of ranks that send messages themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.collectives.algorithms.by_name import PLANS
from dsgd.collectives.algorithms.plan import Combine, Operation, Plan
from dsgd.collectives.algorithms.schedule import (
    barrier_schedule,
    bruck_schedule,
    plan_schedule,
    ring_allgather_schedule,
    ring_schedule,
    tally_schedule,
)
from dsgd.collectives.algorithms.tally import Blocks
from dsgd.collectives.algorithms.whole import (
    Tallied,
    fill_all,
    reduce_by_doubling,
    reduce_by_plans,
    reduce_round_ring,
    tally_all,
)
from dsgd.collectives.cost import Algorithm
from dsgd.comm.base import Call, Schedule
from dsgd.comm.frames import OP_ALLGATHER, OP_ALLREDUCE, OP_BARRIER, OP_GATHER
from dsgd.types import AnyArray


def allreduce_call(flat: AnyArray, size: int, algorithm: Algorithm, op: Operation, combine: Combine) -> Call:
    """Return an all-reduce of vectors of one dimension."""
    n, itemsize = flat.shape[0], flat.itemsize
    plan_of = partial(_plan_of, algorithm, size, n, itemsize)
    schedule: Callable[[], Schedule] = partial(plan_schedule, plan_of, size, itemsize)
    reduce: Callable[..., None] = partial(reduce_by_plans, plan_of=plan_of, combine=combine)
    if algorithm == "recursive_doubling":
        reduce = partial(reduce_by_doubling, combine=combine)
    elif algorithm == "ring":
        schedule, reduce = partial(ring_schedule, size, n, itemsize), reduce_round_ring
    return Call(OP_ALLREDUCE, (op, algorithm, n, flat.dtype), flat, flat, schedule, reduce)


def fill_call(whole: AnyArray, ends: Sequence[int], *, doubles: bool) -> Call:
    """Return an all-gather that fills `whole` as `dsgd.collectives.Group.fill` does: by Bruck's algorithm or a ring."""
    n_bytes = [whole.itemsize * (b - a) for a, b in pairwise(ends)]
    schedule = partial(bruck_schedule if doubles else ring_allgather_schedule, n_bytes)
    kind = ("fill", whole.dtype, *ends)
    return Call(OP_ALLGATHER, kind, whole, whole, schedule, partial(fill_all, ends=ends))


def tally_call(blocks: Blocks, brought: Tallied, n_down: int) -> Call:
    """Return a tally of what ranks bring, of which a message of `n_down` bytes comes down."""
    sums, own = brought.sums, brought.own
    schedule = partial(tally_schedule, blocks, sums.nbytes, own.nbytes, n_down, sums.nbytes)
    kind = ("tally", sums.dtype, sums.shape[0], own.shape[0], n_down)
    return Call(OP_GATHER, kind, sums, brought, schedule, partial(tally_all, blocks=blocks))


def barrier_call(size: int) -> Call:
    """Return a barrier."""
    nothing = np.empty(0, dtype=np.uint8)
    return Call(OP_BARRIER, "barrier", nothing, None, partial(barrier_schedule, size), _do_nothing)


def _plan_of(algorithm: Algorithm, size: int, n: int, itemsize: int, rank: int) -> Plan:
    return PLANS[algorithm](rank, size, n, itemsize)


def _do_nothing(brought: Sequence[Any]) -> None:
    """Make nothing of what ranks bring to a barrier."""
