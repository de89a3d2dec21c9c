"""Training with compressed exchanges: what loses nothing changes nothing, and what does not go together is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from dsgd import SGDClassifier
from dsgd.cli.options import compressing
from dsgd.compress import (
    COMPRESSOR_NAMES,
    DGC,
    QSGD,
    DeMo,
    ErrorFeedback,
    Identity,
    MajorityVote,
    Sign,
    TopK,
    parse_compressor,
)
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.local import Momentum
from dsgd.local.rules import steps_of
from dsgd.sync import DiLoCo, EpochAveraging, LocalSGD, MinibatchSGD, SlowMo, check_combination, common_factor


def sparse_rows(n: int = 600, d: int = 3000, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return wide sparse rows, of which the first hundred columns decide."""
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random(n, d, density=0.004, format="csr", random_state=seed)
    X = (X + scipy.sparse.csr_array((rng.standard_normal(n), (range(n), rng.integers(0, 100, n))), (n, d))).tocsr()
    return X, np.where(np.asarray(X[:, :100].sum(axis=1)).ravel() > 0, 1, 0)


def fitted(sync: Any, X: Any, y: Any, n_jobs: int = 2, **options: Any) -> SGDClassifier:
    """Return a classifier trained for some epochs."""
    settings: dict[str, Any] = {"max_iter": 4, "tol": None, "random_state": 0, "alpha": 1e-3} | options
    return SGDClassifier(sync=sync, n_jobs=n_jobs, **settings).fit(X, y)


def sent(model: SGDClassifier) -> float:
    """Return the bytes that all ranks have sent."""
    return float(model.ledger_.totals()["bytes_sent"])


@pytest.mark.parametrize(
    "options", [{}, {"penalty": "l1"}, {"average": True}, {"learning_rate": "constant", "eta0": 0.1}]
)
@pytest.mark.parametrize("n_jobs", [2, 3])
def test_what_is_sent_of_wide_sparse_rows_is_exact_and_small(options: Any, n_jobs: int) -> None:
    """With ``"auto"`` the model is that of whole vectors up to rounding, for a fraction of the bytes, shrunk or not."""
    X, y = sparse_rows()
    whole, small = (fitted(LocalSGD(25, compressor=c), X, y, n_jobs, **options) for c in (None, "auto"))
    np.testing.assert_allclose(small.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(small.intercept_, whole.intercept_, rtol=1e-9, atol=1e-12)
    # Averaged iterates travel once, whole.
    assert sent(small) < 0.3 * sent(whole)


def test_gradients_of_sparse_rows_are_sparse() -> None:
    """Minibatch SGD with ``"auto"`` is minibatch SGD, for a fraction of the bytes."""
    X, y = sparse_rows()
    whole, small = (fitted(MinibatchSGD(16, compressor=c), X, y) for c in (None, "auto"))
    np.testing.assert_allclose(small.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    assert sent(small) < 0.1 * sent(whole)


@pytest.mark.parametrize("make", [LocalSGD, EpochAveraging, MinibatchSGD, SlowMo, DiLoCo])
def test_one_rank_has_nobody_to_save_bytes_for(make: Any) -> None:
    """On one rank what loses nothing changes nothing, not one bit."""
    X, y = sparse_rows(200, 300)
    lossless: list[Any] = [None, "auto", Identity()]
    assert len({fitted(make(compressor=c), X, y, 1).coef_.tobytes() for c in lossless}) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_factor_that_all_weights_shrank_by_is_found(dtype: Any) -> None:
    """Exactly, whatever its digits, while less than half of the weights have changed otherwise; else it is one."""
    rng = np.random.default_rng(1)
    reference = (rng.standard_normal(5000) * (rng.random(5000) < 0.5)).astype(dtype)
    for factor in [dtype(f) for f in (1.0, 0.0, *rng.random(20))]:
        vector = reference * factor
        touched = rng.choice(5000, 1500, replace=False)
        vector[touched] += rng.standard_normal(1500).astype(dtype)
        assert common_factor(vector, reference) == factor
    assert common_factor(rng.standard_normal(5000).astype(dtype), reference) == 1.0
    assert common_factor(reference[:0], reference[:0]) == 1.0
    assert common_factor(np.ones(3, dtype), np.zeros(3, dtype)) == 1.0


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: LocalSGD(overlap=True, compressor=TopK()), ["LocalSGD", "overlap", "TopK"]),
        (lambda: LocalSGD(compressor=MajorityVote()), ["LocalSGD", "MajorityVote"]),
        (lambda: EpochAveraging(compressor=DGC()), ["EpochAveraging", "DGC"]),
        (lambda: SlowMo(compressor=DGC()), ["SlowMo", "DGC"]),
        (lambda: LocalSGD(compressor=DeMo()), ["LocalSGD", "DeMo"]),
        (lambda: DiLoCo(compressor=MajorityVote()), ["DiLoCo", "MajorityVote"]),
        (lambda: LocalSGD(compressor=ErrorFeedback(MajorityVote())), ["LocalSGD", "MajorityVote"]),
        (lambda: MinibatchSGD(compressor=TopK()), ["MinibatchSGD", r"ErrorFeedback\(TopK"]),
        (lambda: MinibatchSGD(compressor=Sign()), ["MinibatchSGD", r"ErrorFeedback\(Sign"]),
    ],
)
def test_what_does_not_go_together_is_refused(make: Any, names: list[str]) -> None:
    """Before any work, with both named and what to write instead."""
    for name in names:
        with pytest.raises(IncompatiblePartsError, match=name):
            make()
    with pytest.raises(IncompatiblePartsError, match=r"DGC.*Momentum"):
        check_combination(MinibatchSGD(compressor=DGC()), steps_of(Momentum()))
    with pytest.raises(InvalidParameterError, match="compressor"):
        LocalSGD(compressor="topk")  # type: ignore[arg-type]


def test_names_mean_compressors() -> None:
    """Every name of the command line makes one, with a number where it takes one, and a wrong name lists them."""
    made = [parse_compressor(name) for name in COMPRESSOR_NAMES]
    assert len({type(compressor) for compressor in made}) == len(made) - 1  # two kinds of half
    assert parse_compressor("topk:0.25") == TopK(0.25)
    assert parse_compressor("qsgd:3") == QSGD(3)
    assert compressing(64, "auto") == LocalSGD(64, compressor="auto")
    assert compressing(MinibatchSGD(8), "topk:0.1") == MinibatchSGD(8, compressor=ErrorFeedback(TopK(0.1)))
    for text in ("zip", "topk:many", "sign:3", "topk:2"):
        with pytest.raises(InvalidParameterError):
            parse_compressor(text)
    with pytest.raises(InvalidParameterError, match="takes no compressor"):
        compressing("one-shot", "auto")


def test_a_compressor_switches_fused_rounds_off() -> None:
    """Rounds inside a kernel know no compressor, so none is fused, and all ranks agree."""
    X, y = sparse_rows(120, 200)
    whole, small = (fitted(LocalSGD(1, compressor=c), X, y, 2, max_iter=2) for c in (None, "auto"))
    np.testing.assert_allclose(small.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    assert small.ledger_.totals()["rounds"] == whole.ledger_.totals()["rounds"]
