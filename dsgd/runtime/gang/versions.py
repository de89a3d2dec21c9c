"""Checks before a job begins: whether the cluster has the same versions and runs code of its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from distributed.comm import CommClosedError

from dsgd.errors import ClusterError, ClusterUnreachableError, VersionMismatchError
from dsgd.runtime.dask_internals import blocked_call, make_scheduler_probe
from dsgd.runtime.versions import local_versions

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_scheduler", "check_versions", "code_allowed"]

# Calls of Dask that start a job; a cluster may block some of them for its clients.
_NEEDED: Final = {
    "Scheduler": "run_function, register_scheduler_plugin and register_worker_plugin",
    "Worker": "plugin-add",
}
#: For each client, the name of its scheduler, and the workers that have the right versions.
_RIGHT: Final[WeakKeyDictionary[Client, tuple[str, frozenset[str]]]] = WeakKeyDictionary()


def check_versions(client: Client) -> frozenset[str]:
    """Compare the versions on the scheduler and on all workers with those of this process.

    A worker with the right versions is not asked again: it cannot load another version.

    Returns
    -------
    frozenset of str
        Names of the plugins that the cluster has.

    Raises
    ------
    VersionMismatchError
        Some process has no dsgd, or another version of dsgd, Python or numpy; names all of them.
    ClusterError
        The cluster takes no code from clients.
    ClusterUnreachableError
        The connection to the scheduler broke.
    """
    probe = _make_probe()
    wanted = local_versions()
    with code_allowed():
        there, problems = _look(client)
        name, known = _RIGHT.get(client, ("", frozenset()))
        known = known if name == there["id"] else frozenset()
        asked = [address for address in there["workers"] if address not in known]
        answers = client.run(probe, workers=asked, on_error="return") if asked else {}
    right = known.intersection(there["workers"])
    for address, found in answers.items():
        # A worker that just left answers with an error, and is missed later if it is needed. So does one that blocks
        # this call, which may still accept the plugin.
        if isinstance(found, Mapping):
            wrong = _problems(f"worker {address}", found, wanted)
            problems += wrong
            right |= set() if wrong else {address}
    _RIGHT[client] = there["id"], right
    _refuse(problems)
    return frozenset(there["plugins"])


def check_scheduler(client: Client) -> frozenset[str]:
    """Compare the versions on the scheduler alone; returns and raises as `check_versions`."""
    with code_allowed():
        there, problems = _look(client)
    _refuse(problems)
    return frozenset(there["plugins"])


def _look(client: Client) -> tuple[Mapping[str, Any], list[str]]:
    """Return what the scheduler says of itself, and what is wrong with its versions."""
    there: Mapping[str, Any] = client.run_on_scheduler(make_scheduler_probe(_make_probe()))
    return there, _problems("scheduler", there["versions"], local_versions())


def _refuse(problems: list[str]) -> None:
    if problems:
        mine = ", ".join(f"{name} {number}" for name, number in local_versions().items())
        raise VersionMismatchError(
            f"this client has {mine}, but " + "; ".join(problems) + ". Install the same versions everywhere."
        )


@contextmanager
def code_allowed() -> Iterator[None]:
    """Translate refused calls of Dask to an error that says what the cluster must allow.

    Raises
    ------
    ClusterError
        The scheduler or a worker blocks a call that starts a job.
    ClusterUnreachableError
        The connection to the scheduler broke, or broke before.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, CommClosedError):
            raise ClusterUnreachableError(f"the scheduler does not answer any more: {error}.") from error
        blocked = blocked_call(error)
        if blocked is None:
            raise
        where = blocked.where.lower()
        raise ClusterError(
            f"the {where} blocks {blocked.call!r} for its clients, but a job needs it: ranks find each "
            "other through a plugin of the scheduler and of each worker. The administrator of the cluster must remove "
            f"{_NEEDED[blocked.where]} from distributed.{where}.blocked-handlers. Without a cluster, "
            "client=None trains on threads of this process."
        ) from error


def _problems(where: str, found: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    if "error" in found:
        return [f"{where} cannot import dsgd ({found['error']})"]
    other = [f"{name} {found.get(name)}" for name, number in wanted.items() if found.get(name) != number]
    return [f"{where} has {', '.join(other)}"] if other else []


def _make_probe() -> Callable[[], dict[str, str]]:
    """Return a function for the versions of the process in which it runs."""

    # A nested function is pickled by value, so it also runs where dsgd is not installed.
    def probe() -> dict[str, str]:
        import importlib

        try:
            importlib.import_module("dsgd.runtime.worker.member")
            found: dict[str, str] = importlib.import_module("dsgd.runtime.versions").local_versions()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return found

    return probe
