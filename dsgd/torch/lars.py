"""LARS: the step of each tensor is a share of the length of its weights.

Problem: with large batches one rate is too long for some layers and too short for others, because the ratio of weights
to gradients differs between layers by orders of magnitude.

Update, for every tensor w with gradient g, rate eta and weight decay wd::

    lambda = trust |w| / (|g| + wd |w|)       1 where a norm is zero, and for biases and scales of normalisations
    u <- mu u + eta lambda (g + wd w)
    w <- w - u

Norms are taken in float32 or wider. With wd = 0 a step does not depend on the length of a gradient.

Cost: two norms a tensor, and the velocity, one vector of the length of the model.

Source: You, Gitman and Ginsburg 2017, algorithm 1. There is `dsgd.local.LARS` for linear models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dsgd.errors import InvalidParameterError


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling, as an optimiser of torch.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        What to train; groups may have options of their own.
    lr : float
        eta, the rate.
    momentum : float, default 0.9
        mu, in [0, 1).
    weight_decay : float, default 0
        wd; not applied to tensors with one dimension.
    trust : float, default 1e-3
        The share.

    Raises
    ------
    InvalidParameterError
        A value is out of range.

    Examples
    --------
    >>> from torch import nn
    >>> from dsgd.torch import LARS
    >>> LARS(nn.Linear(2, 2).parameters(), lr=1.0).defaults["trust"]
    0.001
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        for name, value, fits in (
            ("lr", lr, lr >= 0.0),
            ("momentum", momentum, 0.0 <= momentum < 1.0),
            ("weight_decay", weight_decay, weight_decay >= 0.0),
            ("trust", trust, trust > 0.0),
        ):
            if not fits:
                raise InvalidParameterError(f"LARS({name}=...) is out of range. Got {value!r}.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step along ``.grad``; see `torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_on(parameter, parameter.grad, group)
        return loss

    def _step_on(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        rate, change = group["lr"], gradient
        # Biases and scales are left alone: their lengths say nothing of how far a step may go.
        if parameter.ndim > 1:
            decay = group["weight_decay"]
            weight_norm, gradient_norm = (float(_norm(tensor)) for tensor in (parameter, gradient))
            if decay:
                change = gradient.add(parameter, alpha=decay)
            if weight_norm > 0.0 and gradient_norm > 0.0:
                rate *= group["trust"] * weight_norm / (gradient_norm + decay * weight_norm)
        if not group["momentum"]:
            parameter.sub_(change, alpha=rate)
            return
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity = state["velocity"]
        velocity.mul_(group["momentum"]).add_(change, alpha=rate)
        parameter.sub_(velocity)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
