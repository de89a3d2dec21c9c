"""How long one thread of this machine computes a step of each network: measured, forward and backward.

A whole batch of the publication would take minutes on one thread. So two small batches are timed, in turns, and the
time of the batch is extended from them in a straight line: a part that every step has, such as the gradient of weights
that are read once, and a part for each row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from dsgd.study.frame.rows import Row

__all__ = ["extended", "time_network"]


def extended(small: tuple[int, float], large: tuple[int, float], batch: int) -> float:
    """Return the seconds of a batch on the line through two batches; both are (rows, seconds)."""
    per_row = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return small[1] + (batch - small[0]) * per_row


def time_network(name: str, batches: tuple[int, int], batch: int, repeats: int) -> Row:
    """Return how long forward and backward passes of a network take on one thread.

    Parameters
    ----------
    name : str
        A model of the publication; see `dsgd.study.gtopk.MODELS`.
    batches : tuple of int
        Rows of the two batches that are timed, the smaller first.
    batch : int
        Rows of the batch that the time is extended to.
    repeats : int
        How often each batch is timed, after one pass that is not.

    Returns
    -------
    dict
        ``seconds``, that of `batch` in each repetition, ``timed``, those of both batches, and ``n_params``.
    """
    import torch

    from dsgd.study.gtopk.networks import BUILDERS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            build, rows_of = BUILDERS[name]
            network = build()
            taken = list(_passes(network, [rows_of(size) for size in batches], repeats))
    finally:
        torch.set_num_threads(threads)
    small, large = batches
    return {
        "seconds": [extended((small, one), (large, other), batch) for one, other in taken],
        "timed": taken,
        "n_params": sum(parameter.numel() for parameter in network.parameters()),
    }


def _passes(network: Any, data: Sequence[tuple[Any, Any]], repeats: int) -> Iterator[list[float]]:
    """Yield the seconds of a pass over each batch, once for each repetition."""
    from torch.nn.functional import cross_entropy

    for number in range(repeats + 1):
        taken = []
        for inputs, targets in data:
            network.zero_grad(set_to_none=True)
            begin = time.perf_counter()
            cross_entropy(network(inputs), targets).backward()
            taken.append(time.perf_counter() - begin)
        if number:
            yield taken
