"""What messages and work cost on a gang that is there: measured, and put into `Network` and `Compute`.

Problem: a prediction is as good as its constants, and these differ from machine to machine, with the wire, and with how
many ranks share a core.

Method: all ranks at once do what they do in training. Messages are measured by `dsgd.collectives.calibrate`. Then the
loop of training itself runs over made rows, with rounds of one row and of many, narrow and wide: differences of the
seconds of a round give the cost of a row, of an entry and of a parameter, and what is left of the shortest rounds is
that of a call. Every number is the median of several.

Cost: a few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.collectives.calibrate import calibrate as calibrate_link
from dsgd.collectives.cost import allreduce_cost
from dsgd.comm.base import TransportName
from dsgd.errors import InvalidParameterError
from dsgd.local import SGD, Objective, Shard
from dsgd.runtime.rank import GangResult, Rank
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import train
from dsgd.runtime.train_job import TrainData, TrainJob
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.compute import Compute
from dsgd.sim.network import Link, Network
from dsgd.sync import LocalSGD

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Calibration", "calibrate"]

# Widths of models and rows between synchronisations.
_NARROW, _WIDE, _LONG = 8, 256, 16_384
_FEW, _MANY = 1, 512
_ROUNDS: Final = ((_NARROW, _FEW), (_NARROW, _MANY), (_WIDE, _MANY), (_LONG, _FEW))
# Rounds of an epoch: so many that an epoch is long beside its end, over rows of no more than 32 MB.
_N_ENTRIES: Final = 1 << 22
_LEAST_ROUNDS, _MOST_ROUNDS = 20, 100
_N_EPOCHS: Final = 3
_N_TURNS: Final = 3


@dataclass(frozen=True)
class Calibration:
    """What was measured on a gang.

    Parameters
    ----------
    ranks : int
        How many ranks it had.
    network : Network
        What messages cost between them.
    compute : Compute
        What work costs on each, all of them working.
    """

    ranks: int
    network: Network
    compute: Compute

    def cluster(self) -> SimulatedCluster:
        """Return the simulated twin of the gang."""
        return SimulatedCluster(self.ranks, self.network, self.compute)


def calibrate(
    client: Client | None = None, *, ranks: int | None = None, transport: TransportName = "auto"
) -> Calibration:
    """Measure what messages and work cost.

    Parameters
    ----------
    client : distributed.Client or None, default None
        The cluster whose workers are measured; None measures threads of this process.
    ranks : int or None, default None
        How many ranks; None takes one per thread of the workers, or two threads of this process. What they cost
        depends on it where ranks share cores, so measure as many as there will be.
    transport : str, default "auto"
        What they talk over; see `dsgd.runtime.run_on_cluster`.

    Returns
    -------
    Calibration
        Good for this number of ranks on these machines.

    Raises
    ------
    InvalidParameterError
        There are fewer than two ranks: they have nothing to say to each other.
    """
    if ranks is not None and ranks < 2:
        raise InvalidParameterError(f"calibrate(ranks=...) must be two or more ranks. Got {ranks!r}.")
    gang = _run_on_workers(client, ranks, transport) if client is not None else _run_here(ranks or 2)
    found: dict[str, float] = gang.value
    wire = str(gang.stats[0]["transport"])
    link = Link(found["byte_s"], found["alpha_s"])
    source = f"measured on {len(gang.stats)} ranks over {wire}"
    network = Network(f"calibrated {wire}", link, link, source=source)
    names = ("entry_s", "row_s", "param_s", "call_s", "added_byte_s")
    compute = Compute(**{name: found[name] for name in names}, source=source)
    return Calibration(len(gang.stats), network, compute)


def _run_here(ranks: int) -> GangResult:
    return run_on_threads(_measure, [None] * ranks)


def _run_on_workers(client: Client, ranks: int | None, transport: TransportName) -> GangResult:
    from dsgd.runtime.job import run_on_cluster

    n_ranks = ranks or sum(client.nthreads().values())
    if n_ranks < 2:
        raise InvalidParameterError("calibrate(client=...) must have two or more threads on its workers. Got one.")
    blocks = client.map(_nothing, range(n_ranks), pure=False)
    return run_on_cluster(_measure, blocks, client=client, pack=_take_none, n_ranks=n_ranks, transport=transport)


def _nothing(number: int) -> int:
    return number


def _take_none(blocks: Any, rank_number: int) -> None:
    del blocks, rank_number


def _measure(rank: Rank, data: Any) -> dict[str, float]:
    """Return the constants as rank 0 has found them; a rank program."""
    del data
    rank = replace(rank, keeper=None)
    link = calibrate_link(rank.group)
    alpha_s, byte_s, added_byte_s = link.latency_s, link.byte_s, link.added_byte_s

    def sum_s(width: int) -> float:
        cost = allreduce_cost(rank.number, rank.size, width + 1, 8)
        return cost.messages * alpha_s + cost.n_bytes * (byte_s + added_byte_s)

    rounds = {key: _MadeRounds(rank, *key) for key in _ROUNDS}
    taken: dict[tuple[int, int], list[float]] = {key: [] for key in _ROUNDS}
    for turn in range(_N_TURNS + 1):
        for key, made in rounds.items():
            seconds = made.round_s()
            if turn:  # the first one loads kernels
                taken[key].append(seconds)
    shortest, narrow, wide, long = (median(taken[key]) for key in _ROUNDS)
    entry_s = max(wide - narrow - (sum_s(_WIDE) - sum_s(_NARROW)), 0.0) / (_MANY * (_WIDE - _NARROW))
    row_s = max((narrow - shortest) / (_MANY - _FEW) - _NARROW * entry_s, 0.0)
    # A round of few rows of a long model differs from a short one by what passes over its parameters.
    param_s = max((long - shortest - (sum_s(_LONG) - sum_s(_NARROW))) / (_LONG - _NARROW) - _FEW * entry_s, 0.0)
    work = _FEW * (row_s + _NARROW * entry_s) + _NARROW * param_s
    if shortest < sum_s(_NARROW) + work:
        # Rounds that run inside one kernel (threads with a core each) exchange faster than single messages.
        alpha_s *= max(shortest - work, 0.0) / sum_s(_NARROW)
    return {
        "alpha_s": alpha_s,
        "byte_s": byte_s,
        "added_byte_s": added_byte_s,
        "entry_s": entry_s,
        "row_s": row_s,
        "param_s": param_s,
        "call_s": max(shortest - sum_s(_NARROW) - work, 0.0),
    }


class _MadeRounds:
    """Training on made rows: dense, of some width, with a synchronisation every so many of them."""

    def __init__(self, rank: Rank, width: int, every: int) -> None:
        self._rank, self._n_rounds = rank, max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _N_ENTRIES // (width * every)))
        n = every * self._n_rounds
        rng = np.random.default_rng([rank.number, width])
        X = np.resize(rng.standard_normal((min(n, 512), width)), (n, width))
        targets = np.where(rng.random(n) < 0.5, -1.0, 1.0)
        self._data = TrainData(Shard(X, None, None, targets, np.ones(n), width))
        self._job = TrainJob(
            optimizer=SGD(Objective()),
            strategy=LocalSGD(every=every),
            initial=np.zeros(width + 1),
            max_iter=_N_EPOCHS + 1,
            tol=None,
            n_iter_no_change=5,
        )

    def round_s(self) -> float:
        """Return the median seconds of a round, by epochs; the first epoch meets its peers."""
        history = train(self._rank, self._data, self._job).history
        return float(median(np.diff([record.seconds for record in history]).tolist())) / self._n_rounds
