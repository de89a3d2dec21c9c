"""The plan: which ranks train on which blocks, on which worker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dsgd.errors import ClusterError, InvalidParameterError, MemoryLimitError
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.plan import Block, WorkerInfo, make_plan


def workers_of(n: int, n_hosts: int = 1, threads: Sequence[int] | None = None) -> list[WorkerInfo]:
    threads = [1] * n if threads is None else threads
    hosts = [f"10.0.0.{k % n_hosts}" for k in range(n)]
    return [WorkerInfo(f"tcp://{hosts[k]}:{9000 + k}", hosts[k], str(k), threads[k]) for k in range(n)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Block], list[WorkerInfo]]:
    n = draw(st.integers(1, 9))
    workers = workers_of(n, draw(st.integers(1, 3)), draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    addresses = [worker.address for worker in workers]
    sizes = draw(st.lists(st.integers(0, 1000), max_size=20))
    holders = st.lists(st.sampled_from([*addresses, "tcp://elsewhere:1"]), max_size=2, unique=True)
    return [Block(k, size, tuple(draw(holders))) for k, size in enumerate(sizes)], workers


@given(clusters())
def test_every_block_goes_to_exactly_one_member(cluster: tuple[list[Block], list[WorkerInfo]]) -> None:
    """Every block is assigned once, in ascending order within its member, and bytes are counted right."""
    blocks, workers = cluster
    plan = make_plan(blocks, workers)
    assert sorted(k for member in plan.members for k in member.blocks) == list(range(len(blocks)))
    for member in plan.members:
        assert list(member.blocks) == sorted(member.blocks)
        assert member.nbytes == sum(blocks[k].nbytes for k in member.blocks)
        away = [k for k in member.blocks if member.worker.address not in blocks[k].holders]
        assert member.nbytes_moved == sum(blocks[k].nbytes for k in away)


@given(clusters())
def test_loads_are_balanced(cluster: tuple[list[Block], list[WorkerInfo]]) -> None:
    """A rank of no member gets more than 1.2 times the mean, or the mean and one block."""
    blocks, workers = cluster
    sizes = [max(block.nbytes, 1) for block in blocks]
    plan = make_plan(blocks, workers)
    mean = sum(sizes) / plan.n_ranks
    for member in plan.members:
        load = sum(sizes[k] for k in member.blocks) / member.n_ranks
        assert load <= max(1.2 * mean, mean + max(sizes, default=0)) + 1e-9


@given(clusters(), st.one_of(st.none(), st.integers(1, 6)), st.data())
def test_ranks_are_numbered_through_and_spread_over_the_threads(
    cluster: tuple[list[Block], list[WorkerInfo]], per_worker: int | None, data: st.DataObject
) -> None:
    """Ranks of a member are consecutive, no worker runs more than it may, and fewer ranks are spread evenly."""
    blocks, workers = cluster
    room = {w.address: min(w.nthreads, per_worker or w.nthreads) for w in workers}
    n_ranks = data.draw(st.one_of(st.none(), st.integers(1, sum(room.values()))))
    plan = make_plan(blocks, workers, n_ranks, per_worker)
    assert plan.n_ranks == (n_ranks or sum(room.values()))
    numbers = [r for m in plan.members for r in range(m.first_rank, m.first_rank + m.n_ranks)]
    assert numbers == list(range(plan.n_ranks))
    most = max(plan.ranks_of)
    for member in plan.members:
        assert 1 <= member.n_ranks <= room[member.worker.address]
        assert member.n_ranks >= min(most - 1, room[member.worker.address])


@given(clusters(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_workers(
    cluster: tuple[list[Block], list[WorkerInfo]], shuffler: random.Random
) -> None:
    """The same workers in another order give the same plan."""
    blocks, workers = cluster
    shuffled = list(workers)
    shuffler.shuffle(shuffled)
    assert make_plan(blocks, workers) == make_plan(blocks, shuffled)


@given(clusters())
def test_ranks_of_a_host_are_neighbours(cluster: tuple[list[Block], list[WorkerInfo]]) -> None:
    """Members of one host are consecutive, and each worker is one member."""
    plan = make_plan(*cluster)
    hosts = [member.worker.host for member in plan.members]
    changes = sum(a != b for a, b in itertools.pairwise(hosts))
    assert changes == len(set(hosts)) - 1
    assert len(set(plan.addresses)) == len(plan.members) == len(cluster[1])


def test_blocks_stay_where_they_are_when_that_is_balanced() -> None:
    """Nothing moves when every worker holds the same number of bytes."""
    workers = workers_of(4)
    blocks = [Block(k, 100, (workers[k * 7 % 4].address,)) for k in range(12)]
    assert all(member.nbytes_moved == 0 for member in make_plan(blocks, workers).members)


def test_rank_numbers_follow_the_blocks() -> None:
    """On one host, which worker holds which blocks changes neither the ranks' blocks nor their order."""
    workers = workers_of(3)
    plans = []
    for shift in range(3):
        blocks = [Block(k, 100, (workers[(k + shift) % 3].address,)) for k in range(7)]
        plans.append([member.blocks for member in make_plan(blocks, workers).members])
    assert plans[0] == plans[1] == plans[2]


def test_names_are_ordered_as_numbers() -> None:
    """Workers without blocks are numbered by name, 10 after 9, whatever their ports are."""
    workers = [WorkerInfo(f"tcp://h:{60000 - k}", "h", str(k)) for k in range(12)]
    assert [member.worker.name for member in make_plan([], workers).members] == [str(k) for k in range(12)]


def test_fewer_ranks_go_to_free_workers_that_hold_most() -> None:
    """With fewer ranks than workers the busy ones are left alone and data decide among the others."""
    workers = workers_of(4)
    workers[3] = WorkerInfo(workers[3].address, workers[3].host, "3", busy=True)
    blocks = [
        Block(0, 10, (workers[0].address,)),
        Block(1, 99, (workers[3].address,)),
        Block(2, 50, (workers[2].address,)),
    ]
    assert set(make_plan(blocks, workers, 2).addresses) == {workers[0].address, workers[2].address}


def test_more_ranks_than_threads_are_refused() -> None:
    """The error says how many there is room for."""
    with pytest.raises(ClusterError, match=r"4 ranks need 4 threads.*2 running workers have room for 3"):
        make_plan([], workers_of(2, threads=[1, 2]), 4)
    with pytest.raises(ClusterError, match=r"room for 2"):
        make_plan([], workers_of(2, threads=[1, 2]), 3, 1)
    with pytest.raises(ClusterError, match="no running worker"):
        make_plan([], [])
    with pytest.raises(InvalidParameterError, match="n_ranks"):
        make_plan([], workers_of(2), 0)
    with pytest.raises(InvalidParameterError, match="ranks_per_worker"):
        make_plan([], workers_of(2), 1, 0)


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    """A share that does not fit is refused before anything moves, with bytes needed and available, and advice."""
    worker = WorkerInfo("tcp://h:1", "h", "0", memory_limit=1000 * 2**20, memory_used=200 * 2**20)
    fitting = Block(0, 100 * 2**20, (worker.address,), packed=480 * 2**20)
    assert make_plan([fitting], [worker], demand=MemoryDemand(per_rank=20 * 2**20)).members[0].nbytes == fitting.nbytes
    with pytest.raises(MemoryLimitError) as caught:
        make_plan([fitting], [worker], demand=MemoryDemand(per_rank=20 * 2**20 + 1, advice="Buy some."))
    assert str(caught.value) == (
        "rank 0 on worker tcp://h:1 (host h), with 1 blocks, needs 600 MiB (629,145,601 bytes) and has 600 MiB "
        "(629,145,600 bytes) available: 80% of its limit of 1,000 MiB, less 200 MiB in use. Buy some."
    )
    with pytest.raises(MemoryLimitError):  # a block that comes from elsewhere is kept until it is packed
        make_plan([replace(fitting, holders=())], [worker])
    assert make_plan([replace(fitting, packed=2**40)], [replace(worker, memory_limit=0)]).members
