"""Measuring the cost of a message between the ranks of a gang.

Problem: the model by which algorithms are chosen (`dsgd.collectives.model`) needs alpha, beta and gamma of the wire at
hand, and all ranks must go by the same ones.

Method: alpha is the time of a sum of one number by recursive doubling, divided by its steps; it includes the work in
Python for every message. For beta, all ranks send a long frame to the next rank while receiving one from the rank
before, as in collectives. Gamma is the time to add vectors of that length. Each is the median of many repetitions and
the largest value of all ranks, which they find by an all-reduce.

Cost: some 500 short sums and 20 messages of a megabyte per rank.

Source: Hockney 1994.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

import numpy as np

from dsgd.collectives.cost import fold_of
from dsgd.collectives.group import Group
from dsgd.collectives.model import LinkCost, n_levels
from dsgd.comm.frames import OP_ALLREDUCE
from dsgd.errors import IncompatiblePartsError

_SHORT: Final = 500
_BATCH: Final = 20  # sums between two looks at the clock: who waits in one need not in the next
_LONG: Final = 20


def calibrate(group: Group, n_bytes: int = 1 << 20) -> LinkCost:
    """Return the cost of a message in this gang, the same on every rank.

    ``Group(transport, link=calibrate(group))`` chooses algorithms by it. Sums are then added up in an order that
    depends on what was measured: leave it where models must be the same to the bit from run to run.
    """
    transport = group.transport
    if transport.processes:
        raise IncompatiblePartsError(
            "calibrate(group) needs ranks that reach each other one by one, and those of this group are threads of "
            "several processes. Measure with one rank per process."
        )
    sent, received = (np.ones(max(1, n_bytes // 8)) for _ in range(2))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    clock = group.ledger.clock

    def seconds(work: Callable[[], object], repeats: int) -> float:
        """Return the median of some repetitions, which begin on all ranks at once."""
        group.barrier()
        times = []
        for _ in range(repeats):
            begin = clock()
            work()
            times.append(clock() - begin)
        return statistics.median(times[repeats // 5 :])

    doubling = Group(transport, "recursive_doubling")
    number = np.zeros(1)

    def sum_up() -> None:
        for _ in range(_BATCH):
            doubling.allreduce(number)

    group.ledger.begin_round("setup")
    found = np.zeros(3)
    if group.size > 1:
        core, n_folded = fold_of(group.size)
        n_messages = n_levels(core) + 2 * (n_folded > 0)
        found[0] = seconds(sum_up, _SHORT // _BATCH) / (_BATCH * n_messages)
        found[1] = seconds(lambda: transport.exchange(after, sent, before, received, OP_ALLREDUCE), _LONG)
    found[2] = seconds(lambda: np.add(sent, received, out=received), _LONG)
    group.allreduce(found, "max")
    group.ledger.end_round()
    latency_s, long_s, added_s = found.tolist()
    return LinkCost(latency_s, max(0.0, long_s - latency_s) / sent.nbytes, added_s / sent.nbytes)
