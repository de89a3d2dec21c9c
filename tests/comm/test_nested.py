"""Ranks as threads of several processes: the same sums as numpy, by way of one rank per process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Cost, Group, allreduce_cost
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires import inproc
from dsgd.comm.wires.inproc import connect_nested
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError
from dsgd.ledger import RankLedger
from gangs import raise_first, run_ranks, spent
from nested_gangs import nested_gang, run_nested
from operations import check_operations, operations
from reference import collectives as reference

layouts = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=40)
@given(ranks_of=layouts, kind=st.sampled_from(["inproc", "inproc", "tcp", "shm"]), ops=operations)
def test_any_list_of_operations_equals_numpy(ranks_of: list[int], kind: str, ops: list[Any]) -> None:
    """However many ranks each process has, and whatever joins processes, the results are numpy's."""
    check_operations(lambda program: run_nested(ranks_of, program, kind), sum(ranks_of), ops)


@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("ranks_of", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_nobody_passes_a_barrier_before_the_last_has_come(ranks_of: list[int], late: int) -> None:
    """Whichever rank is late, in this process or another one, it has come when others go on."""
    come: list[int] = []

    def program(group: Group) -> set[int]:
        if group.rank == late:
            time.sleep(0.05)
        come.append(group.rank)
        group.barrier()
        return set(come)

    assert run_nested(ranks_of, program) == [set(range(5))] * 5


def sums_of(vectors: list[np.ndarray], **options: Any) -> Callable[[Group], bytes]:
    def program(group: Group) -> bytes:
        mine = vectors[group.rank].copy()
        group.allreduce(mine)
        return mine.tobytes()

    return program


def inexact(size: int, n: int) -> list[np.ndarray]:
    """Return numbers whose sum depends on the order."""
    rng = np.random.default_rng(size)
    return [rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n) for _ in range(size)]


@settings(max_examples=20)
@given(ranks_of=layouts, n=st.sampled_from([1, 100, 20_000]))
def test_all_ranks_hold_the_bits_of_the_twin(ranks_of: list[int], n: int) -> None:
    """For any layout the sum is added in the stated order: up a tree in each process, then among their first ranks."""
    size = sum(ranks_of)
    vectors = inexact(size, n)
    processes = [k for k, count in enumerate(ranks_of) for _ in range(count)]
    expected = reference.hierarchical(vectors, processes)[0]
    if max(ranks_of) == 1 or len(ranks_of) == 1:
        short = n < size or expected.nbytes <= 64 * 1024
        expected = (reference.recursive_doubling(vectors) if short else reference.ring(vectors))[0]
    assert set(run_nested(ranks_of, sums_of(vectors))) == {expected.tobytes()}


def test_three_levels_nest() -> None:
    """Threads are summed first, then the processes of a host, then hosts; the ledgers count what the formula says."""
    ranks_of, host_of = [2, 2, 3, 1], [0, 0, 1, 1]
    processes = [k for k, count in enumerate(ranks_of) for _ in range(count)]
    hosts = [host_of[process] for process in processes]
    vectors = inexact(8, 50)

    def program(group: Group) -> tuple[bytes, Cost]:
        mine = vectors[group.rank].copy()
        group.allreduce(mine)
        return mine.tobytes(), spent(group)

    in_process = [
        reference.hierarchical([vectors[r] for r in range(8) if processes[r] == k], [0] * ranks_of[k])[0]
        for k in range(4)
    ]
    expected = reference.hierarchical(in_process, host_of)[0].tobytes()
    for rank, (bits, cost) in enumerate(run_nested(ranks_of, program, hosts=hosts)):
        assert bits == expected
        assert cost == allreduce_cost(rank, 8, 50, 8, "auto", hosts, processes)


def test_ranks_without_a_way_to_each_other_say_so() -> None:
    """A second rank of a process reaches its own process alone; the error names both ends."""

    def program(transport: AbstractTransport) -> None:
        if transport.rank == 1:
            with pytest.raises(InvalidParameterError, match="rank 1 of 4 has no way to rank 2"):
                transport.send(2, np.zeros(1))
        if transport.rank == 0:
            with pytest.raises(InvalidParameterError, match="rank 0 of 4 has no way to rank 3"):
                transport.recv(3, np.zeros(1))

    with nested_gang([2, 2]) as transports:
        raise_first(run_ranks([lambda t=t: program(t) for t in transports]))


def test_wrong_layouts_are_refused() -> None:
    """Counts must fit the processes and the ledgers, and the ranks of a process be consecutive."""
    (between, _) = inproc.connect(2)
    for ranks_of, n_ledgers in (([1], 1), ([2, 1], 1)):
        ledgers = [RankLedger(rank) for rank in range(n_ledgers)]
        with pytest.raises(InvalidParameterError, match="ranks_of"):
            connect_nested(between, ranks_of, ledgers=ledgers, abort=AbortFlag(), timeout_s=1.0)
    (alone,) = inproc.connect(1)
    with pytest.raises(InvalidParameterError, match="processes"):
        Group(alone, processes=[0, 0])
    with pytest.raises(InvalidParameterError, match="one after the other"):
        Group(inproc.connect(3)[0], processes=[0, 1, 0])


def test_a_rank_that_does_not_come_is_named_by_the_leader_that_waits_for_its_process() -> None:
    """When a process hangs, the first error is that of a leader, before the deadline of those who wait for it."""
    errors: list[tuple[int, BaseException]] = []
    lock = threading.Lock()

    def program(transport: AbstractTransport) -> None:
        if transport.rank == 2:
            return  # its process says nothing, and the other rank of it waits
        try:
            Group(transport).allreduce(np.ones(1))
        except (GangTimeoutError, AbortedError) as error:
            with lock:
                errors.append((transport.rank, error))
            transport.close()

    with nested_gang([2, 2], timeout_s=1.0) as transports:
        transports[0].set_deadline(0.3)
        transports[1].set_deadline(0.3)
        raise_first(run_ranks([lambda t=t: program(t) for t in transports]))
    assert errors[0][0] == 0
    assert isinstance(errors[0][1], GangTimeoutError)
    assert "their first ranks are 0, 2" in errors[0][1].__notes__[0]
    assert {rank for rank, _ in errors} == {0, 1, 3}
