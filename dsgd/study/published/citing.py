"""What the report of a study cites: the sources of the methods that it ran."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsgd.study.frame.statement import Source
from dsgd.study.published.registry import SOURCES

__all__ = ["citations", "sources_of"]


def sources_of(methods: Iterable[str]) -> list[Source]:
    """Return the sources of some methods.

    Parameters
    ----------
    methods : iterable of str
        Each as ``repr`` writes a strategy, with its compressor and rule: ``LocalSGD(every=64, compressor=TopK(...))``.
    """
    classes = {word for method in methods for word in re.findall(r"\w+", method)}
    return [source for source in SOURCES.values() if source.implemented_by.rpartition(".")[2] in classes]


def citations(sources: Iterable[Source]) -> list[str]:
    """Return the BibTeX entries of some sources, each once."""
    return list(dict.fromkeys(entry for source in sources for entry in source.bibtex))
