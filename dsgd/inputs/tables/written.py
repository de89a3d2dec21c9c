"""Numbers, bools and dates that are written as text, and what the texts of a column are.

Problem: a column of CSV is what all its texts are, and text comes in parts, in any order.

Method: a part has a state, and states of parts are joined; text is what two of them have in common, if they differ. So
the state of a column is that of all its texts, however they are cut. What is a number or a date is said by the
functions that read it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

#: What texts are; "plain" are numbers as Python writes them.
State: TypeAlias = Literal["null", "bool", "plain", "number", "date", "text"]

_TRUE: Final = ("True", "TRUE", "true")
_FALSE: Final = ("False", "FALSE", "false")
_FIRST: Final = 100
_ZONE: Final = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are strings, or codes of strings."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def numbers_of_text(texts: Any) -> Any:
    """Return numbers and bools that are written as text, as float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _plain(texts)
    try:
        return pc.cast(texts, pa.float64())
    except pa.ArrowException:
        texts = pc.utf8_trim_whitespace(texts)
    true, false = (pc.is_in(texts, value_set=pa.array(words, texts.type)) for words in (_TRUE, _FALSE))
    numbers = pc.cast(pc.if_else(pc.or_(true, false), None, texts), pa.float64())
    return pc.if_else(true, 1.0, pc.if_else(false, 0.0, numbers))


def dates_of_text(texts: Any) -> Any:
    """Return dates and times that are written by ISO 8601, with or without a time zone, as timestamps in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _plain(texts)
    zoned = pc.match_substring_regex(texts, _ZONE)
    found = []
    for part, zone in ((pc.if_else(zoned, None, texts), None), (pc.if_else(zoned, texts, None), "UTC")):
        try:
            dates = pc.cast(part, pa.timestamp("us", zone))
        except pa.ArrowException:
            dates = pc.cast(pc.cast(part, pa.timestamp("ns", zone)), pa.timestamp("us", zone), safe=False)
        found.append(pc.cast(dates, pa.timestamp("us")))
    return pc.coalesce(*found)


def state_of_text(texts: Any, before: State = "null", *, asks_plain: bool = False) -> State:
    """Return what texts are, together with those of a state."""
    texts = _plain(texts)
    if before == "text" or texts.null_count == len(texts):
        return before
    number: State = "plain" if asks_plain and before != "number" else "number"
    states: tuple[State, ...] = ("bool", number, "date") if before == "null" else (before,)
    for state in states:
        # The first of them say cheaply what the column is not.
        if _are(texts.slice(0, _FIRST), state) and _are(texts, state):
            return state
    return "text" if before == "null" else joined(before, state_of_text(texts, asks_plain=asks_plain))


def joined(one: State, other: State) -> State:
    """Return what texts of two states are together."""
    if "null" in (one, other) or one == other:
        return other if one == "null" else one
    return "number" if {one, other} == {"plain", "number"} else "text"


def parsed(text: str) -> Any:
    """Return the bool, or number, that a text is, whole ones as integers; the text itself if it is none."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    try:
        return int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
    return int(value) if value.is_integer() else value


def _are(texts: Any, state: State) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if state == "bool":
        known = pc.is_in(texts, value_set=pa.array([*_TRUE, *_FALSE], texts.type))
        return bool(pc.all(pc.or_(known, pc.is_null(texts))).as_py())
    if state == "plain":
        return all(text is None or _is_plain(text) for text in texts.unique().to_pylist())
    try:
        if state == "date":
            dates_of_text(texts)
            return True
        try:
            pc.cast(texts, pa.float64())
        except pa.ArrowException:
            pc.cast(pc.utf8_trim_whitespace(texts), pa.float64())
    except pa.ArrowException:
        return False
    return True


def _is_plain(text: str) -> bool:
    try:
        return text in (str(int(text)), repr(float(text)))
    except ValueError:
        try:
            return text == repr(float(text))
        except ValueError:
            return False


def _plain(texts: Any) -> Any:
    """Return strings that are neither codes nor views, with which Arrow computes little."""
    import pyarrow as pa

    return texts if pa.types.is_string(texts.type) else texts.cast(pa.large_string())
