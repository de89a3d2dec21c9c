"""Detached fits as the scheduler plugin serves them: requests of clients and drivers, datasets and tasks of Dask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from dsgd.runtime.dask_internals import published, unpublish
from dsgd.runtime.scheduler.detached import DetachedFits, FitRecord, last_line, result_of
from dsgd.runtime.scheduler.jobs import JobView
from dsgd.runtime.scheduler.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed import Scheduler

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
