"""Begin linear machines of one loop of scikit-learn where the one before ended.

Problem: ``CalibratedClassifierCV`` trains a machine on each split of the rows. Two of five splits share three quarters
of their rows, and have nearly the same weights, but every fit begins at zero.

Method: while such a loop runs, the fits of a ``LinearSVC`` in its thread begin at the weights of the one before. Every
fit ends as one from zero does, with a duality gap over its own rows below ``tol``, so what was taken over cannot show
in the result.

Source: DeCoste and Wagstaff, KDD 2000 (alpha seeding), for weights instead of dual variables.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

#: A list with the last machine, if there is one, while a loop of similar fits runs in this thread.
_here: Final = threading.local()


@contextlib.contextmanager
def near_fits() -> Iterator[None]:
    """Let the fits that this thread does inside begin where the one before ended."""
    before = getattr(_here, "last", None)
    _here.last = []
    try:
        yield
    finally:
        _here.last = before


def begin_near(model: Any, parameters: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context to fit one of our ``LinearSVC`` in, which begins near the last one of the same parameters."""
    last = getattr(_here, "last", None)
    return contextlib.nullcontext() if last is None else _begin_near(model, parameters, last)


@contextlib.contextmanager
def _begin_near(model: Any, parameters: Mapping[str, Any], last: list[Any]) -> Iterator[None]:
    if last and last[0][1] == parameters:
        model._near = last[0][0]
    try:
        yield
    finally:
        vars(model).pop("_near", None)
    last[:] = [(model, dict(parameters))]
