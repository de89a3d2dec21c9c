"""Detached fits in the scheduler: who drives them, how they ended, and how long their results stay.

The scheduler's record of detached fits: who drives them, how they ended, and how long their results stay.

Problem: a fit is driven by a process that plans its gang, renews the leases of its workers and takes the model home. If
that is the process of the user, the fit ends with it.

Method: the driver of a detached fit is a task of a Dask worker. Its gangs are ordinary ones, whose leases the driver
renews, so that they are given back within the usual time if its worker stops. What the fit needs (its rows, the task of
its driver) and what it leaves (the fitted estimator) is held by two datasets that Dask's scheduler publishes, whatever
clients do. The first is released when the fit ends; the second when it fails, is cancelled or forgotten, or `keep_s`
after its end.

The driver renews a lease of its own, too: a fit of whose driver nobody has heard for `lease_s` has failed, whether or
not its worker is ever missed.

Dask runs a task again whose worker is lost. Here every run is an attempt, and only as many are made as the policy of
the estimator allows; reports of earlier attempts are refused.

This module is independent of Dask, like the registry of gangs: what is to be done is called, and time comes from
`clock`. All calls come from one thread.

Detached fits as the scheduler plugin serves them: requests of clients and drivers, datasets and tasks of Dask.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsgd.runtime.dask_internals import published, unpublish
from dsgd.runtime.scheduler.jobs import JobView
from dsgd.runtime.scheduler.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Scheduler


#: Number of fits of which is remembered why they are no longer here.
_N_GONE: Final = 64
_OVER: Final = ("done", "failed", "cancelled")
_FORGOTTEN: Final = "it was forgotten"


def result_of(fit_id: str) -> str:
    """Return the name of the driver's task, and of the dataset that holds its result."""
    return f"dsgd-fit-{fit_id}"


def rows_of(fit_id: str) -> str:
    """Return the name of the dataset that holds what the fit trains on until it ends."""
    return f"dsgd-rows-{fit_id}"


def failed_with(kind: str, text: str, worker: str = "", host: str = "") -> dict[str, Any]:
    """Return the record of a failure that no rank has reported; see `dsgd.runtime.worker.failures.as_error`."""
    return {"kind": kind, "rank": -1, "worker": worker, "host": host, "text": text, "pickled": b""}


def last_line(failure: Mapping[str, Any]) -> str:
    """Return the last line of what a failure says."""
    return (str(failure["text"]).strip().splitlines() or [str(failure["kind"])])[-1]


@dataclass
class FitRecord:
    """One detached fit."""

    fit_id: str
    title: str
    owner: str
    submitter: str
    keep_s: float
    restarts: int
    created: float
    state: str = "queued"
    attempts: int = 0
    driver: str = ""
    worker: str = ""
    host: str = ""
    began: float | None = None
    ended: float | None = None
    failure: dict[str, Any] | None = None
    lease_s: float = float("inf")
    renewed_at: float = 0.0
    lost_how: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER


class DetachedFits:
    """All detached fits of one scheduler."""

    def __init__(
        self,
        release: Callable[[str], None],
        stop: Callable[[str, str], None],
        ended: Callable[[str], None] = lambda fit_id: None,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self._release, self._stop, self._ended, self._clock, self._log = release, stop, ended, clock, log
        self.fits: dict[str, FitRecord] = {}
        self._gone: deque[tuple[str, str]] = deque(maxlen=_N_GONE)
        self._barred: deque[tuple[str, str]] = deque(maxlen=_N_GONE)
        self._drivers: deque[str] = deque(maxlen=_N_GONE)

    # ---- the submitter's side

    def announce(self, fit_id: str, title: str, owner: str, submitter: str, keep_s: float, restarts: int) -> None:
        """Record a fit whose driver is about to be submitted."""
        self.fits[fit_id] = FitRecord(fit_id, title, owner, submitter, keep_s, restarts, self._clock())
        self._log({"state": "queued", "fit": fit_id, "title": title, "owner": owner})

    def status(self, fit_id: str) -> dict[str, Any]:
        """Return state and failure of a fit; ``"unknown"``, and why, if it is not here."""
        fit = self.fits.get(fit_id)
        if fit is None:
            return {"state": "unknown", "why": next((why for gone, why in self._gone if gone == fit_id), "")}
        return {"state": fit.state, "failure": fit.failure, "title": fit.title}

    def cancel(self, fit_id: str, reason: str) -> bool:
        """Stop a fit; return whether it had not ended yet."""
        fit = self.fits.get(fit_id)
        if fit is None or fit.is_over:
            return False
        self._end(fit, "cancelled", failed_with("cancelled", reason))
        return True

    def forget(self, fit_id: str, why: str = _FORGOTTEN) -> None:
        """Release the result of a fit; one that has not ended is stopped."""
        self.cancel(fit_id, why)
        fit = self.fits.pop(fit_id, None)
        if fit is not None:
            self._gone.append((fit_id, why))
            self._release(result_of(fit_id))

    # ---- the driver's side

    def begin(self, fit_id: str, driver: str, worker: str, host: str, lease_s: float = float("inf")) -> int:
        """Record that a driver has begun, which is heard of at least every `lease_s`.

        - returned: the number of the attempt, to be shown at the end; 0 if the fit is over, and the driver must
          not begin.
        """
        fit = self.fits.get(fit_id)
        if fit is not None and fit.state == "done":
            # Dask would not run its task again if it still had the result.
            self.result_left(fit_id)
        if fit is None or fit.is_over:
            return 0
        if fit.attempts > fit.restarts:
            self._lose(fit, "left the cluster")
            return 0
        # A driver that was only cut off may still have gangs.
        self._bar(fit, "another driver has begun")
        fit.attempts += 1
        self._drivers.append(driver)
        fit.state, fit.driver, fit.worker, fit.host, fit.lost_how = "running", driver, worker, host, ""
        fit.lease_s, fit.renewed_at = lease_s, self._clock()
        fit.began = self._clock() if fit.began is None else fit.began
        self._log({"state": "running", "fit": fit_id, "attempt": fit.attempts, "worker": worker, "host": host})
        return fit.attempts

    def renew(self, fit_id: str, attempt: int) -> None:
        """Record that a driver was heard of."""
        fit = self.fits.get(fit_id)
        if fit is not None and fit.attempts == attempt:
            fit.renewed_at = self._clock()

    def end(self, fit_id: str, attempt: int, failure: Mapping[str, Any] | None) -> bool:
        """Record that a driver has ended; return False if it no longer drives the fit."""
        fit = self.fits.get(fit_id)
        if fit is None or fit.is_over or fit.attempts != attempt:
            return False
        self._end(fit, "done" if failure is None else "failed", None if failure is None else dict(failure))
        return True

    def is_barred(self, driver: str) -> str:
        """Return why a driver may have no more gangs; empty if it may."""
        return next((why for barred, why in self._barred if barred == driver), "")

    def has_driven(self, client: str) -> bool:
        """Return whether a client is, or lately was, the driver of a fit."""
        return client in self._drivers or any(client == fit.driver for fit in self.fits.values())

    # ---- the cluster's side

    def worker_left(self, worker: str, how: str = "left the cluster") -> None:
        """Fail the fits whose driver was on a worker that left, unless Dask may start it again elsewhere."""
        for fit in list(self.fits.values()):
            if fit.state == "running" and fit.worker == worker:
                if fit.attempts > fit.restarts:
                    self._lose(fit, how)
                else:
                    fit.state, fit.lost_how = "queued", how

    def client_left(self, client: str, is_held: Callable[[str], bool]) -> None:
        """Forget the fits that a client had not finished to submit."""
        for fit in list(self.fits.values()):
            if fit.submitter == client and not fit.is_over and not is_held(result_of(fit.fit_id)):
                self.forget(fit.fit_id, "its client left while it was submitted")

    def result_left(self, fit_id: str) -> None:
        """Record that the task of a driver is gone: with its worker, or because somebody released it."""
        fit = self.fits.get(fit_id)
        if fit is None:
            return
        if fit.state == "done":
            self._end(fit, "failed", failed_with("stopped", "the worker that held the fitted estimator has left"))
        elif fit.lost_how and not fit.is_over:
            # What was sent with it was lost, too, and Dask cannot run it again.
            self._lose(fit, fit.lost_how)
        else:
            self.cancel(fit_id, "its task was cancelled")

    def driver_left(self, fit_id: str, *, returned: bool) -> None:
        """Record that the task of a driver has ended without a word: it was cut off, or Dask has given it up."""
        fit = self.fits.get(fit_id)
        if fit is not None and not fit.is_over:
            if returned:
                self._end(fit, "done", None)
            else:
                self._lose(fit, "left the cluster")

    def expire(self, silence_s: Callable[[float], float]) -> None:
        """Fail the fits whose drivers are silent, and forget those whose end is too long ago."""
        now = self._clock()
        for fit in list(self.fits.values()):
            if fit.state == "running" and silence_s(fit.renewed_at) > fit.lease_s:
                self._lose(fit, f"was not heard of for {fit.lease_s:g} s")
            if fit.ended is not None and now - fit.ended >= fit.keep_s:
                self.forget(fit.fit_id, f"its result was kept for {fit.keep_s:g} s")

    def stop_all(self, reason: str) -> None:
        """Fail all fits, those that have ended as well: their results are gone."""
        for fit in list(self.fits.values()):
            if fit.state not in ("failed", "cancelled"):
                self._end(fit, "failed", failed_with("stopped", reason))

    # ---- inside

    def _lose(self, fit: FitRecord, how: str) -> None:
        self._end(fit, "failed", failed_with("lost", f"worker {fit.worker} {how}", fit.worker, fit.host))

    def _bar(self, fit: FitRecord, reason: str) -> None:
        if fit.driver:
            self._barred.append((fit.driver, reason))
            self._stop(fit.driver, reason)

    def _end(self, fit: FitRecord, state: str, failure: dict[str, Any] | None) -> None:
        fit.state, fit.failure, fit.ended = state, failure, self._clock()
        if failure is not None:
            self._bar(fit, failure["text"])
            self._release(result_of(fit.fit_id))
        self._release(rows_of(fit.fit_id))
        more = {} if failure is None else {"kind": failure["kind"], "text": last_line(failure)}
        self._log({"state": state, "fit": fit.fit_id, "elapsed_s": fit.ended - fit.created, **more})
        self._ended(fit.fit_id)


_PREFIX: Final = result_of("")


class FitHandlers:
    """The detached fits of one scheduler, and a list of these and of all other jobs."""

    def __init__(self, scheduler: Scheduler, registry: Registry, log: Callable[[dict[str, Any]], None]) -> None:
        self._scheduler, self._registry, self._clock = scheduler, registry, time.monotonic
        self._ends: dict[str, asyncio.Event] = {}
        self.fits = DetachedFits(self._release, registry.stop_of, self._tell, self._clock, log)

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Return the calls that clients and drivers may make, by name."""
        return {
            "dsgd_fit_announce": self.fits.announce,
            "dsgd_fit_begin": self.fits.begin,
            "dsgd_fit_renew": self.fits.renew,
            "dsgd_fit_end": self.fits.end,
            "dsgd_fit_watch": self.watch,
            "dsgd_fit_forget": self.fits.forget,
            "dsgd_jobs": self.jobs,
            "dsgd_cancel": self.cancel,
        }

    # ---- asked by clients

    async def watch(self, fit_id: str, wait_s: float) -> dict[str, Any]:
        """Return the state of a fit as soon as it has ended, or after `wait_s`."""
        fit = self.fits.fits.get(fit_id)
        if fit is not None and not fit.is_over and wait_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.setdefault(fit_id, asyncio.Event()).wait(), wait_s)
        return self.fits.status(fit_id)

    def cancel(self, job_id: str, reason: str) -> bool:
        """Stop a detached fit or any other job; return whether it had not ended yet."""
        if job_id in self.fits.fits:
            return self.fits.cancel(job_id, reason)
        job = self._registry.jobs.get(job_id)
        if job is None or job.phase == "closed" or job.stopped:
            return False
        self._registry.abort(job_id, reason)
        return True

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs and detached fits, newest first, as `dsgd.jobs.list_jobs` describes them."""
        views = self._registry.overview()
        rows = []
        for fit in self.fits.fits.values():
            own = [view for view in views if fit.driver and view.job.client == fit.driver]
            rows.append(self._fit_row(fit, own[0] if own else None))
        rows += [_job_row(view) for view in views if not self.fits.has_driven(view.job.client)]
        now = time.time()
        for row in rows:
            row["submitted"] = now - row.pop("age_s")
        return sorted(rows, key=lambda row: -row["submitted"])

    # ---- told by the plugin

    def task_moved(self, key: Any, start: str, finish: str) -> None:
        """Notice what Dask does with the task of a driver; called for every change of any task."""
        if not (isinstance(key, str) and key.startswith(_PREFIX)):
            return
        fit_id, loop = key.removeprefix(_PREFIX), asyncio.get_running_loop()
        # Dask is in the middle of this change: what follows from it may change the same task.
        if finish in ("memory", "erred"):
            loop.call_soon(lambda: self.fits.driver_left(fit_id, returned=finish == "memory"))
        elif start == "memory" or finish == "forgotten":
            loop.call_soon(self.fits.result_left, fit_id)

    def client_left(self, client: str) -> None:
        """Forget what a client had not finished to submit."""
        self.fits.client_left(client, published(self._scheduler).__contains__)

    def label_of(self, client: str, label: Sequence[Any]) -> Sequence[Any]:
        """Return the label of a job: that of a detached fit is owned by who has submitted it, not by its driver."""
        fit = next((fit for fit in self.fits.fits.values() if fit.driver == client), None)
        return label if fit is None else (label[0], fit.owner, *label[2:])

    @property
    def workers(self) -> set[str]:
        """The workers of all drivers."""
        return {fit.worker for fit in self.fits.fits.values() if fit.state == "running"}

    # ---- inside

    def _release(self, name: str) -> None:
        unpublish(self._scheduler, name)

    def _tell(self, fit_id: str) -> None:
        event = self._ends.pop(fit_id, None)
        if event is not None:
            event.set()

    def _fit_row(self, fit: FitRecord, view: JobView | None) -> dict[str, Any]:
        row = _row(fit.fit_id, fit.title, fit.state, fit.owner, self._clock() - fit.created)
        if view is not None:
            row |= _progress(view)
        if fit.state == "running" and view is not None and view.state == "queued":
            row["state"] = "queued"
        ended = self._clock() if fit.ended is None else fit.ended
        row |= {
            "detached": True,
            "started": None if fit.began is None else time.time() - (self._clock() - fit.began),
            "elapsed_s": ended - fit.created,
            "driver": fit.worker,
            "attempts": fit.attempts,
            "failure": None if fit.failure is None else last_line(fit.failure),
            "kept_until": None if fit.ended is None else time.time() + fit.keep_s - (self._clock() - fit.ended),
        }
        return row


def _row(job_id: str, title: str, state: str, owner: str, age_s: float) -> dict[str, Any]:
    return {
        "id": job_id,
        "title": title,
        "state": state,
        "detached": False,
        "owner": owner,
        "age_s": age_s,
        "started": None,
        "elapsed_s": 0.0,
        "place": None,
        "ranks": None,
        "strategy": "",
        "epoch": None,
        "max_iter": None,
        "train_loss": None,
        "workers": [],
        "driver": "",
        "attempts": None,
        "failure": None,
        "kept_until": None,
    }


def _job_row(view: JobView) -> dict[str, Any]:
    job, age_s = view.job, view.elapsed_s
    row = _row(job.job_id, job.label.title, view.state, job.label.owner, age_s) | _progress(view)
    row["started"] = None if job.granted is None else time.time() - (age_s - (job.granted - job.began))
    return row | {"elapsed_s": age_s, "failure": view.failure or None}


def _progress(view: JobView) -> dict[str, Any]:
    latest: Mapping[str, Any] = view.job.latest
    return {
        "place": view.position or None,
        "ranks": view.n_ranks,
        "workers": list(view.job.workers),
        "strategy": latest.get("strategy", ""),
        "epoch": latest.get("epoch"),
        "max_iter": latest.get("max_iter"),
        "train_loss": latest.get("train_loss"),
    }
