"""What an SVM does when a machine of its gang fails: the values of ``on_failure`` that keep it exact."""

from __future__ import annotations

from dsgd.errors import InvalidParameterError
from dsgd.runtime.gang.policy import FailurePolicy, Shrink, as_policy

__all__ = ["check_restart"]


def check_restart(name: str, value: FailurePolicy) -> None:
    """Refuse what is no policy, and to go on without rows.

    Parameters
    ----------
    name : str
        Name of the estimator.
    value : str, Restart or Shrink
        Its ``on_failure``.

    Raises
    ------
    InvalidParameterError
        The value is none of these, or a `Shrink`.
    """
    if isinstance(as_policy(f"{name}(on_failure=...)", value), Shrink):
        raise InvalidParameterError(
            f"{name}(on_failure={value!r}) would go on without the rows of the lost machine, but its gap is proven "
            'over all rows. Take "restart", which brings them back, or "raise".'
        )
