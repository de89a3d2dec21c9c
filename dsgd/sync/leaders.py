"""Strategies in which ranks are pulled to the best of them: together, or by a server.

The mean of models in different valleys of a non-convex loss is on the ridge between them; the best rank is always in a
valley.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.topology import Groups
from dsgd.handover import ALIKE, OWN
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractStrategy, LocalSteps
from dsgd.sync.period import Taxonomy
from dsgd.sync.server import AbstractServerHandler, AbstractServerStrategy, ServerMessage, push
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import number


@dataclass
class LeaderState:
    """The state of leader SGD."""

    # The model of the leader of this rank's group at the last exchange; empty with one group.
    group_leader: FloatVector
    # The last model of the global leader that this rank received.
    global_leader: FloatVector = field(metadata=ALIKE)
    # Shape (2,): Sum of the losses since the last exchange, and their number.
    losses: FloatVector
    # Exchanges so far.
    exchanges: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    # The rank that led all others at the last exchange.
    leader: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    # Shape (2,): Whether this rank led its group, and all ranks, at the last exchange; also true while there are no
    # leaders.
    leads: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = field(metadata=OWN)

    def __post_init__(self) -> None:
        self.subgroup: Group | None = None


@dataclass(frozen=True)
class LeaderSGD(AbstractStrategy[LeaderState], AbstractLocalTerm[LeaderState]):
    """Pull every rank to the best of its group, and to the best of all.

    Problem: the mean of models in different valleys of a non-convex loss is on the ridge between them, and elastic
    averaging pulls its centre there too. The best rank is always in a valley.

    Update, after every `every` rows: every rank's score is the mean training loss of its rows since the last exchange;
    the leader of a group is its rank with the lowest, the lowest number among equals, and the global leader the best of
    all. With z the model of a leader::

        x <- x + pull (z_group - x)                every exchange, in groups
        x <- x + global_pull (z_global - x)        every `global_every` exchanges

    and between exchanges proximal pulls to the copies of the leaders that the rank has, which add up to `proximal` and
    `global_proximal` over the time until the next one; not of a leader to its own copy, from which its distance is zero
    in the source's equation. With one group there are only the global pulls. The model that is returned is the mean of
    all, which the source evaluates too; or that of the global leader, whose score is a noisy one: on a convex loss the
    mean is better, and where ranks may still be in different valleys the leader is.

    What it returns: with unlike rows the minimum of the ranks' objectives weighted by how much they lead. As the rate
    goes to zero the pulls hold all ranks together, and what a step changes lasts in so far as its rank leads. So the
    model goes where ``sum_p w_p S_p f_p`` plus the penalty is least, S_p the sum of the rates of the steps of rank p in
    a round (the same for equal shards) and w_p, with one group, the share of the exchanges in which rank p leads. With
    groups w is the vector, of sum one, that the mean matrices of the exchanges of a period keep when they are applied
    from the left. If ranks lead equally often that is the minimum of the whole. If always the same leads, as where its
    rows are fitted exactly, that is its own minimum z; before the limit, if a rank goes the part c_p of its way to its
    own minimum m_p between two exchanges, ``x_p = (b m_p + pull z) / (b + pull)`` for ``b = (1 - pull) c_p``, and
    training returns ``sum_p (n_p / n) x_p``. Ranks whose targets vary less have lower losses, and lead whatever they
    know of the others' features: of 16 ranks with 100 rows each of 64 features, half of which are on a quarter of the
    ranks, two to four do, and with an L1 penalty the objective over all rows ends 2.9 times as high as on one rank;
    with all features everywhere 0.3 % above.

    Cost per exchange: an all-gather of one number, in log2 P messages; a broadcast of the model in each group, and
    among all ranks when the global leader is due, `dsgd.collectives.broadcast_cost`: half of an all-reduce. Up to two
    more vectors per rank.

    Source: Teng et al. 2019, algorithm 1 and equation 2 (pulls are the whole product of rate and strength, as in their
    code, which also has the proximal pulls); hyper-parameters of their released training script. There a counter of
    everybody's steps decides when an exchange is due; here it is the period, so that the same seed gives the same
    model.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    n_groups : int, default 1
        Groups of consecutive ranks, such as those of a host, with a leader each.
    pull : float, default 0.1
        Pull to the leader of the group, in [0, 1].
    global_pull : float, default 0.05
        Pull to the global leader, in [0, 1]. The source takes 0.1, with which the noise of a score is felt.
    global_every : int, default 4
        Of how many exchanges one is with the global leader; with one group, all are.
    proximal, global_proximal : float, default 0
        Pulls between exchanges, in [0, 1]. The source takes 0.1 for both.
    stretch : int or None, default None
        Rows between two proximal pulls; None is one pull at the end of a round.
    returns : {"mean", "leader"}, default "mean"
        The model that is returned.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    IncompatiblePartsError
        By `init`: there are groups, and ranks are threads of several processes, which cannot communicate in groups.
    """

    every: int = number(256, low=1)
    n_groups: int = number(1, low=1)
    pull: float = number(0.1, low=0, high=1)
    global_pull: float = number(0.05, low=0, high=1)
    global_every: int = number(4, low=1)
    proximal: float = number(0.0, low=0, high=1)
    global_proximal: float = number(0.0, low=0, high=1)
    stretch: int | None = number(None, low=1)
    returns: Literal["mean", "leader"] = "mean"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "broadcast")

    @property
    def needs_loss(self) -> bool:
        """The rank with the lowest loss leads."""
        return True

    def init(self, group: Group, params: FloatVector, weight: float) -> LeaderState:
        """Return the model to start from as that of all leaders."""
        has_groups = min(self.n_groups, group.size) > 1
        state = LeaderState(
            group_leader=params.copy() if has_groups else params[:0].copy(),
            global_leader=params.copy(),
            losses=np.zeros(2),
            exchanges=np.zeros(1, np.int64),
            leader=np.zeros(1, np.int64),
            leads=np.ones(2, np.int64),
        )
        if has_groups:
            # Here and not where it is used first: ranks that cannot communicate in groups raise before they work.
            state.subgroup = group.subgroup(Groups(self.n_groups).members(group.rank, group.size))
        return state

    def correct(self, params: FloatVector, steps: LocalSteps, state: LeaderState) -> None:
        """Note the losses and apply the proximal pulls; see `AbstractLocalTerm.correct`."""
        state.losses += (steps.loss_sum, steps.n_rows)
        # Small pulls that add up to the whole one by the time of the next exchange.
        part = steps.n_rows / self.every
        if self.proximal > 0.0 and state.group_leader.size and not state.leads[0]:
            _pull(params, state.group_leader, min(1.0, self.proximal * part))
        if self.global_proximal > 0.0 and not state.leads[1]:
            among = self.global_every if state.group_leader.size else 1
            _pull(params, state.global_leader, min(1.0, self.global_proximal * part / among))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: LeaderState) -> None:
        """Find the leaders and pull; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        scores = _scores(group, state)
        state.leader[0] = int(scores.argmin())
        if state.subgroup is not None:
            members = Groups(self.n_groups).members(group.rank, group.size)
            state.group_leader[:] = vector
            first = int(scores[members.start : members.stop].argmin())
            state.leads[0] = members[first] == group.rank
            state.subgroup.broadcast(state.group_leader, first)
            _pull(vector, state.group_leader, self.pull)
        state.exchanges += 1
        if not state.group_leader.size or state.exchanges[0] % self.global_every == 0:
            state.leads[1] = state.leader[0] == group.rank
            state.global_leader[:] = vector
            group.broadcast(state.global_leader, int(state.leader[0]))
            _pull(vector, state.global_leader, self.global_pull)

    def collect(self, group: Group, params: FloatVector, weight: float, state: LeaderState) -> None:
        """Return the weighted mean of all models, or the model of the rank that led at the last exchange."""
        if self.returns == "leader":
            # In a gang that has become smaller without an exchange since, all have the same model.
            group.broadcast(params, min(int(state.leader[0]), group.size - 1))
        else:
            weighted_mean(group, params, weight)


def take_score(losses: FloatVector) -> float:
    """Return the mean of losses, given their sum and number, and reset both; without rows a rank cannot lead."""
    loss_sum, n_rows = losses.tolist()
    losses[:] = 0.0
    return loss_sum / n_rows if n_rows else np.inf


def _scores(group: Group, state: LeaderState) -> FloatVector:
    """Return the mean loss of every rank since the last exchange."""
    scores = group.allgather(np.array([take_score(state.losses)])).ravel()
    # Nor can a rank whose loss is NaN.
    return np.where(np.isnan(scores), np.inf, scores)


def _pull(params: FloatVector, leader: FloatVector, strength: float) -> None:
    if strength == 1.0:
        params[:] = leader
    elif strength > 0.0:
        params += params.dtype.type(strength) * (leader - params)


@dataclass
class FollowerState:
    """The state of a worker."""

    # Number of the leader that it was last pulled to.
    version: AnyArray
    # Shape (2,): Sum of the losses since the last message, and their number.
    losses: FloatVector


@final
class _ElectingHandler(AbstractServerHandler):
    """Knows the leader of all, which is the model of the server, and those of groups, where there are several."""

    def start(self) -> None:
        model, strategy = self.model, self.strategy
        n = min(int(strategy.n_groups), model.n_workers)
        self._group_of = [worker * n // model.n_workers for worker in range(model.n_workers)]
        # Who leads each group and with what model: nobody yet. A single group is led by the leader of all.
        self._authors = [-1] * n
        self._leaders = [model.params.copy() for _ in range(n if n > 1 else 0)]
        self._candidates = [model.params.copy() for _ in range(n)]
        self._forget()

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        group, score = self._group_of[worker], float(message.head["score"])
        if score < self._scores[group]:
            self._scores[group], self._new[group] = score, worker
            self._candidates[group][:] = message.body
        self._n += 1
        if self._n >= self.model.n_workers:
            self._elect()
        self._lead(worker, message.body, int(message.head["version"]))
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        """Leave the model of the worker, which has been pulled; see `AbstractServerHandler.answer`."""

    def _elect(self) -> None:
        """Let the lowest scores lead, if there are any that are numbers."""
        model, best = self.model, int(np.argmin(self._scores))
        if self._scores[best] < np.inf:
            model.version += 1
            if not self._leaders or model.version % self.strategy.global_every == 0:
                model.params[:] = self._candidates[best]
                model.author = self._new[best]
            for group, leader in enumerate(self._leaders):
                if self._scores[group] < np.inf:
                    leader[:] = self._candidates[group]
                    self._authors[group] = self._new[group]
        self._forget()

    def _forget(self) -> None:
        """Begin to count again."""
        n = len(self._candidates)
        self._n, self._scores, self._new = 0, [np.inf] * n, [-1] * n

    def _lead(self, worker: int, params: FloatVector, known: int) -> None:
        """Pull the model of a worker towards the leaders that are new to it, in place."""
        model, strategy = self.model, self.strategy
        if model.version == known:
            return
        if not self._leaders:
            self._pull(worker, params, model.author, model.params, strategy.pull)
            return
        group, every = self._group_of[worker], int(strategy.global_every)
        self._pull(worker, params, self._authors[group], self._leaders[group], strategy.pull)
        if model.version // every > known // every:
            self._pull(worker, params, model.author, model.params, strategy.global_pull)

    @staticmethod
    def _pull(worker: int, params: FloatVector, author: int, leader: FloatVector, strength: float) -> None:
        """Pull towards a leader, if there is one, and if it is another worker's."""
        if author not in (-1, worker):
            way = leader - params
            way *= way.dtype.type(strength)
            params += way


@dataclass(frozen=True)
class AsyncLeaderSGD(AbstractServerStrategy[FollowerState], AbstractLocalTerm[FollowerState]):
    """Pull workers towards the best model, which a server keeps.

    Problem: in `LeaderSGD` all ranks wait for each other to find out which one leads. Update: after `every` rows of its
    own steps a worker sends its model and its score, the mean training loss of these rows. The server counts the
    messages of all workers. Once there are as many as workers, from whichever of them, the model with the lowest score
    among them is the new leader z. Each worker is pulled towards a new leader once, when it sends its next message,
    ``x_p <- x_p + pull (z - x_p)``, except the one whose model it is: in the source a leader's distance to itself is
    zero, and here z is its own model of some steps ago, which would only hold it back. Fast workers send more messages
    and so lead more often. Training returns the mean of all models, weighted by rows.

    With groups, each of them has a leader z_j, the lowest score among its own messages, and every `global_every`-th
    time there is one leader z of all, too. Then a worker of group j is pulled twice::

        x_p <- x_p + pull (z_j - x_p);  x_p <- x_p + global_pull (z - x_p)

    A group that has sent nothing since the last time keeps its leader. The server, which has both models, pulls, and
    answers with the model of the worker: groups cost not a byte.

    What it returns: as for `LeaderSGD`. Cost per round and worker: a message to the server and one back,
    `dsgd.sync.server.message_bytes` each. The server keeps two models, and with n groups ``2 n + 1``.

    Source: Teng et al. 2019, algorithm 1, whose counter of the steps of all workers is this one, and whose multiples of
    it are those at which there are new leaders; there a server does not keep the models, and all workers meet when it
    is full.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two messages. With few a worker leads whose rows happened to fit.
    pull : float, default 0.05
        Share of its distance to a new leader that a worker moves, in [0, 1]; with groups, to that of its own. The
        source takes 0.1.
    stretch : int or None, default None
        Rows after which losses are noted; None notes them once per call of the kernel.
    n_groups : int, default 1
        Groups of consecutive ranks, each with its own leader; such as the workers of one host.
    global_pull : float, default 0.05
        With groups, the pull to the leader of all, in [0, 1]. The source takes 0.1.
    global_every : int, default 4
        Of how many times that there are new leaders of groups one brings a leader of all, too.

    Raises
    ------
    InvalidParameterError
        `every`, `stretch`, `n_groups` or `global_every` is not a positive integer, or a pull not in [0, 1].
    """

    every: int = number(256, low=1)
    pull: float = number(0.05, low=0.0, high=1.0)
    stretch: int | None = number(None, low=1)
    n_groups: int = number(1, low=1)
    global_pull: float = number(0.05, low=0.0, high=1.0)
    global_every: int = number(4, low=1)
    collects = True
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "server")
    serves_by = _ElectingHandler

    def init(self, group: Group, params: FloatVector, weight: float) -> FollowerState:
        """Return the record of a worker that knows no leader yet."""
        return FollowerState(np.zeros(1, dtype=np.int64), np.zeros(2))

    def correct(self, params: FloatVector, steps: LocalSteps, state: FollowerState) -> None:
        """Note the losses; see `AbstractLocalTerm.correct`."""
        state.losses += (steps.loss_sum, steps.n_rows)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: FollowerState) -> None:
        """Send model and score, and get the model after the pulls that are due; see `AbstractStrategy.sync`."""
        push(group, vector, state.version, score=take_score(state.losses))

    def settle(self, group: Group, params: FloatVector, state: FollowerState) -> None:
        """Do nothing: a worker has its whole model, and the answer to its next message names the leader."""

    def collect(self, group: Group, params: FloatVector, weight: float, state: FollowerState) -> None:
        """Return the weighted mean of all models, the same on every rank."""
        weighted_mean(group, params, weight)

    def served(self, params: FloatVector, state: FollowerState) -> tuple[FloatVector, int]:
        """Return the model as the leader; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])
