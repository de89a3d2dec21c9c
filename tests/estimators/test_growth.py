"""Classes that come late: outputs of others are what they would have been, and decide as before."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs

import dsgd
from dsgd import Rows, SGDClassifier
from dsgd.errors import InvalidDataError
from dsgd.local import SAGA, Adam, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import ChocoSGD, LocalSGD, SlowMo

X, Y = make_blobs(250, centers=5, n_features=4, cluster_std=3.0, random_state=2)
X = X / 5
#: Two in the middle, then one on either side, then one between.
CHUNKS = [[1, 3], [0, 1, 3, 4], [0, 1, 2, 3, 4]]
STEADY = {"learning_rate": "constant", "eta0": 0.1, "random_state": 0, "shuffle": False}


def rows_of(seen, form=np.asarray):
    """Return the rows of some classes."""
    chosen = np.isin(Y, seen)
    return form(X[chosen]), Y[chosen]


def grown(model, chunks=CHUNKS, form=np.asarray):
    """Return a model that was shown rows of these classes, call by call."""
    for seen in chunks:
        model.partial_fit(*rows_of(seen, form), classes="grow")
    return model


def both_of(values):
    """Return a row for each of two classes that have one output."""
    return np.concatenate([-values, values])


@pytest.mark.parametrize(
    ("more", "form"),
    [
        ({"learning_rate": "optimal", "alpha": 0.01}, np.asarray),
        ({"average": 30, "loss": "log_loss"}, sp.csr_array),
        ({"optimizer": Adam(batch=8)}, sp.csr_array),
        ({"optimizer": Momentum(0.9, batch=4), "n_jobs": 2, "sync": 16}, np.asarray),
        ({"loss": "modified_huber", "n_jobs": 2, "sync": 16}, np.float32),
    ],
    ids=["rates", "average", "adam", "momentum", "float32"],
)
def test_outputs_of_old_classes_have_the_bits_of_a_model_that_was_told_all(more, form):
    """From two classes to four to five: a class against the rest learns the same, whether others are announced."""
    late, told = (SGDClassifier(**STEADY | more) for _ in range(2))
    # Dot products of sparse rows have another order with one output.
    tolerance = 1e-12 if form is sp.csr_array else 0.0
    for k, seen in enumerate(CHUNKS):
        late.partial_fit(*rows_of(seen, form), classes="grow" if k == 0 else None)
        told.partial_fit(*rows_of(seen, form), classes=range(5))
        assert late.classes_.tolist() == seen
        for name in ("coef_", "intercept_"):
            ours, theirs = getattr(late, name), getattr(told, name)
            first = (both_of(ours) if k == 0 else ours)[np.searchsorted(seen, [1, 3])]
            np.testing.assert_allclose(first, theirs[[1, 3]], rtol=tolerance, atol=0.0)
            assert ours.dtype == theirs.dtype
    assert late.t_ == told.t_
    assert np.abs(late.coef_[2]).max() > 0.01  # the one that came last learns


@pytest.mark.parametrize(("loss", "seen"), [("log_loss", [1, 3]), ("softmax", [0, 1, 3])])
def test_the_mean_of_a_new_class_begins_with_it(loss, seen, tmp_path):
    """Each output is the mean of its iterates since it came, also after loading; a call that fails changes nothing."""
    model = grown(SGDClassifier(**STEADY, loss=loss, average=True), [seen])
    rows = np.flatnonzero(np.isin(Y, [*seen, 4]))[:40]
    rows = np.concatenate([rows[Y[rows] == 4][:1], rows, np.flatnonzero(Y == 2)[:1], rows])
    iterates = []
    for row in rows:
        model.partial_fit(X[row : row + 1], Y[row : row + 1])
        iterates.append(np.column_stack([model._standard_coef, model._standard_intercept]))
        if row == rows[30]:
            model.save(tmp_path / "model.dsgd")
            model = dsgd.load(tmp_path / "model.dsgd")
            with pytest.raises(ValueError, match="NaN"):
                model.partial_fit(np.full((1, 4), np.nan), [2])
    found = np.column_stack([model.coef_, model.intercept_])
    for label, since in ((2, 41), (4, 0)):
        output = model.classes_.tolist().index(label)
        expected = np.mean([one[min(output, len(one) - 1)] for one in iterates[since:]], 0)
        np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-13)
        assert np.abs(expected).max() > 1e-4


@pytest.mark.parametrize("way", ["save", "pickle"])
@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_growing_alone_changes_no_decision(loss, way, tmp_path):
    """Before new steps old classes decide as they did; their probabilities give way to the share of the new one."""
    model = SGDClassifier(**STEADY | {"loss": loss, "penalty": None})
    for seen, new in zip(CHUNKS[:2], ([1, 3, 4], [0, 1, 2, 3, 4]), strict=True):
        model.set_params(eta0=0.1).partial_fit(*rows_of(seen), classes="grow")
        before, decided, had = (model.coef_, model.intercept_), model.predict(X), len(seen)
        probabilities = model.predict_proba(X) if loss == "softmax" else None
        if way == "save":
            model.save(tmp_path / "model.dsgd")
            model = dsgd.load(tmp_path / "model.dsgd")
        else:
            model = pickle.loads(pickle.dumps(model))
        # Steps too short for a weight to notice; of the new class as well.
        model.set_params(eta0=1e-300).partial_fit(*rows_of(new))
        old = np.searchsorted(new, seen)
        assert np.abs(np.delete(model.coef_, old, axis=0)).max() < 1e-290
        if loss == "softmax":
            now = model.predict_proba(X)
            rest = 1.0 - np.delete(now, old, axis=1).sum(axis=1, keepdims=True)
            np.testing.assert_allclose(now[:, old], probabilities * rest, rtol=1e-12)
        else:
            for now, then in zip((model.coef_, model.intercept_), before, strict=True):
                np.testing.assert_array_equal(now[old], then if had > 2 else both_of(then))
        if had == 2:
            np.testing.assert_array_equal(model.predict(X), decided)


@pytest.mark.parametrize(
    "more", [{}, {"sync": SlowMo(8, 0.5)}, {"sync": ChocoSGD(8)}, {"penalty": "l1"}, {"loss": "softmax"}], ids=str
)
def test_every_path_grows_alike(more):
    """Threads, simulated ranks and packed rows make one model, also of strategies and penalties with a memory."""
    settings = STEADY | {"sync": LocalSGD(16)} | more
    threads = grown(SGDClassifier(**settings, n_jobs=2))
    simulated = grown(SGDClassifier(**settings, client=SimulatedCluster(2, "10GbE")))
    packed = SGDClassifier(**settings, n_jobs=2)
    for seen in CHUNKS:
        packed.partial_fit(Rows(*rows_of(seen)), classes="grow")
    assert threads.coef_.shape == (5, 4)
    for other in (simulated, packed):
        np.testing.assert_array_equal(other.coef_, threads.coef_)
        np.testing.assert_array_equal(other.intercept_, threads.intercept_)
    assert threads.set_params(n_jobs=3).partial_fit(X, Y).score(X, Y) > 0.5


@pytest.mark.parametrize("more", [{"optimizer": SAGA(), "loss": "log_loss"}, {"sampling": "importance"}], ids=str)
def test_a_fitted_model_takes_a_class_in(more):
    """After fit too, with what is remembered of rows, and a class weight of the class to come."""
    model = SGDClassifier(alpha=0.01, random_state=0, class_weight={4: 2.0, 1: 0.5}, **more)
    with pytest.raises(ValueError, match="class_weight"):
        model.fit(*rows_of([1, 3]))
    model.set_params(class_weight=None).fit(*rows_of([1, 3])).set_params(class_weight={4: 2.0, 1: 0.5})
    for _ in range(5):
        grown(model, [[1, 3], [1, 3, 4]])
    assert model.score(*rows_of([1, 3, 4])) > 0.8
    # fit ends it.
    model.set_params(class_weight=None).fit(*rows_of([1, 3]))
    with pytest.raises(InvalidDataError, match="not in classes"):
        model.partial_fit(X, Y)


def test_what_cannot_grow_is_refused_and_changes_nothing():
    """Labels nobody asked for, one class alone and texts among numbers are errors; the model is what it was."""
    lone = SGDClassifier(**STEADY)
    with pytest.raises(InvalidDataError, match=r"greater than one.*Begin with rows of two classes"):
        lone.partial_fit(*rows_of([3]), classes="grow")
    with pytest.raises(InvalidDataError, match=r"must be passed on the first call.*classes='grow'"):
        lone.partial_fit(*rows_of([1, 3]))
    fixed = SGDClassifier(**STEADY).partial_fit(*rows_of([1, 3]), classes=[1, 3])
    with pytest.raises(InvalidDataError, match=r"not in classes.*With classes='grow'"):
        fixed.partial_fit(X, Y)
    model, twin = (grown(SGDClassifier(**STEADY), CHUNKS[:1]) for _ in range(2))
    with pytest.raises(InvalidDataError, match="all texts or all numbers"):
        model.partial_fit(X, Y.astype(str))
    with pytest.raises(InvalidDataError, match="all texts or all numbers"):
        model.partial_fit(X, Y.astype(str).astype(object))
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.where(Y[:, None] == 4, np.nan, X), Y)
    assert model.classes_.tolist() == [1, 3]
    np.testing.assert_array_equal(grown(model).coef_, grown(twin).coef_)
    # Rows of one class alone are no trouble later.
    assert model.partial_fit(*rows_of([2])).coef_.shape == (5, 4)
