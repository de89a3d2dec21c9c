"""Docstrings of estimators, completed from those of their base classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, TypeVar

#: Sections of one entry per name, in the order of numpydoc.
_TABLES = ("Parameters", "Attributes")

#: Sections of a method, in that order.
_OF_METHODS = ("Parameters", "Returns", "Raises")

#: How numpydoc writes the names of ``*args`` and ``**kwargs``.
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

Section = dict[str, str]
Estimator = TypeVar("Estimator", bound=type)


def inherit_docs(estimator: Estimator) -> Estimator:
    """Complete the docstring of an estimator with parameters and attributes of its bases, nearest first; a decorator.

    Parameters are in the order of the signature. Without docstrings (``python -OO``) nothing happens.
    """
    inherit_method_docs(estimator)
    if estimator.__doc__ is None:
        return estimator
    sections = _sections(estimator.__doc__)
    tables = [_tables(base) for base in estimator.__mro__]
    wanted = list(inspect.signature(estimator).parameters)
    parameters = _merged(table["Parameters"] for table in tables)
    sections["Parameters"] = "\n".join(_in_order(parameters, wanted))
    sections["Attributes"] = "\n".join(_merged(table["Attributes"] for table in tables).values())
    estimator.__doc__ = _joined(sections, _TABLES)
    return estimator


def inherit_method_docs(owner: Estimator) -> Estimator:
    """Complete the docstrings of a class's methods from the same methods of its bases; a decorator.

    A parameter that a method leaves out is described as in the nearest base that has it, else as in `predict`. The
    returned values are those of the nearest base, unless the method says; errors are those of the method and its bases.
    """
    for name, member in vars(owner).items():
        method = _unwrapped(member)
        if name.startswith("_") or not inspect.isfunction(method) or not method.__doc__:
            continue
        same = _descriptions(owner, name)
        parameters = _merged(_entries(each.get("Parameters", "")) for each in same + _descriptions(owner, "predict"))
        names = [_STARS.get(p.kind, "") + p.name for p in inspect.signature(method).parameters.values()]
        sections = {
            **same[0],
            "Parameters": "\n".join(_in_order(parameters, names)),
            "Returns": next((each["Returns"] for each in same if "Returns" in each), ""),
            "Raises": "\n".join(_merged(_entries(each.get("Raises", "")) for each in same).values()),
        }
        method.__doc__ = _joined(sections, _OF_METHODS)
    return owner


def _unwrapped(member: object) -> object:
    """Return the function of a method, also of a conditional one (`available_if`)."""
    return getattr(member, "fn", member)


def _descriptions(owner: type, name: str) -> list[dict[str, str]]:
    """Return the sections of a method's docstrings in a class and its bases, nearest first; none of scikit-learn's."""
    ours = (vars(base) for base in owner.__mro__ if not base.__module__.startswith("sklearn"))
    return [_sections(_unwrapped(members[name]).__doc__ or "") for members in ours if name in members]


def _joined(sections: dict[str, str], order: tuple[str, ...]) -> str:
    """Return a docstring of sections: the text, those of `order`, then the others."""
    first = ["", *order]
    return "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{sections[title]}" if title else sections[title]
        for title in [*first, *(title for title in sections if title not in first)]
        if sections.get(title)
    )


def _sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by title; what stands before the first one under an empty title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    sections = {title: text.strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    return {"": parts[0].strip(), **sections}


def _tables(base: type) -> dict[str, Section]:
    """Return the entries of a class's own docstring for its parameters and attributes."""
    sections = _sections(vars(base).get("__doc__") or "")
    return {title: _entries(sections.get(title, "")) for title in _TABLES}


def _entries(text: str) -> Section:
    """Return the entries of a section by name; ``a, b : float`` is the entry of both."""
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return {re.split(r" :|\n", entry)[0].strip(): entry.rstrip() for entry in entries if entry.strip()}


def _merged(tables: Iterable[Section]) -> Section:
    """Return the entries of several classes; for each name, the first class that has it comes first."""
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
