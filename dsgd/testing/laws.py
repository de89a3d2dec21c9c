"""What all checks share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dsgd.errors import InvalidParameterError

#: A law: takes the part, raises `AssertionError`.
Check = Callable[[Any], None]


def require(holds: bool, law: str) -> None:
    """Raise `AssertionError` with the law that is broken, also where Python runs without assertions."""
    if not holds:
        raise AssertionError(law)


def check_is_value(part: Any) -> None:
    """The part is a frozen dataclass: it compares, hashes and pickles by its parameters."""
    params = getattr(type(part), "__dataclass_params__", None)
    require(
        is_dataclass(part) and params is not None and params.frozen,
        "it must be a frozen dataclass of its parameters: what changes during training lives in the record of `init`",
    )
    again = pickle.loads(pickle.dumps(part))
    require(again == part and hash(again) == hash(part), "its pickle must be equal to it: workers get it by pickle")


def run_checks(part: Any, kind: type, checks_of: Callable[[Any], list[Check]]) -> None:
    """Run the checks of a part one after the other; an error names the check and the part."""
    require(isinstance(part, kind), f"{part!r} must be an instance of {kind.__name__}")
    for check in checks_of(part):
        try:
            check(part)
        except (AssertionError, InvalidParameterError) as error:  # some laws are those of every fit
            raise AssertionError(f"{check.__name__}: {part!r}: {error}") from error


def fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a record holds, and the records within it, by name."""
    for field in fields(record):
        value = getattr(record, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield from ((f"{field.name}.{name}", inner) for name, inner in fields_of(part))
            else:
                yield field.name, part
