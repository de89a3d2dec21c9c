"""The estimators on real worker processes: every kind of input, and the same answers as in this process."""

from __future__ import annotations

import pickle
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import make_classification

from dsgd import CustomLoss, Gang, SGDClassifier, SGDRegressor
from dsgd.compress import ErrorFeedback, TopK
from dsgd.errors import InvalidDataError, PartitionMismatchError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import SAGA, SVRG
from dsgd.model_selection import SGDSearchCV
from dsgd.sim import SimulatedCluster
from dsgd.sync import AnytimeSGD, EpochAveraging, LocalSGD, MinibatchSGD, OneShotAveraging, SlowMo
from gang_cluster import module_client, start_cluster

pytestmark = pytest.mark.cluster

OPTIONS = {"alpha": 1e-2, "max_iter": 8, "tol": None, "random_state": 0}


client = module_client(2, set_as_default=True)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """A binary problem of 1,000 rows."""
    return make_classification(1000, 10, n_informative=8, class_sep=1.5, random_state=0)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "strategy",
    [LocalSGD(every=50), EpochAveraging(), OneShotAveraging(), MinibatchSGD(batch=20), AnytimeSGD(seconds=np.inf)],
    ids=repr,
)
def test_processes_equal_threads_bitwise(client, data, strategy):
    """Two worker processes give the bits of two threads, and count as many rounds and bytes."""
    X, y = data
    on_cluster = SGDClassifier(**OPTIONS, sync=strategy, client=client).fit(X, y)
    on_threads = SGDClassifier(**OPTIONS, sync=strategy, n_jobs=2).fit(X, y)
    assert np.array_equal(on_cluster.coef_, on_threads.coef_)
    assert np.array_equal(on_cluster.intercept_, on_threads.intercept_)
    counts = [[model.ledger_.totals()[name] for name in ("rounds", "bytes_sent")] for model in (on_cluster, on_threads)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "chosen",
    [
        {"sampling": "importance"},
        {"optimizer": SAGA()},
        {"optimizer": SVRG(), "sync": MinibatchSGD(20)},
        {"features": RandomFeatures(64, gamma=0.1)},
        {"loss": "softmax", "of": 3},
        {"loss": "softmax", "of": 3, "sync": MinibatchSGD(20)},
    ],
)
@pytest.mark.slow
def test_what_ranks_draw_and_remember_is_the_same_in_processes(client, data, chosen):
    """Drawn rows, reduced variance, random features and a loss of all classes give the bits of threads."""
    X, y = data
    options = {**OPTIONS, "loss": "log_loss", "max_iter": 3, "sync": LocalSGD(50), **chosen}
    if options.pop("of", 2) > 2:
        y = y + (X[:, 0] > 0)
    on_cluster = SGDClassifier(**options, client=client).fit(X, y)
    on_threads = SGDClassifier(**options, n_jobs=2).fit(X, y)
    assert on_cluster.coef_.tobytes() == on_threads.coef_.tobytes()


def test_a_loss_of_ones_own_is_compiled_by_every_worker(client, data):
    """Workers are sent functions, lambdas too, and train to the bits of the loss of the table that these repeat."""
    X, y = data
    own = CustomLoss(lambda y, p: 0.5 * (p - y) * (p - y), lambda y, p: p - y, curvature=1.0)
    on_cluster, on_threads = (
        SGDRegressor(loss, **OPTIONS, sync=LocalSGD(50), **where).fit(X, y)
        for loss, where in ((own, {"client": client}), ("squared_error", {"n_jobs": 2}))
    )
    assert on_cluster.coef_.tobytes() == on_threads.coef_.tobytes()


@pytest.mark.parametrize("rows", ["arrays", "dask", "files"])
def test_validation_scores_are_those_of_threads(client, data, rows):
    """Rank 0 on a worker scores the rows of this process: history and best model are those of two threads."""
    (X, X_val), (y, y_val) = (np.split(values, [800]) for values in data)
    options = {**OPTIONS, "loss": "log_loss", "sync": LocalSGD(50), "scoring": "average_precision"}
    watch = {"X_val": X_val, "y_val": y_val, "sample_weight_val": np.arange(200.0)}
    options |= {"restore_best": True, "shuffle": rows != "dask"}
    given = (da.from_array(X, (400, -1)), da.from_array(y, 400)) if rows == "dask" else (X, y)
    on_cluster = SGDClassifier(**options, client=Gang(client, out_of_core=rows == "files")).fit(*given, **watch)
    on_threads = SGDClassifier(**options, n_jobs=2).fit(X, y, **watch)
    assert on_cluster.history_[:, "valid_score"] == on_threads.history_[:, "valid_score"]
    assert on_cluster.best_epoch_ == on_threads.best_epoch_ < OPTIONS["max_iter"]
    assert on_cluster.coef_.tobytes() == on_threads.coef_.tobytes()
    assert on_cluster.history_[:, "bytes_sent"] == on_threads.history_[:, "bytes_sent"]


def test_a_client_that_a_pickle_left_behind_is_missed(client, data):
    """What joblib sends to its processes trains without the cluster, and says so, until it is given one; clones too."""
    X, y = data
    sent = pickle.loads(pickle.dumps(SGDClassifier(**OPTIONS, client=client)))
    for model in (sent, clone(sent)):
        with pytest.warns(UserWarning, match="has lost its client because it was pickled"):
            model.fit(X, y)
    assert sent.set_params(client=client).fit(X, y).fit_report_["ranks"] == 2
    simulated = SGDClassifier(**OPTIONS, client=SimulatedCluster(3))
    assert pickle.loads(pickle.dumps(simulated)).fit(X, y).fit_report_["ranks"] == 3


@pytest.mark.smoke
def test_dask_array(client, data):
    """A dask array is trained on its workers; prediction is lazy and keeps the chunks; score is a float."""
    X, y = data
    dX, dy = da.from_array(X, chunks=(300, -1)), da.from_array(y, chunks=300)
    model = SGDClassifier(**OPTIONS, loss="log_loss", client=client).fit(dX, dy)
    predicted = model.predict(dX)
    assert isinstance(predicted, da.Array)
    assert predicted.chunks == dy.chunks
    assert predicted.dtype == y.dtype
    assert np.array_equal(predicted.compute(), model.predict(X))
    np.testing.assert_allclose(model.predict_proba(dX).compute(), model.predict_proba(X))
    np.testing.assert_allclose(model.decision_function(dX).compute(), model.decision_function(X))
    assert model.score(dX, dy) == pytest.approx(model.score(X, y))
    assert isinstance(model.score(dX, dy), float)


def test_dask_dataframe(client, data):
    """A dask dataframe trains, its column names are kept, and predictions carry its index."""
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    X, y = data
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    dX = dd.from_pandas(frame, npartitions=3)
    dy = dd.from_pandas(pd.Series(np.where(y == 1, "yes", "no")), npartitions=3)
    model = SGDClassifier(**OPTIONS, client=client).fit(dX, dy)
    assert list(model.feature_names_in_) == list(frame.columns)
    predicted = model.predict(dX)
    assert predicted.divisions == dX.divisions
    assert list(predicted.compute()) == list(model.predict(frame))


def test_partial_fit_keeps_what_ranks_remember(client, data):
    """On a cluster too, calls are one fit of as many epochs to the bit; other numbers of threads can continue it."""
    X, y = data
    sync = SlowMo(50, 0.5, compressor=ErrorFeedback(TopK(0.1)))
    options = {**OPTIONS, "tol": None, "client": client, "sync": sync, "shuffle": False}
    whole = SGDClassifier(**{**options, "max_iter": 3}).fit(X, y)
    model = SGDClassifier(**options)
    for _ in range(3):
        model.partial_fit(X, y, classes=[0, 1])
    assert model.coef_.tobytes() == whole.coef_.tobytes()
    model.set_params(client=None, n_jobs=3).partial_fit(X, y)
    assert model.score(X, y) > 0.7


def test_bad_input(client, data):
    """Column chunks, mismatched partitions, NaN in a block and one class raise clear errors; the cluster works on."""
    X, y = data
    dy = da.from_array(y, chunks=250)
    model = SGDClassifier(**OPTIONS, client=client)
    with pytest.raises(InvalidDataError, match=r"rechunk\(\{1: -1\}\)"):
        model.fit(da.from_array(X, chunks=(250, 5)), dy)
    with pytest.raises(PartitionMismatchError, match="4 blocks"):
        model.fit(da.from_array(X, chunks=(250, -1)), da.from_array(y, chunks=500))
    broken = X.copy()
    broken[600, 3] = np.nan
    with pytest.raises(InvalidDataError, match="block 2 of 4: Input X contains NaN"):
        model.fit(da.from_array(broken, chunks=(250, -1)), dy)
    with pytest.raises(InvalidDataError, match="got 1 class"):
        model.fit(da.from_array(X, chunks=(250, -1)), da.zeros(1000, chunks=250))
    with pytest.raises(InvalidDataError, match="under-/overflow"):
        SGDRegressor(learning_rate="constant", eta0=10.0, client=client).fit(X * 1e200, y.astype(float))
    with pytest.raises(InvalidDataError, match="block 0 of 1: y mixes labels"):
        model.fit([dask.delayed((X[:2], np.array([1, "a"], dtype=object)))])
    with pytest.raises(InvalidDataError, match="expecting 10 features"):
        SGDClassifier(**OPTIONS).fit(X, y).predict(da.from_array(X[:, :4], chunks=(250, -1)))
    with pytest.raises(InvalidDataError, match="must be None when X is a list"):
        model.fit([dask.delayed((X, y))], y)
    assert model.fit(X, y).score(X, y) > 0.7


_WORKER_WITHOUT_DSGD = """
import sys
sys.modules["dsgd"] = None
from distributed.cli.dask_worker import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("lazy", [False, True])
def test_a_worker_process_without_dsgd_joins_and_is_left_out(data, lazy):
    """It joins a cluster that has trained, runs tasks of others, and gets no row of a fit, which names it once."""
    X, y = data
    if lazy:
        X, y = da.from_array(X, chunks=(250, -1)), da.from_array(y, chunks=250)
    with start_cluster(1) as cluster, Client(cluster) as client:
        alone = SGDClassifier(**OPTIONS, client=client).fit(X, y)
        (trained_on,) = client.nthreads()
        flags = ["--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "60"]
        command = [sys.executable, "-c", _WORKER_WITHOUT_DSGD, cluster.scheduler_address, *flags]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
            try:
                client.wait_for_workers(2, timeout=60)
                (other,) = set(client.nthreads()) - {trained_on}
                assert client.submit(sum, [1, 2], workers=[other]).result(20) == 3
                with pytest.warns(RuntimeWarning, match=rf"worker {other} cannot import dsgd .*left out"):
                    beside = SGDClassifier(**OPTIONS, client=client).fit(X, y)
                assert beside.ledger_.workers == [trained_on]
                assert np.array_equal(alone.coef_, beside.coef_)
            finally:
                worker.terminate()
                worker.wait(30)


@pytest.mark.parametrize("rows", ["arrays", "dask"])
@pytest.mark.slow
def test_searches_find_what_those_of_simulated_ranks_do(client, data, rows):
    """Of arrays here, and of dask arrays whose rows stay on the workers: the same scores, rungs and epochs, exactly."""
    X, y = data
    model = SGDClassifier(**OPTIONS, sync=LocalSGD(32), shuffle=rows == "arrays")
    grid = {"loss": ["hinge", "log_loss"], "eta0": [0.1, 1.0], "learning_rate": ["adaptive"]}
    options = {"cv": 3, "factor": 2, "min_epochs": 2, "return_train_score": True, "refit": False}
    given, blocks = (X, y), (X, y)
    if rows == "dask":
        given = da.from_array(X, (500, -1)), da.from_array(y, 500)
        blocks = ([(X[:500], y[:500]), (X[500:], y[500:])],)
    found = SGDSearchCV(clone(model).set_params(client=client), grid, **options).fit(*given).cv_results_
    simulated = clone(model).set_params(client=SimulatedCluster(2))
    expected = SGDSearchCV(simulated, grid, **options).fit(*blocks).cv_results_
    for name in expected:
        if "time" not in name and not name.startswith("param"):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_several_classes_and_balanced_weights(client):
    """Classes and their counts come from all blocks, also when a block holds one class only."""
    rng = np.random.default_rng(0)
    centers = np.array([[0, 6], [6, 0], [-6, -6]])
    y = np.repeat([0, 1, 2], [600, 100, 100])
    X = centers[y] + rng.normal(size=(800, 2))
    dX, dy = da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)
    model = SGDClassifier(**OPTIONS, class_weight="balanced", client=client).fit(dX, dy)
    assert list(model.classes_) == [0, 1, 2]
    assert model.coef_.shape == (3, 2)
    assert model.score(X, y) > 0.95
