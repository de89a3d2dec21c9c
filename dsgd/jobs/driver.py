"""The driver of a detached fit: a Dask task that calls ``fit`` in the place of the user's process.

It leaves Dask's thread pool at once, as ranks do, and has a client of its own: by its name the scheduler knows the
gangs of the fit, and when it closes, everything that the fit held is released. It never raises into Dask, which would
run it again.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import Any, Final

from distributed import Client, get_worker, secede

from dsgd.errors import ClusterUnreachableError, WorkerLostError
from dsgd.jobs.sending import packed, unpacked
from dsgd.runtime.gang.client import call_scheduler
from dsgd.runtime.scheduler.detached import failed_with, rows_of
from dsgd.runtime.timeouts import Timeouts
from dsgd.runtime.worker.failures import pickled_error, unpickled_error

__all__ = ["FitOutcome", "describe_error", "error_of", "run_fit"]

_log: Final = logging.getLogger("dsgd.jobs")

_MAX_TEXT: Final = 16_384
_MAX_CAUSES: Final = 8


@dataclass(frozen=True)
class FitOutcome:
    """What a driver returns.

    Parameters
    ----------
    value : bytes
        The fitted estimator, from `packed`; empty if the fit failed.
    failure : dict or None
        Why it failed, for `error_of`.
    """

    value: bytes
    failure: dict[str, Any] | None


def run_fit(fit_id: str, data: bytes, n_futures: int) -> FitOutcome:
    """Drive a detached fit. Sent to run on a worker.

    Parameters
    ----------
    fit_id : str
        Its identity.
    data : bytes
        The estimator, and the arguments and keywords of its ``fit``, from `packed`.
    n_futures : int
        How many futures are in it; they are published as `rows_of` the fit.
    """
    worker = get_worker()
    secede()
    patience_s = Timeouts().seconds("scheduler")
    with Client(
        worker.scheduler.address,
        loop=worker.loop,
        security=worker.security,
        set_as_default=False,
        direct_to_workers=True,
        name=f"dsgd-fit-{fit_id[:8]}",
    ) as client:
        place = {"worker": worker.address, "host": worker.ip}
        attempt = call_scheduler(client, "dsgd_fit_begin", patience_s, fit_id=fit_id, driver=client.id, **place)
        if not attempt:
            return FitOutcome(b"", failed_with("stopped", "the fit was over before its driver began", **place))
        value, failure = b"", None
        try:
            rows = client.get_dataset(rows_of(fit_id)) if n_futures else []
            estimator, arguments, keywords = unpacked(data, client, rows)
            fitted = estimator.fit(*arguments, **keywords)
            value, _ = packed(estimator if fitted is None else fitted)
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: whoever fetches the result must learn of anything that ended it.
            failure = {**describe_error(error), **place}
        try:
            call_scheduler(client, "dsgd_fit_end", patience_s, fit_id=fit_id, attempt=attempt, failure=failure)
        except ClusterUnreachableError as problem:
            _log.warning("the end of detached fit %s was not told: %s", fit_id, problem)
        return FitOutcome(value, failure)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Turn the error of a fit into a record that travels, with its causes."""
    causes: list[bytes] = []
    cause = error.__cause__
    while cause is not None and len(causes) < _MAX_CAUSES:
        causes.append(pickled_error(cause))
        cause = cause.__cause__
    text = "".join(traceback.format_exception(error))[-_MAX_TEXT:]
    return {**failed_with("raised", text), "pickled": pickled_error(error), "causes": causes}


def error_of(failure: dict[str, Any]) -> BaseException | None:
    """Return the error that ended a fit, with its causes; None if it did not survive its way."""
    if failure["kind"] == "lost":
        worker = failure["worker"]
        return WorkerLostError(-1, worker, failure["host"], failure["text"].removeprefix(f"worker {worker} "))
    error = unpickled_error(failure["pickled"])
    if error is None:
        return None
    error.add_note(f"raised on worker {failure['worker']}, which drove the fit:\n{failure['text'].rstrip()}")
    last = error
    for pickled in failure["causes"]:
        last.__cause__ = cause = unpickled_error(pickled)
        if cause is None:
            break
        last = cause
    return error
