"""The registry of what is published: all statements and their sources."""

from __future__ import annotations

from types import MappingProxyType, ModuleType
from typing import Final

from dsgd.study.frame.statement import Source, Statement
from dsgd.study.published import (
    averaging,
    compression,
    elimination,
    features,
    gtopk,
    library,
    msf,
    neighbours,
    rates,
    scaling,
    transports,
    variance,
)

__all__ = ["SOURCES", "STATEMENTS"]


def _of(module: ModuleType) -> list[Statement]:
    """Return the statements of a module, in the order in which it has them."""
    found: list[Statement] = []
    for value in vars(module).values():
        if isinstance(value, Statement):
            found.append(value)
        elif isinstance(value, (tuple, MappingProxyType)):
            items = value.values() if isinstance(value, MappingProxyType) else value
            found += [item for item in items if isinstance(item, Statement)]
    return found


#: All statements by their key, source by source.
STATEMENTS: Final = MappingProxyType(
    {
        statement.key: statement
        for module in (
            msf,
            scaling,
            gtopk,
            compression,
            averaging,
            rates,
            neighbours,
            variance,
            features,
            elimination,
            transports,
            library,
        )
        for statement in _of(module)
    }
)
#: All sources by their key.
SOURCES: Final[MappingProxyType[str, Source]] = MappingProxyType(
    {statement.source.key: statement.source for statement in STATEMENTS.values()}
)
