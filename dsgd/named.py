"""Parts of training by name: strategies, compressors and topologies as texts.

Problem: command lines, tables and files name parts by text, and each part has parameters of its own.

A text is a name, with or without parameters: ``diloco``, ``diloco:every=512,outer_rate=0.7``. The name is a short one,
that of an entry point, or ``package.module:Name``: a class of the kind that is asked for, or an instance of one, of
which parameters replace those that it has. What is of no such class is never called. Parameters stand behind one more
colon, with commas between; the first may be without its name, ``topk:0.01``. A value is read as the annotation of the
parameter says, and may be a part itself: ``dpsgd:topology=exponential:2``. One with commas of its own stands in
parentheses.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import Parameter, signature
from typing import Any, Final, Literal, get_args, get_origin

from dsgd.errors import InvalidParameterError

_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_TRUTH: Final = {"true": True, "yes": True, "false": False, "no": False}
_WORDS: Final = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none", str: "a text"}


class _Unread(Exception):  # noqa: N818 - a text that means nothing here, and may mean something to another reader
    """A text is no value of a type."""


@dataclass(frozen=True)
class Kind:
    """What parts of one kind are called, and where they are found."""

    noun: str
    base: type | types.UnionType
    home: str
    names: Mapping[str, Callable[..., Any]]
    group: str
    parts: tuple[Kind, ...] = ()
    loads: bool = True

    def all_names(self) -> list[str]:
        """Return the short names, and those of installed packages."""
        return [*self.names, *installed(self.group)]


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages have made known in a group of entry points, by name."""
    return {point.name: point for point in entry_points(group=group)}


def part_of(kind: Kind, text: str, where: str) -> Any:
    """Return the part that a text stands for; None where it names none, so that the caller says which there are."""
    name, colon, given = text.partition(":")
    if name in kind.names:
        found: Any = kind.names[name]
    elif kind.loads and name in installed(kind.group):
        found = _loaded(kind, installed(kind.group)[name].load, where)
    elif kind.loads and name and given:
        target, colon, given = given.partition(":")
        if not target.isidentifier():
            return None
        found = _loaded(kind, lambda: getattr(import_module(name), target), where)
    else:
        return None
    if colon and not given.strip():
        raise InvalidParameterError(f"{where}: nothing stands after its last colon. {_choices(found)}")
    return _made(kind, found, _values(kind, found, given, where), where)


def _loaded(kind: Kind, load: Callable[[], Any], where: str) -> Any:
    """Return a class of a kind, or an instance of one; nothing else may be called."""
    try:
        found = load()
    except Exception as error:  # a module may raise anything at all
        raise InvalidParameterError(f"{where} cannot be imported: {error}.") from error
    if isinstance(found, kind.base) or (isinstance(found, type) and issubclass(found, kind.base)):
        return found
    what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
    raise InvalidParameterError(f"{where} is {what}, which is not a {kind.noun} of {kind.home}.")


def _made(kind: Kind, found: Any, values: dict[str, Any], where: str) -> Any:
    """Return the part with these parameters, and others as they are."""
    try:
        if not isinstance(found, kind.base):
            return found(**values)
        made: Any = found  # a part, and so a data class
        return replace(made, **values) if values else made
    except TypeError as error:
        how = "with these parameters alone" if values else "without parameters"
        raise InvalidParameterError(f"{where} cannot be made {how}: {error}. {_choices(found)}") from error


def _is_record(found: Any) -> bool:
    return is_dataclass(found) and not isinstance(found, type)


def _choices(found: Any) -> str:
    """Return what parameters there are, as a sentence."""
    names = ", ".join(_parameters(found))
    return f"{_title(found)} has {names}." if names else f"{_title(found)} takes no parameters."


def _title(found: Any) -> str:
    return str(getattr(found, "__name__", type(found).__name__)).replace("<lambda>", "This one")


def _parameters(found: Any) -> dict[str, Any]:
    """Return the parameters of a class, a function or an instance, with their types where these are known."""
    if not callable(found) and not _is_record(found):
        return {}
    make = type(found) if _is_record(found) else found
    names = [name for name, one in signature(make).parameters.items() if one.kind in _NAMED]
    try:
        hints = typing.get_type_hints(make if is_dataclass(make) else getattr(make, "__init__", make))
    except (NameError, TypeError, AttributeError):  # a type that is imported for checkers only: values are guessed
        hints = {}
    return {name: hints.get(name, Any) for name in names}


def _values(kind: Kind, found: Any, given: str, where: str) -> dict[str, Any]:
    """Return the parameters that a text gives, by name."""
    known, values = _parameters(found), dict[str, Any]()
    for place, item in enumerate(_split(given) if given.strip() else ()):
        name, is_named, text = (word.strip() for word in item.partition("="))
        if not is_named:
            name, text = next(iter(known), ""), name
            if place or not known:
                raise InvalidParameterError(
                    f"{where}: {text!r} is no parameter: write NAME=VALUE; only the first may be without its name. "
                    f"{_choices(found)}"
                )
        if name not in known or name in values:
            problem = "is given twice" if name in values else "is no parameter"
            raise InvalidParameterError(f"{where}: {name!r} {problem}. {_choices(found)}")
        try:
            values[name] = _value(kind, text.removeprefix("(").removesuffix(")"), known[name])
        except _Unread:
            raise InvalidParameterError(
                f"{where}: {_title(found)}({name}=...) must be {_described(kind, known[name])}. Got {text!r}."
            ) from None
    return values


def _split(given: str) -> list[str]:
    """Return the items of a text with commas between, but for those inside parentheses."""
    items, depth = [""], 0
    for letter in given:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return items


def _options(hint: Any) -> list[Any]:
    """Return the types and the literal values that a parameter may have; a value is told by being no type."""
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [one for part in get_args(hint) for one in _options(part)]
    if origin is Literal:
        return [_Choice(value) for value in get_args(hint)]
    return [origin or hint]


@dataclass(frozen=True)
class _Choice:
    """A value that a parameter may have, as it is."""

    value: Any


def _value(kind: Kind, text: str, hint: Any) -> Any:
    """Return the value of a parameter of this type that a text stands for."""
    # What is a word of its own comes first: "none" and "auto" are names of no part.
    for option in sorted(_options(hint), key=lambda one: not isinstance(one, _Choice) and one is not types.NoneType):
        try:
            return _read(kind, text, option)
        except _Unread:
            continue
    raise _Unread


def _read(kind: Kind, text: str, option: Any) -> Any:
    part = _kind_of(kind, option)
    if part is not None:
        found = part_of(part, text, f"{part.noun} {text!r}")
    elif isinstance(option, _Choice):
        found = option.value if str(option.value) == text else None
    elif option is Any:
        return _guessed(text)
    elif option is bool:
        found = _TRUTH.get(text.lower())
    elif option in (int, float):
        try:
            found = option(text)
        except ValueError:
            found = None
    elif option is str:
        found = text
    elif option is types.NoneType and text.lower() == "none":
        return None
    else:
        found = None
    if found is None:
        raise _Unread
    return found


def _guessed(text: str) -> Any:
    """Return what a text most likely is, of a parameter whose type is not known."""
    if text.lower() == "none":
        return None
    for read in (int, float, lambda text: _TRUTH[text.lower()]):
        try:
            return read(text)
        except (ValueError, KeyError):
            continue
    return text


def _kind_of(kind: Kind, option: Any) -> Kind | None:
    """Return the kind of parts that a type is of."""
    kinds = (part for part in kind.parts if isinstance(option, type) and issubclass(option, part.base))
    found = next(kinds, None)
    return found and replace(found, loads=kind.loads)


def _described(kind: Kind, hint: Any) -> str:
    """Return what a parameter of this type may be, in words."""
    said = []
    for option in _options(hint):
        part = _kind_of(kind, option)
        if part is not None:
            said.append(f"a {part.noun} ({', '.join(part.all_names())} or package.module:Name)")
        elif isinstance(option, _Choice):
            said.append(str(option.value))
        else:
            said.append(_WORDS.get(option, "given in Python: it has no text"))
    return " or ".join(said)
