"""The search space: periods, batches, strategies, compressors and step sizes; searches along a line, and by halving.

Of all combinations few are worth a run; the cost model knows what their epochs take. Rules:

- A period is worth a run if no shorter one costs about as much (within 5 %: to synchronise more often for nothing can
  only help), and if its epochs are at most eight times as long as the shortest.
- Step sizes are in units of one over the mean squared length of a row, the largest constant step that does not
  overshoot on a loss of curvature one; the estimator's own schedule comes first, then the optimal one of Bottou.
- Combinations come in diagonal order: first the strategy with the shortest predicted epochs and the first step size;
  then that strategy with the second step size and the next strategy with the first; and so on. So if there is time for
  only a few, they differ in both.

**Successive halving within a budget of seconds.** All candidates run for an equal slice of a rung's time; the best
third advances to the next rung, whose slices are three times as long, until two or three are left. Each rung gets an
equal share of the budget that remains. Candidates are compared by the seconds until their held-out score has reached
the target for good: the best score that any of them has so reached, less a margin.

Source: Jamieson and Talwalkar 2016 (successive halving); Karnin, Koren and Somekh 2013.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from dsgd.errors import IncompatiblePartsError
from dsgd.local import AbstractRule
from dsgd.local.rules import LearningRate, resolve_optimizer, schedule_of, steps_of
from dsgd.runtime.deployment import Gang, as_gang
from dsgd.sim import CostModel, Workload
from dsgd.sync import AbstractStrategy, EpochAveraging, LocalSGD, check_combination, resolve

# Objects of this process, which no call can make again: a cluster, or a random generator in some state.
_LEFT_OUT: Final = ("client", "random_state")


def call_text(part: Any) -> str:
    """Return the call that makes a strategy, rule, compressor or encoder, without arguments at their defaults.

    Examples
    --------
    >>> from dsgd.sync import LocalSGD
    >>> call_text(LocalSGD(every=256))
    'LocalSGD(every=256)'
    """
    if isinstance(part, BaseEstimator):
        return f"{type(part).__name__}({', '.join(_given(part))})"
    if not is_dataclass(part) or isinstance(part, type):
        return repr(_plain(part))
    values = ((f, getattr(part, f.name)) for f in fields(part) if f.init)
    given = [f"{f.name}={call_text(value)}" for f, value in values if f.default is MISSING or value != f.default]
    return f"{type(part).__name__}({', '.join(given)})"


def estimator_line(estimator: Any) -> str:
    """Return the call that makes an estimator, without parameters at their defaults; a client is called ``client``."""
    given = _given(estimator)
    # The tuned parameters come first.
    given.sort(key=lambda text: text.split("=")[0] not in ("loss", "sync", "learning_rate", "eta0"))
    gang = as_gang(estimator.client)
    fields = [f"{name}={call_text(value)}" for name, value in gang.given().items()]
    client = ["client"] if client_lines(gang.client) else []
    if fields:
        given.append(f"client=Gang({', '.join([*client, *fields])})")
    elif client:
        given.append("client=client")
    return f"{type(estimator).__name__}({', '.join(given)})"


def _given(estimator: Any) -> list[str]:
    """Return the parameters of an estimator that are not at their defaults, as they are passed."""
    defaults = {name: p.default for name, p in inspect.signature(type(estimator)).parameters.items()}
    given = []
    for name, value in estimator.get_params(deep=False).items():
        if name in _LEFT_OUT and not isinstance(value, (int, np.integer)):
            continue
        default = defaults[name]
        if type(value) is type(default) and value == default:
            continue
        given.append(f"{name}={call_text(value)}")
    return given


def client_lines(client: Any) -> list[str]:
    """Return the lines that make a client of a cluster like the one that it has; none for a simulated one or None."""
    if not hasattr(client, "scheduler_info"):
        return []
    cluster = client.cluster
    if type(cluster).__name__ == "LocalCluster":
        threads = [spec["options"].get("nthreads", 1) for spec in cluster.worker_spec.values()]
        call = f"n_workers={len(threads)}, threads_per_worker={max(threads, default=1)}"
    else:
        # Not before there is a client: training in this process does not load Dask.
        from dsgd.runtime.dask_internals import scheduler_address

        address = scheduler_address(client)
        call = repr(address) if address else ""
    return ["from dask.distributed import Client", f"client = Client({call})"]


def import_lines(estimator: Any) -> list[str]:
    """Return the imports without which the line of an estimator does not run, one per module."""
    names: dict[str, set[str]] = {"dsgd": {type(estimator).__name__}}
    parts = [value for value in estimator.get_params(deep=False).values() if _is_part(value)]
    while parts:
        part = parts.pop()
        if isinstance(part, Gang) and not part.given():
            continue
        package = ".".join(type(part).__module__.split(".")[:2])
        if package == "dsgd.sim":
            continue
        names.setdefault(package, set()).add(type(part).__name__)
        parts += [value for value in vars(part).values() if _is_part(value)]
    return [f"from {package} import {', '.join(sorted(found))}" for package, found in sorted(names.items())]


def _is_part(value: Any) -> bool:
    return is_dataclass(value) or isinstance(value, BaseEstimator)


def _plain(value: Any) -> Any:
    """Return a value whose text can be read without numpy."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


#: Of how many candidates one survives a rung.
FACTOR: Final = 3
_FINALISTS: Final = 3


class Point(NamedTuple):
    """What a fit had reached at the end of an epoch."""

    seconds: float
    score: float


class Standing(NamedTuple):
    """What candidates are sorted by: seconds to the target, then score; less is better."""

    seconds: float
    loss: float


def rung_sizes(n: int) -> list[int]:
    """Return how many candidates each rung has: n, and a third of those before until three or fewer are left.

    Examples
    --------
    >>> rung_sizes(40)
    [40, 14, 5, 2]
    """
    sizes = [n] if n else []
    while sizes and sizes[-1] > _FINALISTS:
        sizes.append(-(-sizes[-1] // FACTOR))
    return sizes


def slice_s(left_s: float, sizes: Sequence[int]) -> float:
    """Return the seconds that each candidate of the next rung may take."""
    return max(0.0, left_s) / len(sizes) / sizes[0]


def epochs_within(seconds: float, overhead_s: float, epoch_s: float, most: int) -> int:
    """Return how many epochs fit into some seconds, less the cost of a fit without epochs; 0 if none does."""
    if epoch_s <= 0.0:
        return most
    return max(0, min(most, math.floor((seconds - overhead_s) / epoch_s)))


def held_score(curve: Sequence[Point]) -> float:
    """Return the highest target that a curve of scores has reached for good; minus infinity if there is none."""
    rest, held = 0.0, -math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        held = max(held, min(point.score, rest / n))
    return held


def seconds_to(curve: Sequence[Point], target: float) -> float:
    """Return the seconds after which a curve's mean score from there on is not below a target; or infinity."""
    rest, reached = 0.0, math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        # A score that is not a number makes the sum one for all epochs before.
        if point.score >= target and rest / n >= target:
            reached = point.seconds
    return reached


def standing(curve: Sequence[Point], target: float) -> Standing:
    """Return the sort key of a curve."""
    return Standing(seconds_to(curve, target), -held_score(curve))


#: Of models that are longer, compressors are tried.
LONG_MODEL: Final = 10_000

# A period costs about as much as a shorter one, or much more than the cheapest.
_SAME: Final = 0.05
_MOST_TIMES: Final = 8.0
_FACTOR: Final = 4
#: Steps of constant and falling rates, in units of one over the mean squared length of a row.
_STEPS: Final = (("constant", 0.03), ("constant", 0.3), ("invscaling", 0.3), ("invscaling", 3.0))


@dataclass(frozen=True)
class StepSize:
    """A step size: the schedule and its parameters.

    Parameters
    ----------
    learning_rate : str or AbstractCycle
        The schedule.
    eta0 : float
        Its first rate, where it has one.
    """

    learning_rate: LearningRate
    eta0: float


@dataclass(frozen=True)
class Candidate:
    """One choice of everything that is searched.

    Parameters
    ----------
    sync : AbstractStrategy
        The strategy.
    steps : StepSize
        How long steps are.
    predicted_s : float
        Seconds of an epoch, by the cost model.
    optimizer : AbstractRule or None, default None
        The local rule, with its batch.
    """

    sync: AbstractStrategy[Any]
    steps: StepSize
    predicted_s: float
    optimizer: AbstractRule | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What is set on the estimator."""
        rate: dict[str, Any] = {"learning_rate": self.steps.learning_rate}
        if self.steps.learning_rate not in ("optimal", "pegasos", "per_epoch"):
            rate["eta0"] = self.steps.eta0
        return {"sync": self.sync, **rate, **({} if self.optimizer is None else {"optimizer": self.optimizer})}

    @property
    def label(self) -> str:
        """The choice in short."""
        return ", ".join(_text(value) for value in self.parameters.values())


def useful_periods(n_rows: int, strategy: AbstractStrategy[Any], model: CostModel, load: Workload) -> list[int]:
    """Return the periods (or batches) that are worth a run, ascending."""
    name = _period_name(strategy)
    values, value = [], 1
    while value < n_rows:
        values.append(value)
        value *= _FACTOR
    values.append(n_rows)
    policy: Any = strategy
    seconds = {value: model.epoch(load, replace(policy, **{name: value})).seconds for value in values}
    cheapest = min(seconds.values())
    useful: list[int] = []
    for value in values:
        dear = seconds[value] > _MOST_TIMES * cheapest
        no_gain = bool(useful) and seconds[value] > (1.0 - _SAME) * seconds[useful[-1]]
        if not dear and not no_gain:
            useful.append(value)
    return useful


def strategies_of(names: Sequence[Any], compressors: Sequence[Any]) -> list[AbstractStrategy[Any]]:
    """Return the strategies that are meant, each with each compressor that it can take."""
    from dsgd.compress import ErrorFeedback

    found: list[AbstractStrategy[Any]] = []
    for given in names:
        strategy: Any = resolve(given)
        if isinstance(given, str) and strategy.rates == "pooled":
            strategy = replace(strategy, rates="own")  # the search finds how long steps are to be
        if "compressor" not in {f.name for f in fields(strategy)}:
            found.append(strategy)
            continue
        for compressor in compressors:
            feeds_back = strategy.exchanges == "gradient" and getattr(compressor, "needs_feedback", False)
            found.append(replace(strategy, compressor=ErrorFeedback(compressor) if feeds_back else compressor))
    return list(dict.fromkeys(found))


def candidates(
    estimator: Any,
    strategies: Sequence[AbstractStrategy[Any]],
    model: CostModel,
    load: Workload,
    row_norm: float,
) -> list[Candidate]:
    """Return the candidates that are worth a run, the most promising first."""
    ranks = model.calibration.ranks
    ways: list[tuple[float, AbstractStrategy[Any], AbstractRule | None]] = []
    problem: IncompatiblePartsError | None = None
    for strategy in strategies:
        policy: Any = strategy
        name = _period_name(strategy)
        longest = load.n_rows if name == "batch" else -(-load.n_rows // ranks)
        values = useful_periods(longest, strategy, model, load) if name and ranks > 1 else [None]
        for optimizer in _optimizers(resolve_optimizer("tune(estimator=...)", estimator.optimizer), strategy):
            try:
                check_combination(strategy, steps_of(optimizer))
            except IncompatiblePartsError as error:
                problem = error
                continue
            for value in values:
                way = strategy if value is None else replace(policy, **{name: value})
                if way == LocalSGD(every=longest):
                    way = EpochAveraging()  # which stays that where there are more rows
                ways.append((model.epoch(load, way).seconds, way, optimizer))
    if not ways and problem is not None:
        raise problem
    ways.sort(key=lambda way: way[0])
    places = {
        Candidate(way, steps, seconds, optimizer): (number + place, number)
        for number, (seconds, way, optimizer) in enumerate(ways)
        for place, steps in enumerate(_step_sizes(estimator, row_norm))
    }
    return sorted(places, key=lambda candidate: places[candidate])


def _optimizers(given: Any, strategy: AbstractStrategy[Any]) -> list[Any]:
    """Return a local rule with the batches that are tried; ranks that exchange gradients have a batch of their own."""
    if given is None or strategy.exchanges == "gradient":
        return [given]
    rule: Any = given  # a dataclass, as all rules are
    return [given, replace(rule, batch=_FACTOR * rule.batch)] if getattr(rule, "batch", None) else [given]


def _step_sizes(estimator: Any, row_norm: float) -> list[StepSize]:
    unit = 1.0 / max(row_norm, 1e-12)
    found = [StepSize(estimator.learning_rate, float(estimator.eta0))]
    if estimator.alpha > 0 and estimator.optimizer is None:
        found.append(StepSize("optimal", float(estimator.eta0)))
    found += [StepSize(name, float(f"{factor * unit:.3g}")) for name, factor in _STEPS]
    # Rates that a schedule does not look at make no difference.
    first: dict[tuple[LearningRate, float | None], StepSize] = {}
    for s in found:
        first.setdefault((s.learning_rate, None if schedule_of(s.learning_rate).needs_alpha else s.eta0), s)
    return list(first.values())


def _period_name(strategy: AbstractStrategy[Any]) -> str:
    names = {f.name for f in fields(strategy)}  # type: ignore[arg-type]  # a dataclass, as all strategies are
    return "every" if "every" in names else "batch" if "batch" in names else ""


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else value if isinstance(value, str) else call_text(value)
