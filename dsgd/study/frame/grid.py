"""Checks of the grid of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsgd.errors import InvalidParameterError

__all__ = ["check_grid"]

_NOUNS: Final = {"data": "dataset", "problems": "problem"}


def check_grid(
    study: object,
    *,
    least: Mapping[str, float],
    choices: Mapping[str, Sequence[str]],
    above: Mapping[str, float] | None = None,
    given: Sequence[str] = (),
) -> None:
    """Raise unless the fields of a study are inside their domains. Of a sequence every item must be.

    Parameters
    ----------
    study : object
        The study.
    least : mapping of str to number
        Smallest allowed value, by field.
    choices : mapping of str to sequence of str
        Allowed values, by field.
    above : mapping of str to number, optional
        Exclusive lower bound, by field.
    given : sequence of str
        Fields that must not be empty.

    Raises
    ------
    InvalidParameterError
        Names the study, the field and what was got.
    """
    for name in given:
        if not getattr(study, name):
            raise InvalidParameterError(
                f"{_where(study, name)} names no {_NOUNS.get(name, 'value')}; give at least one."
            )
    for name, low in least.items():
        for value in _items(study, name):
            if not value >= low:
                raise InvalidParameterError(f"{_where(study, name)} must be {low} or more. Got {value}.")
    for name, low in (above or {}).items():
        for value in _items(study, name):
            if not value > low:
                raise InvalidParameterError(f"{_where(study, name)} must be above {low}. Got {value}.")
    for name, allowed in choices.items():
        for value in _items(study, name):
            if value not in allowed:
                where = _where(study, name, repr(value))
                raise InvalidParameterError(f"{where} is unknown; choose one of {', '.join(allowed)}.")


def _where(study: object, name: str, value: str = "...") -> str:
    return f"{type(study).__name__}({name}={value})"


def _items(study: object, name: str) -> Sequence[Any]:
    value = getattr(study, name)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
