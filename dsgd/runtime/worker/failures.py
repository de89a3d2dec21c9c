"""How an error of a rank reaches the client, which one the client raises, and where ranks were when their job stopped.

The rule: an error of this library (`DsgdError`: bad data, a deadline missed, a protocol broken) is raised on the client
as itself, with a note that names the rank, because its text is written for the user. Anything else becomes a
`RankError` that names rank, worker and host and carries the remote traceback, with the original as its ``__cause__``.

An error that says that a rank waited for another one too long does not say what that one did instead. So when a job
stops, its worker looks where the threads of its ranks are, before any of them has heard of it; a rank that raised is
where it raised. The client asks for that when a deadline was missed. A process that is stopped, or whose interpreter
lock is held, cannot answer.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final

import cloudpickle

from dsgd.errors import AbortedError, DsgdError, GangError, GangTimeoutError, RankError, WorkerLostError

_MAX_TEXT: Final = 16_384
_MAX_PICKLE_BYTES: Final = 1_000_000


def describe(error: BaseException, *, aborted: bool) -> dict[str, Any]:
    """Turn an error of this rank into a record that travels.

    - returned: ``kind`` (``"aborted"``; ``"unheard"`` when a peer was waited for in vain; else ``"raised"``),
      ``text`` (the traceback) and ``pickled`` (the exception; empty if it does not survive pickling, or is only an
      echo).
    """
    if aborted or isinstance(error, AbortedError):
        kind = "aborted"
    else:
        kind = "unheard" if isinstance(error, GangTimeoutError) else "raised"
    text = "".join(traceback.format_exception(error))
    return {"kind": kind, "text": text[-_MAX_TEXT:], "pickled": b"" if kind == "aborted" else pickled_error(error)}


def as_error(record: Mapping[str, Any]) -> BaseException:
    """Turn a failure record into the error that the client raises."""
    rank, worker, host, text = record["rank"], record["worker"], record["host"], record["text"]
    if record["kind"] == "lost":
        return WorkerLostError(rank, worker, host, text.removeprefix(f"worker {worker} "))
    if record["kind"] == "hung":
        return GangTimeoutError(
            f"rank {rank} on worker {worker} (host {host}) hangs: {text}. The process is stopped, its machine swaps or "
            "cannot be reached, or code that holds the interpreter lock keeps it from answering."
        )
    if record["kind"] in ("stopped", "lapsed"):
        return GangError(f"The job was stopped: {text}.")
    original = unpickled_error(record["pickled"])
    if isinstance(original, DsgdError) and not isinstance(original, AbortedError):
        original.add_note(f"raised by rank {rank} on worker {worker} (host {host})")
        return original
    error = RankError(rank, worker, host, text)
    error.__cause__ = original
    return error


def pickled_error(error: BaseException) -> bytes:
    """Return an exception as bytes, without its cause; empty if it does not survive pickling."""
    # By the parts that pickle itself would take, so that no hook changes what arrives: tblib, which Dask installs for
    # the exceptions it finds, drags along the chain of causes (which may hold a socket) and fails on some of ours.
    # The text has the whole story in any case.
    try:
        make, arguments, *rest = tuple(error.__reduce__())
        states = [rest[0], None] if rest and isinstance(rest[0], dict) else [None]
    except Exception:
        return b""
    for state in states:
        # An exception whose __init__ takes other arguments than it hands to its base pickles well and fails to load,
        # so the round trip is made here, where a failure costs nothing.
        with contextlib.suppress(Exception):
            pickled: bytes = cloudpickle.dumps((make, arguments, state))
            if len(pickled) <= _MAX_PICKLE_BYTES and unpickled_error(pickled) is not None:
                return pickled
    return b""


def release_frames(error: BaseException) -> None:
    """Let go of what the frames hold that an error has passed, and those of its causes.

    Their arrays, sockets and shared memory would stay until the garbage collector runs, which an idle worker never
    does.
    """
    seen: list[BaseException] = []
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and each not in seen:
            seen.append(each)
            found += [each.__cause__, each.__context__]
            traceback.clear_frames(each.__traceback__)


def unpickled_error(pickled: bytes) -> BaseException | None:
    """Return the exception that `pickled_error` was given, or None."""
    if not pickled:
        return None
    try:
        make, arguments, state = pickle.loads(pickled)
        error = make(*arguments)
        vars(error).update(state or {})
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


_N_FRAMES = 16


class Recorder:
    """The stacks of the ranks of one job on one worker."""

    def __init__(self) -> None:
        self._threads: dict[int, int] = {}
        self._stacks: dict[int, str] = {}
        self._is_taken = False

    def enter(self, rank: int) -> None:
        """Say that a rank runs in this thread."""
        self._threads[rank] = threading.get_ident()

    def keep(self, rank: int, error: BaseException) -> None:
        """Note where a rank raised."""
        self._stacks.setdefault(rank, "".join(traceback.format_tb(error.__traceback__)[-_N_FRAMES:]))

    def take(self) -> None:
        """Note where the ranks are, once."""
        if self._is_taken:
            return
        self._is_taken = True
        frames = sys._current_frames()
        for rank, thread in list(self._threads.items()):
            frame = frames.get(thread)
            if frame is not None:
                self._stacks.setdefault(rank, "".join(traceback.format_stack(frame)[-_N_FRAMES:]))

    def stacks(self) -> dict[int, str]:
        """Return where each rank was when the job stopped or, of a job that goes on, where it is now."""
        self.take()
        return dict(self._stacks)
