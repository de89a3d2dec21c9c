"""Local optimisers and ways to draw rows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.local.rules import LARS, AbstractRule, Adagrad, Adam, GradientDescent, Momentum
from dsgd.local.sampling import Importance
from dsgd.local.variance import SAGA, SVRG, AbstractReduction
from dsgd.named import Kind, part_of

#: What each name makes.
OPTIMIZER_NAMES: Final[Mapping[str, Callable[..., AbstractRule | AbstractReduction]]] = MappingProxyType(
    {
        "momentum": Momentum,
        "adagrad": Adagrad,
        "adam": Adam,
        "lars": LARS,
        "gd": GradientDescent,
        "saga": SAGA,
        "svrg": SVRG,
    }
)
#: Local optimisers, as texts name them.
OPTIMIZER_KIND: Final = Kind(
    "local optimiser", AbstractRule | AbstractReduction, "dsgd.local", OPTIMIZER_NAMES, "dsgd.optimizers"
)
_SAMPLINGS: Final = Kind("sampling", Importance, "dsgd.local", {"importance": Importance}, "dsgd.samplings")


def parse_optimizer(text: str) -> AbstractRule | AbstractReduction | None:
    """Return the local optimiser that a text names.

    Examples
    --------
    >>> parse_optimizer("svrg:every=2")
    SVRG(step=None, every=2)
    """
    if text == "none":
        return None
    found: AbstractRule | AbstractReduction | None = part_of(OPTIMIZER_KIND, text, f"optimizer {text!r}")
    if found is None:
        raise InvalidParameterError(
            f"No local optimiser {text!r}; give none or one of {', '.join(OPTIMIZER_NAMES)}, with or without "
            "parameters (momentum:0.95, saga:step=0.1, svrg:every=2)."
        )
    return found


def resolve_optimizer(where: str, given: Any) -> AbstractRule | AbstractReduction | None:
    """Return the local optimiser that a parameter of an estimator stands for."""
    if given is None or isinstance(given, (AbstractRule, AbstractReduction)):
        return given
    if isinstance(given, str) and given.partition(":")[0] in OPTIMIZER_NAMES:
        return parse_optimizer(given)
    raise InvalidParameterError(
        f"{where} must be None, a rule of dsgd.local (Momentum, Adagrad, Adam, LARS, GradientDescent), SAGA or SVRG, "
        f"or the name of one: {', '.join(OPTIMIZER_NAMES)}. Got {given!r}."
    )


def parse_sampling(text: str) -> Importance | None:
    """Return how rows are drawn; None visits every row once an epoch.

    Examples
    --------
    >>> parse_sampling("importance:0.2")
    Importance(uniform=0.2)
    """
    if text == "uniform":
        return None
    found: Importance | None = part_of(_SAMPLINGS, text, f"sampling {text!r}")
    if found is None:
        raise InvalidParameterError(f"No sampling {text!r}; give uniform, importance, or importance:0.2.")
    return found
