"""The work of both parties in one process, with nothing sent: no way can be faster on this memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from dsgd.study.frame.rows import Row
from dsgd.study.transports.pairs import Amount, digest, time_row, warm_up
from dsgd.study.transports.parties import Work, make_party


def run_alone(works: Sequence[tuple[Work, Amount]]) -> list[Row]:
    """Return the rows of some works, and in each ``copy_s``, the seconds of a copy of a message."""
    return [_run(work, amount) for work, amount in works]


def _run(work: Work, amount: Amount) -> Row:
    first, second = make_party(work, True), make_party(work, False)
    up, down = np.zeros(work.n, np.float32), np.zeros(work.n, np.float32)
    got = None

    def play(n: int) -> list[float]:
        nonlocal got
        seconds = []
        for _ in range(n):
            begin = time.perf_counter()
            first.turn(got, up)
            second.turn(up, down)
            got = down
            seconds.append(time.perf_counter() - begin)
        return seconds

    n = amount.after(min(play(warm_up(work))))
    found, copies = time_row(play(n)), []
    for _ in range(n):
        begin = time.perf_counter()
        np.copyto(up, down)
        copies.append(time.perf_counter() - begin)
    return {**found, "copy_s": float(np.median(copies)), "digest": digest(down)}
