"""Linear SVMs on several ranks: the optimum of one process, the bytes that were promised, and real worker processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.svm import LinearSVC as PlainSVC
from sklearn.svm import LinearSVR as PlainSVR

from dsgd.collectives import Team, allreduce_cost, broadcast_cost
from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.kernels.order import GOLDEN, draw_one
from dsgd.linear_model.fits import Packer
from dsgd.runtime import run_on_threads
from dsgd.svm import LinearSVC, LinearSVR
from dsgd.svm.distributed.linear import LinearJob, LinearPacker, solve_survivors, train_linear
from dsgd.svm.linear_solver.descent import solve_cocoa
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import LOSSES, LinearSolution, certify, gather_rows, make_problem
from gang_cluster import start_cluster
from reference import linear_svm as twin
from reference.collectives import barrier_cost, gather_cost

ALL_LOSSES = [*LOSSES["classification"], *LOSSES["regression"]]


def rows_for(loss, n=360, seed=0):
    """Return noisy rows and targets for a loss."""
    if loss in LOSSES["classification"]:
        X, y = make_classification(n, 8, n_informative=6, flip_y=0.1, random_state=seed)
        return X, np.where(y > 0, 1.0, -1.0)
    X, y = make_regression(n, 8, noise=20.0, random_state=seed)
    return X, y / y.std()


def job_for(loss, **options):
    """Return a job with the classes -1 and 1, or for regression."""
    settings = {"C": 0.5, "epsilon": 0.1, "penalizes_intercept": True, "class_factors": None, "n_classes": 0}
    settings |= {"solver": "auto", "tol": 1e-7, "max_iter": 5000, "seed": 0}
    if loss in LOSSES["classification"]:
        settings |= {"class_factors": np.ones(2), "n_classes": 2}
    return LinearJob(loss=loss, **settings | options)


def shares_of(X, y, cuts, weights=None, *, classes=None, dtype="float64"):
    """Return the shares of ranks that have rows cuts[r] to cuts[r + 1]; no block where there are none."""
    if classes is None and set(np.unique(y)) <= {-1.0, 1.0}:
        classes = np.array([-1.0, 1.0])
    packer = LinearPacker(Packer(classes, X.shape[1], dtype, sp.issparse(X)), 1.0, 0)
    bounds = itertools.pairwise(cuts)
    return [packer([(X[a:b], y[a:b], None if weights is None else weights[a:b])] * (b > a), 0) for a, b in bounds]


def even(n, size):
    return [n * r // size for r in range(size + 1)]


def run_ranks(program, parts, *args):
    """Run ``program(rank, *part, *args)`` on threads; return what every rank returned, and the ledger."""
    found = [None] * len(parts)

    def call(rank, part):
        found[rank.number] = program(rank, *part, *args)

    return found, run_on_threads(call, parts).ledger


# -- CoCoA+ ------------------------------------------------------------------------------------------------------


def order_of(n, n_rounds):
    """Return the rows in the order in which each round visits them."""
    active, orders = np.arange(n), []
    for number in range(1, n_rounds + 1):
        key = np.uint64(number * int(GOLDEN) % 2**64)
        for place in range(n):
            word = int(draw_one(key, np.uint64(place))) >> 32
            other = place + (word * (n - place) >> 32)
            active[[place, other]] = active[[other, place]]
        orders.append(active.copy())
    return orders


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("loss", ALL_LOSSES)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_round_is_the_twins(loss, size):
    """Three rounds leave the dual variables that the paper's update leaves, with rows visited in the same order."""
    X, y = rows_for(loss, 90)
    n_rounds = 3

    def rounds(rank, X, y):
        rows, targets, costs = gather_rows(X, y, np.full(len(y), 0.5), bias=1.0, seed=0)
        problem = make_problem(loss, rows, targets, costs, 0.1)
        dense = np.array([rows.combine(unit, Team()) for unit in np.eye(rows.n_rows)])
        return solve_cocoa(problem, tol=1e-12, max_iter=n_rounds, team=Team(1, rank.group)), (dense, targets, costs)

    cuts = even(90, size)
    found, _ = run_ranks(rounds, [(X[a:b], y[a:b]) for a, b in itertools.pairwise(cuts)])
    parts = [part for _, part in found]
    alphas, w = [np.zeros(len(t)) for _, t, _ in parts], np.zeros(9)
    orders = [order_of(len(t), n_rounds) for _, t, _ in parts]
    for number in range(n_rounds):
        visits = [order[number] for order in orders]
        shuffled = [tuple(column[v] for column in part) for part, v in zip(parts, visits, strict=True)]
        changed, w = twin.cocoa_round(loss, shuffled, [a[v] for a, v in zip(alphas, visits, strict=True)], w, size, 0.1)
        for alpha, new, v in zip(alphas, changed, visits, strict=True):
            alpha[v] = new
    for (solution, _), alpha in zip(found, alphas, strict=True):
        np.testing.assert_allclose(solution.duals, alpha, atol=1e-12)
    value = sum(twin.primal(loss, *part, w, 0.1) for part in parts) - 0.5 * (size - 1) * (w @ w)
    assert min(s.primal for s, _ in found) <= value * (1 + 1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_of_a_round_are_those_of_its_formula(size):
    """CoCoA+ sends d + 5 numbers per round, at the end d + 2 for the certificate and d + 2 to count proven rows."""
    X, y = rows_for("hinge")
    job = job_for("hinge", solver="cocoa", tol=1e-2, max_iter=2000)
    gang = run_on_threads(train_linear, shares_of(X, y, even(len(y), size)), (job,))
    width, n_rounds = X.shape[1] + 1, gang.value.solutions[0].n_iter
    assert gang.value.solutions[0].converged
    for rank, totals in gang.ledger.per_rank().items():
        messages = [2, 2] + [width + 5] * n_rounds + [width, 2, width, 1, 1]
        costs = [allreduce_cost(rank, size, n, 8) for n in messages]
        assert totals["bytes_sent"] == sum(cost.n_bytes for cost in costs)
        assert totals["messages"] == sum(cost.messages for cost in costs)
        # That all are there, before the first round.
        assert totals["control_bytes_sent"] == barrier_cost(size).n_bytes
        assert totals["rounds"] == len(messages)


class CountedGroup:
    """A group that notes what it exchanges, and what it should cost."""

    def __init__(self, group):
        self.rank, self.size, self.ledger, self.barrier = group.rank, group.size, group.ledger, group.barrier
        self.sizes: list[tuple[str, int]] = []
        self.expected = 0
        self.gathered = 0
        self._group = group

    def allreduce(self, vector):
        """Add up over ranks."""
        self.sizes.append(("sum", vector.shape[0]))
        self.expected += allreduce_cost(self.rank, self.size, vector.shape[0], 8).n_bytes
        self._group.allreduce(vector)

    def broadcast(self, vector):
        """Take rank 0's."""
        self.sizes.append(("follow", vector.shape[0]))
        self.expected += broadcast_cost(self.rank, self.size, vector.shape[0], 8).n_bytes
        self._group.broadcast(vector)

    def gather(self, vector):
        """Gather at rank 0."""
        lengths = [vector.shape[0]] * self.size
        self.expected += gather_cost(self.rank, lengths, vector.itemsize).n_bytes
        self.gathered += vector.nbytes
        return self._group.gather(vector)


def counted(loss, X, y, size, solve):
    """Return what `solve` and the counting group of every rank have, and the bytes that the ledger has."""
    found = [None] * size

    def call(rank, part):
        group = CountedGroup(rank.group)
        rows, targets, costs = gather_rows(*part, np.full(part[1].shape[0], 0.5), bias=1.0, seed=0)
        found[rank.number] = solve(make_problem(loss, rows, targets, costs, 0.1), Team(1, group)), group

    parts = [(X[a:b], y[a:b]) for a, b in itertools.pairwise(even(len(y), size))]
    per_rank = run_on_threads(call, parts).ledger.per_rank()
    return found, [per_rank[r]["bytes_sent"] for r in range(size)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_newtons_method_sends_sums_alone(loss, size):
    """A Newton step sends vectors of d or d + 1 numbers, triangles and a few scalars, whatever the number of rows."""
    X, y = rows_for(loss)
    width = X.shape[1] + 1
    found, sent = counted(loss, X, y, size, lambda p, team: solve_newton(p, tol=1e-6, max_iter=200, team=team))
    for (solution, group), n_bytes in zip(found, sent, strict=True):
        assert solution.converged
        kinds = {n for kind, n in group.sizes if kind == "sum"}
        assert kinds <= {1, 2, width, width + 1, width * (width + 1) // 2}
        assert {n for kind, n in group.sizes if kind == "follow"} <= {1, width + 1}
        assert n_bytes == group.expected
        assert group.gathered == 0


# -- survivors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_survivors_travel_once(loss, sparse):
    """Each survivor is sent once with its true length, the ledger has every byte, and the gap is that of all rows."""
    X, y = rows_for(loss)
    X = sp.csr_array(np.where(np.abs(X) < 0.5, 0.0, X)) if sparse else X

    def solve(problem, team):
        warm = solve_cocoa(problem, tol=1e-7, max_iter=6, team=team)
        return problem, solve_survivors(problem, warm, room=1e9, tol=1e-7, max_iter=100_000, team=team)

    found, sent = counted(loss, X, y, 3, solve)
    for ((problem, solution), group), n_bytes in zip(found, sent, strict=True):
        assert solution.converged
        assert n_bytes == group.expected
        assert 0 < group.gathered <= problem.rows.n_bytes + 48 * problem.rows.n_rows
        primal = twin.primal(
            loss,
            sp.csr_array(np.c_[X.toarray() if sparse else X, np.ones(len(y))]),
            y,
            np.full(len(y), 0.5),
            solution.weights,
            0.1,
        )
        assert solution.primal == pytest.approx(primal, rel=1e-12)


def test_wrong_eliminations_come_back():
    """From dual variables at the wrong ends, most of which look settled, the optimum is still found."""
    X, y = rows_for("hinge")

    def solve(problem, team):
        flipped = np.where(problem.targets > 0, problem.high, problem.low) * (np.arange(problem.rows.n_rows) % 2)
        weights = team.add_up(problem.rows.combine(flipped, team))
        primal, dual, _ = certify(problem, weights, flipped, team)
        start = LinearSolution(weights, flipped, primal, dual, 0, False, "wrong")
        return solve_survivors(problem, start, room=1e9, tol=1e-8, max_iter=100_000, team=team)

    found, _ = counted("hinge", X, y, 2, solve)
    best = LinearSVC(loss="hinge", C=0.5, tol=1e-8, max_iter=50_000, random_state=0).fit(X, y)
    assert all(solution.converged for solution, _ in found)
    assert found[0][0].primal == pytest.approx(best.primal_objective_[0], rel=1e-7)


def test_too_many_survivors_are_not_sent():
    """Where the rows that nothing settles do not fit the room, none is sent and the start comes back unconverged."""
    X, y = rows_for("hinge")

    def solve(problem, team):
        warm = solve_cocoa(problem, tol=1e-7, max_iter=2, team=team)
        return warm, solve_survivors(problem, warm, room=100.0, tol=1e-7, max_iter=1000, team=team)

    found, _ = counted("hinge", X, y, 2, solve)
    for (warm, solution), group in found:
        assert group.gathered == 0
        assert not solution.converged
        assert solution.primal == pytest.approx(warm.primal, rel=1e-12)


# -- the rank program --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_any_number_of_ranks_reaches_the_optimum(loss, sparse, size):
    """One, two and three ranks end at LIBLINEAR's objective, dense and sparse, with a gap that holds."""
    X, y = rows_for(loss)
    shared = {"loss": loss, "C": 0.5, "dual": True, "tol": 1e-8, "max_iter": 1_000_000, "random_state": 0}
    plain = (PlainSVC(**shared) if loss in LOSSES["classification"] else PlainSVR(epsilon=0.1, **shared)).fit(X, y)
    w = np.r_[plain.coef_.ravel(), plain.intercept_]
    expected = twin.primal(loss, np.c_[X, np.ones(len(y))], y, np.full(len(y), 0.5), w, 0.1)
    shares = shares_of(sp.csr_array(X) if sparse else X, y, even(len(y), size))
    found = run_on_threads(train_linear, shares, (job_for(loss),)).value.solutions[0]
    assert found.converged
    assert found.gap <= 1e-7
    assert found.primal == pytest.approx(expected, rel=1e-6)
    assert found.dual <= expected * (1 + 1e-9)
    np.testing.assert_allclose(found.weights, w, atol=2e-3)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("cuts", [[0, 0, 360], [0, 200, 200, 360], [0, 1, 360], [0, 360, 360], None], ids=str)
def test_rows_may_lie_anywhere(loss, cuts):
    """Ranks with no row, a single one, or one class each change nothing, rank 0 included."""
    X, y = rows_for(loss)
    if cuts is None:
        X, y, cuts = X[np.argsort(y)], np.sort(y), [0, int((y < 0).sum()), 360]
    one = run_on_threads(train_linear, shares_of(X, y, [0, 360]), (job_for(loss),)).value.solutions[0]
    found = run_on_threads(train_linear, shares_of(X, y, cuts), (job_for(loss),)).value.solutions[0]
    assert found.converged
    assert found.primal == pytest.approx(one.primal, rel=1e-6)


@pytest.mark.parametrize("loss", ["hinge", "epsilon_insensitive"])
def test_badly_scaled_features_go_to_newtons_method(loss):
    """If coordinate descent makes no progress, all ranks change to Newton's method and reach the gap."""
    X, y = rows_for(loss)
    X = X * np.logspace(0, 4, 8)
    found = run_on_threads(train_linear, shares_of(X, y, even(len(y), 2)), (job_for(loss, tol=1e-5),)).value
    assert found.solutions[0].converged
    assert found.solutions[0].solver.endswith("newton")


def test_weights_of_zero_everywhere_are_refused():
    """A gang whose rows all have weight zero says so."""
    X, y = rows_for("hinge")
    with pytest.raises(InvalidDataError, match="non-zero"):
        run_on_threads(train_linear, shares_of(X, y, even(len(y), 2), np.zeros(len(y))), (job_for("hinge"),))


# -- worker processes --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two single-threaded worker processes."""
    with (
        start_cluster(2) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.cluster
@pytest.mark.parametrize("loss", LOSSES["classification"])
def test_dask_arrays(client, loss):
    """Several classes with weights train where they lie to the model of one process; prediction is lazy."""
    X, y = make_classification(600, 10, n_informative=6, n_classes=3, random_state=2)
    names, weights = np.array(["ash", "birch", "cedar"])[y], np.random.default_rng(0).uniform(0.0, 3.0, len(y))
    options = {"loss": loss, "class_weight": "balanced", "C": 0.3, "tol": 1e-7, "max_iter": 50_000, "random_state": 0}
    dX, dy = da.from_array(X, chunks=(170, -1)), da.from_array(names, chunks=170)
    model = LinearSVC(client=client, **options).fit(dX, dy, da.from_array(weights, chunks=170))
    plain = LinearSVC(**options).fit(X, names, weights)
    assert model.converged_
    np.testing.assert_allclose(model.primal_objective_, plain.primal_objective_, rtol=1e-6)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-3)
    np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-3)
    assert model.n_screened_.shape == (3,)
    assert model.fit_report_["ranks"] == 2
    assert len(model.solver_) == 3
    assert model.ledger_.totals()["bytes_sent"] > 0
    predicted = model.predict(dX)
    assert isinstance(predicted, da.Array)
    np.testing.assert_array_equal(predicted.compute(), model.predict(X))
    np.testing.assert_allclose(model.decision_function(dX).compute(), model.decision_function(X))
    assert model.score(dX, dy) == pytest.approx(model.score(X, names))
    assert not hasattr(LinearSVC(**options).fit(X, names), "ledger_")


@pytest.mark.cluster
def test_probabilities_of_dask_arrays(client):
    """Workers that hold rows of a dask array fit the curves of one process, on the folds of all rows in order."""
    X, y = rows_for("hinge")
    model = LinearSVC(tol=1e-8, random_state=0, probability="isotonic")
    expected = clone(model).fit(X, y)
    dX, dy = da.from_array(X, chunks=(70, -1)), da.from_array(y, chunks=70)
    ours = clone(model).set_params(client=client).fit(dX, dy)
    np.testing.assert_allclose(ours.predict_proba(dX).compute(), expected.predict_proba(X), atol=1e-5)
    with pytest.raises(InvalidDataError, match="less than 5 examples"):
        ours.fit(dX, da.from_array(np.where(np.arange(len(y)) < 4, 1.0, -1.0), chunks=70))


@pytest.mark.cluster
@pytest.mark.parametrize("loss", LOSSES["regression"])
def test_regression_on_a_frame(client, loss):
    """A dask dataframe trains to the regression of one process, predicts lazily, and scores block by block."""
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    X, y = rows_for(loss)
    frame = dd.from_pandas(pd.DataFrame(X, columns=[f"x{j}" for j in range(8)]), npartitions=3)
    target = dd.from_pandas(pd.Series(y), npartitions=3)
    options = {"loss": loss, "epsilon": 0.1, "tol": 1e-7, "max_iter": 50_000, "random_state": 0}
    model = LinearSVR(client=client, **options).fit(frame, target)
    plain = LinearSVR(**options).fit(X, y)
    assert model.primal_objective_ == pytest.approx(plain.primal_objective_, rel=1e-6)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.score(frame, target) == pytest.approx(plain.score(X, y), abs=1e-4)
    np.testing.assert_allclose(model.predict(frame).compute(), plain.predict(X), atol=2e-3)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options", [{"penalty": "l1"}, {"multi_class": "crammer_singer"}, {"penalize_intercept": False}], ids=str
)
def test_what_one_process_alone_solves_is_refused(client, options):
    """Parameters that have no solver on a cluster are refused by name."""
    with pytest.raises(IncompatiblePartsError, match=next(iter(options))):
        LinearSVC(client=client, **options).fit(*rows_for("hinge"))
