"""SGD by threads that share memory: many rounds of local steps and averaging in one call, and steps without locks.

Problem: a step on a row takes a tenth of a microsecond, and a round that passes through Python twenty. With an average
after every few rows, most of the time goes to the interpreter.

Update: what `dsgd.sync.LocalSGD` says, ``x_p <- sum_q v_q x_q`` after every round of local steps, v_q a rank's share.

Each rank has a box that the others read: a counter of the rounds that it has published and two slots for vectors, used
in turn. In round k a rank takes its steps, writes its weighted model into slot k mod 2, publishes k, waits until every
counter has reached k and adds up the slots. Two slots are enough: a rank that publishes k has read all of round k - 2.
Sums are taken in the order of recursive doubling, so that they equal those of `dsgd.collectives` bit for bit.

Rank 0 says in its box after which round all ranks leave the loop, so that they come back to Python at the same round.

Cost per round: one read of a cache line per peer and 64 bytes of the model; no system call, no wake-up. A rank that
waits keeps its core for as long as a wake-up takes, then it sleeps, and the peer that it waits for wakes it: where
other programs want the cores too, a rank that kept its core would only take it from its peers.

Ranks that are threads sleep inside the kernel, where they need no interpreter lock (`dsgd.kernels.atomics`). Others
leave it to sleep.

Source: the counters are those of Lamport 1983; sense-reversing barriers (Mellor-Crummey and Scott 1991) wait likewise.

**SGD steps on one model that several threads update at once, without locks.**

Threads may read a weight that another one is about to change, and of two that change the same weight at the same moment
one may be lost; a word is never torn. So a step may touch the weights of its row's columns and no other one: the
penalty of a step goes to these alone, divided by how often a row has them, which adds up to the penalty on all weights.

Source: Recht, Re, Wright and Niu 2011 (their equation 5 for the penalty).
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from numba import carray, types

from dsgd.kernels import state
from dsgd.kernels.atomics import (
    barrier,
    copy_bytes,
    core_of,
    leave_core_in,
    load,
    pointer_like,
    ring_if_asleep,
    sleep_in,
    store,
)
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.order import block_at, rows_ahead
from dsgd.kernels.rows import RowArrays, Span, Sparse, ask_ahead, row_bounds
from dsgd.kernels.scaled import penalty_received, to_dual, to_primal
from dsgd.kernels.sgd import run_rows
from dsgd.kernels.softmax import loss_and_slopes
from dsgd.kernels.state import Steps
from dsgd.types import FloatMatrix, FloatVector, IntVector

# What `run_rounds` returns.
DONE: Final = 0
LATE: Final = 1  # a peer lets this rank wait and will ring; sleep and call again
FULL: Final = 2  # no room for another sample; call again
ABORTED: Final = 3
BROKEN: Final = 4  # a counter shows what it cannot show

#: The largest vector that fits a slot of more than two ranks; beyond it, rings sum in another order.
SLOT_BYTES: Final = 64 * 1024
# Places in a box. Cache lines are fetched in pairs.
PUBLISHED_AT: Final = 0
LEAVE_AT: Final = 8  # and one word further for odd rounds
GONE_AT: Final = 24
ASLEEP_AT: Final = 32
# How many rounds a rank had published when it last had to wait, and on which core that was.
LATE_AT: Final = 40
CORE_AT: Final = 48
_SLOTS_AT: Final = 128


def box_bytes(slot_bytes: int) -> int:
    """Return the length of a box with slots of so many bytes."""
    return _SLOTS_AT + 2 * slot_bytes


# What a rank keeps from call to call, by place in an int64 vector.
RANK: Final = 0
PUBLISHED: Final = 1  # rounds ever published, by any vector
NUMBER: Final = 2  # the round of the epoch that comes next or is waited for
STOP: Final = 3  # the round of the epoch before which all ranks leave
LAST: Final = 4  # rank 0: the round after which all ranks leave, if that is sooner
WAITS: Final = 5  # whether the vector of the present round is published
NEXT_TIMED: Final = 6
STRIDE: Final = 7
N_SAMPLES: Final = 8
LATE_RANK: Final = 9
BEGIN: Final = 10  # the row of this rank at which its round 0 begins
STRETCH: Final = 11  # rows that are walked at a time, where the rank loop would call a kernel anew
SLOT: Final = 12  # bytes of a slot
BED: Final = 13  # address of the bed in which this rank sleeps inside the kernel; 0 if it has to leave it
N_PLACES: Final = 16
N_STAMPS: Final = 4

# How often a rank looks at the counters of its peers before it sleeps in `Window.wait`.
_POLLS: Final = 40_000
_POLLS_PER_LOOK: Final = 64
# The longest sleep inside the kernel: what has happened to the job is seen outside.
_NAP_MS: Final = 50
#: Ranks that take turns on a core each run until they have to wait, one round further than the other.
TURN: Final = 2

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_CLOCK: Final = np.int32(time.CLOCK_MONOTONIC)


@scalar
def _now(stamps: FloatVector) -> Any:
    """Return seconds on the clock of `time.perf_counter`; the last two entries of `stamps` are scratch."""
    address = stamps.ctypes.data + 8 * N_STAMPS
    _clock_gettime(_CLOCK, address)
    return load(address) + 1e-9 * load(address + 8)


@scalar
def _slot(box: int, number: int, slot_bytes: int, like: FloatVector) -> Any:
    return carray(pointer_like(box + _SLOTS_AT + (number & 1) * slot_bytes, like), like.shape[0])


@scalar
def _publish(
    boxes_out: IntVector,
    boxes_in: IntVector,
    bells: IntVector,
    places: IntVector,
    params: FloatVector,
    weight: float,
    leaves: bool,
) -> None:
    """Write the weighted model into all boxes of this rank, publish it, and wake sleeping peers."""
    number = places[PUBLISHED]
    first = _slot(boxes_out[0], number, places[SLOT], params)
    n = np.uint64(params.shape[0])
    if weight == 0.0:
        # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
        for j in range(n):
            first[j] = 0.0
    else:
        factor = params.dtype.type(weight)
        for j in range(n):
            first[j] = params[j] * factor
    for k in range(boxes_out.shape[0]):
        box = boxes_out[k]
        if k > 0:
            offset = _SLOTS_AT + (number & 1) * places[SLOT]
            copy_bytes(box + offset, boxes_out[0] + offset, np.uint64(params.nbytes))
        # Two words, by turns: a slower peer may still have to read that of the round before.
        store(box + LEAVE_AT + 8 * (number & 1), 1 if leaves else 0)
        # Last, as a release: a peer that sees the counter also sees the vector and the word above.
        store(box + PUBLISHED_AT, number + 1)
    places[PUBLISHED] = number + 1
    for rank in range(boxes_in.shape[0]):
        if bells[rank] >= 0:
            ring_if_asleep(boxes_in[rank] + ASLEEP_AT, bells[rank], bells.ctypes.data)


@scalar
def _sleep(boxes_out: IntVector, boxes_in: IntVector, places: IntVector, peer: int) -> Any:
    """Sleep, or leave the core on which the peer has just waited, too; return False if nobody has rung for long."""
    core, published = core_of(), places[PUBLISHED]
    for k in range(boxes_out.shape[0]):
        store(boxes_out[k] + CORE_AT, core)
        store(boxes_out[k] + LATE_AT, published)
    # One of the two has to stay.
    if core >= 0 and peer < places[RANK]:
        late = load(boxes_in[peer] + LATE_AT)
        is_shared = late != 0 and published - late <= TURN and load(boxes_in[peer] + CORE_AT) == core
        if is_shared and leave_core_in(places[BED], core):
            return True
    return sleep_in(places[BED], _NAP_MS)


@scalar
def _await_peers(boxes_out: IntVector, boxes_in: IntVector, places: IntVector, abort: IntVector) -> Any:
    """Wait until every peer has published as many rounds as this rank; for some microseconds, then say asleep."""
    due = places[PUBLISHED]
    for rank in range(boxes_in.shape[0]):
        if rank == places[RANK]:
            continue
        polls = 0
        shown = load(boxes_in[rank] + PUBLISHED_AT)
        while shown < due:
            polls += 1
            if polls % _POLLS_PER_LOOK == 0 and load(abort.ctypes.data) != 0:
                return ABORTED
            if polls == _POLLS:
                # Whoever rings takes the word down again.
                for k in range(boxes_out.shape[0]):
                    store(boxes_out[k] + ASLEEP_AT, 1)
                # A full barrier before the last look: else the peer might publish without seeing the word while this
                # rank does not see its counter, and no byte would wake this rank.
                barrier()
            if polls > _POLLS:
                if places[BED] == 0 or not _sleep(boxes_out, boxes_in, places, rank):
                    places[LATE_RANK] = rank
                    return LATE
                polls = 0
                if load(abort.ctypes.data) != 0:
                    return ABORTED
            shown = load(boxes_in[rank] + PUBLISHED_AT)
        # A peer cannot be two rounds ahead, since it waits for this rank in each.
        if shown > due + 1:
            places[LATE_RANK] = rank
            return BROKEN
    return DONE


@scalar
def _add_up(boxes_in: IntVector, number: int, slot_bytes: int, params: FloatVector, parts: FloatMatrix) -> None:
    """Write into `params` the sum of the slots of all ranks, in the order of recursive doubling."""
    size = boxes_in.shape[0]
    n = np.uint64(params.shape[0])
    if size == 2:
        a, b = _slot(boxes_in[0], number, slot_bytes, params), _slot(boxes_in[1], number, slot_bytes, params)
        for j in range(n):
            params[j] = a[j] + b[j]
        return
    core = parts.shape[0]
    n_folded = size - core
    for k in range(core):
        rank, part = k + min(k, n_folded), parts[k]
        a = _slot(boxes_in[rank], number, slot_bytes, params)
        if k < n_folded:
            b = _slot(boxes_in[rank + 1], number, slot_bytes, params)
            for j in range(n):
                part[j] = a[j] + b[j]
        else:
            for j in range(n):
                part[j] = a[j]
    distance = 1
    while distance < core:
        for k in range(0, core, 2 * distance):
            part, other = parts[k], parts[k + distance]
            for j in range(n):
                part[j] += other[j]
        distance *= 2
    for j in range(n):
        params[j] = parts[0, j]


@kernel
def run_rounds(
    steps: tuple[Any, ...],
    vector: FloatVector,
    n_rounds: int,
    weight: float,
    boxes_out: IntVector,
    boxes_in: IntVector,
    bells: IntVector,
    abort: IntVector,
    places: IntVector,
    stamps: FloatVector,
    parts: FloatMatrix,
    samples: FloatMatrix,
) -> int:
    """Run rounds of an epoch from ``places[NUMBER]`` on: steps on the rows of the round, then the weighted mean.

    - `steps`: what `dsgd.kernels.sgd.run_rows` takes before the places.
    - `vector`, shape (n_params,) or (n_params + 1,): what is averaged: the model itself; or, with an L1 penalty,
      the memory of the model and one entry more, where its dual is made (`dsgd.kernels.scaled`).
    - `n_rounds`: rounds of the epoch; round k is for rows ``a + (n - a) k // n_rounds`` to ``a + (n - a) (k + 1) //
      n_rounds`` with ``a = places[BEGIN]``.
    - `boxes_out`, shape (n_boxes,): addresses of the boxes of this rank: one that all peers read, or one for each
      peer.
    - `boxes_in`, shape (size,): address of the box that this rank reads of each rank; its own is ``boxes_out[0]``.
    - `bells`, shape (size,): descriptors of the sockets that wake each rank; negative for ranks that are not woken,
      such as this one.
    - `samples`, shape (n_samples, 4): filled with the seconds of every timed round: compute, encode, wire, wait, as
      `dsgd.ledger` numbers them.
    - returned: `DONE` where all ranks left the loop after the same round, before ``places[NUMBER]``; or `LATE`,
      `FULL`, `ABORTED`, `BROKEN`.
    """
    # Taken apart once: for each round, it would count a reference to every array, which takes as long as a step does.
    rows, sparse, params, beside, of_steps = steps
    received, counters = penalty_received(beside), of_steps[0]
    begin = places[BEGIN]
    n_rows = rows[2].shape[0] - begin
    has_dual = vector.shape[0] > params.shape[0]
    while places[NUMBER] < places[STOP]:
        number = places[NUMBER]
        timed = number == places[NEXT_TIMED]
        if places[WAITS] == 0:
            if timed:
                # Asked before the first step, so that the next call begins the same round.
                if places[N_SAMPLES] == samples.shape[0]:
                    return FULL
                stamps[0] = _now(stamps)
            row = begin + n_rows * number // n_rounds
            stop = begin + n_rows * (number + 1) // n_rounds
            while row < stop:
                if load(abort.ctypes.data) != 0:
                    return ABORTED
                first, row = row, min(stop, row + places[STRETCH])
                run_rows(rows, sparse, params, beside, of_steps, first, row)
            if timed:
                stamps[1] = _now(stamps)
            if has_dual:
                to_dual(vector, received, counters)
            _publish(boxes_out, boxes_in, bells, places, vector, weight, number + 1 >= places[LAST])
            if timed:
                stamps[2] = _now(stamps)
            places[WAITS] = 1
        code: int = _await_peers(boxes_out, boxes_in, places, abort)
        if code != DONE:
            return code
        if timed:
            stamps[3] = _now(stamps)
        slot = places[PUBLISHED] - 1
        _add_up(boxes_in, slot, places[SLOT], vector, parts)
        if has_dual:
            to_primal(vector, received, counters)
        leaves = load(boxes_in[0] + LEAVE_AT + 8 * (slot & 1))
        if timed:
            sample = samples[places[N_SAMPLES]]
            sample[0] = stamps[1] - stamps[0]
            sample[1] = stamps[2] - stamps[1]
            sample[2] = _now(stamps) - stamps[3]
            sample[3] = stamps[3] - stamps[2]
            places[N_SAMPLES] += 1
            places[NEXT_TIMED] += places[STRIDE]
        places[WAITS] = 0
        places[NUMBER] = number + 1
        if leaves != 0:
            break
    return DONE


@scalar
def shared_score(
    values: FloatVector, sparse: Sparse | None, span: Span, params: FloatVector, n_outputs: np.uint64, k: np.uint64
) -> float:
    """Return the score of an output."""
    (first, last), dot = span, 0.0
    n_features = np.uint64(params.shape[0]) // n_outputs - np.uint64(1)
    for j in range(first, last):
        column = j - first if sparse is None else np.uint64(sparse[0][j])
        place = k * n_features + column if sparse is None else column * n_outputs + k
        dot += values[j] * params[place]
    p: float = dot + params[n_outputs * n_features + k]
    return p


@kernel
def run_shared_rows(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    frequencies: FloatVector,
    factors: FloatVector | None,
    steps: Steps,
    stride: float,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, on a model that others step on too.

    - `frequencies`, shape (n_features,): share of all rows that have an entry in each column.
    - `factors`, shape (n_outputs,): scratch of this thread for the loss of all classes (`dsgd.kernels.softmax`),
      whose weights of classes and losses are as in `run_softmax_rows`; None for all others.
    - `stride`: by how much each row advances the step counter: one for each thread.
    """
    values, index, targets, row_weights, class_weights = rows
    counters, constants, codes, order = steps
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    dtype = params.dtype.type
    t = counters[state.T]
    loss_sum = 0.0
    guard = 0.0
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, sparse, index, i, n_features)
            span = row_bounds(index, sparse, i, n_features)
            eta = state.rate_now(counters, constants, codes, t)
            gain = 0.0
            if factors is not None:
                for k in range(n_outputs):
                    p = shared_score(values, sparse, span, params, n_outputs, k)
                    guard += p * 0.0
                    factors[k] = p
                target = np.uint64(targets[i])
                loss_sum += loss_and_slopes(factors, target)
                gain = eta * row_weights[i] * class_weights[0, target]
            for k in range(n_outputs):
                if factors is None:
                    p = shared_score(values, sparse, span, params, n_outputs, k)
                    loss, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
                    loss_sum += loss
                    counters[np.uint64(state.COUNTERS) + k] += loss
                    guard += p * 0.0  # NaN once a score was not finite
                    step = eta * slope * row_weights[i] * class_weight
                else:
                    step = gain * factors[k]
                first, last = span
                for j in range(first, last):
                    column = j - first if sparse is None else np.uint64(sparse[0][j])
                    place = k * n_features + column if sparse is None else column * n_outputs + k
                    share = eta / frequencies[column]
                    before = params[place]  # read again: other threads have stepped since the score was computed
                    after = max(0.0, 1.0 - constants[state.SHRINK_RATE] * share) * before - step * values[j]
                    owed = constants[state.L1_RATE] * share
                    if owed > 0.0:
                        after = max(0.0, after - owed) if after > 0.0 else min(0.0, after + owed)
                    params[place] = dtype(after)
                params[n_outputs * n_features + k] -= dtype(constants[state.INTERCEPT_RATE] * step)
            t += stride
    counters[state.T] = t
    if factors is not None:
        counters[state.COUNTERS] += loss_sum
    state.count_rows(counters, stop - start, loss_sum, guard)
