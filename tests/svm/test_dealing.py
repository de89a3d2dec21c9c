"""Pairs of classes dealt out to ranks: the model of one process, to the last bit, whoever trains which pair."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from dsgd.comm.frames import AbortFlag
from dsgd.errors import AbortedError, InvalidDataError
from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper
from dsgd.svm import SVC, NuSVC
from dsgd.svm.distributed import dealing
from dsgd.svm.distributed.dealing import Dealer, deal
from dsgd.svm.distributed.kernel import fit_on_rank
from svm_gangs import blocks_of, fit_on_ranks

FITTED = ("support_", "dual_coef_", "intercept_", "support_vectors_", "n_support_", "n_iter_", "probA_", "probB_")


def rows(*, sparse: bool = False, n: int = 360, k: int = 5) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return rows of noisy classes, every tenth of them twice, their classes, and weights, some of them zero."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    X = rng.normal(size=(n, 4)) + 1.5 * rng.normal(size=(k, 4))[y]
    X = np.where(X > 0, X, 0.0) if sparse else X
    twice = np.concatenate([np.arange(n), np.arange(0, n, 10)])
    weights = rng.integers(0, 4, len(twice)).astype(float)
    return sp.csr_matrix(X[twice]) if sparse else X[twice], y[twice], weights


def fit_on(model: Any, X: Any, y: Any, weights: Any, n_ranks: int, program: Any = fit_on_rank) -> tuple[Any, Any]:
    """Return a model fitted on threads, each with every n-th block of the rows, and the gang's ledger."""
    model = clone(model)
    return model, fit_on_ranks(model, X, blocks_of(X, y, weights, n_ranks), np.unique(y), program)


def is_dealt(ledger: Any) -> bool:
    """Return whether ranks have trained pairs of their own."""
    return "pairs" in set(ledger.ranks[0].records["op"])


def assert_same(ours: Any, expected: Any) -> None:
    """Check that two models are the same to the last bit, the runs that led to them included."""
    for name in FITTED:
        values = [getattr(model, name) for model in (ours, expected)]
        a, b = (value.toarray() if sp.issparse(value) else value for value in values)
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert (ours.gap_, ours.duality_gap_, ours.dual_objective_) == (
        expected.gap_,
        expected.duality_gap_,
        expected.dual_objective_,
    )
    told = [[[astuple(r)[:-1] for r in run] for run in model.elimination_history_] for model in (ours, expected)]
    assert told[0] == told[1]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("n_ranks", "n_jobs"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        SVC(C=5.0, class_weight="balanced"),
        SVC(kernel="linear", probability=True, random_state=1, elimination="aggressive"),
        SVC(probability="isotonic"),
        NuSVC(nu=0.2, class_weight="balanced"),
    ],
    ids=["svc", "probability", "isotonic", "nu"],
)
def test_a_dealt_fit_is_that_of_one_process(model, sparse, n_ranks, n_jobs):
    """With weights and equal rows on several ranks, every number of the model and of its runs is the same."""
    X, y, weights = rows(sparse=sparse)
    model = clone(model).set_params(n_jobs=n_jobs)
    expected = clone(model).fit(X, y, weights)
    ours, ledger = fit_on(model, X, y, weights, n_ranks)
    assert is_dealt(ledger)
    assert_same(ours, expected)
    for curve, other in zip(ours._curves[1], expected._curves[1], strict=True):
        np.testing.assert_array_equal(curve, other)
    assert ours.shape_fit_ == X.shape


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_left_is_dealt_anew(monkeypatch):
    """Where costs were predicted badly, a rank without pairs takes over those that another has not begun."""
    monkeypatch.setattr(dealing, "_MEET_S", 0.0)  # at every look at the flag, in the middle of pairs as well
    monkeypatch.setattr(dealing, "_MOST_LOAD", np.inf)
    monkeypatch.setattr(dealing, "predict_costs", lambda sizes: np.where(np.arange(len(sizes)) == 0, 1e9, 1.0))
    X, y, weights = rows()
    trained: list[tuple[int, int]] = []
    end = Dealer.end

    def noted(self: Dealer, number: int) -> None:
        trained.append((self.rank.number, number))
        end(self, number)

    monkeypatch.setattr(Dealer, "end", noted)
    ours, ledger = fit_on(SVC(n_jobs=1), X, y, weights, 2)
    assert_same(ours, SVC(n_jobs=1).fit(X, y, weights))
    assert sorted(number for _, number in trained) == list(range(10))
    assert sum(rank == 0 for rank, _ in trained) > 1  # it was dealt one
    assert (ledger.ranks[0].records["op"] == "pairs").sum() > 2


@pytest.mark.slow
def test_pairs_are_dealt_where_that_pays(monkeypatch):
    """Ranks stay together for many bytes, few or uneven pairs that are not small, large ones, and what is kept."""
    X, y, _ = rows()
    light = X.nbytes / 2**20
    assert is_dealt(fit_on(SVC(cache_size=1.01 * light), X, y, None, 2)[1])
    assert not is_dealt(fit_on(SVC(cache_size=0.99 * light), X, y, None, 2)[1])
    assert not is_dealt(fit_on(SVC(), X, np.minimum(y, 1), None, 2)[1])
    uneven = np.where(np.arange(len(y)) % 20 == 0, 2, y % 2)  # one pair has nearly all rows
    assert is_dealt(fit_on(SVC(), X, y % 3, None, 5)[1])
    monkeypatch.setattr(dealing, "_SMALL", 200)
    assert not is_dealt(fit_on(SVC(), X, uneven, None, 3)[1])
    assert not is_dealt(fit_on(SVC(), X, y % 3, None, 5)[1])
    assert is_dealt(fit_on(SVC(), X, y % 3, None, 3)[1])
    monkeypatch.setattr(dealing, "_LARGEST", 200)
    assert not is_dealt(fit_on(SVC(), X, y % 3, None, 3)[1])
    monkeypatch.undo()
    assert not is_dealt(fit_on(SVC(solver="pairwise", tol=0.1), X, y, None, 2)[1])

    def kept(rank: Any, data: Any, model: Any) -> Any:
        return fit_on_rank(replace(rank, keeper=SnapshotKeeper()), data, model)

    model, ledger = fit_on(SVC(tol=1e-5), X, y, None, 2, kept)
    assert not is_dealt(ledger)
    assert model.dual_objective_ == pytest.approx(SVC(tol=1e-5).fit(X, y).dual_objective_, rel=1e-6)


def test_what_travels_is_counted():
    """The rows go to the other ranks once, solutions to rank 0 once, and pairs are computation."""
    X, y, _ = rows()
    _, ledger = fit_on(SVC(n_jobs=1), X, y, None, 2)
    sent = {}
    for rank in ledger.ranks:
        for record in rank.records:
            sent[record["op"]] = sent.get(record["op"], 0) + int(record["bytes_sent"])
    assert X.nbytes <= sent["rows"] <= X.nbytes + 1000
    assert sent["collect"] > 0
    assert all(rank.records["compute_s"][rank.records["op"] == "pairs"].sum() > 0 for rank in ledger.ranks)


class BreaksAt(AbortFlag):
    """A flag that raises when it has been read so often."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def check(self) -> None:
        """Count, and raise."""
        self.left -= 1
        if self.left == 0:
            raise AbortedError("enough")


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("number", [0, 2])
def test_a_rank_that_fails_stops_all(number, n_jobs):
    """What one rank raises among its pairs is raised, and no rank waits for it."""
    X, y, weights = rows()

    def breaks(rank: Any, data: Any, model: Any) -> Any:
        return fit_on_rank(replace(rank, abort=BreaksAt(2)) if rank.number == number else rank, data, model)

    with pytest.raises(AbortedError, match="enough"):
        fit_on(SVC(n_jobs=n_jobs), X, y, weights, 3, breaks)
    far = X * 1e200
    with pytest.raises(InvalidDataError):
        fit_on(SVC(kernel="poly", gamma=1.0), far, y, weights, 2)


@given(st.lists(st.integers(0, 20), max_size=7), st.integers(1, 3))
def test_the_fullest_rank_has_little_more_than_the_best_deal(costs, n_ranks):
    """Each problem is dealt once, and the longest load is within Graham's bound of the best of all deals."""
    dealt = deal(costs, n_ranks)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(costs)))
    longest = max(sum(costs[number] for number in numbers) for numbers in dealt)
    best = min(
        max(sum(cost for cost, to in zip(costs, ranks, strict=True) if to == rank) for rank in range(n_ranks))
        for ranks in product(range(n_ranks), repeat=len(costs))
    )
    assert longest <= (4 / 3 - 1 / (3 * n_ranks)) * best + 1e-9


def test_sparse_rows_may_be_as_wide_as_no_array_could_be() -> None:
    """What is gathered of sparse rows is their entries, whatever the number of columns."""
    X, y, _ = rows(sparse=True)
    wide = sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], 2**31 - 2))
    narrow, _ = fit_on(SVC(gamma=0.5), X, y, None, 2)
    ours, ledger = fit_on(SVC(gamma=0.5), wide, y, None, 2)
    assert is_dealt(ledger)
    np.testing.assert_allclose(ours.dual_coef_.toarray(), narrow.dual_coef_.toarray(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_ranks_forget_a_class_without_weight(n_ranks):
    """Weights of zero for all rows of a class leave the machine of the others, with pairs dealt out and without."""
    for k in (3, 4):
        X, y, weights = rows(k=k)
        weights[y == 1] = 0.0
        model, _ = fit_on(SVC(class_weight="balanced"), X, y, weights, n_ranks)
        expected = SVC(class_weight="balanced").fit(X, y, weights)
        np.testing.assert_array_equal(model.classes_, np.delete(np.arange(k), 1))
        np.testing.assert_allclose(model.class_weight_, expected.class_weight_)
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))
