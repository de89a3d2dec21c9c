"""How jobs of several users share a cluster: the settings of both sides.

In Dask's configuration, ``dsgd.runtime.priority`` and ``dsgd.runtime.user`` are read in the process of the client, and
``dsgd.runtime.workers-per-user`` in that of the scheduler. What they mean is described in
`dsgd.runtime.scheduler.fair_share`.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.validation import check_number

__all__ = ["Workers", "check_workers", "meant_workers", "priority_of", "user_here", "workers_per_user"]

#: What ``workers=`` takes: names, addresses or hosts of workers, or amounts of resources by name.
Workers = Sequence[str] | Mapping[str, float] | None

_PRIORITY: Final = "dsgd.runtime.priority"
_USER: Final = "dsgd.runtime.user"
_WORKERS: Final = "dsgd.runtime.workers-per-user"


def priority_of(caller: str, given: int | None) -> int:
    """Return the priority of a job: what is given, in Dask's configuration, or 0.

    Parameters
    ----------
    caller : str
        What the user has called, for errors.
    given : int or None
        What the call says.

    Raises
    ------
    InvalidParameterError
        It is no whole number.
    """
    value, where = given, f"{caller}(priority=...)"
    if value is None:
        value, where = _configured(_PRIORITY), f"the setting {_PRIORITY} of dask"
    if value is None:
        return 0
    check_number(where, value, integer=True)
    return int(value)


def check_workers(where: str, value: object) -> None:
    """Raise `InvalidParameterError` unless a parameter names workers, or resources, or is None."""
    if isinstance(value, Mapping):
        is_right = all(isinstance(name, str) and isinstance(n, (int, float)) and n >= 0 for name, n in value.items())
    else:
        is_right = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    if value is not None and not (is_right and value):
        raise InvalidParameterError(
            f"{where} must be a list of names, addresses or hosts of workers, a mapping of resources to amounts, as "
            f"{{'GPU': 1}}, or None. Got {value!r}."
        )


def meant_workers(given: Workers) -> tuple[list[str] | None, dict[str, float]]:
    """Return the names and resources of the workers that are meant: by what is given, else by Dask's annotations.

    Parameters
    ----------
    given : sequence of str, mapping of str to float, or None
        What the call says; None takes what ``dask.annotate(workers=..., resources=...)`` says.

    Returns
    -------
    names : list of str or None
        Names, addresses or hosts; None if any will do.
    resources : dict of str to float
        What they must have.
    """
    import dask

    if isinstance(given, Mapping):
        return None, dict(given)
    if given is not None:
        return list(given), {}
    noted = dask.get_annotations()
    names, resources = noted.get("workers"), noted.get("resources")
    names = [names] if isinstance(names, str) else names
    # Dask also takes functions of a key, which say nothing of a fit.
    return (
        [str(name) for name in names] if isinstance(names, (list, tuple, set, frozenset)) else None,
        dict(resources) if isinstance(resources, Mapping) else {},
    )


def user_here() -> str:
    """Return the user whose jobs those of this process are: the setting of Dask, else the name on this machine."""
    configured = _configured(_USER)
    if configured is not None:
        return str(configured)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that has no name
        return str(os.getuid())


def workers_per_user() -> int | None:
    """Return how many workers of this scheduler a user may hold; None if there is no limit.

    Raises
    ------
    InvalidParameterError
        The setting is no positive whole number.
    """
    value = _configured(_WORKERS)
    if value is None:
        return None
    check_number(f"the setting {_WORKERS} of dask", value, low=1, integer=True)
    return int(value)


def _configured(name: str) -> Any:
    # Not before it is needed: training in this process does not load Dask.
    import dask.config

    return dask.config.get(name, None)
