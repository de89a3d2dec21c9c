"""Whether every process of the cluster can run what the client sends."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dsgd.errors import VersionMismatchError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_versions", "local_versions"]


def local_versions() -> dict[str, str]:
    """Return the versions that must agree: dsgd exactly, Python to the minor version, numpy to the major one."""
    return {
        "dsgd": version("dsgd"),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": version("numpy").split(".")[0],
    }


def check_versions(client: Client) -> None:
    """Compare the versions on the scheduler and on all workers with those of this process.

    Raises
    ------
    VersionMismatchError
        Some process has no dsgd, or another version of dsgd, Python or numpy; names all of them.
    """
    probe = _make_probe()
    wanted = local_versions()
    problems = [*_problems("scheduler", client.run_on_scheduler(probe), wanted)]
    for address, found in client.run(probe, on_error="return").items():
        # A worker that just left answers with an error; it is missed later if it is needed.
        if isinstance(found, Mapping):
            problems += _problems(f"worker {address}", found, wanted)
    if problems:
        mine = ", ".join(f"{name} {number}" for name, number in wanted.items())
        raise VersionMismatchError(
            f"this client has {mine}, but " + "; ".join(problems) + ". Install the same versions everywhere."
        )


def _problems(where: str, found: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    if "error" in found:
        return [f"{where} cannot import dsgd ({found['error']})"]
    other = [f"{name} {found[name]}" for name, number in wanted.items() if found[name] != number]
    return [f"{where} has {', '.join(other)}"] if other else []


def _make_probe() -> Callable[[], dict[str, str]]:
    # A function defined inside another one is pickled by value, so it also arrives where dsgd is not installed.
    def probe() -> dict[str, str]:
        import importlib
        import platform
        from importlib.metadata import version

        try:
            importlib.import_module("dsgd.runtime.member")
            return {
                "dsgd": version("dsgd"),
                "python": ".".join(platform.python_version_tuple()[:2]),
                "numpy": version("numpy").split(".")[0],
            }
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    return probe
