"""Local SGD with a period that the ranks choose during training.

Problem: the best period depends on the wire, the machine, the rows and the stage of training, and is not known in
advance. If it is too short, ranks wait for messages; if it is too long, the replicas drift apart.

Update: that of local SGD, ``x_p <- sum_q v_q x_q``, every h rows of the rank with the most rows. In the first
rounds ranks measure seconds per row and per synchronisation, wire and wait apart; then, and every so many rounds later,
a rule (`dsgd.sync.adaptive`) chooses the next h. Steps that ranks take meanwhile count as all others do.

The first period is a sixteenth of the rows of the longest rank. Longer ones are for replicas that stay together: with S
the mean squared distance of the models from their mean wbar, which grows like the period if rows were assigned at
random, the cap is the period at which S is expected to reach half of ``|wbar|^2``. It is at least that sixteenth, and
at most one synchronisation per epoch, with which an epoch ends in any case. If rows were assigned by label, S soon
exceeds this, and the cap falls again.

How ranks agree: in a round in which they decide, each appends its measurements to the model that it sends. The
weighted mean of the appended numbers is, as that of the models, equal on all ranks to the bit, and a rule is a pure
function of it.

What it gives up: clocks decide, so that the same seed no longer gives the same model, but on a simulated cluster.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; in the 5th, the 15th, the 35th round,
and every 80 later, with 12 numbers more. With a compressor these are sent in a separate message. A decision takes a
tenth of a millisecond or two; where the rule follows clocks there are at least `_LEAST_S` between two of them.

Source: the files of `dsgd.sync.adaptive` name that of each rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.errors import InvalidParameterError, ProtocolError
from dsgd.handover import ALIKE
from dsgd.sync.adaptive import WHYS, AbstractRule, CommFloor, Measured, Why, comm_floor
from dsgd.sync.averaging import MomentumPolicy, weighted_mean
from dsgd.sync.base import AbstractAdaptation, AbstractStrategy, NoState, Plan, Seen
from dsgd.sync.compression import CompressionState, Compressor, delta_mean, start_compression
from dsgd.sync.period import EveryRows, Taxonomy
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import number

_PER_EPOCH: Final = 16
_APART: Final = 0.5
_FIRST_ROUNDS: Final = 5
_MOST_ROUNDS: Final = 80
_LEAST_S: Final = 0.005
_MOST_PERIODS: Final = 64
# What a rank reports: its period and its measurements.
_N_TOLD: Final = 1 + len(Seen._fields)


@dataclass
class AutoState:
    """The state of the strategy."""

    # Shape (3,): The period, after how many rounds ranks decide, and how often they have decided.
    every: IntVector
    # Whether the next exchange carries the measurements of the ranks.
    asks: IntVector
    # Shape (12,): The measurements of this rank; after the exchange, their mean over ranks.
    told: FloatVector
    # Shape (18,): `Measured` at the first decision.
    start: FloatVector = field(metadata=ALIKE)
    # Shape (64, 4): The periods so far: since how many rows of the longest rank, since when in seconds, rows, and the
    # number in `WHYS` of the reason. Unused rows are zero; when all are used, the second oldest is dropped.
    periods: FloatMatrix = field(metadata=ALIKE)
    # The state of the compressor.
    compression: NoState | CompressionState


@dataclass(frozen=True)
class AutoSync(AbstractStrategy[AutoState], AbstractAdaptation[AutoState]):
    """Average the models with a period that a rule chooses during training.

    Parameters
    ----------
    target : float, default 0.1
        The share of time that communication may take, above 0 and below 1, by which the floor of communication is
        found; see `CommFloor`.
    rule : AbstractRule, optional
        How the period follows from what ranks measure; `CommFloor` by default.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; see `dsgd.sync.averaging`.
    compressor : AbstractCompressor, "auto" or None, default None
        How models are encoded; as in `LocalSGD`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    IncompatiblePartsError
        The compressor does not go with models.

    Examples
    --------
    >>> from dsgd import SGDClassifier
    >>> clf = SGDClassifier(sync="auto", n_jobs=2, max_iter=3, tol=None).fit([[0.0], [1.0]] * 50, [0, 1] * 50)
    >>> clf.sync_history_[0]["why"]
    'start'
    """

    target: float = number(0.1, low=0.0, high=1.0, open_low=True, open_high=True)
    rule: AbstractRule = field(default_factory=CommFloor)
    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    weighs = "rates"
    fuses = True
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rule, AbstractRule):
            raise InvalidParameterError(
                f"AutoSync(rule=...) must be a rule of dsgd.sync.adaptive, such as CommFloor(). Got {self.rule!r}."
            )

    @property
    def period(self) -> EveryRows:
        """The period at first, where it does not depend on the rows; see `plan`."""
        return EveryRows(self.rule.first or EveryRows().n)

    @property
    def asks_slopes(self) -> bool:
        """Whether the rule does."""
        return self.rule.asks_slopes

    @property
    def needs_loss(self) -> bool:
        """Whether the rule does."""
        return self.rule.needs_loss

    def init(self, group: Group, params: FloatVector, weight: float) -> AutoState:
        """Return the record in which nothing has been measured."""
        return AutoState(
            every=np.zeros(3, np.int64),
            asks=np.zeros(1, np.int64),
            told=np.zeros(_N_TOLD),
            start=np.zeros(len(Measured._fields)),
            periods=np.zeros((_MOST_PERIODS, 4)),
            compression=start_compression(self, group, params, keeps_model=True),
        )

    def sync(self, group: Group, vector: FloatVector, weight: float, state: AutoState) -> None:
        """Replace the model by the weighted mean of all models; see `AbstractStrategy.sync`."""
        if not state.asks[0]:
            delta_mean(group, vector, weight, self.compressor, state.compression)
            return
        state.asks[0] = 0
        if self.compressor is None:
            n = vector.shape[0]
            # In the precision of the model: seconds and losses need no more than seven digits.
            message = np.concatenate([vector, state.told.astype(vector.dtype)])
            weighted_mean(group, message, weight)
            vector[:] = message[:n]
            state.told[:] = message[n:]
        else:
            weighted_mean(group, state.told, weight)
            delta_mean(group, vector, weight, self.compressor, state.compression)

    def plan(self, rows: Sequence[int], state: AutoState) -> Plan:
        """Return the first period, or the last one that was decided; see `AbstractAdaptation.plan`."""
        if state.every[0] == 0:
            first = self.rule.first or max(1, max(rows) // _PER_EPOCH)
            state.every[:] = first, _FIRST_ROUNDS if self.rule.decides else np.iinfo(np.int64).max, 0
            _write_down(state, 0.0, 0.0, first, "start")
        return Plan(int(state.every[0]), int(state.every[1]))

    def observe(self, seen: Seen, state: AutoState) -> None:
        """Take in what this rank has seen; the next `sync` tells all ranks."""
        state.told[0] = state.every[0]
        state.told[1:] = seen
        state.asks[0] = 1

    def decide(self, rows: Sequence[int], moved_sq: float, norm_sq: float, state: AutoState) -> Plan:
        """Return the next period, as the rule chooses it; see `AbstractAdaptation.decide`."""
        every, rounds, n_decided = state.every.tolist()
        now = self._measured(rows, moved_sq, norm_sq, state)
        if n_decided == 0:
            state.start[:] = now
        choice = self.rule.next(now, Measured(*state.start.tolist()))
        why = choice.why if choice.every <= now.cap else "cap"
        chosen = max(1, int(min(choice.every, now.cap)))
        if chosen == every:
            rounds = min(2 * rounds, _MOST_ROUNDS)
        else:
            _write_down(state, now.epochs * max(rows), now.seconds, chosen, why)
        round_s = chosen * now.row_s + now.wire_s + now.wait_s
        if self.rule.follows_clocks and round_s > 0.0:
            rounds = max(rounds, math.ceil(_LEAST_S / round_s))
        state.every[:] = chosen, rounds, n_decided + 1
        return Plan(chosen, rounds)

    def history(self, state: AutoState) -> list[dict[str, Any]]:
        """Return the periods so far; see `AbstractAdaptation.history`."""
        return [
            {"rows": round(rows), "seconds": seconds, "period": round(every), "why": WHYS[round(why)]}
            for rows, seconds, every, why in _periods(state).tolist()
        ]

    def _measured(self, rows: Sequence[int], moved_sq: float, norm_sq: float, state: AutoState) -> Measured:
        """Return the measurements that ranks have exchanged, and what follows from them."""
        agreed, seen = float(state.told[0]), Seen(*state.told[1:].tolist())
        every = int(state.every[0])
        if not abs(agreed - every) <= 0.5:
            raise ProtocolError(
                f"ranks synchronise every {every} rows here and every {agreed:g} on average: their decisions "
                "differ. Do they run the same version of dsgd?"
            )
        longest = float(max(rows))
        # The mean of squared distances from any one point is that from the mean, and the distance of the mean.
        dispersion = max(0.0, seen.drift_sq - moved_sq)
        floor = comm_floor(seen.row_s, seen.wire_s + seen.wait_s, self.target)
        wire_floor = comm_floor(seen.row_s, seen.wire_s, self.target)
        told = seen._asdict()
        return Measured(
            rows_left=told.pop("epochs_left") * longest,
            **told,
            every=float(every),
            age=seen.epochs - float(_periods(state)[-1, 0]) / max(1.0, longest),
            dispersion=dispersion,
            norm_sq=norm_sq,
            floor=min(floor, longest),
            wire_floor=min(wire_floor, longest),
            cap=_cap(longest, every, dispersion, norm_sq),
        )


def _cap(longest: float, every: int, dispersion: float, norm_sq: float) -> float:
    """Return the longest period with which replicas are expected to stay together, at least a sixteenth of the rows."""
    together = _APART * norm_sq * every
    reach = together / dispersion if dispersion * longest > together else longest
    return min(longest, max(1.0, float(int(longest) // _PER_EPOCH), float(int(reach))))


def _periods(state: AutoState) -> FloatMatrix:
    """Return the rows of `AutoState.periods` that are in use."""
    return state.periods[state.periods[:, 2] > 0.0]


def _write_down(state: AutoState, rows: float, seconds: float, every: int, why: Why) -> None:
    """Add a period to those so far."""
    used = len(_periods(state))
    if used == _MOST_PERIODS:
        # The first stays: it is where training began.
        state.periods[1:-1] = state.periods[2:].copy()
        used -= 1
    state.periods[used] = rows, seconds, every, WHYS.index(why)
