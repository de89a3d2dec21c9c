"""The values of ``on_failure``: what happens to a job when a machine fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dsgd.errors import InvalidParameterError
from dsgd.validation import check_number


@dataclass(frozen=True)
class Restart:
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

    at_most: int = 3
    remove_hung: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of failures."""
        check_number("Restart(at_most=...)", self.at_most, low=0, integer=True)


@dataclass(frozen=True)
class Shrink:
    """Continue with the remaining ranks and the rows they hold; ``"shrink"`` for short.

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

    at_most: int = 3
    remove_hung: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of failures."""
        check_number("Shrink(at_most=...)", self.at_most, low=0, integer=True)


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
