"""Which workers of a cluster can run ranks, and which cannot.

Problem: Dask gives a registered worker plugin to every worker that ever joins the scheduler. One without dsgd cannot
unpickle it, and refuses to start. And Dask answers a client at once if another client is installing the plugin: the
first orders then find workers that do not understand them, and end their streams.

Method: the scheduler plugin installs that of workers itself, on the workers that are there when a job asks for some.
What it sends is pickled by value and needs nothing of dsgd. On the worker it compares versions, installs the plugin if
they agree, and sends a message with its answer. Only workers that have said that they are ready are planned with. One
that has no dsgd, or another version, keeps nothing of ours and is left out, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import cloudpickle

from dsgd.runtime.dask_internals import add_worker_plugin, make_installer, state_of
from dsgd.runtime.messages import WORKER_ANSWER
from dsgd.runtime.versions import LOADED_VERSION, local_versions

if TYPE_CHECKING:
    from distributed import Scheduler

# How often to check whether a worker that is waited for is still heard of.
_LOOK_S: Final = 0.25


class Admission:
    """The workers of a scheduler that have been asked to run ranks."""

    def __init__(self, scheduler: Scheduler, silence_s: Callable[[str], float]) -> None:
        self._scheduler, self._silence_s = scheduler, silence_s
        self.ready: set[str] = set()
        self.refused: dict[str, str] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Event] = {}

    async def ask(self, hung_s: float, at_most_s: float) -> None:
        """Install the plugin where it is missing, and wait for the answers."""
        for address, worker in list(self._scheduler.workers.items()):
            if address in self.ready or address in self.refused or state_of(worker) not in ("running", "paused"):
                continue
            if address not in self._asked:
                self._asked[address] = asyncio.create_task(self._install(address))
        deadline = asyncio.get_running_loop().time() + at_most_s
        while asyncio.get_running_loop().time() < deadline:
            waits = [task for address, task in self._asked.items() if self._silence_s(address) <= hung_s]
            if not waits:
                break
            await asyncio.wait(waits, timeout=_LOOK_S)

    def answer(self, worker: str, problem: str) -> None:
        """Record what a worker says: that it is ready, or why it cannot be."""
        if worker not in self._scheduler.workers:
            return
        if problem:
            self.refused[worker] = problem
        else:
            self.ready.add(worker)
        if worker in self._answers:
            self._answers[worker].set()

    def forget(self, worker: str) -> None:
        """Forget a worker that left: another may come with its address."""
        self.ready.discard(worker)
        self.refused.pop(worker, None)
        task = self._asked.pop(worker, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all waits: the scheduler closes."""
        for task in self._asked.values():
            task.cancel()

    async def _install(self, worker: str) -> None:
        answered = self._answers[worker] = asyncio.Event()
        try:
            await add_worker_plugin(self._scheduler, worker, _installer(), f"dsgd-jobs-{LOADED_VERSION}")
            await answered.wait()
        except OSError:
            # It has just left, or is asked again.
            pass
        except Exception as error:
            self.answer(worker, f"{type(error).__name__}: {error}")
        finally:
            if self._answers.get(worker) is answered:
                del self._answers[worker]
                self._asked.pop(worker, None)


def _installer() -> bytes:
    data: bytes = cloudpickle.dumps(make_installer(local_versions(), WORKER_ANSWER))
    return data
