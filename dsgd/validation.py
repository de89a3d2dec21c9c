"""Checks of parameters, with one wording for all errors: what, where, and the value passed; and warnings."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache, partial
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.random import RandomState

from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray

#: Packages whose frames lie between a warning and the line of the user that it is about.
_LIBRARIES = ("dsgd", "joblib", "sklearn")


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the caller's own code that led here, however deep in this library it is."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, category, stacklevel=depth)


def check_choice(where: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise unless `value` is one of `choices`."""
    allowed = list(choices)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
        names = ", ".join(repr(choice) for choice in allowed)
        raise InvalidParameterError(f"{where} must be one of {names}. Got {value!r}.")


def check_bool(where: str, value: Any) -> None:
    """Raise unless `value` is a boolean (Python's or NumPy's)."""
    if type(value).__name__ not in {"bool", "bool_"}:
        raise InvalidParameterError(f"{where} must be True or False. Got {value!r}.")


def check_number(
    where: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    integer: bool = False,
) -> None:
    """Raise unless `value` is a number in the range."""
    kind = Integral if integer else Real
    good = not isinstance(value, bool) and isinstance(value, kind) and not math.isnan(float(value))
    if good:
        number = float(value)
        good = (number > low if open_low else number >= low) and (number < high if open_high else number <= high)
    if not good:
        noun = "an integer" if integer else "a number"
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if open_high or high == math.inf else "]"
        raise InvalidParameterError(
            f"{where} must be {noun} in the range {left}{low:g}, {high:g}{right}. Got {value!r}."
        )


def check_labels(labels: AnyArray) -> None:
    """Raise `ValueError` unless these are labels, as scikit-learn does; what it warns of is in `classes_and_codes`."""
    if not _are_discrete(labels):
        from sklearn.utils.multiclass import check_classification_targets  # as in `weights_of_classes`

        check_classification_targets(labels)


def _are_discrete(labels: AnyArray) -> bool:
    return labels.ndim == 1 and labels.dtype.kind in "biuU"


def classes_and_codes(labels: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the sorted classes of checked labels, and the class of each as a number; warn if they look like values."""
    low, high = (int(labels.min()), int(labels.max())) if labels.dtype.kind == "i" and labels.size else (0, -1)
    if 0 <= high - low <= len(labels):
        places = labels.astype(np.intp) - low
        counts = np.bincount(places)
        present = np.flatnonzero(counts)
        classes: AnyArray = (present + low).astype(labels.dtype)
        codes = places if len(present) == len(counts) else np.searchsorted(present, places)
    else:
        classes, codes = np.unique(labels, return_inverse=True)
    if 2 * len(classes) > len(labels) and _are_discrete(labels):
        from sklearn.utils.multiclass import check_classification_targets  # as in `weights_of_classes`

        check_classification_targets(labels)
    return classes, codes


def weights_of_classes(where: str, given: Any, classes: AnyArray, *, labels: Any = None) -> AnyArray:
    """Return the weight of each class; a dict that names all classes may name others, as of a whole set."""
    if isinstance(given, dict):
        for label, weight in given.items():
            check_number(f"{where} of {label!r}", weight, low=0, open_high=True)
        unknown = [label for label in given if label not in classes.tolist()]
        missing = [label for label in classes.tolist() if label not in given]
        if unknown and missing:
            raise InvalidParameterError(
                f"{where} has weights of {unknown}, which are no labels of y. The classes, {missing}, are not in "
                "class_weight: give each a weight, or leave the others out."
            )
    elif given is not None and (labels is None or not isinstance(given, str) or given != "balanced"):
        raise InvalidParameterError(f"{where} must be a dict of weights by class, 'balanced' or None. Got {given!r}.")
    if given is None:
        return np.ones(len(classes))
    # Not with this module: workers load it, and neither need scikit-learn nor what it loads.
    from sklearn.utils import compute_class_weight

    weights: AnyArray = compute_class_weight(given, classes=classes, y=classes if labels is None else labels)
    if not weights.any():
        raise InvalidParameterError(
            f"{where} gives all classes of y the weight zero: {classes.tolist()}. Give some of them weights above zero."
        )
    return weights


def check_n_jobs(name: str, n_jobs: Any) -> None:
    """Raise unless the ``n_jobs`` of the estimator `name` is None, a count, or below zero for cores to leave free."""
    if n_jobs is not None:
        check_number(f"{name}(n_jobs=...)", n_jobs, integer=True)
        if n_jobs == 0:
            raise InvalidParameterError(f"{name}(n_jobs=...) must not be 0. Use None, a count, or -1 for all.")


def as_random_state(where: str, given: Any) -> RandomState:
    """Return the generator that a ``random_state`` stands for, as scikit-learn does."""
    from sklearn.utils import check_random_state  # as above

    try:
        made: RandomState = check_random_state(given)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{where}(random_state=...): {error}") from error
    return made


def check_numbers(part: object, *names: str, optional: bool = False, **within: Any) -> None:
    """Raise unless some parameters of a part are numbers in the same range."""
    for name in names:
        value = getattr(part, name)
        if value is not None or not optional:
            check_number(f"{type(part).__name__}({name}=...)", value, **within)


def number(
    default: Any = MISSING,
    *,
    low: float | str = -math.inf,
    high: float | str = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> Any:
    """Declare a field of a `Checked` part as an integer, or None; a bound may be the name of another field."""
    within = {"low": low, "high": high, "open_low": open_low, "open_high": open_high}
    return field(default=default, metadata={"within": within})


class Checked:
    """A dataclass whose fields declare what they may be: a `number`, a bool, or one of the words of a `Literal`."""

    def __post_init__(self) -> None:
        """Raise `InvalidParameterError` if a field is not what it declares."""
        kind: Any = type(self)
        for name, where, check in _checks_of(kind):
            check(self, where, getattr(self, name))


@cache
def _checks_of(kind: Any) -> tuple[tuple[str, str, Callable[[Any, str, Any], None]], ...]:
    """Return what fields declare: their names, what errors call them, and a check of the part and the value."""
    words, found = _words_of(kind), []
    for each in fields(kind):
        where, text = f"{kind.__name__}({each.name}=...)", str(each.type)
        check: Callable[[Any, str, Any], None]
        if "within" in each.metadata:
            check = partial(_check_within, each.metadata["within"], "int" in text, "None" in text)
        elif text in ("bool", str(bool)):
            check = _check_flag
        elif each.name in words:
            check = partial(_check_words, words[each.name])
        else:
            continue
        found.append((each.name, where, check))
    return tuple(found)


def _check_within(bounds: Mapping[str, Any], integer: bool, optional: bool, part: Any, where: str, value: Any) -> None:
    if value is not None or not optional:
        within = {key: getattr(part, bound) if isinstance(bound, str) else bound for key, bound in bounds.items()}
        check_number(where, value, integer=integer, **within)


def _check_flag(part: Any, where: str, value: Any) -> None:
    check_bool(where, value)


def _check_words(words: tuple[Any, ...], part: Any, where: str, value: Any) -> None:
    check_choice(where, value, words)


@cache
def _words_of(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    try:
        types = get_type_hints(kind)
    except NameError:  # of a class of somebody else, with names that only type checkers see
        return {}
    return {name: get_args(words) for name, words in types.items() if get_origin(words) is Literal}
