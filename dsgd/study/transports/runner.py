"""Running the study of transports: two worker processes for each kind of cluster that runs need, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dsgd.sim.calibration import run_measurement
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record
from dsgd.study.frame.workers import cluster_of
from dsgd.study.transports import dask_ways
from dsgd.study.transports.alone import run_alone
from dsgd.study.transports.counting import can_count, counted
from dsgd.study.transports.grid import TransportRun, TransportStudy
from dsgd.study.transports.over_mpi import launcher, run_mpi
from dsgd.study.transports.pairs import run_pair

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["missing_parts", "run_transport_study"]

_ON_CLIENTS: Final = MappingProxyType(
    {"graph": dask_ways.run_graph, "actor": dask_ways.run_actor, "rpc": dask_ways.run_rpc}
)
#: What the gang of a way goes over, where it is not memory read from the other process.
_TRANSPORTS: Final = MappingProxyType({"tcp": "tcp", "tls": "tcp", "spin": "spin"})


def missing_parts(study: TransportStudy) -> dict[str, str]:
    """Return what of a study cannot be run here, by way, model or part, and why.

    Parameters
    ----------
    study : TransportStudy
        The study.
    """
    found = {}
    if "tls" in study.ways and find_spec("cryptography") is None:
        found["tls"] = "cryptography is not installed"
    if "mpi" in study.ways and launcher() is None:
        found["mpi"] = "there is no mpi4py here, or no mpiexec beside it"
    if "cnn" in study.models and find_spec("torch") is None:
        found["cnn"] = "torch is not installed"
    if not can_count():
        found["counts"] = "counting needs Linux and a C compiler called cc"
    return found


def run_transport_study(
    study: TransportStudy, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: timed ones, then counted ones.

    Parameters and errors are those of `dsgd.study.run_study`.
    """
    record = Record(out, force=force, command=command, ranks=2)
    missing = missing_parts(study)
    with _Clusters() as clusters:
        for part, way, repeat in study.groups():
            runs = [run for run in study.runs(part, way, repeat) if run.work.kind not in missing]
            if part in missing or way in missing:
                yield from record.kept(runs)
            else:
                yield from record.finish(runs, partial(_measure, clusters))


class _Clusters:
    """Worker processes that have been started, by whether they encrypt and whether they count."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._clients: dict[tuple[bool, bool], Client] = {}

    def __enter__(self) -> _Clusters:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def client(self, *, encrypted: bool, counts: bool) -> Client:
        """Return the client of two such workers."""
        kind = encrypted, counts
        if kind not in self._clients:
            with counted() if counts else nullcontext():
                made = cluster_of(2, security=encrypted or None)
                client = self._open.enter_context(made)
            # A cluster that has just started may know one of them only.
            client.wait_for_workers(2)
            self._clients[kind] = client
        return self._clients[kind]


def _measure(clusters: _Clusters, runs: Sequence[TransportRun]) -> list[Row]:
    """Return the rows of runs of one way."""
    way, counts = runs[0].way, runs[0].part == "counts"
    works = [(run.work, run.amount) for run in runs]
    if way == "none":
        return run_alone(works)
    if way == "mpi":
        with counted() if counts else nullcontext():
            return run_mpi(works, counts)
    client = clusters.client(encrypted=way == "tls", counts=counts)
    if way in _ON_CLIENTS:
        return _ON_CLIENTS[way](client, works, counts)
    transport: Any = _TRANSPORTS.get(way, "shm")
    gang = run_measurement(
        run_pair, (way, works, counts), client=client, ranks=2, transport=transport, ranks_per_worker=1
    )
    rows: list[Row] = gang.value
    return rows
