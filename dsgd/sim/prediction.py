"""Prediction of training time for many ranks, without rows, vectors or threads.

Problem: whether a strategy scales to thousands of ranks is a question of seconds, not of models, and threads that do
real work answer it slowly.

Method: a round is work and an exchange. What the exchange costs follows from the strategy, its compressor and its
topology (`dsgd.sim.exchanges`); how the rounds of ranks hang together depends on who waits for whom:

- of all ranks (sums, gathers and broadcasts): a round ends an exchange after its slowest rank is ready. All-reduces of
  up to `MOST_PLAYED` ranks are played message by message, over the same ports as those of a simulated cluster;
- of neighbours: rounds of gossip are played, on as many ranks at most, since a rank meets as many peers on more;
- of a server: its queue is played (`dsgd.sim.served`);
- of nobody: ranks work, and a message that takes longer than the work is waited for.

Rounds beyond those that are drawn or played last as long as these.

Cost: some tenths of a second for ten thousand ranks.

Source: the moves are those of Thakur, Rabenseifner and Gropp 2005; see the files of the algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsgd.collectives.algorithms.by_name import PLANS
from dsgd.collectives.cost import Algorithm
from dsgd.errors import InvalidParameterError
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.compute import AbstractStragglers, Exponential, HeavyTail, NoStragglers, SlowRank, stragglers_for
from dsgd.sim.courses import Visits, course_of
from dsgd.sim.exchanges import Exchanges
from dsgd.sync import resolve
from dsgd.types import FloatMatrix
from dsgd.validation import check_number

# Factors that are drawn: of one kind at once, of any other kind one by one.
_MOST_DRAWN: Final = 2_000_000
_MOST_CALLS: Final = 100_000
# Rounds of ranks that always take as long.
_MOST_ALIKE: Final = 64
# Numbers in the control message of an epoch: sums of a model with one output, and what a rank says of itself.
_N_SUMS: Final = 7
_N_OWN: Final = 7


@dataclass(frozen=True)
class Prediction:
    """The predicted time of rounds of training.

    Parameters
    ----------
    seconds : float
        Until the last rank has ended.
    compute_s : float
        Seconds of work of the rank that worked longest.
    n_bytes, messages : int
        What all ranks sent together for the algorithm, headers included.
    """

    seconds: float
    compute_s: float
    n_bytes: int
    messages: int


def predict(
    cluster: SimulatedCluster,
    *,
    n_params: int,
    rows: int,
    entries: int,
    rounds: int,
    itemsize: int = 8,
    algorithm: Algorithm = "auto",
    sync: Any = None,
    epochs: int = 0,
) -> Prediction:
    """Return the predicted time of rounds of training on a simulated cluster.

    Every rank visits `rows` rows with `entries` entries in each round, and then the ranks exchange.

    Parameters
    ----------
    cluster : SimulatedCluster
        Ranks, network, work and stragglers.
    n_params : int
        Length of the model or gradient.
    rows, entries : int
        Of each rank in a round.
    rounds : int
        How many rounds.
    itemsize : int, default 8
        Bytes of an element.
    algorithm : str, default "auto"
        How vectors are summed; see `dsgd.collectives.Group`. Not ``"hierarchical"``, except as what ``"auto"`` means
        with a strategy.
    sync : object, default None
        The strategy and its compressor, as estimators take it; its period is replaced by `rows`. None stands for a sum
        of `n_params` elements in each round.
    epochs : int, default 0
        Epochs that end in these rounds. Then what ranks say before the first of them, at the end of each and after the
        last is part of the seconds; else it is left out.

    Returns
    -------
    Prediction
        Seconds and bytes.

    Raises
    ------
    InvalidParameterError
        There is nothing to do, there is no such strategy, or the algorithm is none of those.

    Notes
    -----
    Seconds are within a quarter of those of the simulated cluster, for the strategies and compressors of this package
    (`tests/sim/test_predict_strategies.py`). Where ranks of a host share its network card, that holds for sums only.
    Strategies of other packages are taken by what they declare: `exchanges`, `talks`, `compressor` and `topology`.
    """
    check_number("predict(n_params=...)", n_params, low=1)
    check_number("predict(rows=...)", rows, low=0)
    check_number("predict(entries=...)", entries, low=0)
    check_number("predict(rounds=...)", rounds, low=1)
    check_number("predict(epochs=...)", epochs, low=0, integer=True)
    if algorithm != "auto" and algorithm not in PLANS:
        raise InvalidParameterError(f"predict(algorithm=...) does not support {algorithm!r}.")
    exchanges = Exchanges(cluster, itemsize, algorithm)
    course = course_of(None if sync is None else resolve(sync), exchanges, n_params, Visits(rows, entries))
    factors = _factors(stragglers_for(cluster.stragglers), cluster.seed, cluster.ranks, rounds)
    work_s, share = factors * course.work_s, rounds / factors.shape[1]
    compute_s = share * float(work_s.sum(axis=1).max())
    # A rank alone exchanges nothing.
    seconds = share * course.seconds(work_s) if cluster.ranks > 1 else compute_s
    sent = course.exchange.times(rounds) + course.at_epoch.times(epochs)
    if epochs:
        end_s = exchanges.tally(_N_SUMS, _N_OWN, _N_SUMS) + exchanges.compute.end_s + course.at_epoch.seconds
        seconds += exchanges.tally(0, 1, cluster.ranks) + epochs * end_s + course.at_end.seconds
        seconds -= course.hides_s(share * work_s, epochs)
        sent += course.at_end
    return Prediction(seconds, compute_s, round(sent.n_bytes), round(sent.messages))


def _factors(stragglers: AbstractStragglers, seed: int, size: int, n_rounds: int) -> FloatMatrix:
    """Return the factors of the work of each rank in some rounds, shape (size, n_drawn)."""
    if isinstance(stragglers, NoStragglers):
        return np.ones((size, min(n_rounds, _MOST_ALIKE)))
    if isinstance(stragglers, SlowRank):
        factors = np.ones((size, min(n_rounds, _MOST_ALIKE)))
        factors[stragglers.rank : stragglers.rank + 1] = stragglers.slowdown
        return factors
    if isinstance(stragglers, (Exponential, HeavyTail)):
        n_drawn = max(1, min(n_rounds, _MOST_DRAWN // size))
        return stragglers.factors(seed, size, n_drawn)
    n_drawn = max(1, min(n_rounds, _MOST_CALLS // size))
    return np.array([[stragglers.factor(seed, rank, k) for k in range(n_drawn)] for rank in range(size)])
