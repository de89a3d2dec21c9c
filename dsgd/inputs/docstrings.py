"""Docstrings of estimators, completed from those of their base classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["inherit_docs"]

#: Sections of one entry per name, in the order of numpydoc.
_TABLES = ("Parameters", "Attributes")

Section = dict[str, str]
Estimator = TypeVar("Estimator", bound=type)


def inherit_docs(estimator: Estimator) -> Estimator:
    """Complete the docstring of an estimator by the parameters and attributes that its bases describe.

    A decorator. Parameters come in the order of the signature, the class's own words before those of a base; attributes
    of its own come first, then those of its bases, nearest first. What users see, in ``help`` and in the documentation,
    is one whole docstring. Without docstrings (``python -OO``) nothing happens.

    Parameters
    ----------
    estimator : type
        An estimator with a numpydoc docstring, whose bases have their own.
    """
    if estimator.__doc__ is None:
        return estimator
    sections = _sections(estimator.__doc__)
    tables = [_tables(base) for base in estimator.__mro__]
    wanted = list(inspect.signature(estimator).parameters)
    parameters = _merged(table["Parameters"] for table in tables)
    sections["Parameters"] = "\n".join(_in_order(parameters, wanted))
    sections["Attributes"] = "\n".join(_merged(table["Attributes"] for table in tables).values())
    first = ["", *_TABLES]
    titles = [*first, *(title for title in sections if title not in first)]
    estimator.__doc__ = "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{sections[title]}" if title else sections[title]
        for title in titles
        if sections.get(title)
    )
    return estimator


def _sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by title; what stands before the first one under an empty title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    sections = {title: text.strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    return {"": parts[0].strip(), **sections}


def _tables(base: type) -> dict[str, Section]:
    """Return what a class's own docstring says of each of its parameters and attributes."""
    sections = _sections(vars(base).get("__doc__") or "")
    return {title: _entries(sections.get(title, "")) for title in _TABLES}


def _entries(text: str) -> Section:
    """Return the entries of a section by the names they are of: ``a, b : float`` is of both."""
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return {entry.split(" :")[0].strip(): entry.rstrip() for entry in entries if entry.strip()}


def _merged(tables: Iterable[Section]) -> Section:
    """Return the entries of several classes, the first that has a name in front of the others."""
    merged: Section = {}
    known: set[str] = set()
    for table in tables:
        for names, entry in table.items():
            own = set(names.split(", "))
            if not own & known:
                merged[names] = entry
            known |= own
    return merged


def _in_order(entries: Section, names: list[str]) -> list[str]:
    """Return the entries of these names, each once, in their order."""
    place = {name: place for place, name in enumerate(names)}
    of = {min((place[name] for name in key.split(", ") if name in place), default=-1): key for key in entries}
    return [entries[of[key]] for key in sorted(of) if key >= 0]
