"""Texts of users on a terminal: names, labels, paths and messages that somebody else may have chosen."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text on one line; control characters, marks of direction and line ends are written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
