"""How an error travels from a rank to the client."""

from __future__ import annotations

import threading

import pytest
from distributed.comm.core import CommClosedError

from dsgd.errors import (
    AbortedError,
    ClusterUnreachableError,
    GangError,
    GangTimeoutError,
    InvalidDataError,
    RankError,
    WorkerLostError,
)
from dsgd.runtime.gang.cluster import code_allowed
from dsgd.runtime.worker.failures import as_error, describe
from gang_programs import OddError

WHERE = {"rank": 3, "worker": "tcp://h:1", "host": "h"}


def travel(error: BaseException, *, aborted: bool = False) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return as_error({**describe(raised, aborted=aborted), **WHERE})


def test_other_peoples_errors_are_named_and_chained() -> None:
    """An ordinary error becomes a RankError with rank, worker, host, traceback and the original as its cause."""
    error = travel(KeyError("x"))
    assert isinstance(error, RankError)
    assert (error.rank, error.worker, error.host) == (3, "tcp://h:1", "h")
    assert "KeyError: 'x'" in error.cause
    assert isinstance(error.__cause__, KeyError)


def test_a_peer_that_is_not_heard_of_is_a_failure_of_a_machine() -> None:
    """A missed deadline of a rank is told apart from errors of its program, which would only be raised again."""
    assert describe(GangTimeoutError("late"), aborted=False)["kind"] == "unheard"
    assert describe(InvalidDataError("bad row"), aborted=False)["kind"] == "raised"
    assert describe(GangTimeoutError("late"), aborted=True)["kind"] == "aborted"


@pytest.mark.parametrize("error", [InvalidDataError("bad row"), GangTimeoutError("late")])
def test_our_errors_stay_what_they_are(error: Exception) -> None:
    """An error of this library is raised as itself, with a note that says where."""
    found = travel(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.__notes__ == ["raised by rank 3 on worker tcp://h:1 (host h)"]


def test_a_cause_that_cannot_travel_stays_behind() -> None:
    """An error chained to one that holds a lock or a socket keeps its type, without the chain."""
    inner = OSError("inner")
    inner.lock = threading.Lock()  # type: ignore[attr-defined]
    outer = GangTimeoutError("late")
    outer.__cause__ = inner
    assert type(travel(outer)) is GangTimeoutError


def test_an_error_that_does_not_load_again_arrives_as_text() -> None:
    """What does not survive pickling has no cause object but its whole text."""
    error = travel(OddError("a", "b"))
    assert isinstance(error, RankError)
    assert error.__cause__ is None
    assert "OddError: ab" in error.cause


def test_echoes_are_marked() -> None:
    """A rank that stopped because the job did says so, whatever it raised."""
    assert describe(AbortedError("elsewhere"), aborted=False)["kind"] == "aborted"
    assert describe(OSError("closed"), aborted=True)["kind"] == "aborted"
    assert isinstance(travel(OSError("closed"), aborted=True), RankError)


def test_losses_and_stops_have_errors_of_their_own() -> None:
    """A lost worker and a job stopped from outside are told apart."""
    lost = as_error({"kind": "lost", **WHERE, "text": "worker tcp://h:1 was retired", "pickled": b""})
    assert isinstance(lost, WorkerLostError)
    assert "rank 3 was lost: worker tcp://h:1 (host h) was retired during the job" in str(lost)
    stopped = as_error({"kind": "stopped", "rank": -1, "worker": "", "host": "", "text": "restarted", "pickled": b""})
    assert type(stopped) is GangError
    assert "restarted" in str(stopped)


def test_a_scheduler_that_goes_while_versions_are_compared_is_unreachable() -> None:
    """The connection that breaks before a job begins is told in the words of this library, as one that breaks later."""
    with pytest.raises(ClusterUnreachableError, match="does not answer any more"), code_allowed():
        raise CommClosedError("connection reset by peer")
