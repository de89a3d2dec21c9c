"""Rules of steps beyond plain SGD, for minibatches and for one step a round; their names, and cycles of their rates.

Where gradients are noisy or badly scaled, or the batch is large, a rule that remembers what gradients were like gets
further with each step. The mean gradient of `batch` rows becomes a direction, in `dsgd.kernels.rules`, whose table has
the equations and their sources. The rate is that of the schedule, counted in steps; the average of the iterates and the
L1 penalty are those of a minibatch step. Cost: a step visits every weight two or three times, so batches should be long
beside the model over the entries of a row. What a rule remembers is one or two vectors of the length of the model;
whether a strategy that averages models averages it too, forgets it, or leaves it alone is its policy, `momentum`.

**Cycles.** A rate that goes up and down between two bounds is good some of the time, whatever the problem; and one long
way up and down, to rates that would diverge from the start, trains some models in fewer epochs. The rate of step t is
eta0 times the factor of `dsgd.kernels.state`, whose table has the formulas.

Source: Smith 2017 (cyclical rates); Smith and Topin 2018 (one cycle).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.kernels import rules as kernels
from dsgd.kernels import state as places
from dsgd.kernels.state import CYCLES, SCHEDULES, Schedule
from dsgd.local.base import Steps
from dsgd.local.variance import SAGA, SVRG, AbstractReduction, Importance
from dsgd.named import Kind, part_of
from dsgd.types import FloatVector
from dsgd.validation import Checked, check_choice, number


class AbstractCycle(Checked, ABC):
    """A schedule of rates that is eta0 times a factor which rises and falls.

    Attributes
    ----------
    peak : float
        The highest factor.
    half_cycle : int
        Steps of half a cycle.
    """

    peak: float
    half_cycle: int

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in `dsgd.kernels.state.CYCLES`."""

    @property
    @abstractmethod
    def third(self) -> float:
        """What the kernel takes for ``decay``."""


@dataclass(frozen=True)
class Cyclical(AbstractCycle):
    """Rates that go up and down between eta0 and ``peak`` times eta0, again and again.

    Parameters
    ----------
    shape : {"triangular", "triangular2", "exp_range"}, default "triangular"
        ``"triangular"``: all cycles are as high. ``"triangular2"``: each is half as high as the one before.
        ``"exp_range"``: the height is multiplied by `decay` in every step.
    peak : float, default 6.0
        The highest rate over eta0, above one.
    half_cycle : int, default 2000
        Steps on the way up, and on the way down: samples of a rank, or its minibatches with an ``optimizer=`` or
        exchanged gradients. The source recommends two to ten epochs.
    decay : float, default 0.99994
        Of ``"exp_range"``, in (0, 1].

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    shape: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    peak: float = number(6.0, low=1, open_low=True)
    half_cycle: int = number(2000, low=1)
    decay: float = number(0.99994, low=0, high=1, open_low=True)

    @property
    def name(self) -> str:
        """The shape."""
        return self.shape

    @property
    def third(self) -> float:
        """The decay."""
        return self.decay


@dataclass(frozen=True)
class OneCycle(AbstractCycle):
    """Rates that go up to ``peak`` times eta0 and down once, and then fall to a thousandth of eta0.

    Parameters
    ----------
    peak : float, default 10.0
        The highest rate over eta0, above one.
    half_cycle : int, default 2000
        Steps on the way up, and on the way down: samples of a rank, or its minibatches with an ``optimizer=`` or
        exchanged gradients. The cycle should be a little shorter than training.
    tail : int, default 400
        Steps of the fall after it.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    peak: float = number(10.0, low=1, open_low=True)
    half_cycle: int = number(2000, low=1)
    tail: int = number(400, low=1)

    @property
    def name(self) -> str:
        """``"one_cycle"``."""
        return "one_cycle"

    @property
    def third(self) -> float:
        """The steps of the tail."""
        return float(self.tail)


#: What ``learning_rate=`` may be: a name of `dsgd.kernels.state.SCHEDULES` or of a cycle with its defaults, or a cycle.
LearningRate: TypeAlias = str | AbstractCycle


def cycle_of(learning_rate: LearningRate) -> AbstractCycle | None:
    """Return the cycle that a value means, with its defaults where it is a name; None where it is none."""
    if isinstance(learning_rate, AbstractCycle):
        return learning_rate
    if learning_rate == "one_cycle":
        return OneCycle()
    return Cyclical(learning_rate) if learning_rate in CYCLES else None  # type: ignore[arg-type]


def schedule_of(learning_rate: LearningRate) -> Schedule:
    """Return the row of the schedule that a value of ``learning_rate=`` means."""
    cycle = cycle_of(learning_rate)
    return CYCLES[cycle.name] if cycle else SCHEDULES[str(learning_rate)]


def check_learning_rate(where: str, value: object) -> None:
    """Raise `InvalidParameterError` unless a value is a cycle or a known name; `where` is how it was written."""
    if not isinstance(value, AbstractCycle):
        check_choice(where, value, [*SCHEDULES, *CYCLES])


#: Rows of a local batch where the rule does not say.
DEFAULT_BATCH = 32


@dataclass
class RuleState:
    """The state of a rule, and its scratch memory."""

    velocity: FloatVector
    second: FloatVector
    steps: FloatVector
    gradient: FloatVector = field(repr=False)
    step_constants: FloatVector = field(repr=False)
    rule: FloatVector = field(repr=False)

    @property
    def batch(self) -> int:
        """Rows of a local batch."""
        return int(self.rule[kernels.BATCH])

    def memory(self) -> dict[str, FloatVector]:
        """Return the memory of the rule, by name."""
        return {"velocity": self.velocity, "second": self.second, "steps": self.steps}

    def arguments(self) -> kernels.Memory:
        """Return the memory as kernels take it."""
        return self.velocity, self.second, self.steps, self.step_constants, self.rule


class AbstractRule(Checked, ABC):
    """A rule that turns a mean gradient into a step.

    Attributes
    ----------
    batch : int or None
        Rows of a local batch.
    keeps_velocity, keeps_second : bool
        Which vectors it remembers.
    is_decoupled : bool
        Whether the L2 penalty shrinks weights beside the rule, and is not part of the gradient.
    """

    batch: int | None
    keeps_velocity: ClassVar[bool]
    keeps_second: ClassVar[bool]
    is_decoupled: bool = False

    @abstractmethod
    def constants(self) -> dict[int, float]:
        """Return the numbers of the rule by their places in the vector that kernels read."""

    def init(self, params: FloatVector, constants: FloatVector, *, sparse: bool, batch: int) -> RuleState:
        """Return what the rule remembers before the first step.

        Parameters
        ----------
        params : array, shape (n_params,)
            A model, for its length and dtype.
        constants : array of float64
            Those of the optimiser, see `dsgd.kernels.state`.
        sparse : bool
            Whether weights are laid out for sparse rows, see `dsgd.local.objective.pack`.
        batch : int
            Rows of a local batch.
        """
        rule = np.zeros(kernels.RULE_CONSTANTS)
        for place, value in self.constants().items():
            rule[place] = value
        rule[kernels.IS_DECOUPLED] = self.is_decoupled
        rule[kernels.IS_COLUMN_MAJOR] = sparse
        rule[kernels.BATCH] = batch
        step_constants = constants.copy()
        step_constants[places.INTERCEPT_RATE] = float(constants[places.INTERCEPT_RATE] > 0.0)
        if not self.is_decoupled:
            step_constants[places.SHRINK_RATE] = 0.0
        nothing = params[:0]
        return RuleState(
            velocity=np.zeros_like(params if self.keeps_velocity else nothing),
            second=np.zeros_like(params if self.keeps_second else nothing),
            steps=np.zeros(1),
            gradient=np.zeros_like(params),
            step_constants=step_constants,
            rule=rule,
        )


@dataclass(frozen=True)
class Momentum(AbstractRule):
    """Heavy ball, or Nesterov's momentum.

    Parameters
    ----------
    momentum : float, default 0.9
        mu, in [0, 1); 0 is plain minibatch SGD. A step is 1 / (1 - mu) times as long in the end: with a fixed rate,
        choose `eta0` smaller by that.
    nesterov : bool, default False
        Whether the direction looks one step ahead.
    batch : int or None, default None
        Rows of a local batch; None is 32. Left None where gradients are exchanged: there the strategy has a batch.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    momentum: float = number(0.9, low=0, high=1, open_high=True)
    nesterov: bool = False
    batch: int | None = number(None, low=1)
    keeps_velocity: ClassVar[bool] = True
    keeps_second: ClassVar[bool] = False

    def constants(self) -> dict[int, float]:
        """Return code and mu."""
        code = kernels.NESTEROV if self.nesterov else kernels.HEAVY_BALL
        return {kernels.CODE: code, kernels.BETA1: self.momentum}


@dataclass(frozen=True)
class Adagrad(AbstractRule):
    """Adagrad: rates per weight, by the sum of squares of its gradients so far.

    Parameters
    ----------
    epsilon : float, default 1e-8
        Added to the root.
    batch : int or None, default None
        See `Momentum`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    epsilon: float = number(1e-8, low=0, open_low=True)
    batch: int | None = number(None, low=1)
    keeps_velocity: ClassVar[bool] = False
    keeps_second: ClassVar[bool] = True

    def constants(self) -> dict[int, float]:
        """Return code and epsilon."""
        return {kernels.CODE: kernels.ADAGRAD, kernels.EPSILON: self.epsilon}


@dataclass(frozen=True)
class Adam(AbstractRule):
    """Adam, or with decoupled weight decay AdamW.

    Parameters
    ----------
    beta1 : float, default 0.9
        Memory of the mean of gradients, in [0, 1).
    beta2 : float, default 0.999
        Memory of the mean of their squares, in [0, 1).
    epsilon : float, default 1e-8
        Added to the root.
    is_decoupled : bool, default False
        True is AdamW: the L2 penalty shrinks weights beside the rule.
    batch : int or None, default None
        See `Momentum`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    beta1: float = number(0.9, low=0, high=1, open_high=True)
    beta2: float = number(0.999, low=0, high=1, open_high=True)
    epsilon: float = number(1e-8, low=0, open_low=True)
    is_decoupled: bool = False
    batch: int | None = number(None, low=1)
    keeps_velocity: ClassVar[bool] = True
    keeps_second: ClassVar[bool] = True

    def constants(self) -> dict[int, float]:
        """Return code, both memories and epsilon."""
        return {
            kernels.CODE: kernels.ADAM,
            kernels.BETA1: self.beta1,
            kernels.BETA2: self.beta2,
            kernels.EPSILON: self.epsilon,
        }


@dataclass(frozen=True)
class LARS(AbstractRule):
    """Layer-wise adaptive rates: the length of a step is a share of the length of the weights it changes.

    A slice is the weights of one output; intercepts are left out, as biases are.

    Parameters
    ----------
    momentum : float, default 0.9
        mu, in [0, 1).
    trust : float, default 1e-3
        c, the share.
    batch : int or None, default None
        See `Momentum`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    momentum: float = number(0.9, low=0, high=1, open_high=True)
    trust: float = number(1e-3, low=0, open_low=True)
    batch: int | None = number(None, low=1)
    keeps_velocity: ClassVar[bool] = True
    keeps_second: ClassVar[bool] = False

    def constants(self) -> dict[int, float]:
        """Return code, mu and c."""
        return {kernels.CODE: kernels.LARS, kernels.BETA1: self.momentum, kernels.TRUST: self.trust}


@dataclass(frozen=True)
class GradientDescent(AbstractRule):
    """One step a round, along the mean gradient of all rows that the rank has in it.

    With a period that is as long as an epoch these are steps along the whole local gradient, and with
    ``sync=DPSGD(...)`` decentralised gradient descent. Where gradients are exchanged, the round is the batch of the
    strategy. A gradient of many rows comes about in parts, so that stops are obeyed and rows in files let go.
    """

    batch: int | None = field(default=None, init=False, repr=False)
    keeps_velocity: ClassVar[bool] = False
    keeps_second: ClassVar[bool] = False

    def constants(self) -> dict[int, float]:
        """Return the code."""
        return {kernels.CODE: kernels.PLAIN}


def steps_of(optimizer: AbstractRule | AbstractReduction | None, sampling: object = None) -> Steps:
    """Return how SGD steps with a rule or a reduction, or by rows without, on drawn rows if there is a `sampling`."""
    if optimizer is None:
        return Steps("optimizer=None" if sampling is None else repr(sampling), draws_rows=sampling is not None)
    if isinstance(optimizer, AbstractReduction):
        return optimizer.steps
    if isinstance(optimizer, GradientDescent):
        return Steps(
            repr(optimizer), rows=sys.maxsize, by_row=False, once_a_round=True, draws_rows=sampling is not None
        )
    return Steps(
        repr(optimizer),
        rows=optimizer.batch or DEFAULT_BATCH,
        by_row=False,
        rows_given=optimizer.batch is not None,
        remembers=True,
        is_plain=optimizer == Momentum(0.0, batch=optimizer.batch),
        draws_rows=sampling is not None,
    )


#: What each name makes.
OPTIMIZER_NAMES: Final[Mapping[str, Callable[..., AbstractRule | AbstractReduction]]] = MappingProxyType(
    {
        "momentum": Momentum,
        "adagrad": Adagrad,
        "adam": Adam,
        "lars": LARS,
        "gd": GradientDescent,
        "saga": SAGA,
        "svrg": SVRG,
    }
)

#: Local optimisers, as texts name them.
OPTIMIZER_KIND: Final = Kind(
    "local optimiser", AbstractRule | AbstractReduction, "dsgd.local", OPTIMIZER_NAMES, "dsgd.optimizers"
)
_SAMPLINGS: Final = Kind("sampling", Importance, "dsgd.local", {"importance": Importance}, "dsgd.samplings")


def parse_optimizer(text: str) -> AbstractRule | AbstractReduction | None:
    """Return the local optimiser that a text names.

    Examples
    --------
    >>> parse_optimizer("svrg:every=2")
    SVRG(step=None, every=2)
    """
    if text == "none":
        return None
    found: AbstractRule | AbstractReduction | None = part_of(OPTIMIZER_KIND, text, f"optimizer {text!r}")
    if found is None:
        raise InvalidParameterError(
            f"No local optimiser {text!r}; give none or one of {', '.join(OPTIMIZER_NAMES)}, with or without "
            "parameters (momentum:0.95, saga:step=0.1, svrg:every=2)."
        )
    return found


def resolve_optimizer(where: str, given: Any) -> AbstractRule | AbstractReduction | None:
    """Return the local optimiser that a parameter of an estimator stands for."""
    if given is None or isinstance(given, (AbstractRule, AbstractReduction)):
        return given
    if isinstance(given, str) and given.partition(":")[0] in OPTIMIZER_NAMES:
        return parse_optimizer(given)
    raise InvalidParameterError(
        f"{where} must be None, a rule of dsgd.local (Momentum, Adagrad, Adam, LARS, GradientDescent), SAGA or SVRG, "
        f"or the name of one: {', '.join(OPTIMIZER_NAMES)}. Got {given!r}."
    )


def parse_sampling(text: str) -> Importance | None:
    """Return how rows are drawn; None visits every row once an epoch.

    Examples
    --------
    >>> parse_sampling("importance:0.2")
    Importance(uniform=0.2)
    """
    if text == "uniform":
        return None
    found: Importance | None = part_of(_SAMPLINGS, text, f"sampling {text!r}")
    if found is None:
        raise InvalidParameterError(f"No sampling {text!r}; give uniform, importance, or importance:0.2.")
    return found
