"""Making the module, its criterion and its optimiser from the parameters of an estimator."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dsgd.errors import InvalidParameterError
from dsgd.torch.randomness import repeatable


def build_module(module: Any, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Make a module, or copy one that is made already."""
    if isinstance(module, nn.Module):
        if options:
            raise InvalidParameterError(
                f"module={type(module).__name__} is made already; it takes no module__ options."
            )
        return copy.deepcopy(module)
    with repeatable(seed):
        made = module(**options)
    if not isinstance(made, nn.Module):
        raise InvalidParameterError(f"module={module!r} must make a torch.nn.Module. It made a {type(made).__name__}.")
    return made


def build_criterion(given: Any, options: Mapping[str, Any]) -> nn.Module:
    """Make a criterion, or copy one that is made already."""
    criterion: nn.Module = copy.deepcopy(given) if isinstance(given, nn.Module) else given(**options)
    if getattr(criterion, "reduction", "mean") != "mean":
        raise InvalidParameterError(
            f"criterion={criterion!r} must return the mean over rows: reduction='mean'. Ranks weight means by rows."
        )
    return criterion


def check_weighable(criterion: nn.Module) -> None:
    """Raise unless the mean of a criterion is the mean of a loss for each row, which can be weighted."""
    if not hasattr(criterion, "reduction"):
        raise InvalidParameterError(
            f"sample_weight needs a criterion that returns a loss for each row with reduction='none', and "
            f"criterion={criterion!r} has no `reduction`."
        )
    by_class = isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss))
    if by_class and (criterion.weight is not None or criterion.ignore_index >= 0):
        raise InvalidParameterError(
            f"sample_weight does not go with criterion={criterion!r}: with `weight` or `ignore_index` it divides by "
            "the weight of a batch. Put the weights of classes into sample_weight, and zero for rows to be ignored."
        )


def build_optimizer(make: Any, options: Mapping[str, Any], module: nn.Module) -> torch.optim.Optimizer:
    """Make an optimiser for the trainable parameters of a module."""
    options = dict(options)
    patterns: Sequence[tuple[str, Mapping[str, Any]]] = options.pop("param_groups", ())
    groups: list[dict[str, Any]] = [{"params": [], **own} for _, own in patterns]
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            chosen = [k for k, (pattern, _) in enumerate(patterns) if fnmatch.fnmatch(name, pattern)]
            (groups[chosen[0]]["params"] if chosen else rest).append(parameter)
    filled = [group for group in [*groups, {"params": rest}] if group["params"]]
    made: torch.optim.Optimizer = make(filled, **options)
    return made


def is_plain_sgd(make: object, groups: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a step changes the model by its rate times the gradient: in torch, only SGD without momentum."""
    kind = make if isinstance(make, type) else type(make)
    return issubclass(kind, torch.optim.SGD) and not any(group.get("momentum", 0.0) for group in groups)
