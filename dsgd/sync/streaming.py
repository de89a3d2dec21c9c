"""Streaming DiLoCo: the model in fragments, one exchange for each, beside the steps of the next round.

Problem: `DiLoCo` sends rarely, but then the whole model at once, and ranks wait for it: it needs the same peak of
bandwidth as an average after every step.

Update: the model is cut into F fragments of equal length, and after every `every` rows the next of them has its turn,
so that each is exchanged once in F rounds. For fragment f of the model x_p of a rank, y the part that all ranks had
after its last turn, and v the shares of `dsgd.sync.weighing`::

    delta = y - sum_q v_q x_q[f]
    u <- beta u + delta;  y <- y - rate (delta + beta u)       (the outer step of DiLoCo)
    x_p[f] <- (1 - mixing) y + mixing x_p[f]                   `delay` rounds later

With a delay the sum is taken in a thread of its own beside the steps of the next round, so that ranks wait only where
it takes longer than these. `mixing` is how much of its own steps since then a rank keeps. The others are lost, so that
training takes longer: with a delay of one round and a mixing of 1/2, half of what every F-th round does to a fragment.
If rows come in the same order in every epoch, and F has a factor in common with the rounds of an epoch, these are
always the same rows, which then count for less: there a rate that falls does not lead to the minimum of the whole.

The changes may be compressed (`dsgd.sync.compression`); each fragment has its own memory. Training returns the mean of
the models of all ranks.

With one fragment, no delay and no mixing this is `DiLoCo`, to the bit. The rounds in which things are sent and come in
are numbered, so the same seed gives the same model, whether sums take long or not.

Cost per round: one all-reduce of an F-th of the model, `dsgd.collectives.allreduce_cost`, or `compressed_cost`: in F
rounds as many bytes as `DiLoCo` sends at once, but for the headers of messages, where both are summed in the same way.
What is short is summed in fewer messages and more bytes. At the end one of the whole model. Three more vectors per
rank.

Source: Douillard, Donchev, Rush et al. 2025 (Streaming DiLoCo): fragments, a delay tau and a mixing factor alpha of
1/2 or less, changes of four bits. There a delay is a few steps, and here a number of rounds; fragments are
layers there, and here parts of the vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.collectives.group import Group
from dsgd.errors import IncompatiblePartsError
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.compression import Compressor, check_compressor, start_compression
from dsgd.sync.delayed import AbstractBeside
from dsgd.sync.outer import OuterState, outer_step
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector, IntVector
from dsgd.validation import check_numbers

__all__ = ["StreamingDiLoCo", "StreamingState"]


@dataclass
class StreamingState:
    """The state of Streaming DiLoCo.

    Parameters
    ----------
    fragments : tuple of OuterState
        What is remembered of each fragment.
    held : array, shape (n_params,)
        Of each fragment whose turn has been, the part of this rank's model then; after the sum, that of all ranks.
    turns : array of int64, shape (1,)
        Exchanges so far.
    unsent : array of int64, shape (1,)
        The fragment that is held and has not been summed; -1 is none.
    """

    fragments: tuple[OuterState, ...]
    held: FloatVector
    turns: IntVector
    unsent: IntVector

    def __post_init__(self) -> None:
        self.places = _places(len(self.held), len(self.fragments))


@dataclass(frozen=True)
class StreamingDiLoCo(AbstractStrategy[StreamingState], AbstractBeside[StreamingState]):
    """Take outer steps of one fragment of the model after the other, every `every` rows.

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
    outer_momentum : float, default 0.3
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

    every: int = 512
    fragments: int = 4
    delay: int = 1
    mixing: float = 0.5
    outer_rate: float = 0.7
    outer_momentum: float = 0.3
    compressor: Compressor = None
    taxonomy = Taxonomy("decentralised", "bounded", "change", "all-reduce")
    weighs = "rates"
    ends_equal = False

    def __post_init__(self) -> None:
        check_numbers(self, "every", "fragments", low=1, integer=True)
        check_numbers(self, "delay", low=0, high=self.fragments, integer=True)
        check_numbers(self, "mixing", "outer_momentum", low=0, high=1, open_high=True)
        check_numbers(self, "outer_rate", low=0, open_low=True)
        if self.delay == self.fragments and not self.mixing:
            raise IncompatiblePartsError(
                f"StreamingDiLoCo(delay={self.delay}, fragments={self.fragments}, mixing=0) replaces every step by a "
                "model from before it, and trains nothing. Pass a shorter delay, or mixing=0.5."
            )
        check_compressor(self)

    def sent_values(self, n_params: int) -> int:
        """Return the length of a fragment."""
        return max(1, n_params // int(self.fragments))

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
