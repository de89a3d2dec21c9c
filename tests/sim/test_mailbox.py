"""Mailboxes on the virtual clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.comm.base import MAX_OUTSTANDING
from dsgd.comm.frames import HEADER_BYTES, AbortFlag
from dsgd.errors import AbortedError, ProtocolError
from dsgd.ledger import RankLedger
from dsgd.runtime.threads import root_cause, run_threads
from dsgd.sim import Link, Network
from dsgd.sim.cluster import LOOK_S, Fabric, connect
from dsgd.sim.events import EventScheduler

ALPHA, BETA = 1e-3, 1.03e-6
FLAT = Network("flat", Link(byte_s=BETA, overhead_s=ALPHA), Link(byte_s=BETA, overhead_s=ALPHA))
FRAME_S = ALPHA + BETA * (HEADER_BYTES + 8)


def play(program: Any, n: int, network: Network = FLAT) -> list[float]:
    """Run ``program(mailbox, clock)`` on n ranks; return what their clocks show in the end."""
    abort = AbortFlag()
    scheduler = EventScheduler(n, abort)
    ledgers = [RankLedger(rank, clock, timing_cost_s=0.0) for rank, clock in enumerate(scheduler.clocks)]
    mailboxes = connect(Fabric(network, scheduler), ledgers, abort)
    errors: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        try:
            scheduler.begin(rank)
            program(mailboxes[rank], scheduler.clocks[rank])
        except BaseException as error:
            errors.append((rank, error))
            abort.set("failed")
        finally:
            mailboxes[rank].close()
            scheduler.end(rank)

    run_threads(work, range(n), abort)
    if errors:
        raise root_cause(errors)
    return [clock.now for clock in scheduler.clocks]


def number(value: float) -> np.ndarray:
    """One float64."""
    return np.array([value], dtype=np.float64)


def test_a_post_costs_its_sender_nothing_and_comes_in_time():
    """A rank that posts continues at once; a look before the frame has arrived finds nothing, a later one does."""
    seen = []

    def program(box, clock):
        if box.rank == 0:
            box.post(1, number(3.0))
            assert clock.now == 0.0
            return
        seen.append(clock.now)
        while not box.poll(0):
            seen.append(clock.now)
        out = number(0.0)
        box.take(0, out)
        assert out[0] == 3.0

    play(program, 2)
    assert seen[-2] < FRAME_S <= seen[-1]
    assert np.diff(seen) == pytest.approx(LOOK_S)


def test_whoever_comes_first_is_served_first():
    """A rank that waits for any peer wakes for the frame that arrives first, whichever was posted first."""
    order = []

    def program(box, clock):
        if box.rank == 0:
            for _ in range(3):
                served = [source for source, _ in order]
                source = box.wait_any([rank for rank in (1, 2, 3) if rank not in served])
                order.append((source, clock.now))
                box.take(source, number(0.0))
            return
        clock.now = {1: 0.0, 2: 0.02, 3: 0.01}[box.rank]
        box.post(0, number(1.0))

    far = FLAT.with_link(0, 1, Link(byte_s=BETA, overhead_s=ALPHA, latency_s=0.03))
    play(program, 4, far)
    assert [source for source, _ in order] == [3, 2, 1]
    assert [at for _, at in order] == pytest.approx([0.01 + FRAME_S, 0.02 + FRAME_S, 0.03 + FRAME_S], rel=0.05)


def test_a_wait_ends_at_its_time():
    """A look that waits returns nothing when its time is over, and the frame if that comes before."""

    def program(box, clock):
        if box.rank == 1:
            clock.now = 0.5
            box.post(0, number(1.0))
            return
        assert box.ready((1,), 0.25) is None
        assert clock.now == pytest.approx(0.25, abs=2 * LOOK_S)
        assert box.ready((1,), 1.0) == 1
        assert clock.now == pytest.approx(0.5 + FRAME_S)

    play(program, 2)


def test_a_full_box_makes_the_sender_wait():
    """A limited number of frames can be under way until they are taken; the next one is posted when there is room."""

    def program(box, clock):
        if box.rank == 0:
            for k in range(MAX_OUTSTANDING + 1):
                box.post(1, number(k))
            assert clock.now == pytest.approx(10.0)
            return
        clock.now = 10.0
        out = number(0.0)
        for k in range(MAX_OUTSTANDING + 1):
            box.take(0, out)
            assert out[0] == k

    play(program, 2)


def test_who_leaves_is_missed_after_his_mail():
    """Frames that a rank posted before it left are taken; then a rank that waits for it gets an error."""

    def program(box, clock):
        if box.rank == 0:
            box.post(1, number(7.0))
            return
        out = number(0.0)
        box.take(0, out)
        assert out[0] == 7.0
        assert box.wait_any((0,)) == 0
        with pytest.raises(AbortedError, match="went away"):
            box.take(0, out)

    play(program, 2)


def test_all_that_wait_for_mail_are_named():
    """Ranks that wait for mail of each other are told at once who waits for whom."""
    with pytest.raises(ProtocolError, match="rank 0 waits for mail of ranks 1, 2; rank 1 waits for mail of rank 2"):
        play(lambda box, clock: box.wait_any({0: (1, 2), 1: (2,), 2: (0,)}[box.rank]), 3)
