"""The registry: every published figure, and the measure that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from dsgd.errors import InvalidParameterError
from dsgd.study.claims import codes, contests, fits, studies
from dsgd.study.published import STATEMENTS, Statement

_ALL: Final = (*codes.MEASURES, *contests.MEASURES, *fits.MEASURES, *studies.MEASURES)
#: All measures by name. Those that time this machine come first: later the load would be that of the others.
MEASURES: Final = MappingProxyType({measure.name: measure for measure in sorted(_ALL, key=lambda one: not one.timed)})
#: The measure of each statement, by the key of the statement.
MEASURE_OF: Final = MappingProxyType(
    {statement.key: measure for measure in MEASURES.values() for statement in measure.statements}
)


def chosen(only: Sequence[str] = ()) -> list[Statement]:
    """Return the statements that some words choose; all if there are none.

    Parameters
    ----------
    only : sequence of str
        Each the key of a source, of a statement, or the name of a measure.

    Raises
    ------
    InvalidParameterError
        A word chooses none.
    """
    found: dict[str, Statement] = {}
    for word in only:
        own = {
            key: statement
            for key, statement in STATEMENTS.items()
            if word in (key, statement.source.key, MEASURE_OF[key].name)
        }
        if not own:
            keys = dict.fromkeys(statement.source.key for statement in STATEMENTS.values())
            raise InvalidParameterError(
                f"--only {word!r} is no claim: give a source ({', '.join(keys)}), or what `dsgd claims --list` shows, "
                "as gtopk/dense."
            )
        found |= own
    return [statement for statement in STATEMENTS.values() if not only or statement.key in found]
