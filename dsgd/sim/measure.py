"""Measuring the constants of the cost model on a real gang, and keeping them in files.

Problem: see `dsgd.sim.cost`: what rows, rounds, waiting and the end of an epoch cost, in training and not beside it.

Method: the loop of training runs over made rows, all ranks at once. With E(R, h) the seconds of an epoch of R rounds of
h rows each, narrow rows unless said otherwise::

    round(n)  = (E(R, 1) - E(1, 1)) / (R - 1) - work of a row      for models of some lengths, rows as sparse as can be
    end       = E(1, 1) - round - work of a row
    row       = (E(1, h) - end - round) / h                        for rows of two widths, which give the entry
    wait(c)   = (E(R, h) - end) / R - round - c                    with c = h row

Every number is the median of several turns, in each of which everything is measured once.

Cost: some ten seconds on two processes. A gang changes only when machines, their number or versions do, so its costs
are saved: a JSON file in the cache folder, named by a digest of the hosts and threads of its workers, the number of
ranks, the transport, and the versions of the installed software, which the file contains in full. If a file is older
than `MAX_AGE_DAYS`, of another format or gang, or cannot be read, costs are measured again: it only saves time.
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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.collectives.group import calibrate as calibrate_link
from dsgd.comm.base import TransportName
from dsgd.comm.wires.shm import RING_FROM_BYTES
from dsgd.errors import GangTimeoutError, InvalidParameterError
from dsgd.files import replacing
from dsgd.kernels.rounds import SLOT_BYTES
from dsgd.runtime.rank import Rank
from dsgd.sim.calibration import (
    Calibration,
    RoundKind,
    SyntheticRounds,
    are_fused,
    calibration_of,
    measure_rounds,
    run_measurement,
)
from dsgd.sim.cost import CostModel, Layout, RowCost, interpolate, kind_of
from dsgd.sim.network import Compute, Network
from dsgd.sync import AbstractStrategy, EpochAveraging, LocalSGD, MinibatchSGD, resolve

_NARROW: Final = 16

#: Entries of the rows of rounds without work.
_FEW: Final = 4

# Entries of narrow and wide rows of each layout; sparse ones lie in so many columns.
_WIDTHS: Final[dict[str, tuple[int, int]]] = {"dense": (_NARROW, 512), "sparse": (8, 64)}
_COLUMNS: Final = 1024
_ROW_ENTRIES: Final = 1 << 18

# Models of float64, some bytes each. Frames of processes on one host take another way from a certain length on, and
# rounds run inside a kernel up to another.
_EDGES: Final = (RING_FROM_BYTES // 8, SLOT_BYTES // 8)
_LENGTHS: Final = (8, 1024, *(edge + step for edge in _EDGES for step in (-8, 8)), 16_384, 131_072)
_ENTRIES_OF_ROUNDS: Final = 1 << 21
_PERIODS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
_ROWS_OF_PERIODS: Final = 1 << 16
_LEAST_ROUNDS, _MOST_ROUNDS = 6, 200

# Whether ranks sleep while they wait settles over many rounds.
_MOST_PERIODS: Final = 800

# Rounds inside a kernel are so short that an epoch has to have many to be long beside its end.
_MOST_FUSED: Final = 20_000
_ENTRIES_OF_FUSED: Final = 1 << 20
_N_TURNS: Final = 3

# Short epochs need more of them: a rank that loses its core for a moment must not decide.
_FEW_EPOCHS, _MANY_EPOCHS = 3, 12
Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Found:
    """What a gang has measured: alpha, beta, gamma; rounds for the twin; seconds and rounds of each kind of epoch."""

    link: Link
    rounds_s: list[float]
    epochs_s: dict[Key, float]
    n_rounds: dict[Key, int]


def measure_costs(
    client: Any = None,
    *,
    strategies: Sequence[Any] = (),
    layouts: Sequence[Layout] = ("dense", "sparse"),
    dtypes: Sequence[str] = ("float64",),
    ranks: int | None = None,
    transport: TransportName = "auto",
    limit_s: float = 60.0,
    deadline_s: float = math.inf,
) -> CostModel:
    """Measure what rows, rounds and waiting cost on a gang.

    Parameters
    ----------
    client : distributed.Client or None, default None
        The cluster whose workers are measured; None measures threads of this process.
    strategies : sequence
        Strategies whose rounds are measured, as estimators take them, beside `LocalSGD`, which always is.
    layouts : sequence of {"dense", "sparse"}
        Layouts of rows that are measured.
    dtypes : sequence of {"float64", "float32"}
        Precisions of rows that are measured.
    ranks : int or None, default None
        How many ranks; None takes one per thread of the workers, or two threads of this process.
    transport : str, default "auto"
        How they exchange; see `dsgd.runtime.run_on_cluster`.
    limit_s : float, default 60
        No further turn starts after so many seconds.
    deadline_s : float, default inf
        Seconds after which the first turn is aborted.

    Returns
    -------
    CostModel
        Of this gang.

    Raises
    ------
    InvalidParameterError
        There are fewer than two ranks, or a strategy has servers.
    GangTimeoutError
        The first turn was not over after `deadline_s`.
    """
    if ranks is not None and ranks < 2:
        raise InvalidParameterError(f"measure_costs(ranks=...) must be two or more ranks. Got {ranks!r}.")
    kinds: dict[str, AbstractStrategy[Any]] = {}
    for given in (LocalSGD(), *strategies):
        strategy = resolve(given)
        if strategy.n_servers or strategy.talks == "by mailbox":
            raise InvalidParameterError(
                f"measure_costs(strategies=...) takes strategies whose ranks wait for each other. Got {strategy!r}."
            )
        has_period = {"every", "batch"} & set(vars(strategy))
        kinds[kind_of(strategy)] = strategy if has_period else LocalSGD(compressor=strategy.compressor)
    plan = _base_plan(layouts, dtypes)
    for kind, strategy in kinds.items():
        for n in _LENGTHS:
            rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _ENTRIES_OF_ROUNDS // n))
            plan["round", kind, n] = strategy, RoundKind(n, 1, rounds, _FEW)
    gang = run_measurement(
        _measure, (plan, _N_TURNS, limit_s, deadline_s), client=client, ranks=ranks, transport=transport
    )
    found: _Found | None = gang.value
    if found is None:
        raise GangTimeoutError(
            f"measuring the cost of rounds was stopped after {deadline_s:.3g} s (measure_costs(deadline_s=...)): "
            "the machine is busy, or kernels had to be compiled. Try again."
        )
    size, wire = len(gang.stats), str(gang.stats[0]["transport"])
    twin = calibration_of(found.link, found.rounds_s, LocalSGD(), size, wire)
    return _model_of(found, CostModel(twin, transport=wire), kinds)


def _base_plan(layouts: Sequence[Layout], dtypes: Sequence[str]) -> dict[Key, tuple[Any, RoundKind]]:
    """Return the measurements of rows, waiting and ends of epochs, by name."""
    rows_of: dict[str, AbstractStrategy[Any]] = {"model": EpochAveraging(), "gradient": MinibatchSGD()}
    plan: dict[Key, tuple[Any, RoundKind]] = {("end",): (EpochAveraging(), RoundKind(_NARROW, 1, 1))}
    for layout in dict.fromkeys(("dense", *layouts)):
        for dtype in dtypes if layout in layouts else ("float64",):
            for exchanges, strategy in rows_of.items():
                for entries in _WIDTHS[layout]:
                    n = _ROW_ENTRIES // entries
                    dense = RoundKind(entries, n, 1, dtype=dtype)
                    sparse = RoundKind(_COLUMNS, n, 1, entries, dtype)
                    key = ("rows", f"{layout} {dtype} {exchanges}", entries)
                    plan[key] = strategy, dense if layout == "dense" else sparse
    if "float64" not in dtypes:  # rounds are measured in it
        plan |= _base_plan(("dense",), ("float64",))
    for every in _PERIODS:
        rounds = max(_LEAST_ROUNDS, min(_MOST_PERIODS, _ROWS_OF_PERIODS // every))
        plan["wait", every] = LocalSGD(), RoundKind(_NARROW, every, rounds)
    return plan


def _measure(
    rank: Rank, data: Any, plan: dict[Key, tuple[Any, RoundKind]], n_turns: int, limit_s: float, deadline_s: float
) -> _Found | None:
    """Return what rank 0 has measured, or None if not one turn was over in time; a rank program."""
    begin = time.perf_counter()
    taken = np.zeros(1)

    def elapsed_s() -> float:
        # All ranks must think the same of the time.
        taken[0] = time.perf_counter() - begin
        rank.group.allreduce(taken, "max")
        return float(taken[0])

    link = calibrate_link(rank.group)
    made: dict[Key, SyntheticRounds] = {}
    plan = {key: (strategy, _lengthened(rank, strategy, kind)) for key, (strategy, kind) in plan.items()}
    turns: list[dict[Key, float]] = []
    rounds_s: list[list[float]] = []
    while not turns or (len(turns) < n_turns and elapsed_s() < limit_s):
        rounds_s.append(measure_rounds(rank, data, LocalSGD(), 1))
        turn: dict[Key, float] = {}
        for key, (strategy, kind) in plan.items():
            if not turns and elapsed_s() > deadline_s:
                return None
            if key not in made:
                made[key] = SyntheticRounds(
                    rank, strategy, kind, _FEW_EPOCHS if kind.rounds > _LEAST_ROUNDS else _MANY_EPOCHS
                )
            turn[key] = made[key].epoch_s()
        turns.append(turn)
    medians = [float(median(column)) for column in zip(*rounds_s, strict=True)]
    epochs_s = {key: median(turn[key] for turn in turns) for key in plan}
    return _Found(link, medians, epochs_s, {key: kind.rounds for key, (_, kind) in plan.items()})


def _lengthened(rank: Rank, strategy: AbstractStrategy[Any], kind: RoundKind) -> RoundKind:
    """Return a kind with more rounds where they are fused."""
    if kind.rounds == 1 or not are_fused(rank, strategy, kind.width + 1):
        return kind
    passed = kind.every * (kind.entries or kind.width) + kind.width
    return replace(kind, rounds=max(kind.rounds, min(_MOST_FUSED, _ENTRIES_OF_FUSED // passed)))


def _model_of(found: _Found, base: CostModel, kinds: dict[str, AbstractStrategy[Any]]) -> CostModel:
    """Return the model that reproduces the measured seconds; the equations are above."""
    epochs_s, plain = found.epochs_s, kind_of(LocalSGD())
    # Of a round with one row of few entries: first with what that row costs, which is then taken off.
    first = found.n_rounds["round", plain, _LENGTHS[0]]
    short_s = max(epochs_s["round", plain, _LENGTHS[0]] - epochs_s["end",], 0.0) / (first - 1)
    end_s = max(epochs_s["end",] - short_s, 0.0)
    rows: dict[str, RowCost] = {}
    for name in dict.fromkeys(key[1] for key in epochs_s if key[0] == "rows"):
        few, many = _WIDTHS[name.split()[0]]
        row_s = [
            max(epochs_s["rows", name, width] - end_s - short_s, 0.0) / (_ROW_ENTRIES // width) for width in (few, many)
        ]
        entry_s = max(row_s[1] - row_s[0], 0.0) / (many - few)
        rows[name] = RowCost(max(row_s[0] - few * entry_s, 0.0), entry_s)
    sparse = rows.get("sparse float64 model")
    row_s_of_rounds = 0.0 if sparse is None else sparse.seconds(1, _FEW)
    rounds = {
        kind: tuple(
            (
                8.0 * (n + 1),
                max((epochs_s["round", kind, n] - end_s) / found.n_rounds["round", kind, n] - row_s_of_rounds, 0.0),
            )
            for n in _LENGTHS
        )
        for kind in kinds
    }
    narrow = rows["dense float64 model"].seconds(1, _NARROW)
    awake_s = interpolate(rounds[plain], 8.0 * (_NARROW + 1))
    waits = []
    for every in _PERIODS:
        work_s, n_rounds = every * narrow, found.n_rounds["wait", every]
        waits.append((work_s, (epochs_s["wait", every] - end_s) / n_rounds - awake_s - work_s))
    return replace(base, rows=rows, rounds=rounds, waits=tuple(waits), end_s=end_s)


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
    keep: bool = True,
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
    keep : bool, default True
        Whether to write what was measured.

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
        if keep:
            write_costs(model, path, signature, measured_at)
    return SavedCosts(model, path, measured_at, seconds)


def signature_of(client: Any = None, ranks: int | None = None, transport: TransportName = "auto") -> dict[str, Any]:
    """Return what tells one gang from another: hosts, ranks, transport and versions, as plain values."""
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
