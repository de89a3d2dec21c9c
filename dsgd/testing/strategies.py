"""The laws of a strategy, on small problems that train in milliseconds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, Final, get_args

import numpy as np

from dsgd.estimators import SGDClassifier
from dsgd.local import SGD, Momentum, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime.deployment import Gang
from dsgd.runtime.rank import Rank
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import SimulatedCluster
from dsgd.sync import AbstractStrategy
from dsgd.sync.base import Exchange, Talk
from dsgd.sync.period import Once, Weighing
from dsgd.testing.laws import Check, check_is_value, fields_of, require, run_checks
from dsgd.types import AnyArray, FloatVector

_D: Final = 5
#: Rows of the ranks: uneven, and one without any.
_ROWS: Final = (40, 0, 53)
_REACHES: Final = 0.8


def check_strategy(strategy: AbstractStrategy[Any]) -> None:
    """Raise unless a strategy satisfies the laws of all strategies of the package.

    Which ones: `strategy_checks`. It takes a second or two, and no worker processes are started.

    Parameters
    ----------
    strategy : AbstractStrategy
        With a period of some ten rows, if it has one: the problems have a hundred.

    Raises
    ------
    AssertionError
        Names the law, and how it was broken.
    """
    run_checks(strategy, AbstractStrategy, strategy_checks)


def strategy_checks(strategy: AbstractStrategy[Any]) -> list[Check]:
    """Return the checks that apply to a strategy; each takes the strategy and raises `AssertionError`.

    If the clock decides what is exchanged with whom (``talks="by mailbox"``, periods found from measured time), no two
    runs are equal, so checks that compare the bits of two runs are skipped.
    """
    checks: list[Check] = [check_is_value, check_says_what_it_does]
    if not strategy.n_servers:  # a server serves until training ends
        checks.append(check_state_is_arrays)
    checks += [check_ranks_end_equal, check_learns, check_goes_on_with_other_ranks]
    if not _is_by_clock(strategy):
        checks += [check_runs_repeat, check_simulated_ranks_are_threads]
        # What is averaged once, at the end of training, is another model wherever training ends.
        if not isinstance(strategy.period, Once):
            checks += [check_checkpoints_resume, check_partial_fit_goes_on]
    return checks


def check_says_what_it_does(strategy: AbstractStrategy[Any]) -> None:
    """What it declares of itself is among the choices there are."""
    for name, choices in (("exchanges", Exchange), ("talks", Talk), ("weighs", Weighing)):
        value = getattr(strategy, name, None)
        require(value in get_args(choices), f"{name} must be one of {get_args(choices)}, got {value!r}")
    rounds = strategy.period.rounds_per_epoch(list(_ROWS))
    require(isinstance(rounds, int) and rounds >= 1, f"its period must have 1 or more rounds per epoch, got {rounds!r}")


def check_state_is_arrays(strategy: AbstractStrategy[Any]) -> None:
    """What it remembers is a record of arrays of one dimension or more, which a checkpoint can keep."""

    def program(rank: Rank, data: Any, *args: Any) -> Any:
        return strategy.init(rank.group, np.zeros(_D + 1), 0.5)

    job = _job(strategy, 1)
    record = run_on_threads(program, [None, None], (job,), mail=mail_for(job)).value
    require(is_dataclass(record), f"`init` must return a dataclass, got a {type(record).__name__}")
    for name, value in fields_of(record):
        is_kept = isinstance(value, np.ndarray) and value.ndim >= 1 and value.dtype != object
        require(is_kept, f"{name} must be an array of numbers with at least one dimension: it goes into checkpoints")


def check_learns(strategy: AbstractStrategy[Any]) -> None:
    """Four epochs on three ranks separate two classes."""
    X, y = _problem(300)
    score = _estimator(strategy, n_jobs=3, max_iter=4).fit(X, y).score(X, y)
    require(score > _REACHES, f"four epochs on separable rows reach an accuracy of {score:.3f}, not {_REACHES}")


def check_ranks_end_equal(strategy: AbstractStrategy[Any]) -> None:
    """Uneven ranks, one of them without rows, all end with the same model, to the bit, and it is finite."""
    models = _trained(strategy, simulated=False)
    require(all(np.isfinite(model).all() for model in models), "the model is not finite")
    require(
        len({model.tobytes() for model in models}) == 1,
        "ranks end with different models: `sync` must leave the same bits on all ranks, or say ends_equal=False and "
        "let `collect` do so",
    )


def check_runs_repeat(strategy: AbstractStrategy[Any]) -> None:
    """Two runs end in the same bits."""
    first, second = (_trained(strategy, simulated=False)[0] for _ in range(2))
    require(first.tobytes() == second.tobytes(), "two runs of the same training differ")


def check_simulated_ranks_are_threads(strategy: AbstractStrategy[Any]) -> None:
    """Ranks on the virtual clock of a simulated cluster end in the bits of ranks that are threads."""
    threads, simulated = (_trained(strategy, simulated=way)[0] for way in (False, True))
    require(threads.tobytes() == simulated.tobytes(), "simulated ranks end in another model than threads")


def check_checkpoints_resume(strategy: AbstractStrategy[Any]) -> None:
    """Training that stops and resumes ends in the bits of training in one go."""
    X, y = _problem(120)
    with tempfile.TemporaryDirectory() as folder:
        _estimator(strategy, n_jobs=3, max_iter=2, client=Gang(checkpoint=folder)).fit(X, y)
        resumed = _estimator(strategy, n_jobs=3, max_iter=4, client=Gang(resume_from=folder)).fit(X, y)
    whole = _estimator(strategy, n_jobs=3, max_iter=4).fit(X, y)
    require(
        _model(resumed) == _model(whole),
        "training that stops and resumes ends in another model: everything that changes must be in the record "
        "that `init` returns",
    )


def check_goes_on_with_other_ranks(strategy: AbstractStrategy[Any]) -> None:
    """Two ranks resume from the checkpoint of three."""
    X, y = _problem(120)
    with tempfile.TemporaryDirectory() as folder:
        _estimator(strategy, n_jobs=3, max_iter=2, client=Gang(checkpoint=folder)).fit(X, y)
        fewer = _estimator(strategy, n_jobs=2, max_iter=4, client=Gang(resume_from=folder)).fit(X, y)
    score = fewer.score(X, y)
    require(
        score > _REACHES,
        f"two ranks that resume from the checkpoint of three reach an accuracy of {score:.3f}, not {_REACHES}: say of "
        "every array of the record what becomes of it (dsgd.handover)",
    )


def check_partial_fit_goes_on(strategy: AbstractStrategy[Any]) -> None:
    """Calls of ``partial_fit`` end in the bits of one fit, as what the strategy remembers goes from call to call."""
    X, y = _problem(120)
    whole = _estimator(strategy, n_jobs=3, max_iter=3).fit(X, y)
    calls = _estimator(strategy, n_jobs=3, max_iter=3)
    for _ in range(3):
        calls.partial_fit(X, y, classes=[0, 1])
    require(_model(calls) == _model(whole), "calls of partial_fit end in another model than one fit of as many epochs")


def _is_by_clock(strategy: AbstractStrategy[Any]) -> bool:
    is_timed = strategy.seconds is not None or strategy.adaptation is not None
    return is_timed or strategy.shares_memory or strategy.talks == "by mailbox"


def _problem(n_rows: int) -> tuple[AnyArray, AnyArray]:
    """Return rows and classes that a line separates but for some noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, _D))
    return X, (X @ np.linspace(-1.0, 1.0, _D) + 0.3 * rng.standard_normal(n_rows) > 0.0).astype(np.int64)


def _rule(strategy: AbstractStrategy[Any]) -> Momentum | None:
    """Return a rule with a memory, where the strategy says what becomes of it."""
    return Momentum(0.9, batch=4) if strategy.treats_memory else None


def _estimator(strategy: AbstractStrategy[Any], **options: Any) -> Any:
    settings: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.02, "loss": "log_loss", "shuffle": False}
    return SGDClassifier(sync=strategy, optimizer=_rule(strategy), random_state=0, tol=None, **settings, **options)


def _model(fitted: Any) -> bytes:
    return bytes(fitted.coef_.tobytes() + fitted.intercept_.tobytes())


def _job(strategy: AbstractStrategy[Any], epochs: int) -> TrainJob:
    sgd = SGD(Objective("log_loss", "l2", 0.01), schedule="constant", eta0=0.1, rule=_rule(strategy))
    return TrainJob(sgd, strategy, np.zeros(n_params(_D, 1)), max_iter=epochs, tol=None, n_iter_no_change=5)


def _trained(strategy: AbstractStrategy[Any], *, simulated: bool, rows: Sequence[int] = _ROWS) -> list[FloatVector]:
    """Return the model that each rank ends with, after two epochs over uneven shards."""
    X, y = _problem(sum(rows))
    shard = make_shard(X, np.where(y > 0, 1.0, -1.0), shuffle=False)
    ends = np.cumsum([0, *rows]).tolist()
    data = [TrainData(shard.rows(start, stop)) for start, stop in pairwise(ends)]
    models: dict[int, FloatVector] = {}

    def program(rank: Rank, data: Any, *args: Any) -> Any:
        result = train(rank, data, *args)
        models[rank.number] = result.params
        return result

    job = _job(strategy, 2)
    run = SimulatedCluster(len(rows), "10GbE").run if simulated else run_on_threads
    run(program, data, (job,), mail=mail_for(job))
    return [models[number] for number in range(len(rows))]
