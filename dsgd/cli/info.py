"""``dsgd info``: installed versions, the machine, and where files are kept."""

from __future__ import annotations

import json
import os
import platform
from typing import Annotated, Any, Final

import typer

from dsgd.cli.cluster import connected
from dsgd.cli.training_options import examples

EXAMPLES: Final = examples("dsgd info", "dsgd info --scheduler tcp://10.0.0.5:8786 --json")

_PACKAGES: Final = ("dsgd", "numpy", "scipy", "scikit-learn", "numba", "dask", "distributed", "pandas", "torch")
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def info(
    scheduler: Annotated[str | None, typer.Option(help="Describe the cluster at this address too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print versions, threads, memory, the cluster and cache folders, as for a bug report."""
    facts = collect(scheduler)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for section, entries in facts.items():
        typer.echo(section)
        for name, value in entries.items():
            typer.echo(f"  {name:<22} {'not set' if value is None else value}")


def collect(scheduler: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the facts by section.

    Parameters
    ----------
    scheduler : str, optional
        Address of a cluster to describe.

    Returns
    -------
    dict of str to dict
        ``versions``, ``threads``, ``machine``, ``wires``, ``folders`` and, with a scheduler, ``cluster``.

    Raises
    ------
    ClusterUnreachableError
        No scheduler answers at the address.
    """
    from dsgd.comm.memory.cores import count_cores
    from dsgd.report.provenance import versions
    from dsgd.runtime.dask_internals import memory_bytes

    facts: dict[str, dict[str, Any]] = {
        "versions": versions(_PACKAGES),
        "threads": {"cpus": count_cores(), **{name: os.environ.get(name) for name in _THREAD_VARIABLES}},
        "machine": {"platform": platform.platform(), "memory_bytes": memory_bytes()},
        "wires": _wires(),
        "folders": _folders(),
    }
    if scheduler is not None:
        facts["cluster"] = _cluster(scheduler)
    return facts


def _wires() -> dict[str, Any]:
    """Return the wires that ranks on this machine can use, and where its configuration lets them listen."""
    import dask.config

    from dsgd.comm.memory.segment import shared_folder

    try:
        left = os.statvfs(shared_folder())
        memory = f"{shared_folder()}, {left.f_bavail * left.f_frsize >> 20} MiB free"
    except OSError as error:
        memory = f"none: {error}"
    return {
        "shared memory": memory,
        "tcp, rpc": "available",
        "dsgd.comm.ports": dask.config.get("dsgd.comm.ports", "any"),
        "dsgd.comm.interface": dask.config.get("dsgd.comm.interface", "that of the worker's address"),
    }


def _folders() -> dict[str, Any]:
    from dsgd.datasets import cache_folder
    from dsgd.kernels.cache import kernel_folder

    return {
        "DSGD_DATA": os.environ.get("DSGD_DATA"),
        "datasets": str(cache_folder()),
        "kernels": str(kernel_folder() or "nowhere: no folder can be written to"),
    }


def _cluster(scheduler: str) -> dict[str, Any]:
    with connected(0, scheduler) as client:
        assert client is not None
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return {
            "scheduler": scheduler,
            "workers": len(workers),
            "threads": sum(worker["nthreads"] for worker in workers),
            "memory_bytes": sum(worker["memory_limit"] or 0 for worker in workers),
            "hosts": len({worker["host"] for worker in workers}),
        }
