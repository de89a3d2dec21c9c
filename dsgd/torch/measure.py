"""Timing the layers of a module, to predict steps on many ranks."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

import torch
from torch import nn

from dsgd.sim.scaling import Node
from dsgd.torch.trace import calls_of

# Nominal rates of layers that were not measured; those that were do not use them.
_FLOP_PER_S, _MEMORY_BYTES_PER_S = 1e10, 5e9


def measure_node(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    rows: tuple[int, int] = (16, 96),
    repeats: int = 20,
    beside: int = 0,
    step_s: float = 0.0,
) -> Node:
    """Return a node that knows what the layers of a module take here, forward and backward.

    Every layer is run by itself on random inputs of two lengths, and the line through both times is taken for all.

    Parameters
    ----------
    module : torch.nn.Module
        The module; its parameters are only read.
    input_shape : sequence of int
        Shape of a sample, without the batch.
    rows : tuple of int
        The two lengths of a batch.
    repeats : int, default 20
        How often each is timed; the median counts.
    beside : int, default 0
        How many threads do the same meanwhile, for the time that layers take where other ranks compute too.
    step_s : float, default 0
        Seconds of a step beside its layers, passed on to the node.

    Returns
    -------
    Node
        With times for all layers that `dsgd.torch.trace` finds.
    """
    calls = calls_of(module, input_shape)
    stop = threading.Event()
    others = [threading.Thread(target=_keep_busy, args=(calls, max(rows), stop), daemon=True) for _ in range(beside)]
    for thread in others:
        thread.start()
    try:
        found = {}
        for number, (name, part, given, _) in enumerate(calls):
            few, many = (_pass_seconds(part, given, n, repeats, is_first=number == 0) for n in rows)
            row_s = max(0.0, (many - few) / (rows[1] - rows[0]))
            found[name] = (max(0.0, few - rows[0] * row_s), row_s)
    finally:
        stop.set()
        for thread in others:
            thread.join()
    return Node("this machine", _FLOP_PER_S, _MEMORY_BYTES_PER_S, step_s=step_s, measured=found, source="measured")


def _pass_seconds(part: nn.Module, given: torch.Tensor, rows: int, repeats: int, *, is_first: bool) -> float:
    """Return the mean seconds of a pass over a layer, of which a step has two or three."""
    parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
    n_passes = 1 + bool(parameters) + (not is_first)
    seconds = []
    for _ in range(repeats):
        inputs = torch.rand(rows, *given.shape[1:], dtype=given.dtype, device=given.device)
        inputs.requires_grad_(not is_first)
        begin = time.perf_counter()
        result = part(inputs)
        result = result[0] if isinstance(result, tuple) else result
        wanted = parameters + [inputs] * (not is_first)
        if wanted:
            torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) / n_passes


def _keep_busy(
    calls: Sequence[tuple[str, nn.Module, torch.Tensor, torch.Tensor]], rows: int, stop: threading.Event
) -> None:
    while not stop.is_set():
        for number, (_, part, given, _result) in enumerate(calls):
            _pass_seconds(part, given, rows, 1, is_first=number == 0)
