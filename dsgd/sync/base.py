"""The interface of a synchronisation strategy.

A strategy is a frozen dataclass of its policy alone. What changes during training is in a record that `init` makes and
the rank loop passes back. The loop cuts every epoch into the same number of rounds on every rank: in round k of K, rank
r with n_r rows works on rows ``[n_r k // K, n_r (k + 1) // K)``. So a rank never waits for a step that a peer with a
shorter shard does not have. `dsgd.sync.period` defines the weights of ranks in a mean. With a strategy that finds its
period during training (`AbstractAdaptation`), every rank cuts the rest of an epoch into new rounds, at the same round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from dsgd.collectives.group import Group
from dsgd.compress.base import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.handover import Handover, handover_of
from dsgd.sync.averaging import MomentumPolicy, carry_over
from dsgd.sync.period import AbstractPeriod, EveryRows, Taxonomy, Weighing
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import Checked

#: What ranks exchange.
Exchange = Literal["model", "gradient"]
Talk = Literal["together", "in pairs", "by mailbox"]
StateT = TypeVar("StateT")


@dataclass
class NoState:
    """The record of a strategy that remembers nothing from one synchronisation to the next."""


class AbstractStrategy(Checked, ABC, Generic[StateT]):
    """A synchronisation strategy: when ranks exchange, and what.

    Attributes
    ----------
    every : int
        Of strategies that have no `period` of their own.
    exchanges : {"model", "gradient"}
        ``"model"``: ranks step on their own and the strategy mixes their models.
        ``"gradient"``: ranks compute a gradient, the strategy mixes gradients and every rank takes the same step; or,
        where there are servers, a server does, and the vector that `sync` leaves is its model.
    ends_equal : bool
        Whether all ranks have the same model, to the bit, after a synchronisation. Where they have not, `collect` is
        called at the end of training.
    fuses : bool
        Whether every round ends in the weighted mean of all models and in nothing else, so that several of them may
        run inside one kernel (`dsgd.runtime.train.fused`).
    overlap : bool
        Whether the exchange of a round, but for the last of an epoch, runs beside the steps of the next one
        (`dsgd.sync.averaging`); of gradients, beside the pass that makes them (`dsgd.sync.minibatch`).
    momentum : {"keep", "zero", "average"}
        What happens to the memory of a local rule after a synchronisation (`dsgd.sync.averaging`).
    compressor : AbstractCompressor, "auto" or None
        How exchanged vectors are encoded (`dsgd.sync.compression`); None sends them whole.
    talks : {"together", "in pairs", "by mailbox"}
        How ranks exchange. ``"together"``: in collectives only. ``"in pairs"``: any two ranks may exchange vectors.
        ``"by mailbox"``: ranks send messages without waiting, so that they wait for the slowest only at the end of an
        epoch.
    weighs : {"rows", "rates", "alike"}
        The weights of ranks when models are exchanged. ``"rates"``: their rows over the sums of their rates
        (`dsgd.sync.period`). ``"rows"``: their rows. ``"alike"``: equal weights; instead, the change that the steps
        of a rank have made in a round is scaled before `sync`. Gradients are always weighted by rows.
    rates : {"own", "pooled"}
        Whether rates are those of the schedule, or raised by `lag` so that an epoch gets as far as one of one rank, as
        far as rows allow (`dsgd.local.SGD.pooled_factor`).
    suffix : float
        If rates fall like 1 / t, the mean model over this share of the steps of an epoch, the last ones, replaces the
        last model (`dsgd.local.sgd`); zero takes the last one. Of strategies that exchange gradients, and of
        threads that share a model.
    keep_models : bool
        Whether training returns, beside the model that `collect` makes, the one that each rank ends with.
    n_servers : int
        Ranks without rows, at the end of the gang, that serve the others; see `dsgd.sync.server`.
    shares_memory : bool
        Whether threads take steps on one model, and so exchange nothing.
    seconds : float or None
        How long a rank takes steps in a round, where time and not rows ends it.
    collects : bool
        Whether `collect` exchanges models, where ranks do not end equal.
    needs_loss : bool
        Whether every step has to be told with its loss.
    taxonomy : Taxonomy or None
        What kind of method it is, for tables; None where it does not say.
    """

    every: int | None
    exchanges: ClassVar[Exchange] = "model"
    ends_equal: ClassVar[bool] = True
    fuses: ClassVar[bool] = False
    talks: ClassVar[Talk] = "together"
    weighs: ClassVar[Weighing] = "rows"
    n_servers: ClassVar[int] = 0
    shares_memory: ClassVar[bool] = False
    collects: ClassVar[bool] = True
    taxonomy: ClassVar[Taxonomy | None] = None
    overlap: bool = False
    compressor: AbstractCompressor[Any] | Literal["auto"] | None = None
    momentum: MomentumPolicy = "keep"
    rates: Literal["own", "pooled"] = "own"
    suffix: float = 0.0
    keep_models: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise if a field is not what it declares, or the compressor is none for what is exchanged."""
        super().__post_init__()
        if self.compressor is not None:
            _check_compressor(self, self.compressor)

    def sent_values(self, n_params: int) -> int:
        """Return how many numbers a rank sends to a peer in a round: the vector that is mixed, unless told else."""
        return n_params

    @property
    def needs_loss(self) -> bool:
        """No, unless a strategy says else."""
        return False

    @property
    def treats_memory(self) -> bool:
        """Whether something happens to the memory of a local rule after a synchronisation."""
        return self.momentum != "keep"

    @property
    def hides_exchange(self) -> bool:
        """Whether the exchange of a round runs beside the steps of later ones."""
        return self.overlap

    @property
    def server(self) -> Any:
        """The strategy, as an `AbstractServerStrategy`, if it has servers; else None."""
        return None

    @property
    def local_term(self) -> AbstractLocalTerm[Any] | None:
        """The strategy, if it adds a term to local steps."""
        return self if isinstance(self, AbstractLocalTerm) else None

    @property
    def adaptation(self) -> AbstractAdaptation[Any] | None:
        """The strategy, if it chooses its period during training."""
        return self if isinstance(self, AbstractAdaptation) else None

    @property
    def under_way(self) -> AbstractUnderWay[Any] | None:
        """The strategy, if something may be under way between ranks at the end of an epoch."""
        return self if isinstance(self, AbstractUnderWay) else None

    def rate_factor(self, progress: float) -> float:
        """Return the factor of the learning rate of a step that ends `progress` epochs after the first began."""
        return 1.0

    @property
    def period(self) -> AbstractPeriod:
        """When ranks synchronise: after every `every` rows, and at the end of an epoch, unless a strategy says else."""
        return EveryRows.chosen(self.every)

    def lag(self, n_ranks: int, power: float) -> float:
        """Return how many times less far an epoch gets than that of one rank, at rates c / t^power.

        The mean of P models moves by the mean of what P ranks move by, each on a P-th of the rows: after them a rank
        has a rate P^power times that of one rank after all of them, so P^(1 - power) is missing.

        Parameters
        ----------
        n_ranks : int
            P, the ranks that have rows; 1 or more.
        power : float
            In [0, 1).
        """
        return float(n_ranks ** (1.0 - power))

    @abstractmethod
    def init(self, group: Group, params: FloatVector, weight: float) -> StateT:
        """Return what the strategy remembers, as it is before the first step; called by all ranks.

        Parameters
        ----------
        group : Group
            The ranks of the gang.
        params : array, shape (n_params,)
            The model to start from, equal on all ranks; to be copied where it is kept.
        weight : float
            Share of this rank in the mean: its rows over the rows of all; the weights of a gang add up to one.

        Returns
        -------
        StateT
            A dataclass whose every field is an array of at least one dimension, or such a dataclass again. It is kept
            in snapshots and checkpoints, one row per rank. What becomes of a field when other ranks take over it says
            itself (`dsgd.handover`); if it does not, floats become the mean of the rows, and everything else is that
            of the first rank.
        """

    @abstractmethod
    def sync(self, group: Group, vector: FloatVector, weight: float, state: StateT) -> None:
        """Mix `vector` over the ranks, in place.

        Parameters
        ----------
        group : Group
            The ranks of the gang.
        vector : array, shape (n_params,)
            The model or the gradient, as `exchanges` says.
        weight : float
            Share of this rank in the mean, as `weighs` says; the weights of a gang add up to one.
        state : StateT
            What `init` returned; updated in place.
        """

    def carry_over(self, group: Group, memory: Mapping[str, FloatVector], weight: float, state: StateT) -> None:
        """Treat what the local rule of a rank remembers as `momentum` says, after `sync`; called by all ranks.

        Parameters
        ----------
        group : Group
            The ranks of the gang.
        memory : mapping of str to array
            What the rule remembers, by name; changed in place.
        weight : float
            Share of this rank in the mean.
        state : StateT
            What `init` returned, as `sync` has left it.
        """
        carry_over(self.momentum, group, memory.values(), weight)

    def collect(self, group: Group, params: FloatVector, weight: float, state: StateT) -> None:
        """Leave on every rank, bitwise equal, the model that training returns; called by all ranks at the end.

        Not called where `ends_equal` says that the ranks have equal models anyway; does nothing unless a strategy says
        else. Parameters are those of `sync`, but that `weight` is the share of the rows.
        """


class LocalSteps(NamedTuple):
    """The steps of a rank since the last query.

    Parameters
    ----------
    rate_sum : float
        Sum of the rates of its steps.
    loss_sum : float
        Sum of the losses of its rows, each before its step.
    n_rows : int
        Rows.
    """

    rate_sum: float
    loss_sum: float
    n_rows: int


class AbstractLocalTerm(ABC, Generic[StateT]):
    """A term that a strategy adds to local steps: a pull, a correction of their drift, or only a record of losses.

    A step on a sparse row costs as much as the row has entries, but a term changes every weight. So it is applied after
    every `stretch` rows, with the sum of the rates since the last time: that is the term at every step, to first order
    in the rate. With a local rule it is applied after every minibatch.

    Attributes
    ----------
    stretch : int or None
        Rows between two applications; None is once per round.
    """

    stretch: int | None

    @abstractmethod
    def correct(self, params: FloatVector, steps: LocalSteps, state: StateT) -> None:
        """Apply the term to the model, in place.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model after the steps.
        steps : LocalSteps
            What has been done since the last time.
        state : StateT
            What `AbstractStrategy.init` returned; updated in place.
        """


class Seen(NamedTuple):
    """The measurements of a rank since the last decision on the period.

    Parameters
    ----------
    seconds : float
        Since training began.
    row_s : float
        Seconds of local steps per row: the median of the rounds that were timed.
    wire_s, wait_s : float
        Seconds of a synchronisation in which bytes moved or were made ready, and in which a peer was waited for;
        medians.
    loss : float
        Mean loss of the rows visited, each before its step.
    rate : float
        Rate of the last step.
    drift_sq : float
        Squared distance of this rank's model, before the synchronisation, from the one that it began the round with.
    epochs, epochs_left : float
        How often this rank has visited its rows, and how often it will until training ends, if nothing ends it sooner.
    curvature, slope : float
        How much the gradient and the loss change from the one of these two models to the other, over their distance, on
        some rows of this rank; zero unless the strategy asks.
    """

    seconds: float
    row_s: float
    wire_s: float
    wait_s: float
    loss: float
    rate: float
    drift_sq: float
    epochs: float
    epochs_left: float
    curvature: float = 0.0
    slope: float = 0.0


class Plan(NamedTuple):
    """A decision on the period, and how long it holds.

    Parameters
    ----------
    every : int
        Rows of the rank with the most rows, between two synchronisations.
    rounds : int
        The synchronisation, counted from here, in which ranks decide again: 1 is the next one.
    """

    every: int
    rounds: int


class AbstractAdaptation(ABC, Generic[StateT]):
    """The part of a strategy that chooses its period during training.

    Ranks decide every so many synchronisations. The measurements of each are sent with the vectors that `sync`
    exchanges anyway; their sums are equal on all ranks to the bit, so that all ranks decide the same.
    """

    @property
    @abstractmethod
    def asks_slopes(self) -> bool:
        """Whether `Seen.curvature` and `Seen.slope` are wanted."""

    @abstractmethod
    def plan(self, rows: Sequence[int], state: StateT) -> Plan:
        """Return what holds now, at first or as it was decided last; the same on every rank.

        Parameters
        ----------
        rows : sequence of int
            Rows of each rank.
        state : StateT
            What `AbstractStrategy.init` returned.
        """

    @abstractmethod
    def observe(self, seen: Seen, state: StateT) -> None:
        """Take in what this rank has seen; the next `sync` tells all ranks."""

    @abstractmethod
    def decide(self, rows: Sequence[int], moved_sq: float, norm_sq: float, state: StateT) -> Plan:
        """Return what holds from here on, after the `sync` that has exchanged the measurements of all ranks.

        Parameters
        ----------
        rows : sequence of int
            Rows of each rank.
        moved_sq, norm_sq : float
            Squared distance of the model after the synchronisation from the one that the round began with, and from
            zero; equal on all ranks.
        state : StateT
            Updated in place.
        """

    @abstractmethod
    def history(self, state: StateT) -> list[dict[str, Any]]:
        """Return the periods so far, in order: since how many rows of the longest rank, since when, and why."""


class AbstractUnderWay(ABC, Generic[StateT]):
    """A strategy by which something may be under way between ranks when their rows of an epoch are over.

    `AbstractStrategy.collect` finds the model without what `leave` does, so that it can be looked at and trained on.
    """

    @abstractmethod
    def settle(self, group: Group, params: FloatVector, state: StateT) -> None:
        """End what is under way at the end of an epoch, so that no kept state lacks it; called by all ranks."""

    @abstractmethod
    def leave(self, group: Group, params: FloatVector, state: StateT) -> None:
        """End what is under way at the end of training, after which nothing is exchanged; called by all ranks.

        Parameters are those of `settle`; the model stays as it is.
        """


def rejoin(state: Any, params: FloatVector) -> None:
    """Make what a strategy remembers fit arrays that all ranks have taken up, if it has to; see `AbstractRejoining`."""
    if isinstance(state, AbstractRejoining):
        state.rejoin(params)


class AbstractRejoining(ABC):
    """What a strategy remembers, where its arrays must fit those of other ranks."""

    @abstractmethod
    def rejoin(self, params: FloatVector) -> None:
        """Make arrays fit after all ranks have taken up the same ones, made of those of another gang, in place."""


def check_state(strategy: AbstractStrategy[Any], state: Any) -> None:
    """Raise unless what the `init` of a strategy has returned can be kept in a checkpoint."""
    where = f"{type(strategy).__name__}.init(...)"
    if not is_dataclass(state) or isinstance(state, type):
        raise InvalidParameterError(
            f"{where} must return a dataclass of arrays, as checkpoints keep it; dsgd.sync.NoState() remembers "
            f"nothing. Got {state!r}."
        )
    for name, value, _ in _fields(state):
        if not isinstance(value, np.ndarray) or value.ndim < 1 or value.dtype == object:
            raise InvalidParameterError(
                f"{where}: {name} of {type(state).__name__} must be an array of numbers with one dimension or more, as "
                f"checkpoints keep it: np.array([0.0]) for a number. Got {value!r}."
            )


def state_arrays(state: Any) -> dict[str, AnyArray]:
    """Return the arrays of a state record by name; those of a record inside it as ``"outer.inner"``.

    A field may also be a tuple of records: ``"outer.0.inner"``.
    """
    return {name: array for name, array, _ in _walk(state)}


def state_handovers(state: Any) -> dict[str, Handover]:
    """Return what becomes of the arrays of a state record when other ranks take over, by their names."""
    return {name: how for name, _, how in _walk(state)}


def _walk(state: Any) -> Iterator[tuple[str, AnyArray, Handover]]:
    return ((name, value, handover_of(field, value)) for name, value, field in _fields(state))


def _fields(state: Any) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield what a record holds, and the records inside it, by name."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, tuple):
            records = {f"{field.name}.{number}": record for number, record in enumerate(value)}
        elif is_dataclass(value):
            records = {field.name: value}
        else:
            yield field.name, value, field
            continue
        for outer, record in records.items():
            yield from ((f"{outer}.{name}", inner, at) for name, inner, at in _fields(record))


def _check_compressor(strategy: Any, compressor: Any) -> None:
    """Raise unless the compressor of a strategy is one, and may compress what the strategy exchanges."""
    name = type(strategy).__name__
    if compressor != "auto" and not isinstance(compressor, AbstractCompressor):
        raise InvalidParameterError(
            f"{name}(compressor=...) must be a compressor of dsgd.compress, 'auto' or None. Got {compressor!r}."
        )
    if strategy.overlap and strategy.exchanges == "model":
        raise IncompatiblePartsError(
            f"{name}(overlap=True) cannot be combined with compressor={compressor!r}: the difference from the last "
            "common model is compressed, and with overlap there is none. Leave out one of them."
        )
    from dsgd.compress import DGC, DeMo, ErrorFeedback, Layerwise, MajorityVote

    held = compressor.compressors if isinstance(compressor, Layerwise) else (compressor,)
    innermost = [each.compressor if isinstance(each, ErrorFeedback) else each for each in held]
    if strategy.exchanges == "model" and any(isinstance(each, (DGC, DeMo, MajorityVote)) for each in innermost):
        raise IncompatiblePartsError(
            f"{name} exchanges differences of models, and {compressor!r} is made for gradients: use it with "
            "MinibatchSGD, or ErrorFeedback(TopK(...)) or ErrorFeedback(Sign()) here."
        )
    if strategy.exchanges == "gradient" and compressor != "auto" and compressor.needs_feedback:
        raise IncompatiblePartsError(
            f"{name} with compressor={compressor!r}: what it leaves out of a gradient would be lost, and SGD would "
            f"stall. Use ErrorFeedback({compressor!r})."
        )
