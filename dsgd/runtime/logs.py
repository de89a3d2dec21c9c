"""Logs that say which job and rank they are of.

Problem: on a worker ranks of one job run beside tasks of others, as threads of one process, and lines of several ranks
are mixed in its log.

Method: the thread of a rank knows its job for as long as it runs (`working_for`). A `RankFilter` on a handler writes
that into every record, those of the user's own code too, and a `JsonFormatter` makes a line of JSON of a record.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

_FORMAT: Final = "%(asctime)s - %(name)s - %(levelname)s - job %(dsgd_job).8s, rank %(dsgd_rank)s - %(message)s"


class Whereabouts(NamedTuple):
    """What a thread works for."""

    job: str = ""
    formed: int = 0
    rank: int | None = None


_NOWHERE: Final = Whereabouts()
_current: Final[ContextVar[Whereabouts]] = ContextVar("dsgd_whereabouts", default=_NOWHERE)


@contextmanager
def working_for(job: str, formed: int = 0, rank: int | None = None) -> Iterator[None]:
    """Say what this thread works for, in a ``with`` block."""
    token = _current.set(Whereabouts(job, formed, rank))
    try:
        yield
    finally:
        _current.reset(token)


def whereabouts() -> Whereabouts:
    """Return what this thread works for."""
    return _current.get()


def keep_log() -> None:
    """Let what dsgd logs in this process say when, how grave and for which job it is, unless somebody has chosen how.

    Warnings of threads that work for a job are logged, too: nobody reads what a worker prints.
    """
    log = logging.getLogger("dsgd")
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(RankFilter())
    log.addHandler(handler)
    show = warnings.showwarning

    def log_warning(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        if whereabouts().job:
            log.getChild("warnings").warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)
        else:
            show(message, category, filename, lineno, *rest)

    warnings.showwarning = log_warning  # type: ignore[assignment]


class RankFilter(logging.Filter):
    """Writes job, formation and rank of the thread that logs into each record; lets all records pass.

    Records get the attributes ``dsgd_job``, ``dsgd_formed`` and ``dsgd_rank``, for formats such as
    ``"%(levelname)s %(dsgd_job).8s/%(dsgd_rank)s %(message)s"``; outside of jobs they are ``"-"``. Add it to handlers:
    a filter of a logger does not see the records of loggers below it.

    Examples
    --------
    >>> import logging
    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(RankFilter())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete a record."""
        at = whereabouts()
        record.dsgd_job = at.job or "-"
        record.dsgd_formed = at.formed if at.job else "-"
        record.dsgd_rank = "-" if at.rank is None else at.rank
        return True


class JsonFormatter(logging.Formatter):
    """Makes one line of JSON of a record, with the fields that `RankFilter` adds.

    The keys are ``time`` (UTC, ISO 8601), ``level``, ``logger`` and ``message``; ``job``, ``formed`` and ``rank`` where
    a record has them; and ``error``, the traceback, if there is one.
    """

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("job", "formed", "rank"):
            value = getattr(record, f"dsgd_{name}", "-")
            if value != "-":
                found[name] = value
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)
