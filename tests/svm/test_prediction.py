"""Laws of prediction with kernel SVMs: decision values are those of float64, whatever type and scale rows have."""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification

from dsgd.errors import InvalidDataError
from dsgd.svm import SVC, SVR, NuSVC, OneClassSVM
from dsgd.svm.kernels.threads import Pool, open_pool


def products(A: Any, B: Any) -> Any:
    """A kernel that computes in the type of the rows it is given."""
    return np.asarray((A @ B.T).todense() if sp.issparse(A) else A @ B.T)


def exact_values(name: str, gamma: float, A: Any, B: Any) -> tuple[Any, Any]:
    """Return kernel values of all pairs in float64, and what they would be if no two terms cancelled."""
    inner, sizes = A @ B.T, np.abs(A) @ np.abs(B).T
    if name == "rbf":
        values = np.exp(-gamma * ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2))
        return values, values
    if name == "poly":
        return (gamma * inner + 0.5) ** 3, (gamma * sizes + 0.5) ** 3
    if name == "sigmoid":
        return np.tanh(gamma * inner + 0.5), 1.0 + gamma * sizes
    return inner, sizes


def draw_rows(seed: int, dtype: str, form: str, scale: float, offset: float) -> tuple[Any, Any]:
    """Return rows of the type and the form, and the same dense in float64."""
    rng = np.random.default_rng(seed)
    X = offset + scale * rng.normal(size=(120, 5)) * np.array([1.0, 3.0, 0.3, 2.0, 10.0])
    if form == "sparse":  # so few entries that rows are multiplied as such
        X = np.concatenate([X, np.zeros((120, 300))], axis=1)
        X[rng.random(X.shape) < 0.3] = 0.0
    X = np.round(X).astype(np.int64) if dtype == "int" else X.astype(dtype)
    return (X if form == "dense" else sp.csr_matrix(X)), X.astype(np.float64)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    kernel=st.sampled_from(["linear", "rbf", "poly", "sigmoid", "callable"]),
    dtype=st.sampled_from(["float32", "float64", "int"]),
    form=st.sampled_from(["dense", "csr", "sparse"]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    offset=st.sampled_from([0.0, 10.0, 2000.0]),
    machine=st.sampled_from(["SVC", "SVC of three", "NuSVC", "SVR", "OneClassSVM"]),
)
def test_decision_values_are_those_of_float64(seed, kernel, dtype, form, scale, offset, machine):
    """Decision values are the sums over support vectors in float64, up to its rounding, and so are their signs."""
    X, exact = draw_rows(seed, dtype, form, scale, offset)
    score = exact[:, 0] + 0.1 * exact[:, 3]
    y = np.searchsorted(np.quantile(score, [0.33, 0.66] if machine == "SVC of three" else [0.5]), score)
    options: dict[str, Any] = {
        "kernel": products if kernel == "callable" else kernel,
        "gamma": 1.0 / (exact.shape[1] * max(exact.var(), 1e-12)),
        "coef0": 0.5,
        "max_iter": 300,
    }
    if len(np.unique(y)) < 2:
        return  # rounded to integers, all rows are equal
    if machine.startswith("SVC"):
        model: Any = SVC(decision_function_shape="ovo", **options)
    else:
        model = {
            "NuSVC": NuSVC(nu=0.3, **options),
            "SVR": SVR(**options),
            "OneClassSVM": OneClassSVM(nu=0.3, **options),
        }[machine]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(InvalidDataError) if machine == "NuSVC" else contextlib.nullcontext():
            model.fit(X, y)
    if not hasattr(model, "intercept_"):
        return  # classes so mixed that there is no margin
    ours = model.predict(X) if machine == "SVR" else model.decision_function(X)
    vectors, coefs = model.support_vectors_, model._pair_coefs()
    vectors = (vectors.toarray() if sp.issparse(vectors) else vectors).astype(np.float64)
    values, sizes = exact_values("linear" if kernel == "callable" else kernel, options["gamma"], exact, vectors)
    theirs = values @ coefs + model.intercept_
    rounding = 1e-10 * (sizes @ np.abs(coefs) + np.abs(model.intercept_))
    assert (np.abs(ours.reshape(theirs.shape) - theirs) <= rounding).all()
    certain = np.abs(theirs) > rounding
    assert ((ours.reshape(theirs.shape) > 0) == (theirs > 0))[certain].all()


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_linear_machines_predict_by_their_weights(form):
    """With a linear kernel decision values of every machine are X coef' + intercept, and weights cannot be set."""
    X, y = make_classification(200, 12, n_informative=8, n_classes=3, random_state=0)
    X = sp.csr_matrix(X) if form == "csr" else X
    for model in (
        SVC(kernel="linear", decision_function_shape="ovo"),
        SVR(kernel="linear"),
        OneClassSVM(kernel="linear"),
    ):
        model.fit(X, y)
        coef = model.coef_.toarray() if sp.issparse(model.coef_) else model.coef_
        values = model.predict(X) if isinstance(model, SVR) else model.decision_function(X)
        np.testing.assert_allclose(values.reshape(200, -1), np.asarray(X @ coef.T) + model.intercept_, rtol=1e-9)
        with pytest.raises(AttributeError):
            model.coef_ = 1.0
        with pytest.raises(ValueError, match="read-only"):
            (model.coef_.data if form == "csr" else model.coef_)[0] = 1.0
    model.set_params(kernel="rbf").fit(X)
    with pytest.raises(AttributeError, match="linear kernel"):
        _ = model.coef_


def _rbf(A: Any, B: Any) -> Any:
    return np.exp(-100.0 * ((A[:, None] - B) ** 2).sum(axis=2))  # every sample is a support vector


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("what", ["prediction", "fit of many pairs"])
def test_an_interrupt_ends_work_within_slices(what, n_threads):
    """ctrl-C ends a prediction after the current values, and all pairs of a fit that have begun, in all threads."""
    n_calls, begun = [0], threading.Event()

    def slow(A: Any, B: Any) -> Any:
        n_calls[0] += 1
        if n_calls[0] == 12:  # all threads are at work
            begun.set()
        time.sleep(0.01)
        return _rbf(A, B)

    X = np.random.default_rng(0).normal(size=(2000, 3))
    if what == "prediction":
        model = SVC(kernel=_rbf, n_jobs=n_threads).fit(X[:600], np.arange(600) % 2)
        model.kernel = slow
        work = partial(model.predict, np.tile(X, (12, 1)))  # many slabs of two or more calls each
    else:
        work = partial(SVC(kernel=slow, n_jobs=n_threads).fit, X, np.arange(2000) % 4)  # 6 pairs of many calls each
    timer = threading.Thread(target=lambda: (begun.wait(30), _thread.interrupt_main()))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    timer.join()
    at_end = n_calls[0]
    assert at_end < 36
    time.sleep(0.05)
    assert n_calls[0] == at_end


def test_the_error_of_a_pair_is_told_not_that_the_others_were_stopped():
    """Whichever thread fails, its own error ends a fit of pairs side by side."""
    lock, threads = threading.Lock(), set()

    def failing(A: Any, B: Any) -> Any:
        with lock:
            threads.add(threading.get_ident())
            if len(threads) == 2 and threading.current_thread() is not threading.main_thread():
                raise ZeroDivisionError("in the other thread")
        time.sleep(0.01)
        return np.exp(-100.0 * ((A[:, None] - B) ** 2).sum(axis=2))

    X = np.random.default_rng(0).normal(size=(400, 3))
    with pytest.raises(ZeroDivisionError, match="in the other"):
        SVC(kernel=failing, n_jobs=2).fit(X, np.arange(400) % 4)


def test_a_failed_slab_ends_the_others():
    """An exception in one slab of a pool ends the rest, and the pool works again afterwards."""
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        if start == 10:
            raise ValueError("at ten")
        time.sleep(0.002)
        done.append(start)

    with open_pool(2) as pool:
        with pytest.raises(ValueError, match="at ten"):
            pool.slabs(work, 1000, 1)
        assert len(done) < 100
        done.clear()
        pool.slabs(lambda start, stop: done.append(start), 100, 10)
        assert sorted(done) == list(range(0, 100, 10))
    assert isinstance(pool, Pool)
