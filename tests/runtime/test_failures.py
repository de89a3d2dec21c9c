"""How an error travels from a rank to the client."""

from __future__ import annotations

import threading

import pytest
from distributed.comm.core import CommClosedError

from dsgd.errors import AbortedError, ClusterUnreachableError, GangTimeoutError, InvalidDataError
from dsgd.runtime.gang.cluster import code_allowed
from dsgd.runtime.worker.failures import as_error, describe

WHERE = {"rank": 3, "worker": "tcp://h:1", "host": "h"}


def travel(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return as_error({**describe(raised, aborted=False), **WHERE})


@pytest.mark.parametrize(
    ("error", "aborted", "kind"),
    [
        (GangTimeoutError("late"), False, "unheard"),
        (InvalidDataError("bad row"), False, "raised"),
        (GangTimeoutError("late"), True, "aborted"),
        (OSError("closed"), True, "aborted"),
        (AbortedError("elsewhere"), False, "aborted"),
    ],
)
def test_errors_of_machines_of_programs_and_of_other_ranks_are_told_apart(
    error: Exception, aborted: bool, kind: str
) -> None:
    """Only what a rank itself raised is an error of its program, which would only be raised again."""
    assert describe(error, aborted=aborted)["kind"] == kind


def test_a_cause_that_cannot_travel_stays_behind() -> None:
    """An error chained to one that holds a lock or a socket keeps its type, without the chain."""
    inner = OSError("inner")
    inner.lock = threading.Lock()  # type: ignore[attr-defined]
    outer = GangTimeoutError("late")
    outer.__cause__ = inner
    assert type(travel(outer)) is GangTimeoutError


def test_a_scheduler_that_goes_while_versions_are_compared_is_unreachable() -> None:
    """The connection that breaks before a job begins is told in the words of this library, as one that breaks later."""
    with pytest.raises(ClusterUnreachableError, match="does not answer any more"), code_allowed():
        raise CommClosedError("connection reset by peer")
    with pytest.raises(ClusterUnreachableError, match="any more: it closed the connection"), code_allowed():
        raise CommClosedError
