"""Exchanging the first parts of a gradient while the backward pass still computes.

The flat vector holds the parameters in the order of the module, which is about that of the forward pass. So their
gradients are computed from the end of the vector to its front. The progress is reported to the code that sums buckets
during the pass (`dsgd.sync.minibatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dsgd.torch.flat import FlatModule
from dsgd.types import FloatVector


@contextmanager
def streamed_gradient(flat: FlatModule, out: FloatVector, scale: float, ready: Callable[[int], None]) -> Iterator[None]:
    """Write gradients into a vector as the backward pass inside makes them."""
    views, starts = flat.gradient_views(out), [flat.slices[name].start for name in flat.names]
    is_there = [False] * len(views)
    first = len(views)

    def hook(number: int) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            nonlocal first
            assert parameter.grad is not None  # it has just been accumulated
            _write(views[number], parameter.grad, scale)
            is_there[number] = True
            before = first
            # Inside a layer, and between branches, gradients come in any order.
            while first and is_there[first - 1]:
                first -= 1
            if first < before:
                ready(starts[first])

        return arrived

    handles = [p.register_post_accumulate_grad_hook(hook(k)) for k, p in enumerate(flat.parameters)]
    try:
        yield
        for view, parameter, known in zip(views, flat.parameters, is_there, strict=True):
            if not known:
                _write(view, parameter.grad, scale)
    finally:
        for handle in handles:
            handle.remove()


def _write(view: torch.Tensor, gradient: torch.Tensor | None, scale: float) -> None:
    with torch.no_grad():
        if gradient is None:
            view.zero_()
            return
        view.copy_(gradient)
        if scale != 1.0:
            view.div_(scale)
