"""The seconds of ranks that exchange with a server, by the queue at its port.

Problem: what a server can serve does not follow from one message: P workers post at the same time, and wait.

Method: workers post a message after each of their rounds, which the port of the server takes in one after another; the
server passes over the model and answers, by its other port. A server that waits for a number of messages answers all
of them at once. Rounds soon become alike, so a few are played and the others taken to last as long.

Cost: some microseconds for each message that is played.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from dsgd.types import FloatMatrix


class Desk(NamedTuple):
    """A server, as its workers meet it."""

    latency_s: float
    busy_s: float
    work_s: float
    wanted: int = 1
    answers_every: int = 1


def served_s(desk: Desk, work_s: FloatMatrix) -> float:
    """Return when the last worker has its last answer."""
    n_workers, n_rounds = work_s.shape
    work = work_s.tolist()
    ready = [(line[0], worker) for worker, line in enumerate(work)]
    heapq.heapify(ready)
    # Messages that a worker has sent; and for how many answers of a step it has waited.
    sent, begun = [0] * n_workers, [0] * n_workers
    in_free = served = out_free = last = 0.0
    steps, waiting, going = 0, list[int](), n_workers
    while ready:
        at, worker = heapq.heappop(ready)
        sent[worker] += 1
        is_last = sent[worker] == n_rounds
        going -= is_last
        in_free = max(at + desk.latency_s, in_free) + desk.busy_s
        served = max(served, in_free) + desk.work_s
        if sent[worker] % desk.answers_every and not is_last:
            heapq.heappush(ready, (at + work[worker][sent[worker]], worker))
            continue
        answered = [worker]
        if desk.wanted > 1 and begun[worker] == steps:
            waiting.append(worker)
            full = len(waiting) >= desk.wanted or not ready
            answered, waiting = (waiting, []) if full else ([], waiting)
            steps += full
        for other in answered:
            out_free = max(served, out_free) + desk.busy_s
            back = out_free + desk.latency_s
            begun[other] = steps
            last = max(last, back)
            if sent[other] < n_rounds:
                heapq.heappush(ready, (back + work[other][sent[other]], other))
    return last
