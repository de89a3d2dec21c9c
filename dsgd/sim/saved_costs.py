"""Saved cost models: a JSON file for each gang in the cache folder.

Problem: to measure a gang takes seconds, and it changes only when machines, their number or versions do.

A gang is identified by its signature: the hosts and threads of its workers, the number of ranks, the transport, and the
versions of the installed software. The name of the file is a digest of it; the file contains it in full. If a file is
older than `MAX_AGE_DAYS`, of another format or gang, or cannot be read, costs are measured again: the file only saves
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dsgd.comm.base import TransportName
from dsgd.errors import InvalidParameterError
from dsgd.files import replacing
from dsgd.sim.calibration import Calibration
from dsgd.sim.compute import Compute
from dsgd.sim.cost import CostModel, Layout, RowCost, kind_of
from dsgd.sim.measure import measure_costs
from dsgd.sim.network import Link, Network

#: An older calibration is repeated.
MAX_AGE_DAYS: Final = 30
_FORMAT: Final = 2
_FOLDER: Final = "calibrations"
_PACKAGES: Final = ("dsgd", "numpy", "numba", "distributed")


@dataclass(frozen=True)
class SavedCosts:
    """A cost model and its file.

    Parameters
    ----------
    model : CostModel
        What was measured.
    path : Path
        Its file, which need not be there: the folder may be read-only.
    measured_at : datetime
        When the oldest part of it was measured.
    seconds : float
        What measuring took now; 0 where nothing had to be measured.
    """

    model: CostModel
    path: Path
    measured_at: datetime
    seconds: float = 0.0

    @property
    def reused(self) -> bool:
        """Whether all of it was read from the file."""
        return self.seconds == 0.0


def known_costs(
    client: Any = None,
    *,
    strategies: Sequence[Any] = (),
    layouts: Sequence[Layout] = ("dense", "sparse"),
    dtypes: Sequence[str] = ("float64",),
    ranks: int | None = None,
    transport: TransportName = "auto",
    folder: str | os.PathLike[str] | None = None,
    renew: bool = False,
    limit_s: float = 60.0,
    deadline_s: float = math.inf,
) -> SavedCosts:
    """Return the cost model of a gang: from its file, or measured and written there.

    Parameters
    ----------
    client, strategies, layouts, dtypes, ranks, transport, limit_s, deadline_s
        See `dsgd.sim.measure_costs`. Strategies and rows that are not in the file are measured and added.
    folder : path or None, default None
        Where files are; None takes ``calibrations`` in the cache folder, see `dsgd.datasets.cache_folder`.
    renew : bool, default False
        Whether to measure again even if there is a valid file.

    Returns
    -------
    SavedCosts
        The model and its file.

    Raises
    ------
    InvalidParameterError, GangTimeoutError
        See `dsgd.sim.measure_costs`.
    """
    signature = signature_of(client, ranks, transport)
    path = costs_path(signature, folder)
    saved = None if renew else read_costs(path, signature)
    wanted_rows = {f"{layout} {dtype} model" for layout in layouts for dtype in dtypes}
    if saved is not None:
        missing = [sync for sync in strategies if kind_of(sync) not in saved.model.rounds]
        if not missing and wanted_rows <= set(saved.model.rows):
            return saved
        strategies = missing
    begin = time.perf_counter()
    model = measure_costs(
        client,
        strategies=strategies,
        layouts=layouts,
        dtypes=dtypes,
        ranks=ranks,
        transport=transport,
        limit_s=limit_s,
        deadline_s=deadline_s,
    )
    seconds = time.perf_counter() - begin
    measured_at = datetime.now(UTC)
    if saved is not None:
        # What both have is taken from now: rounds and waiting belong together.
        model, measured_at = model.merged(saved.model), saved.measured_at
    # A file that cannot be written costs time, never a result.
    with contextlib.suppress(OSError):
        write_costs(model, path, signature, measured_at)
    return SavedCosts(model, path, measured_at, seconds)


def signature_of(client: Any = None, ranks: int | None = None, transport: TransportName = "auto") -> dict[str, Any]:
    """Return what tells one gang from another.

    - returned: of plain values: ``hosts`` (threads of each worker by host), ``ranks``, ``transport``, ``versions``.
    """
    here, cores = platform.node(), os.cpu_count() or 1
    hosts: dict[str, list[int]] = {}
    if client is None:
        transport_name, n_ranks = "threads", ranks or 2
        hosts[here] = [cores]
    else:
        transport_name, n_ranks = transport, ranks or sum(client.nthreads().values())
        for worker in client.scheduler_info(n_workers=-1)["workers"].values():
            host = str(worker["host"])
            # Every machine calls itself 127.0.0.1, and a home folder may be shared.
            name = here if host.startswith(("127.", "::1", "localhost")) else host
            hosts.setdefault(name, []).append(int(worker["nthreads"]))
    return {
        "hosts": {name: sorted(threads) for name, threads in sorted(hosts.items())},
        "ranks": n_ranks,
        "transport": transport_name,
        "cores_here": cores,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }


def costs_path(signature: Mapping[str, Any], folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of a gang."""
    if folder is None:
        from dsgd.datasets.files import cache_folder

        folder = cache_folder() / _FOLDER
    text = json.dumps(signature, sort_keys=True)
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_costs(path: Path, signature: Mapping[str, Any]) -> SavedCosts | None:
    """Return the costs in a file; None if it is missing, too old, of another gang or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        saved = _saved_in(content, path)
        is_old = datetime.now(UTC) - saved.measured_at > timedelta(days=MAX_AGE_DAYS)
        return None if is_old or content["signature"] != json.loads(json.dumps(signature)) else saved
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_costs(path: str | os.PathLike[str]) -> SavedCosts:
    """Return the costs in a file of `known_costs` or ``dsgd calibrate``, of any gang and age.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    InvalidParameterError
        It cannot be read, or is something else.
    """
    try:
        return _saved_in(json.loads(Path(path).read_text(encoding="utf-8")), Path(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidParameterError(
            f"{os.fspath(path)} is not a calibration that this version can read ({error!r}). Write one with "
            "`dsgd calibrate`, which prints its path."
        ) from error


def _saved_in(content: Mapping[str, Any], path: Path) -> SavedCosts:
    """Return what the content of a file says; raises what reading something else raises."""
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']!r}, not {_FORMAT}")
    return SavedCosts(_model_from(content["model"]), path, datetime.fromisoformat(content["measured_at"]))


def write_costs(model: CostModel, path: Path, signature: Mapping[str, Any], measured_at: datetime) -> None:
    """Write a cost model so that its file is the old one or the new one, never half of one."""
    content = {
        "format": _FORMAT,
        "signature": dict(signature),
        "measured_at": measured_at.isoformat(timespec="seconds"),
        "model": _as_plain(model),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _as_plain(model: CostModel) -> dict[str, Any]:
    network, compute = model.calibration.network, model.calibration.compute
    return {
        "ranks": model.calibration.ranks,
        "network": {"name": network.name, "source": network.source, "link": asdict(network.between)},
        "compute": asdict(compute),
        "transport": model.transport,
        "rows": {name: asdict(cost) for name, cost in model.rows.items()},
        "rounds": {kind: [list(point) for point in points] for kind, points in model.rounds.items()},
        "waits": [list(point) for point in model.waits],
        "end_s": model.end_s,
    }


def _model_from(plain: Mapping[str, Any]) -> CostModel:
    """Return the model that `_as_plain` described; raises what reading something else raises."""
    way = Link(**plain["network"]["link"])
    network = Network(plain["network"]["name"], way, way, source=plain["network"]["source"])
    return CostModel(
        Calibration(int(plain["ranks"]), network, Compute(**plain["compute"])),
        rows={name: RowCost(**cost) for name, cost in plain["rows"].items()},
        rounds={kind: tuple((float(n), float(s)) for n, s in points) for kind, points in plain["rounds"].items()},
        waits=tuple((float(work), float(wait)) for work, wait in plain["waits"]),
        end_s=float(plain["end_s"]),
        transport=str(plain["transport"]),
    )
