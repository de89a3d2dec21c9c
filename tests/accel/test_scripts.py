"""Scripts print the same with and without acceleration, whatever they do with the classes."""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import pytest
import sklearn.linear_model
import sklearn.svm  # noqa: F401 (the hook is for modules that are not imported yet)

import dsgd.accel
from dsgd.accel import recorded_calls

ROWS = """
    import io, pickle, warnings
    import joblib
    import numpy as np
    import scipy.sparse as sp
    from sklearn.base import clone, is_classifier, is_regressor
    from sklearn.linear_model import *
    from sklearn.svm import *
    rng = np.random.RandomState(0)
    X = rng.randn(150, 4)
    t = X @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.randn(150)
    y = (t > 0).astype(int)
    S = sp.csr_array(X * (np.abs(X) > 0.5))
    exact = dict(tol=1e-8, max_iter=100000)
"""
#: What a script does with a class, after `ROWS`.
SCRIPTS = {
    "kernels": """
        for w in (None, np.where(y, 3.0, 1.0)):
            for model in SVC(), NuSVC(nu=0.2), SVR(), NuSVR(), OneClassSVM():
                model.set_params(tol=1e-7).fit(X, t if is_regressor(model) else y, sample_weight=w)
                score = getattr(model, "decision_function", model.predict)
                print(type(model).__name__, score(X).round(3) + 0.0, sorted(vars(model)))
        for given in ({0: 1, 1: 20}, "balanced"):
            print(NuSVC(nu=0.2, class_weight=given, tol=1e-7).fit(X, y).predict(X).sum())
    """,
    "linear models": """
        for model in (
            LogisticRegression(**exact),
            LogisticRegression(solver="newton-cg", C=0.1, class_weight="balanced", **exact),
            LogisticRegression(solver="saga", l1_ratio=1, random_state=0, **exact),
            LogisticRegression(solver="saga", l1_ratio=0.5, random_state=0, **exact),
            LogisticRegression(solver="liblinear", random_state=0), LogisticRegression(C=np.inf),
            LogisticRegression(dual=True, solver="liblinear", random_state=0, **exact), LogisticRegression(verbose=0),
            LinearSVC(tol=1e-6, random_state=0), LinearSVR(tol=1e-6, max_iter=100000, random_state=0),
            Lasso(alpha=0.1, tol=1e-9), Lasso(0.1, positive=True), Lasso(alpha=0.1, selection="random", random_state=0),
            Lasso(alpha=0.1, precompute=True, tol=1e-9), ElasticNet(alpha=0.1, l1_ratio=0.7, tol=1e-9),
            ElasticNet(alpha=0.1, l1_ratio=0.0, tol=1.0), Ridge(), Ridge(solver="sag", random_state=0),
            Ridge(positive=True), Ridge(alpha=np.array([2.0])), PoissonRegressor(**exact),
            PoissonRegressor(alpha=0.0), PoissonRegressor(solver="newton-cholesky"),
        ):
            target = np.exp(t) if "Poisson" in str(model) else t if is_regressor(model) else y
            for rows in (X, S, X.astype(np.float32)):
                if sp.issparse(rows) and "alpha=array" in str(model):
                    continue
                for w in (None, 1.0 + y):
                    model.fit(rows, target, sample_weight=w)
                    print(model, np.round(np.ravel(model.coef_), 2) + 0.0, np.round(model.intercept_, 2))
                print(sorted(vars(model)), model.coef_.dtype, np.shape(model.intercept_), type(model.intercept_))
        many = LogisticRegression(**exact).fit(X, np.digitize(t, [-1, 1]))
        print(many.coef_.round(3), many.predict_proba(X[:3]).round(3), many.n_iter_.dtype, many.n_iter_.shape)
        print(Lasso(alpha=0.1).fit(X, np.c_[t, t]).coef_.round(3), Ridge().fit(S, t[:, None]).coef_.shape)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            LogisticRegression(penalty="l2", n_jobs=2, **exact).fit(X, y)
            LogisticRegression(max_iter=1).fit(X, y)
        print([(w.category.__name__, str(w.message)[:40]) for w in found])
    """,
    "subclasses": """
        class Poly(SVC):
            def __init__(self, C=1.0):
                super().__init__(C=C, kernel="poly", degree=2, coef0=1)
        class Tight(LinearSVC):
            def __init__(self): super().__init__(C=1e-4, random_state=0)
        class Outlier(OneClassSVM):
            def __init__(self, share=0.01, tag="a"):
                super().__init__(nu=share)
                self.share, self.tag = share, tag
        class Sparse(Lasso):
            def __init__(self, strength=0.2):
                super().__init__(alpha=strength)
                self.strength = strength
        class Own(SGDClassifier):
            def fit(self, X, y):
                print("own fit")
                return SGDClassifier.fit(self, X, y)
        class SVC(SVC):
            def __init__(self, C=1.0, tag="a"):
                super().__init__(C=C)
                self.tag = tag
        for model in Poly(C=2.0), Tight(), Outlier(), Sparse(), Own(random_state=0), SVC(tag="b"):
            model = clone(model).fit(X, t if isinstance(model, Lasso) else y)
            again = pickle.loads(pickle.dumps(model))
            print(type(again) is type(model), sorted(vars(again)), again.predict(X).sum().round(4), again)
            print([type(model).__mro__[1].__module__, *map(str, model.get_params().items())])
    """,
    "pickles": """
        for kind in (SVC, LinearSVC, LogisticRegression, SGDClassifier):
            m = kind(random_state=0).fit(X, y)
            p = pickle.loads(pickle.dumps(m))
            print(isinstance(p, kind), type(p) is kind, type(m) is kind, kind.__module__)
            print(vars(p).keys() == vars(m).keys())
            file = io.BytesIO()
            joblib.dump({"model": m, "pipe": [m]}, file)
            file.seek(0)
            read = joblib.load(file)
            print(isinstance(read["model"], kind), (read["model"].predict(X) == m.predict(X)).all())
            print(sorted(set(w for w in (b"dsgd", b"sklearn") if w in pickle.dumps(m))))
        m = SVC().fit(X, y)
        m.intercept_ = m._intercept_ = m._intercept_ + 100.0
        print(m.predict(X).sum())
    """,
    "random numbers": """
        kinds = [
            SVC(), NuSVC(nu=0.2), SVR(), NuSVR(), OneClassSVM(), LinearSVC(), LinearSVR(max_iter=10**6),
            Lasso(), ElasticNet(), Lasso(selection="random"), Ridge(), PoissonRegressor(), LogisticRegression(),
            LogisticRegression(solver="saga", **exact), SGDClassifier(), SGDRegressor(), SGDRegressor(average=True),
            SGDClassifier(early_stopping=True), SGDRegressor(early_stopping=True, shuffle=False)
        ]
        for model in kinds:
            for labels in [y, np.digitize(t, [-1, 1])] if is_classifier(model) else [np.abs(t)]:
                for rows in (X, S):
                    np.random.seed(7)
                    clone(model).fit(rows, labels)
                    print(model, np.random.randint(10**6), end=" ")
                    state = np.random.RandomState(3)
                    if "random_state" in model.get_params():
                        clone(model).set_params(random_state=5).fit(rows, labels)
                        other = clone(model)
                        other.random_state = state
                        other.fit(rows, labels)
                    print(np.random.randint(10**6), state.randint(10**6))
            try:
                model.fit(X, y[:5])
            except ValueError:
                print(np.random.randint(10**6))
    """,
    "workers": """
        from sklearn.model_selection import cross_val_score
        models = joblib.Parallel(n_jobs=2)(joblib.delayed(clone(SVC(C=c)).fit)(X, y) for c in (1.0, 2.0))
        print([(type(m) is SVC, m.C, m.predict(X).sum()) for m in models])
        print(cross_val_score(SVC(), X, y, n_jobs=2).round(3))
        joblib.externals.loky.get_reusable_executor().shutdown()
    """,
}


def printed(script: str) -> list[str]:
    """Return the lines that a script prints."""
    module = types.ModuleType("a_script")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setitem(sys.modules, "a_script", module)
        exec(compile(textwrap.dedent(ROWS) + textwrap.dedent(script), "a_script.py", "exec"), vars(module))
    return out.getvalue().splitlines()


@contextlib.contextmanager
def installed(**options: Any) -> Iterator[None]:
    dsgd.accel.install(**options)
    try:
        yield
    finally:
        dsgd.accel.uninstall()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_prints_the_same(name: str, always_worth_it: None) -> None:
    """Models, attributes, types, pickles, warnings and later random numbers are those of scikit-learn alone."""
    expected = printed(SCRIPTS[name])
    with installed():
        found = printed(SCRIPTS[name])
    assert found == expected
    if name not in ("subclasses", "workers"):
        assert "dsgd" in {call.by for call in recorded_calls()}
