"""Variants of `dsgd.sync.outer.DiLoCo` that hide their exchanges, or wait for a quorum alone.

All take its outer step, with v the shares of `dsgd.sync.period`: the class of a variant says what it sends, and when
the result arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.errors import IncompatiblePartsError
from dsgd.handover import ALIKE, SUMMED
from dsgd.sync.averaging import AbstractBeside, weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy
from dsgd.sync.compression import Compressor, start_compression
from dsgd.sync.outer import OuterState, outer_step
from dsgd.sync.period import Taxonomy
from dsgd.sync.server import (
    AbstractServerHandler,
    AbstractServerStrategy,
    Quorum,
    ServerMessage,
    await_epoch_model,
    push,
)
from dsgd.types import AnyArray, FloatVector, IntVector
from dsgd.validation import number


@dataclass
class StreamingState:
    """The state of Streaming DiLoCo."""

    # What is remembered of each fragment.
    fragments: tuple[OuterState, ...]
    # Of each fragment whose turn has been, the part of this rank's model then; after the sum, that of
    # all ranks.
    held: FloatVector
    # Exchanges so far.
    turns: IntVector
    # The fragment that is held and has not been summed; -1 is none.
    unsent: IntVector

    def __post_init__(self) -> None:
        self.places = _places(len(self.held), len(self.fragments))


@dataclass(frozen=True)
class StreamingDiLoCo(AbstractStrategy[StreamingState], AbstractBeside[StreamingState]):
    """Take outer steps of one fragment of the model after the other, every `every` rows.

    Problem: `DiLoCo` sends rarely, but then the whole model at once, and ranks wait for it: it needs the same peak of
    bandwidth as an average after every step.

    Update: the model is cut into F fragments of equal length, and after every `every` rows the next of them has its
    turn, so that each is exchanged once in F rounds. For fragment f of the model x_p of a rank, y the part that all
    ranks had after its last turn, and v the shares of the ranks (`dsgd.sync.period`)::

        delta = y - sum_q v_q x_q[f]
        u <- beta u + delta;  y <- y - rate (delta + beta u)       (the outer step of DiLoCo)
        x_p[f] <- (1 - mixing) y + mixing x_p[f]                   `delay` rounds later

    With a delay the sum is taken in a thread of its own alongside the steps of the next round, so that ranks wait only
    where it takes longer than these. `mixing` is how much of its own steps since then a rank keeps. The others are
    lost, so that training takes longer: with a delay of one round and a mixing of 1/2, half of what every F-th round
    does to a fragment. If rows come in the same order in every epoch, and F has a factor in common with the rounds of
    an epoch, these are always the same rows, which then count for less: there a rate that falls does not lead to the
    minimum of the whole.

    The changes may be compressed (`dsgd.sync.compression`); each fragment has its own memory. Training returns the mean
    of the models of all ranks. With one fragment, no delay and no mixing this is `DiLoCo`, to the bit. The rounds in
    which things are sent and come in are numbered, so the same seed gives the same model, whether sums take long or
    not.

    Cost per round: one all-reduce of an F-th of the model, `dsgd.collectives.allreduce_cost`, or `compressed_cost`: in
    F rounds as many bytes as `DiLoCo` sends at once, but for the headers of messages, where both are summed in the same
    way. What is short is summed in fewer messages and more bytes. At the end one of the whole model. Three more vectors
    per rank.

    Source: Douillard, Donchev, Rush et al. 2025 (Streaming DiLoCo): fragments, a delay tau and a mixing factor alpha of
    1/2 or less, changes of four bits. There a delay is a few steps, and here a number of rounds; fragments are layers
    there, and here parts of the vector.

    Parameters
    ----------
    every : int, default 512
        Rows of the rank with the most rows between two exchanges, each of one fragment.
    fragments : int, default 4
        F, the parts that the model is cut into; a fragment is exchanged every ``fragments * every`` rows.
    delay : int, default 1
        Rounds after which the result of an exchange is taken up, from 0 to `fragments`; 0 waits for it.
    mixing : float, default 0.5
        The share of its own fragment that a rank keeps when the common one comes, in [0, 1).
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.7
        beta, in [0, 1); see `DiLoCo`.
    compressor : AbstractCompressor, "auto" or None, default None
        How the changes of fragments are encoded; see `dsgd.sync.compression`. The source takes four bits:
        ``QSGD(7, 512)``.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    IncompatiblePartsError
        The compressor is made for gradients, or nothing of any step would be kept.
    """

    every: int = number(512, low=1)
    fragments: int = number(4, low=1)
    delay: int = number(1, low=0, high="fragments")
    mixing: float = number(0.5, low=0, high=1, open_high=True)
    outer_rate: float = number(0.7, low=0, open_low=True)
    outer_momentum: float = number(0.7, low=0, high=1, open_high=True)
    compressor: Compressor = None
    taxonomy = Taxonomy("decentralised", "bounded", "change", "all-reduce")
    weighs = "rates"
    ends_equal = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay == self.fragments and not self.mixing:
            raise IncompatiblePartsError(
                f"StreamingDiLoCo(delay={self.delay}, fragments={self.fragments}, mixing=0) replaces every step by a "
                "model from before it, and trains nothing. Pass a shorter delay, or mixing=0.5."
            )

    def sent_values(self, n_params: int) -> int:
        """Return the length of a fragment."""
        return max(1, n_params // int(self.fragments))

    @property
    def kept(self) -> float:
        """The share of the local steps that is not lost where the common fragment takes the place of the own."""
        return 1.0 - self.delay * (1.0 - self.mixing) / self.fragments

    @property
    def hides_exchange(self) -> bool:
        """If a fragment may be late."""
        return self.delay > 0

    def init(self, group: Group, params: FloatVector, weight: float) -> StreamingState:
        """Return the model to start from, in fragments, of which none has been sent."""
        size = max(1, min(int(self.fragments), len(params)))
        fragments = tuple(self._begin(group, params[place]) for place in _places(len(params), size))
        return StreamingState(fragments, params.copy(), np.zeros(1, np.int64), np.full(1, -1))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: StreamingState) -> None:
        """Take up what is due, and give the next fragment its turn; see `AbstractStrategy.sync`."""
        turn, size = int(state.turns[0]), len(state.fragments)
        # A rank that is alone has nothing to wait for, and all models are its own.
        delay = 0 if group.size == 1 else min(int(self.delay), size)
        self.beside(group, weight, state)
        if 0 < delay <= turn:
            self._take_up((turn - delay) % size, vector, state, self.mixing)
        now = turn % size
        state.held[state.places[now]] = vector[state.places[now]]
        state.unsent[0] = now
        state.turns += 1
        if not delay:
            self.beside(group, weight, state)
            self._take_up(now, vector, state, self.mixing if group.size > 1 else 0.0)

    def beside(self, group: Group, weight: float, state: StreamingState) -> None:
        """Take the outer step of the fragment that is held; see `AbstractBeside.beside`."""
        fragment = int(state.unsent[0])
        if fragment < 0:
            return
        state.unsent[0] = -1
        rate, beta = self.outer_rate, self.outer_momentum
        part, outer = state.held[state.places[fragment]], state.fragments[fragment]
        outer_step(group, part, weight, outer, self.compressor, rate=rate, beta=beta, nesterov=True)

    def collect(self, group: Group, params: FloatVector, weight: float, state: StreamingState) -> None:
        """Return the weighted mean of all models; see `AbstractStrategy.collect`."""
        # With one fragment that all ranks take up at once, they have the same model.
        if len(state.fragments) > 1 or self.delay or self.mixing:
            weighted_mean(group, params, weight)

    def _begin(self, group: Group, part: FloatVector) -> OuterState:
        memory = start_compression(self, group, part, keeps_model=True)
        return OuterState(part.copy(), np.zeros_like(part), memory)

    @staticmethod
    def _take_up(fragment: int, vector: FloatVector, state: StreamingState, mixing: float) -> None:
        """Let a part of the model become that of all ranks, but for what a rank keeps of its own."""
        place = state.places[fragment]
        own, common = vector[place], state.held[place]
        if mixing > 0.0:
            own -= common
            own *= own.dtype.type(mixing)
            own += common
        else:
            own[:] = common


def _places(n: int, size: int) -> list[slice]:
    """Return where the fragments of n parameters are; their lengths differ by one at most."""
    return [slice(n * f // size, n * (f + 1) // size) for f in range(size)]


@dataclass
class EagerState(AbstractRejoining):
    """The state of eager DiLoCo."""

    # y of this rank.
    anchor: FloatVector
    # u of this rank.
    velocity: FloatVector
    # d of this rank, of the last round. Ranks that take over have its mean in their models.
    own: FloatVector
    # The same until it has been summed, then what the others add.
    others: FloatVector = field(metadata=SUMMED)
    # Whether it has not been summed.
    unsent: IntVector

    def rejoin(self, params: FloatVector) -> None:
        """Start again from the model that all ranks have now; what others add to it is still to come."""
        self.anchor[:] = params


@dataclass(frozen=True)
class EagerDiLoCo(AbstractStrategy[EagerState], AbstractBeside[EagerState]):
    """Take a Nesterov step along the own change of a round and those of the others from the one before.

    Problem: to hide an exchange behind the local steps of a whole round, a rank must take the outer step before the sum
    is there. With the sum of the round before alone, each step is one round old, and training loses by it.

    Update, with y_p the model that rank p begins a round with, v the shares of `dsgd.sync.period`, and ``d_p = v_p (y_p
    - x_p)`` what p adds to the mean change of a round; what is marked ' is from the round before::

        g_p = d_p + sum_{q != p} d'_q
        u_p <- beta u_p + g_p;  y_p <- y_p - rate (g_p + beta u_p)

    Every change of every rank comes into all models once, the own one at once and those of others a round later: so
    models of ranks differ by no more than their last changes. With rate 1 and beta 0, ``y_p = x_0 - (sum of all changes
    but those of the last round) - d_p``. The sum is taken in a thread of its own alongside the steps of the next round.
    Training returns the mean of the models, as it is once the last changes of others have come too.

    Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, alongside the steps of the next
    round. In the end there is one more, in place of the last. Four more vectors per rank. Source: Kale, Douillard and
    Donchev 2025 (eager updates), with equal shares.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two outer steps.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.0
        beta, in [0, 1). Changes that come a round late act as momentum already: with the 0.3 of `DiLoCo`, eight ranks
        that exchange once an epoch lose five points.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(2048, low=1)
    outer_rate: float = number(0.7, low=0, open_low=True)
    outer_momentum: float = number(0.0, low=0, high=1, open_high=True)
    taxonomy = Taxonomy("decentralised", "bounded", "change", "all-reduce")
    weighs = "rates"
    ends_equal = False

    @property
    def hides_exchange(self) -> bool:
        """Always."""
        return True

    def init(self, group: Group, params: FloatVector, weight: float) -> EagerState:
        """Return the model to start from, no momentum yet, and nothing of others."""
        velocity, own, others = (np.zeros_like(params) for _ in range(3))
        return EagerState(params.copy(), velocity, own, others, np.zeros(1, np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: EagerState) -> None:
        """Take the outer step, and leave this rank's change to be summed; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        self.beside(group, weight, state)
        own, others, velocity, kind = state.own, state.others, state.velocity, vector.dtype.type
        if weight == 0.0:
            own.fill(0.0)
        else:
            np.subtract(state.anchor, vector, out=own)
            own *= kind(weight)
        others += own
        velocity *= kind(self.outer_momentum)
        velocity += others
        np.multiply(velocity, kind(self.outer_momentum), out=vector)
        vector += others
        vector *= kind(self.outer_rate)
        np.subtract(state.anchor, vector, out=vector)
        state.anchor[:] = vector
        others[:] = own
        state.unsent[0] = 1

    def beside(self, group: Group, weight: float, state: EagerState) -> None:
        """Sum the changes of the last round, and take the own one out; see `AbstractBeside.beside`."""
        if state.unsent[0]:
            state.unsent[0] = 0
            weighted_mean(group, state.others, 1.0)
            state.others -= state.own

    def collect(self, group: Group, params: FloatVector, weight: float, state: EagerState) -> None:
        """Return the mean of all models after the changes that have not been summed; see `AbstractStrategy.collect`."""
        if group.size == 1:
            return
        kind = params.dtype.type
        # What an outer step would make of them now. Of the others, that is all but the rank's own share.
        missing = state.own * kind(self.outer_rate * (1.0 + self.outer_momentum))
        if weight == 0.0:
            params.fill(0.0)
        else:
            params += missing
            params *= kind(weight)
        params -= missing
        weighted_mean(group, params, 1.0)


@dataclass
class DecoupledState:
    """The state of a worker."""

    # y, the model that it has had from the server.
    base: FloatVector = field(metadata=ALIKE)
    # Its number.
    version: AnyArray


@final
class _OuterHandler(AbstractServerHandler):
    """Takes an outer step with the changes of a quorum."""

    def start(self) -> None:
        self._quorum = Quorum(self.model, self.strategy.wanted(len(self.model.working)))
        self._sum, self._velocity = np.zeros_like(self.model.params), np.zeros_like(self.model.params)

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        self._sum += message.body
        if not self._quorum.count(worker):
            return []
        model, kind = self.model, self.model.params.dtype.type
        beta = kind(self.strategy.outer_momentum)
        self._sum /= len(model.working)
        self._velocity *= beta
        self._velocity += self._sum
        self._sum += beta * self._velocity
        self._sum *= kind(self.strategy.outer_rate)
        model.params -= self._sum
        model.version += 1
        self._sum.fill(0.0)
        return self._quorum.release()


@dataclass(frozen=True)
class DecoupledDiLoCo(AbstractServerStrategy[DecoupledState]):
    """Let a server take Nesterov steps with the changes of a quorum of workers.

    Problem: in `DiLoCo` all ranks wait for the slowest one, and none can go on while another is away.

    Update: after `every` rows of its own steps a worker sends what it has changed, ``d_p = y_p - x_p``, with y_p the
    model that it has had from the server, and waits. As soon as `quorum` workers have sent theirs, the server, which
    serves W workers with rows, takes a Nesterov step and answers those that wait with the new model; the others come
    into a later step, with changes from an older model::

        g = (1 / W) sum of the changes that have come
        u <- beta u + g;  x <- x - rate (g + beta u)

    No change is dropped, and each counts for a W-th, so that a small quorum takes many small steps. With a quorum of
    all workers every step is that of `DiLoCo` where ranks have as many rows. In the last round of an epoch the server
    does not wait for more than there are. Its momentum is in no checkpoint: training that resumes begins with none.

    Cost per round and worker: a message to the server and one back, `dsgd.sync.server.message_bytes` each. The server
    keeps three vectors, a worker one more.

    Source: the asynchronous learners and quorum of Decoupled DiLoCo (Google DeepMind 2026), without its fragments,
    grace windows and radial averages; changes from older models as in Liu, Chhaparia, Douillard et al. 2024
    (asynchronous local SGD).

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two messages.
    quorum : int or None, default None
        Workers whose changes a step waits for, all of them at most; None is all but one.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.3
        beta, in [0, 1). Changes from older models act as momentum, too: the smaller the quorum, the less is needed.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(2048, low=1)
    quorum: int | None = number(None, low=1)
    outer_rate: float = number(0.7, low=0, open_low=True)
    outer_momentum: float = number(0.3, low=0, high=1, open_high=True)
    taxonomy = Taxonomy("decentralised", "asynchronous", "change", "server")
    serves_by = _OuterHandler
    weighs = "alike"

    def init(self, group: Group, params: FloatVector, weight: float) -> DecoupledState:
        """Return the model to start from as that of the server."""
        return DecoupledState(params.copy(), np.zeros(1, dtype=np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: DecoupledState) -> None:
        """Send what has changed, and wait for a step; see `AbstractStrategy.sync`."""
        change = state.base - vector
        push(group, change, state.version)
        vector[:] = state.base[:] = change

    def settle(self, group: Group, params: FloatVector, state: DecoupledState) -> None:
        """Take up the model of the server; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, params)
        state.base[:] = params

    def served(self, params: FloatVector, state: DecoupledState) -> tuple[FloatVector, int]:
        """Return the model; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])

    def wanted(self, n_workers: int) -> int:
        """Return how many of so many workers are a quorum."""
        return max(1, min(n_workers, n_workers - 1 if self.quorum is None else int(self.quorum)))
