"""The layers of a module, found by one forward pass: what each computes, stores and passes on, and what it takes here.

A layer is a module without children, in the order in which the forward pass calls them. What a module does with its
children's weights by itself (fused attention, say) is not seen. Such parameters form a separate last layer, so that the
bytes of a step are complete.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.sim.scaling import Layer, Node, other_layer

#: The layer of what the forward pass does not call by itself.
UNSEEN = "(unseen)"
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def trace(module: nn.Module, input_shape: Sequence[int]) -> tuple[Layer, ...]:
    """Return the layers of a module, for the scaling analysis.

    Parameters
    ----------
    module : torch.nn.Module
        The module. It is run once, without gradients, in evaluation mode.
    input_shape : sequence of int
        Shape of a sample, without the batch.

    Returns
    -------
    tuple of Layer
        In the order of the forward pass. A module that is called twice is two layers; its parameters count once.

    Raises
    ------
    InvalidParameterError
        `input_shape` is empty or has a size that is not positive.
    InvalidDataError
        The module cannot be run on such a sample.

    Examples
    --------
    >>> from torch import nn
    >>> from dsgd.torch import trace
    >>> [layer.forward_flop for layer in trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), [4])]
    [64.0, 8.0]
    """
    layers: list[Layer] = []
    seen: set[int] = set()
    for name, part, given, result in calls_of(module, input_shape):
        own = [parameter for parameter in part.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        layers.append(_layer(name, part, sum(parameter.numel() for parameter in own), given, result))
    unseen = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in seen)
    return (*layers, other_layer(UNSEEN, 0, 0, unseen)) if unseen else tuple(layers)


def calls_of(module: nn.Module, input_shape: Sequence[int]) -> list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    """Return name, module, input and output of every call of a module without children, for a batch of one sample."""
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise InvalidParameterError(f"trace(input_shape=...) must be positive sizes. Got {shape}.")
    calls: list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]] = []
    parameter = next(module.parameters(), torch.empty(0))
    was_training, hooks = module.training, []

    def note(name: str) -> Any:
        def hook(part: nn.Module, given: tuple[Any, ...], result: Any) -> None:
            first = result[0] if isinstance(result, tuple) else result
            if given and isinstance(given[0], torch.Tensor) and isinstance(first, torch.Tensor):
                calls.append((name, part, given[0], first))

        return hook

    for name, part in module.named_modules():
        if not any(True for _ in part.children()):
            hooks.append(part.register_forward_hook(note(name or type(part).__name__)))
    try:
        module.eval()
        with torch.no_grad():
            module(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InvalidDataError(
            f"trace(...) cannot run {type(module).__name__} on a sample of {shape}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        module.train(was_training)
    return calls


def _layer(name: str, part: nn.Module, n_params: int, given: torch.Tensor, result: torch.Tensor) -> Layer:
    n_inputs, n_outputs = given.numel(), result.numel()
    weight = getattr(part, "weight", None)
    if isinstance(part, _CONVOLUTIONS) and isinstance(weight, torch.Tensor):
        return Layer(name, "conv", n_params, 2.0 * weight.numel() * math.prod(result.shape[2:]), n_inputs, n_outputs)
    if isinstance(part, _TRANSPOSED) and isinstance(weight, torch.Tensor):
        return Layer(name, "conv", n_params, 2.0 * weight.numel() * math.prod(given.shape[2:]), n_inputs, n_outputs)
    if isinstance(part, nn.Linear):
        return Layer(
            name, "linear", n_params, 2.0 * part.weight.numel() * n_inputs / part.in_features, n_inputs, n_outputs
        )
    if isinstance(part, nn.RNNBase):
        steps = n_inputs / part.input_size
        n_weights = sum(parameter.numel() for parameter in part.parameters() if parameter.ndim > 1)
        return Layer(name, "linear", n_params, 2.0 * n_weights * steps, n_inputs, n_outputs)
    return other_layer(name, n_inputs, n_outputs, n_params)


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
