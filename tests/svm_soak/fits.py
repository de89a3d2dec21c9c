"""Fits a problem with scikit-learn's class and with ours, alone or with other ranks, and notes what was said."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn import svm as plain
from sklearn.exceptions import ConvergenceWarning

import dsgd.svm
from dsgd.svm.kernel_solver import block
from svm_gangs import blocks_between, fit_on_ranks
from svm_soak.problems import Problem


@dataclass
class Answer:
    """What a library made of a problem.

    Parameters
    ----------
    model : object or None
        The fitted machine.
    error : Exception or None
        What was raised instead.
    warned : bool
        Whether there was a warning that it has not converged.
    n_iter : int
        Two-variable steps of all duals.
    """

    model: Any = None
    error: Exception | None = None
    warned: bool = False
    n_iter: int = 0
    others: list[str] = field(default_factory=list)


def ask_libsvm(problem: Problem, max_iter: int) -> Answer:
    """Fit scikit-learn's class, which runs LIBSVM or LIBLINEAR; at most so many steps for each dual."""
    parameters = {**problem.parameters, "max_iter": max_iter}
    if problem.estimator.startswith("Linear"):
        parameters = {**parameters, "random_state": 0, "dual": True}
    return _ask(lambda: _fit(getattr(plain, problem.estimator)(**parameters), problem))


def ask_us(problem: Problem, **options: Any) -> Answer:
    """Fit our class; `options` are further parameters of it."""
    model = getattr(dsgd.svm, problem.estimator)(**{**problem.parameters, **problem.ours, **options})
    with _blocks_of(problem.block_size, few=problem.number % 2 == 0):
        return _ask(lambda: _fit(model, problem) if problem.n_ranks == 1 else _fit_on_ranks(model, problem))


def _ask(fit: Any) -> Answer:
    answer = Answer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer.model = fit()
            answer.n_iter = int(np.sum(answer.model.n_iter_))
        except ValueError as error:
            answer.error = error
    answer.warned = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    texts = [str(w.message) for w in caught if not issubclass(w.category, ConvergenceWarning)]
    answer.others = [text for text in texts if not text.startswith("The margin between two classes")]
    return answer


def _fit(model: Any, problem: Problem) -> Any:
    if problem.y is None:
        return model.fit(problem.X, sample_weight=problem.weights)
    return model.fit(problem.X, problem.y, sample_weight=problem.weights)


@contextlib.contextmanager
def _blocks_of(size: int | None, *, few: bool) -> Iterator[None]:
    """Let the solver take blocks of so many variables, or `few` new members at a time, so that rounds are many."""
    if size is None:
        with patch("dsgd.svm.kernel_solver.solve._ROUND_COST", 0) if few else contextlib.nullcontext():
            yield
        return
    with (
        patch("dsgd.svm.kernel_solver.solve.solve", functools.partial(block.solve, block_size=size)),
        patch("dsgd.svm.kernel_solver.solve.LARGEST_DIRECT", 0),
    ):
        yield


def _fit_on_ranks(model: Any, problem: Problem) -> Any:
    """Fit as ranks of a gang do, each of which has a part of the rows; some have few or none."""
    keeps_type = problem.X.dtype == np.float32 and problem.kernel != "callable"
    X = problem.X if keeps_type else problem.X.astype(np.float64)
    n, rng = X.shape[0], np.random.default_rng((problem.seed, problem.number, 1))
    ends = [0, *np.sort(rng.integers(0, n + 1, problem.n_ranks - 1)).tolist(), n]
    blocks = [[block] for block in blocks_between(ends, X, problem.y, problem.weights)]
    fit_on_ranks(model, X, blocks, np.unique(problem.y) if problem.estimator in {"SVC", "NuSVC"} else None)
    model._warn_if_open(int(np.sum(model.n_iter_)))
    return model
