"""Spans: what a process did for a job, from when to when.

Problem: a fit is late, and nobody sees whether its workers waited for others, read rows or trained.

Method: code that does a part of a job says so::

    with span("pack"):
        ...

A span that ends is kept where spans are collected, logged (`dsgd.runtime.logs`) and, where the API of OpenTelemetry is
installed, given to the provider that the process has configured: the client's spans, and under them those of the
workers, which get the place in the trace with their orders (`carrier`). Without a provider OpenTelemetry does nothing
with them.

Cost: two reads of each clock for a span; some five spans for a member of a gang.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, NamedTuple

from dsgd.runtime.credentials import MemberCredentials
from dsgd.runtime.logs import whereabouts

__all__ = ["SPANS_TOPIC", "Span", "as_event", "carrier", "collected", "span"]

#: Under which topic Dask's scheduler keeps the spans of its jobs.
SPANS_TOPIC: Final = "dsgd-spans"

_log: Final = logging.getLogger("dsgd.runtime")


class Span(NamedTuple):
    """A part of a job that is over.

    Parameters
    ----------
    name : str
        What was done.
    began : float
        When, in seconds since 1970 by the clock of that machine.
    seconds : float
        How long it took.
    error : str, default ""
        The type of the error that ended it; empty if none did.
    """

    name: str
    began: float
    seconds: float
    error: str = ""


_spans: Final[ContextVar[list[Span] | None]] = ContextVar("dsgd_spans", default=None)


@contextmanager
def collected() -> Iterator[list[Span]]:
    """Collect the spans of this thread that end in a ``with`` block, in the order in which they do."""
    found: list[Span] = []
    token = _spans.set(found)
    try:
        yield found
    finally:
        _spans.reset(token)


@contextmanager
def span(name: str, parent: Mapping[str, str] | None = None, **attributes: str | int) -> Iterator[None]:
    """Do a part of a job, in a ``with`` block.

    Parameters
    ----------
    name : str
        Which part; OpenTelemetry knows it as ``"dsgd.name"``.
    parent : mapping of str to str, optional
        The `carrier` of another process, under whose span this one is; by default that of this thread.
    **attributes : str or int
        What else OpenTelemetry is told, as ``"dsgd.attribute"``; job, formation and rank are.
    """
    began, start, error = time.time(), time.perf_counter(), ""
    try:
        with _traced(name, parent, attributes):
            yield
    except BaseException as problem:
        error = type(problem).__name__
        raise
    finally:
        seconds, found = time.perf_counter() - start, _spans.get()
        if found is not None:
            found.append(Span(name, began, seconds, error))
        _log.info("%s took %.3f s%s", name, seconds, f" and ended with {error}" if error else "")


def as_event(shown: MemberCredentials, rank: int, n_ranks: int, error: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return what Dask's scheduler keeps of the spans of a member.

    Parameters
    ----------
    shown : MemberCredentials
        Of which member.
    rank, n_ranks : int
        Its first rank, and how many it runs.
    error : str
        What ended it; empty if nothing did.
    spans : sequence of Span
        Its spans, in the order in which they ended.
    """
    member = {"job": shown.job_id, "formed": shown.epoch, "rank": rank, "n_ranks": n_ranks, "error": error}
    return {**member, "spans": [found._asdict() for found in spans]}


def carrier() -> dict[str, str]:
    """Return where in a trace this thread is, for another process; empty without OpenTelemetry."""
    found: dict[str, str] = {}
    api = _opentelemetry()
    if api is not None:
        api.propagate.inject(found)
    return found


@contextmanager
def _traced(name: str, parent: Mapping[str, str] | None, attributes: Mapping[str, str | int]) -> Iterator[None]:
    """Let a span of OpenTelemetry begin and end with a ``with`` block."""
    api = _opentelemetry()
    if api is None:
        yield
        return
    at = whereabouts()
    told = {"job": at.job, "formed": at.formed, **({} if at.rank is None else {"rank": at.rank}), **attributes}
    context = api.propagate.extract(dict(parent)) if parent else None
    named = {f"dsgd.{key}": value for key, value in told.items()}
    with api.trace.get_tracer("dsgd").start_as_current_span(f"dsgd.{name}", context=context, attributes=named):
        yield


class _OpenTelemetry(NamedTuple):
    """The two modules of the API that are used."""

    trace: Any
    propagate: Any


@cache
def _opentelemetry() -> _OpenTelemetry | None:
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    return _OpenTelemetry(trace, propagate)
