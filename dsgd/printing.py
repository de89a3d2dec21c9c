"""Texts of users on a terminal: names, labels, paths and messages that somebody else may have chosen."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text on one line, with what moves, colours or reverses other output written as an escape.

    These are control characters, line ends, marks of direction and halves of characters.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
