"""What users say of a job on a cluster: how long it waits, and for what, and what happens when a machine fails.

Every one of these can be given in a `dsgd.Gang` (``timeouts=``), on the command line (``--timeout queue=1h``) or in
Dask's configuration, there under ``dsgd.runtime.timeouts``. What is given nearer to the job comes first; what is given
nowhere is as follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self

from dsgd.errors import InvalidParameterError
from dsgd.validation import check_number

_SETTING: Final = "dsgd.runtime.timeouts"

#: Seconds, by the names of the settings.
DEFAULT_TIMEOUTS: Final[dict[str, float]] = {
    "peer": 300.0,
    "queue": 86_400.0,
    "hung": 15.0,
    "lease": 60.0,
    "scheduler": 120.0,
}


@dataclass(frozen=True)
class Timeouts:
    """How long a job waits, in seconds; None takes what Dask's configuration says, else the default.

    The configuration may have a number of seconds or a text such as ``"10 minutes"``, as
    ``dask.config.set({"dsgd.runtime.timeouts.queue": "1h"})`` in the process of the client.

    Parameters
    ----------
    peer : float or None, default None
        How long a rank waits for a peer that says nothing, and the job for ranks to start or to end (300).
    queue : float or None, default None
        How long the job waits for other jobs to release its workers, or for a cluster to have some (86,400).
    hung : float or None, default None
        How long a worker may send no heartbeat before it is taken to hang (15).
    lease : float or None, default None
        How long the scheduler keeps workers for a client that it does not hear of (60).
    scheduler : float or None, default None
        How long clients and ranks wait for an answer of the scheduler (120).

    Raises
    ------
    InvalidParameterError
        One of them is no positive number.
    """

    peer: float | None = None
    queue: float | None = None
    hung: float | None = None
    lease: float | None = None
    scheduler: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no length of time."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                check_number(f"Timeouts({field.name}=...)", value, low=0, open_low=True)

    @classmethod
    def parse(cls, where: str, texts: Sequence[str]) -> Self:
        """Return what texts such as ``"queue=1h"`` say.

        Parameters
        ----------
        where : str
            What the user wrote them after, for errors.
        texts : sequence of str
            Each a name and a length of time, in seconds where there is no unit.

        Raises
        ------
        InvalidParameterError
            A name is unknown, or a length is none.
        """
        given: dict[str, float] = {}
        for text in texts:
            name, _, length = text.partition("=")
            if name not in DEFAULT_TIMEOUTS:
                raise InvalidParameterError(f"{where} takes {'=, '.join(DEFAULT_TIMEOUTS)}=. Got {text!r}.")
            given[name] = _seconds(f"{where} {name}=", length)
        return cls(**given)

    def seconds(self, name: str) -> float:
        """Return one of them: what is given here, in Dask's configuration or by default.

        Raises
        ------
        InvalidParameterError
            The configuration says something that is no positive length of time.
        """
        if (given := getattr(self, name)) is not None:
            return float(given)
        # Not before it is needed: training in this process does not load Dask.
        import dask.config

        value: Any = dask.config.get(f"{_SETTING}.{name}", None)
        return DEFAULT_TIMEOUTS[name] if value is None else _seconds(f"the setting {_SETTING}.{name} of dask", value)

    def settled(self) -> Self:
        """Return all of them as numbers."""
        return type(self)(**{field.name: self.seconds(field.name) for field in fields(self)})


def _seconds(where: str, value: Any) -> float:
    from dask.utils import parse_timedelta

    try:
        seconds = float(parse_timedelta(value, default="s"))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InvalidParameterError(
            f"{where} must be a length of time, as 90 or '10 minutes'. Got {value!r}."
        ) from error
    check_number(where, seconds, low=0, open_low=True)
    return seconds


@dataclass(frozen=True)
class _Policy:
    """What is done about failures, and how often."""

    at_most: int = 3
    remove_hung: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of failures."""
        check_number(f"{type(self).__name__}(at_most=...)", self.at_most, low=0, integer=True)


class Restart(_Policy):
    """Start a new gang over all rows; ``"restart"`` for short.

    Lost rows are computed again by Dask, or sent again by the client. The new gang has as many ranks as the cluster
    allows or, if their number is given, as many as before.

    Parameters
    ----------
    at_most : int, default 3
        How many failures the job survives; the next one is raised.
    remove_hung : bool, default False
        Whether a worker that hangs is removed from the cluster, with all that it runs and holds for anybody, so that a
        nanny may start it anew. By default it is left alone: the job goes on without it, and Dask gives it no new
        tasks until it is heard of again.

    Raises
    ------
    InvalidParameterError
        The number is negative.
    """


class Shrink(_Policy):
    """Continue with the remaining ranks and the rows they hold; ``"shrink"`` for short.

    Parameters
    ----------
    at_most, remove_hung
        As of `Restart`.

    Raises
    ------
    InvalidParameterError
        The number is negative.
    """


#: How a job reacts to the failure of a machine; see `dsgd.runtime.run_on_cluster`.
FailurePolicy = Literal["raise", "restart", "shrink"] | Restart | Shrink
_NAMED: Final = {"raise": None, "restart": Restart(), "shrink": Shrink()}


def as_policy(where: str, value: FailurePolicy) -> Restart | Shrink | None:
    """Return the policy of a value of ``on_failure``; None if failures are raised."""
    if isinstance(value, (Restart, Shrink)):
        return value
    if not isinstance(value, str) or value not in _NAMED:
        raise InvalidParameterError(
            f'{where} must be one of "raise", "restart", "shrink", Restart(at_most=...) or Shrink(at_most=...). '
            f"Got {value!r}."
        )
    return _NAMED[value]
