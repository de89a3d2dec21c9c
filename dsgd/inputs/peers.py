"""Estimators of scikit-learn of the same name: what is copied from one to the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidParameterError


def of_peer(kind: Any, peer: Any, given: Any) -> Any:
    """Return an estimator of a class, not fitted, with the parameters of a fitted one of scikit-learn."""
    if not isinstance(given, peer):
        home = ".".join(peer.__module__.split(".")[:2])
        raise InvalidParameterError(
            f"{kind.__name__}.from_sklearn(model=...) must be a fitted {home}.{peer.__name__}. Got {given!r:.60}."
        )
    check_is_fitted(given)
    known = kind._get_param_names()
    return kind(**{name: value for name, value in given.get_params(deep=False).items() if name in known})


def copied(to: Any, given: Any, names: Iterable[str]) -> Any:
    """Set copies of those attributes that there are; return `to`."""
    for name in names:
        if hasattr(given, name):
            value = getattr(given, name)
            setattr(to, name, value.copy() if hasattr(value, "copy") else value)
    return to
