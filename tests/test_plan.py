"""The plan: which rank trains on which blocks, on which worker."""

from __future__ import annotations

import itertools
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.runtime.plan import Block, WorkerInfo, make_plan


def workers_of(n: int, n_hosts: int = 1) -> list[WorkerInfo]:
    return [WorkerInfo(f"tcp://10.0.0.{k % n_hosts}:{9000 + k}", f"10.0.0.{k % n_hosts}", str(k)) for k in range(n)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Block], list[WorkerInfo]]:
    workers = workers_of(draw(st.integers(1, 9)), draw(st.integers(1, 3)))
    addresses = [worker.address for worker in workers]
    sizes = draw(st.lists(st.integers(0, 1000), max_size=20))
    holders = st.lists(st.sampled_from([*addresses, "tcp://elsewhere:1"]), max_size=2, unique=True)
    return [Block(k, size, tuple(draw(holders))) for k, size in enumerate(sizes)], workers


@given(clusters())
def test_every_block_goes_to_exactly_one_rank(cluster: tuple[list[Block], list[WorkerInfo]]) -> None:
    """Every block is assigned once, in ascending order within its rank, and bytes are counted right."""
    blocks, workers = cluster
    plan = make_plan(blocks, workers)
    assert sorted(k for rank in plan.ranks for k in rank.blocks) == list(range(len(blocks)))
    for number, rank in enumerate(plan.ranks):
        assert rank.rank == number
        assert list(rank.blocks) == sorted(rank.blocks)
        assert rank.nbytes == sum(blocks[k].nbytes for k in rank.blocks)
        away = [k for k in rank.blocks if rank.worker.address not in blocks[k].holders]
        assert rank.nbytes_moved == sum(blocks[k].nbytes for k in away)


@given(clusters())
def test_loads_are_balanced(cluster: tuple[list[Block], list[WorkerInfo]]) -> None:
    """No rank gets more than 1.2 times the mean, or the mean and one block."""
    blocks, workers = cluster
    sizes = [max(block.nbytes, 1) for block in blocks]
    mean = sum(sizes) / len(workers)
    for rank in make_plan(blocks, workers).ranks:
        load = sum(sizes[k] for k in rank.blocks)
        assert load <= max(1.2 * mean, mean + max(sizes, default=0)) + 1e-9


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
    """Rank numbers of one host are consecutive, and each worker has one rank."""
    plan = make_plan(*cluster)
    hosts = [rank.worker.host for rank in plan.ranks]
    changes = sum(a != b for a, b in itertools.pairwise(hosts))
    assert changes == len(set(hosts)) - 1
    assert len(set(plan.addresses)) == len(plan.ranks) == len(cluster[1])


def test_blocks_stay_where_they_are_when_that_is_balanced() -> None:
    """Nothing moves when every worker holds the same number of bytes."""
    workers = workers_of(4)
    blocks = [Block(k, 100, (workers[k * 7 % 4].address,)) for k in range(12)]
    assert all(rank.nbytes_moved == 0 for rank in make_plan(blocks, workers).ranks)


def test_blocks_on_one_worker_are_spread() -> None:
    """A worker that holds everything gives the others their share."""
    workers = workers_of(3)
    blocks = [Block(k, 100, (workers[0].address,)) for k in range(6)]
    assert [len(rank.blocks) for rank in make_plan(blocks, workers).ranks] == [2, 2, 2]


def test_rank_numbers_follow_the_blocks() -> None:
    """On one host, which worker holds which blocks changes neither the ranks' blocks nor their order."""
    workers = workers_of(3)
    plans = []
    for shift in range(3):
        blocks = [Block(k, 100, (workers[(k + shift) % 3].address,)) for k in range(7)]
        plans.append([rank.blocks for rank in make_plan(blocks, workers).ranks])
    assert plans[0] == plans[1] == plans[2]


def test_names_are_ordered_as_numbers() -> None:
    """Workers without blocks are numbered by name, 10 after 9, whatever their ports are."""
    workers = [WorkerInfo(f"tcp://h:{60000 - k}", "h", str(k)) for k in range(12)]
    assert [rank.worker.name for rank in make_plan([], workers).ranks] == [str(k) for k in range(12)]


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


def test_more_ranks_than_workers_are_refused() -> None:
    """The error says how many workers there are."""
    with pytest.raises(ClusterError, match=r"3 ranks need 3 worker processes.*has 2"):
        make_plan([], workers_of(2), 3)
    with pytest.raises(ClusterError, match="no running worker"):
        make_plan([], [])
    with pytest.raises(InvalidParameterError, match="n_ranks"):
        make_plan([], workers_of(2), 0)


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    """A share that does not fit is refused before anything moves."""
    worker = WorkerInfo("tcp://h:1", "h", "0", memory_limit=2**30)
    with pytest.raises(ClusterError, match=r"rank 0 on worker tcp://h:1 .*1\.00 GiB.*0\.80 GiB.*1\.00 GiB"):
        make_plan([Block(0, 2**29, ())], [worker])
    assert make_plan([Block(0, 2**28, ())], [worker]).ranks[0].nbytes == 2**28
