"""Checks before a job begins: whether the scheduler has the same versions, and runs code of its clients.

Workers are asked by the scheduler (`dsgd.runtime.scheduler.admission`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from distributed.comm import CommClosedError

from dsgd.errors import ClusterError, ClusterUnreachableError, VersionMismatchError
from dsgd.runtime.dask_internals import BlockedCall, blocked_call, make_scheduler_probe
from dsgd.runtime.gang.client import guarded
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN, GangSchedulerPlugin
from dsgd.runtime.versions import local_versions

if TYPE_CHECKING:
    from distributed import Client

# Calls of Dask that start a job; a cluster may block some of them for its clients.
_NEEDED: Final = {"Scheduler": "run_function and register_scheduler_plugin", "Worker": "plugin-add"}


def prepare_scheduler(client: Client, timeout_s: float) -> None:
    """Compare the versions of the scheduler with those of this process, and install its plugin unless it is there."""
    if SCHEDULER_PLUGIN in check_scheduler(client, timeout_s):
        return

    async def register() -> None:
        await client.register_plugin(GangSchedulerPlugin())

    with code_allowed():
        guarded(client, register, timeout_s=timeout_s)


def check_scheduler(client: Client, timeout_s: float) -> frozenset[str]:
    """Compare the versions of the scheduler with those of this process; return the names of its plugins.

    Raises as `prepare_scheduler`.
    """

    async def look() -> Mapping[str, Any]:
        found: Mapping[str, Any] = await client.run_on_scheduler(make_scheduler_probe(_make_probe()))
        return found

    with code_allowed():
        there = guarded(client, look, timeout_s=timeout_s)
    found, wanted = there["versions"], local_versions()
    if "error" in found:
        raise VersionMismatchError(wanted_text(f"the scheduler cannot import dsgd ({found['error']})"))
    other = [f"{name} {found.get(name)}" for name, number in wanted.items() if found.get(name) != number]
    if other:
        raise VersionMismatchError(wanted_text(f"the scheduler has {', '.join(other)}"))
    return frozenset(there["plugins"])


def wanted_text(problems: str) -> str:
    """Return what to say of other versions elsewhere."""
    mine = ", ".join(f"{name} {number}" for name, number in local_versions().items())
    return f"this client has {mine}, but {problems}. Install the same versions everywhere."


def refused_call(blocked: BlockedCall) -> ClusterError:
    """Return the error of a cluster that blocks a call which starts a job."""
    where = blocked.where.lower()
    return ClusterError(
        f"the {where} blocks {blocked.call!r} for its clients, but a job needs it: ranks find each "
        "other through a plugin of the scheduler and of each worker. The administrator of the cluster must remove "
        f"{_NEEDED[blocked.where]} from distributed.{where}.blocked-handlers. Without a cluster, "
        "client=None trains on threads of this process."
    )


@contextmanager
def code_allowed() -> Iterator[None]:
    """Translate refused calls of Dask to an error that says what the cluster must allow."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CommClosedError):
            raise ClusterUnreachableError(f"the scheduler does not answer any more: {error}.") from error
        blocked = blocked_call(error)
        if blocked is None:
            raise
        raise refused_call(blocked) from error


def _make_probe() -> Callable[[], dict[str, str]]:
    """Return a function for the versions of the process in which it runs."""

    # A nested function is pickled by value, so it also runs where dsgd is not installed.
    def probe() -> dict[str, str]:
        import importlib

        try:
            importlib.import_module("dsgd.runtime.scheduler.plugin")
            found: dict[str, str] = importlib.import_module("dsgd.runtime.versions").local_versions()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return found

    return probe
