"""The SGD optimiser of linear models, its state, and the mean of its last models; `dsgd.kernels` has the arithmetic.

**The mean of the last models of an epoch**, from which the next one starts and which training returns. With rates 1 /
(alpha t), the noise of the last model is proportional to the length of its last steps. One rank takes a step per row,
so they are short after some epochs. A server takes one per batch, along stale gradients: after as many rows its steps
are several times as long. Threads on one model overwrite each other's steps. Shortening steps by a factor does not help
if rows are long: beyond the margin the hinge is a perceptron, whose decisions do not depend on the rate at all.

Update: the models after the last share of the steps of an epoch are added up, and at its end their mean takes the place
of the model. With an L1 penalty the mean is of duals, and the model is made again from it (`Dual`).

Cost: one more pass over the model for each that is added, and one more vector. Source: Rakhlin, Shamir and Sridharan
2012 (alpha-suffix averaging: on losses with corners the mean of the last half of T steps at these rates is within 1 / T
of the minimum, that of all only within log(T) / T); Hazan and Kale 2014 (Epoch-GD: every epoch begins with the mean of
the one before).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernels import importance as importance_kernels
from dsgd.kernels import rules as rule_kernels
from dsgd.kernels import sgd as sgd_kernels
from dsgd.kernels import softmax as softmax_kernels
from dsgd.kernels import state as places
from dsgd.kernels import variance as variance_kernels
from dsgd.kernels.rows import all_finite
from dsgd.kernels.scaled import add_penalties, to_dual, to_primal
from dsgd.kernels.state import (
    CYCLES,
    L1_TOTAL,
    SCHEDULES,
    add_factors,
    cycle_factor,
    learning_rate,
    optimal_t0,
    relative_sums,
)
from dsgd.local.base import AbstractLocalOptimizer, AbstractState, Evaluation, Steps, new_counters
from dsgd.local.features import FeatureBlocks, RandomMap
from dsgd.local.objective import Objective, evaluate, n_params
from dsgd.local.rules import DEFAULT_BATCH, AbstractRule, LearningRate, RuleState, cycle_of, schedule_of, steps_of
from dsgd.local.shard import Residency, Shard, arrange, epoch_order
from dsgd.local.variance import SVRG, AbstractReduction, Importance, ReductionState, SamplingState, check_reduction
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix, IntVector


@dataclass
class SGDState(AbstractState):
    """The state of SGD, and its scratch memory.

    - `counters`, shape (COUNTERS + n_losses,): what the attributes t, eta_scale, loss_sum, n_averaged and
      output_losses read and write.
    - `received`, shape (n_weights,) or (0,): L1 penalty each weight has received, if there is one. It is this
      rank's own: averaging models leaves it alone.
    - `order`, shape (2, n_blocks + 1): the order in which the present epoch walks the rows, see `dsgd.local.shard`.
    - `suffix`, shape (n_params + 2,) or (0,): sums over the last models of the present epoch, where their mean is
      made.
    """

    counters: FloatVector
    constants: FloatVector
    codes: IntVector
    class_weights: FloatMatrix
    auxiliary: FloatVector
    received: FloatVector
    order: IntMatrix = field(repr=False)
    factors: FloatVector = field(repr=False)
    rule: RuleState | None = None
    suffix: FloatVector = field(default_factory=lambda: np.zeros(0), repr=False)
    sampling: SamplingState | None = None
    reduction: ReductionState | None = None
    features: FeatureBlocks | None = field(default=None, repr=False)

    @property
    def averaged(self) -> FloatVector | None:
        """The averaged model, shape (n_params,), to read or write in place; None if averaging is off."""
        return self.auxiliary if self.auxiliary.size else None

    @property
    def is_finite(self) -> bool:
        """Whether every prediction so far was finite; see `is_finite` for the model itself."""
        return bool(self.counters[places.GUARD] == 0.0)

    def memory(self) -> dict[str, FloatVector]:
        """Return what the rule remembers; see `AbstractState.memory`."""
        return {} if self.rule is None else self.rule.memory()

    def vectors(self) -> dict[str, AnyArray]:
        """Return the average of the iterates, the L1 penalty received, sums of last models, and what rows remember."""
        kept = self.sampling or self.reduction
        of_rows = {} if kept is None else kept.vectors()
        return {"averaged": self.auxiliary, "received": self.received, "suffix": self.suffix, **of_rows}

    def statistics(self) -> dict[str, AnyArray]:
        """Return nothing: a linear model is its parameters."""
        return {}


class Dual:
    """A model of one rank that turns into its dual and back, in the same memory.

    A mean of models has hardly a zero, since a weight is zero on some ranks and not on others; and a feature which few
    ranks see would pay a share of its penalty. With the cumulative penalty, a weight w is z, the sum of its steps
    without penalty, moved towards zero by u, the penalty due so far (`dsgd.kernels.scaled`). Ranks mix z and u as the
    strategy says, and compute the model from the results: one soft threshold after the mean. All operations of
    strategies are linear, so their state is in terms of z and u, too, and a model that one rank leaves unchanged stays
    unchanged. Cost: two passes over the weights per exchange, one number more on the wire; nothing without an L1
    penalty.

    Source: Yuan, Zaheer and Reddi 2021 (federated dual averaging, algorithm 2: primal averages lose the zeros); theirs
    is for local SGD with rates of rounds; here the mean of the ranks' sums of rates takes their place.
    """

    n_whole: ClassVar[int] = 1

    def __init__(self, initial: FloatVector, received: FloatVector, counters: FloatVector) -> None:
        self.vector: FloatVector = np.append(initial, initial.dtype.type(0))
        self.params: FloatVector = self.vector[:-1]
        self._account = received, counters

    def of(self, params: FloatVector) -> Dual:
        """Return the same for a copy of a model, with a copy of the account."""
        received, counters = self._account
        return Dual(params, received.copy(), counters.copy())

    def enter(self) -> None:
        """Make `vector` the dual, to be mixed."""
        to_dual(self.vector, *self._account)

    def leave(self) -> None:
        """Make the model again from the dual, and its account."""
        to_primal(self.vector, *self._account)


def is_in_suffix(number: int, n: int, share: float) -> bool:
    """Return whether a step, from 0, is among the last of n, so large a share of them; the very last one always is."""
    return number >= n - math.ceil(share * n)


def begin_suffix(params: FloatVector, state: SGDState) -> None:
    """Make room for the sums, before the first step, and load what makes a model of them."""
    state.suffix = np.zeros(params.shape[0] + 2)
    if state.received.size:
        to_primal(np.append(params, params.dtype.type(0)), state.received.copy(), state.counters.copy())


def add_to_suffix(params: FloatVector, state: SGDState) -> None:
    """Add the model, or with an L1 penalty its dual, to the sums."""
    sums, received = state.suffix, state.received
    sums[:-2] += params
    sums[-1] += 1.0
    if received.size:
        sums[: received.shape[0]] -= received
        sums[-2] += state.counters[L1_TOTAL]


def end_suffix(params: FloatVector, state: SGDState) -> None:
    """Replace the model by the mean and start a new one; do nothing if there are no models to average."""
    sums = state.suffix
    if not sums.size or not sums[-1]:
        return
    # In place: of a model of many weights no other is made.
    sums[:-1] /= sums[-1]
    if state.received.size:
        mean = sums[:-1].astype(params.dtype)
        to_primal(mean, state.received, state.counters)
        params[:] = mean[:-1]
    else:
        params[:] = sums[:-2]
    sums.fill(0.0)


#: On sparse rows the intercept, which every row updates, takes steps this much smaller (as in scikit-learn).
SPARSE_INTERCEPT_DECAY = 0.01

#: With raised rates, the share of the distance to the target that a first step on a row of mean length may close.
MOST_OF_A_ROW = 0.5


@dataclass(frozen=True)
class SGD(AbstractLocalOptimizer[Shard, SGDState]):
    """Stochastic gradient descent: a step per row, or with a rule a step per minibatch.

    Parameters
    ----------
    objective : Objective
        The objective to minimise.
    schedule : str, default="optimal"
        A name in `dsgd.kernels.state.SCHEDULES`, or a cycle.
    eta0 : float, default=0.01
        First rate of constant, invscaling and adaptive.
    power_t : float, default=0.5
        Exponent of invscaling.
    average : int, default=0
        0: no averaging. n: the average of the models from step n on is kept beside the model.
    rule : AbstractRule or None, default=None
        None takes a plain step per row. A rule takes one per minibatch of its size, or, if gradients are exchanged, one
        per exchanged gradient.
    sampling : Importance or None, default=None
        None visits every row once an epoch.
    seed : int, default=0
        Of the draws of rows, if rows are drawn.
    reduction : AbstractReduction or None, default=None
        Reduces the variance of steps. It has rates of its own: `schedule` is "constant" and `eta0` is 1, which is
        multiplied by the length that the state has as `rate_factor`.
    features : RandomMap or None, default None
        The model is linear in random features of rows, which exist a block at a time; neither with `sampling` nor with
        a `reduction`.

    Raises
    ------
    IncompatiblePartsError
        A reduction cannot minimise the objective.
    InvalidParameterError
        If a value is out of range, or the schedule divides by an alpha of zero.
    """

    objective: Objective
    schedule: LearningRate = "optimal"
    eta0: float = 0.01
    power_t: float = 0.5
    average: int = 0
    rule: AbstractRule | None = None
    sampling: Importance | None = None
    seed: int = 0
    reduction: AbstractReduction | None = None
    features: RandomMap | None = None

    def __post_init__(self) -> None:
        if cycle_of(self.schedule) is None and self.schedule not in SCHEDULES:
            known = ", ".join([*SCHEDULES, *CYCLES])
            raise InvalidParameterError(f"SGD(schedule=...) must be one of {known}. Got {self.schedule!r}.")
        row = schedule_of(self.schedule)
        if row.needs_alpha and not self.objective.alpha > 0.0:
            raise InvalidParameterError(
                f"SGD(schedule={self.schedule!r}) divides by alpha; it must be above 0. Got {self.objective.alpha!r}."
            )
        if not row.needs_alpha and not self.eta0 > 0.0:
            raise InvalidParameterError(
                f"SGD(eta0=...) must be above 0 with schedule {self.schedule!r}. Got {self.eta0!r}."
            )
        if self.average < 0:
            raise InvalidParameterError(f"SGD(average=...) must be 0 or more. Got {self.average!r}.")
        if self.features is not None and (self.sampling is not None or self.reduction is not None):
            raise IncompatiblePartsError(
                f"SGD(features={self.features!r}) makes features of the rows of the walk, and {self.steps.name} draws "
                "or remembers rows. Use one of them, or make the features before."
            )
        if self.reduction is not None:
            if (self.schedule, self.eta0, self.rule) != ("constant", 1.0, None):
                raise InvalidParameterError(
                    f"SGD(reduction={self.reduction!r}) has steps of its own: schedule='constant', eta0=1.0, no rule."
                )
            check_reduction(self.reduction, self.objective, average=self.average, sampling=self.sampling)
        if self.sampling is not None and self.objective.is_coupled:
            raise IncompatiblePartsError(
                f"SGD(sampling={self.sampling!r}) draws rows by slopes of one class against the rest, and "
                f"loss={self.objective.loss!r} has slopes of all classes together: use sampling='uniform', or "
                "loss='log_loss'."
            )

    @property
    def steps(self) -> Steps:
        """A step per row, or what rule or reduction say."""
        return steps_of(self.rule or self.reduction, self.sampling)

    @property
    def steps_in_fused_rounds(self) -> bool:
        """Whether a step is a plain one on the next row of the walk, as kernels of many rounds take it."""
        plain = (self.rule, self.sampling, self.reduction, self.features) == (None, None, None, None)
        return plain and not self.objective.is_coupled

    @property
    def n_outputs(self) -> int:
        """One, or the number of classes."""
        return self.objective.n_outputs

    @property
    def n_losses(self) -> int:
        """One where the classes share it, else one for each output."""
        return 1 if self.objective.is_coupled else self.objective.n_outputs

    @property
    def averages_suffix(self) -> bool:
        """Whether the mean of the last models of an epoch is better than the last: where rates fall like 1 / t."""
        return not self.average and self.rate_power == 1.0

    def init(self, shard: Shard) -> SGDState:
        """Return the state to train on `shard` from the start, with all scratch memory in it."""
        objective = self.objective
        k, d = objective.n_outputs, self.width(shard)
        is_sparse = shard.is_sparse and self.features is None
        share, strength = objective.l1_share, objective.strength
        constants = self.constants(sparse=is_sparse)
        codes = np.zeros(places.CODES, np.int64)
        codes[places.LOSS] = objective.row.code
        codes[places.SCHEDULE] = schedule_of(self.schedule).code
        codes[places.N_OUTPUTS] = k
        codes[places.N_FEATURES] = d
        codes[places.AVERAGE] = self.average
        rule = None
        if self.rule is not None:
            model = np.zeros(n_params(d, k), shard.dtype)
            batch = self.steps.rows if self.steps.once_a_round else self.rule.batch or DEFAULT_BATCH
            rule = self.rule.init(model, constants, sparse=is_sparse, batch=batch)
        return SGDState(
            counters=new_counters(self.n_losses),
            constants=constants,
            codes=codes,
            class_weights=objective.class_weights(),
            auxiliary=np.zeros(n_params(d, k) if self.average else 0),
            received=np.zeros(k * d if share * strength > 0.0 else 0, shard.dtype),
            order=epoch_order(shard.n_rows, None, 0),
            factors=np.zeros(k, shard.dtype),
            rule=rule,
            sampling=None if self.sampling is None else self.sampling.init(shard, self.seed),
            reduction=None if self.reduction is None else self.reduction.init(shard, k, self.seed),
            features=None
            if self.features is None
            else FeatureBlocks(self.features.drawn(shard.n_features, shard.dtype)),
        )

    def constants(self, *, sparse: bool) -> FloatVector:
        """Return the parameters as kernels read them, shape (CONSTANTS,), for sparse rows or dense ones."""
        objective, constants = self.objective, np.zeros(places.CONSTANTS)
        share, strength = objective.l1_share, objective.strength
        # The length of a step of a reduction has the intercept in it.
        intercept_rate = SPARSE_INTERCEPT_DECAY if sparse and self.reduction is None else 1.0
        constants[places.ALPHA] = objective.alpha
        constants[places.SHRINK_RATE] = (1.0 - share) * strength
        constants[places.L1_RATE] = share * strength
        constants[places.EPSILON] = objective.epsilon
        constants[places.ETA0] = self.eta0
        constants[places.POWER_T] = self.power_t
        constants[places.T0] = optimal_t0(objective.alpha) if objective.alpha > 0.0 else 0.0
        if (cycle := cycle_of(self.schedule)) is not None:
            constants[[places.PEAK, places.HALF_CYCLE, places.DECAY]] = cycle.peak, cycle.half_cycle, cycle.third
        constants[places.INTERCEPT_RATE] = intercept_rate if objective.fit_intercept else 0.0
        return constants

    def width(self, shard: Shard) -> int:
        """Return how many weights an output has: a column's each, or a feature's."""
        return shard.n_features if self.features is None else self.features.n_components

    def mean_square(self, shard: Shard) -> float:
        """Return the mean squared length of what the model is linear in: rows, or features, whose mean square is 1."""
        return shard.mean_square() if self.features is None else 1.0

    def arrange(self, shard: Shard, state: SGDState) -> None:
        """Make the order in which the present epoch walks the rows; one for all epochs if the shard has no seed."""
        arrange(state.order, shard.n_rows, shard.seed, state.epoch)
        if state.sampling is not None:
            state.sampling.begin_epoch()

    def run(self, params: FloatVector, shard: Shard, start: int, stop: int, state: SGDState) -> None:
        """Take one step on each of some rows, or of their minibatches, in order, in one call of a kernel.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model, dtype of the shard, updated in place.
        shard : Shard
            The rows.
        start, stop : int
            Places of the walk.
        state : SGDState
            Updated in place: t, the sum of losses, rows seen, the average.
        """
        self.bind(params, shard, state)(start, stop)

    def bind(self, params: FloatVector, shard: Shard, state: SGDState) -> Callable[[int, int], None]:
        """Return `run` for this model, these rows and this state, to be called with start and stop only."""
        if state.features is not None and state.rule is None:
            return partial(self._run_features, params, shard, state)
        if state.rule is not None and (state.features or state.sampling or self.objective.is_coupled):
            return partial(self._run_batches, params, shard, state)
        arguments = self.arguments(params, shard, state)
        if state.sampling is not None:
            return partial(importance_kernels.run_drawn, *arguments, state.sampling.arguments())
        if state.reduction is not None:  # neither average nor penalty to be truncated
            rows, sparse, _, _, steps = arguments
            kept = state.reduction.arguments()
            return partial(variance_kernels.run_reduced, rows, sparse, params, state.factors, steps, kept)
        if state.rule is None:
            return partial(self._run_rows, *arguments)
        return partial(rule_kernels.run_batches, *arguments, state.rule.gradient, state.rule.arguments())

    @property
    def _run_rows(self) -> Callable[..., None]:
        """The kernel that takes plain steps."""
        return softmax_kernels.run_softmax_rows if self.objective.is_coupled else sgd_kernels.run_rows  # type: ignore[no-any-return]

    @property
    def _gradient_rows(self) -> Callable[..., None]:
        """The kernel that adds gradients up."""
        return softmax_kernels.gradient_softmax_rows if self.objective.is_coupled else rule_kernels.gradient_rows  # type: ignore[no-any-return]

    def _run_features(self, params: FloatVector, shard: Shard, state: SGDState, start: int, stop: int) -> None:
        """Take a step on the features of each row, block by block; none where there are no rows."""
        assert state.features is not None
        if start == stop:
            # Loads the kernels.
            block, order = state.features.none_of(shard)
            self._run_rows(*self.arguments(params, block, state, order), 0, 0)
        for block, order in state.features.over(shard, state.order, start, stop):
            self._run_rows(*self.arguments(params, block, state, order), 0, block.n_rows)

    def _run_batches(self, params: FloatVector, shard: Shard, state: SGDState, start: int, stop: int) -> None:
        """Take a step of the rule on each batch of rows, cut as `dsgd.kernels.rules.run_batches` does."""
        assert state.rule is not None
        gradient, n_batches = state.rule.gradient, -(-(stop - start) // state.rule.batch)
        for k in range(n_batches):
            low, high = (start + (stop - start) * end // n_batches for end in (k, k + 1))
            self.gradient(params, shard, low, high, gradient, state)
            gradient /= gradient.dtype.type(high - low)
            self.step(params, gradient, high - low, state)

    def arguments(
        self, params: FloatVector, shard: Shard, state: SGDState, order: IntMatrix | None = None
    ) -> tuple[Any, ...]:
        """Return what `dsgd.kernels.sgd.run_rows` takes before the places, for callers of a kernel that calls it."""
        # Of what is None Numba compiles nothing.
        needs_less = self.steps_in_fused_rounds and places.is_plain(state.constants, state.codes)
        beside = None if needs_less else (state.auxiliary, state.received, state.factors)
        order = state.order if order is None else order
        steps = state.counters, state.constants, state.codes, order
        return shard.row_arrays(state.class_weights), shard.sparse, params, beside, steps

    def rate_sum(self, t_start: float, state: SGDState) -> float:
        """Return the sum of the rates of steps t_start..t, the last left out."""
        return float(places.rate_sum(state.counters, state.constants, state.codes, t_start))

    def planned_rates(self, starts: FloatVector, counts: FloatVector) -> FloatVector:
        """Return sums of rates up to a common factor; see `AbstractLocalOptimizer.planned_rates`."""
        alpha = self.objective.alpha
        t0 = optimal_t0(alpha) if alpha > 0.0 else 0.0
        if (cycle := cycle_of(self.schedule)) is not None:
            sums: FloatVector = np.zeros(len(counts))
            code = CYCLES[cycle.name].code
            add_factors(sums, starts, counts, code, cycle.peak, cycle.half_cycle, cycle.third)
            return sums
        return relative_sums(SCHEDULES[str(self.schedule)].code, starts, counts, self.power_t, t0)

    def gradient(
        self, params: FloatVector, shard: Shard, start: int, stop: int, out: FloatVector, state: SGDState
    ) -> None:
        """Write into `out` the sum over some rows of the weighted gradients of the loss, penalty left out.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model, dtype of the shard, read only.
        shard : Shard
            The rows.
        start, stop : int
            Places of the walk.
        out : array, shape (n_params,)
            The sum, dtype of the shard, overwritten.
        state : SGDState
            The sum of losses and the rows seen are updated.
        """
        if (blocks := state.features) is not None:
            blocks.gradient = out.copy() if blocks.gradient.size != out.size else blocks.gradient
            out.fill(0.0)
            for block, order in blocks.over(shard, state.order, start, stop):
                rows, sparse, _, _, steps = self.arguments(params, block, state, order)
                given = rows, sparse, params, blocks.gradient, state.factors, steps
                self._gradient_rows(*given, 0, block.n_rows)
                out += blocks.gradient
            return
        rows, sparse, _, _, steps = self.arguments(params, shard, state)
        given = rows, sparse, params, out, state.factors, steps
        if state.reduction is not None:
            variance_kernels.gradient_reduced(*given, state.reduction.arguments(), start, stop)
        elif state.sampling is not None:
            importance_kernels.gradient_drawn(*given, state.sampling.arguments(), start, stop)
        else:
            self._gradient_rows(*given, start, stop)

    def step(self, params: FloatVector, mean_gradient: FloatVector, n_rows: int, state: SGDState) -> None:
        """Take one step along a mean gradient, penalty included; t advances by one.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model, updated in place.
        mean_gradient : array, shape (n_params,)
            Sum of the gradients of all ranks over `n_rows`. A rule or a reduction overwrites it.
        n_rows : int
            Rows the mean is of; with none there is no gradient and no step.
        state : SGDState
            Updated in place.
        """
        if n_rows > 0 and state.reduction is not None:
            state.reduction.add_mean(mean_gradient)
        beside = state.auxiliary, state.received, state.factors
        steps = state.counters, state.constants, state.codes, state.order
        if n_rows > 0 and state.rule is not None:
            rule_kernels.step_rule(params, mean_gradient, beside, steps, state.rule.arguments())
        elif n_rows > 0:
            rule_kernels.step_all(params, mean_gradient, beside, steps)

    def evaluate(self, params: FloatVector, shard: Shard, state: SGDState) -> Evaluation:
        """Return how good a model is; see `dsgd.local.objective.evaluate`."""
        if state.features is None:
            return evaluate(params, shard, self.objective)
        residency, sums, place = Residency(shard), Evaluation().as_vector(), 0
        for block, _ in state.features.over(shard, None, 0, shard.n_rows):
            sums += evaluate(params, block, self.objective).as_vector()
            place += block.n_rows
            residency.at(place)
        return Evaluation.from_vector(sums)

    def objective_sums(self, params: FloatVector, shard: Shard, state: SGDState) -> FloatVector:
        """Return for each loss of a row the objective in this epoch, times the rows seen.

        scikit-learn takes the mean of the penalty over the steps of the epoch, with two more passes over a row; here it
        is that of the model at its end, from one pass over the model.
        """
        objective, sums = self.objective, state.output_losses.copy()
        if objective.strength > 0.0:
            factor = state.n_seen * objective.strength
            by_column = shard.is_sparse and self.features is None
            penalties = np.zeros(objective.n_outputs) if objective.is_coupled else sums
            add_penalties(penalties, params, self.width(shard), objective.l1_share, factor, by_column=by_column)
            if objective.is_coupled:
                sums += penalties.sum()
        return sums

    @property
    def rate_power(self) -> float:
        """The p of rates that fall like 1 / t^p in the long run; at most 1."""
        return schedule_of(self.schedule).power(self.power_t)

    def pooled_factor(self, missing: float, mean_square: float, t: float = 1.0) -> float:
        """Return how much higher the rate of a step may get, of a factor that is missing.

        A model that is the mean of those of P ranks, or steps along the mean gradient of B rows, gets less far in an
        epoch than steps by row; at constant rates P or B times, which is the linear scaling rule (Goyal et al. 2017,
        section 2.1). The mean also takes away what the noise of a step gains by the factor. Steps that close more than
        the distance to the target of their row diverge, so the factor ends where one closes `MOST_OF_A_ROW` of it.

        Parameters
        ----------
        missing : float
            The factor that is wanted; see `dsgd.sync.AbstractStrategy.lag`.
        mean_square : float
            Mean squared length of a row.
        t : float, default 1
            The step. Later ones bear a higher factor, as far as rates fall.

        Returns
        -------
        float
            1 or more.
        """
        row, objective, cycle = schedule_of(self.schedule), self.objective, cycle_of(self.schedule)
        t0 = optimal_t0(objective.alpha) if objective.alpha > 0.0 else 0.0
        rate = learning_rate(row.code, t, 1.0, objective.alpha, self.eta0, self.power_t, t0)
        if cycle is not None:
            rate = self.eta0 * cycle_factor(row.code, t, cycle.peak, cycle.half_cycle, cycle.third)
        closed = rate * objective.curvature * (mean_square + float(objective.fit_intercept))
        return float(min(missing, max(1.0, MOST_OF_A_ROW / closed if closed > 0.0 else missing)))

    def settle(self, params: FloatVector, shard: Shard, state: SGDState, *, is_last: bool) -> FloatVector | None:
        """Remember the slopes of all rows, if it is time for a reduction to do so, and return their mean gradient."""
        kept, reduction = state.reduction, self.reduction
        if is_last or kept is None or not isinstance(reduction, SVRG) or state.epoch % reduction.every:
            return None
        kept.remember(self.arguments(params, shard, state), shard)
        return kept.mean


def is_finite(params: FloatVector) -> bool:
    """Return whether every parameter of a model is finite; one pass over it."""
    return bool(all_finite(params))
