"""How jobs of several users share a cluster: the settings of both sides.

In Dask's configuration, ``dsgd.runtime.priority`` and ``dsgd.runtime.user`` are read in the process of the client, and
``dsgd.runtime.workers-per-user`` in that of the scheduler. What they mean is described in
`dsgd.runtime.scheduler.fair_share`.
"""

from __future__ import annotations

import getpass
import os
from typing import Any, Final

from dsgd.validation import check_number

__all__ = ["priority_of", "user_here", "workers_per_user"]

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
