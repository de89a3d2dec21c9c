"""Where and how ranks run, as a parameter of estimators."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.errors import InvalidParameterError
from dsgd.linear_model import Ridge
from dsgd.runtime import Shrink, Timeouts
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM

X, Y = np.random.default_rng(0).standard_normal((60, 3)), np.arange(60) % 2


class Live:
    """Stands for a client: it can be neither pickled nor copied."""

    def __reduce__(self) -> Any:
        raise TypeError("a live client")


@pytest.mark.parametrize("make", [SGDClassifier, SVC, LinearSVC, Ridge])
def test_fields_are_parameters_and_the_client_stays_itself(make: Any) -> None:
    """Of `set_params`, pipelines, clones and pickles; a pickle leaves the client alone behind."""
    client = Live()
    model = make(client=client).set_params(client__transport="tcp", client__timeouts=Timeouts(hung=9))
    pipeline = clone(make_pipeline(StandardScaler(), model)).set_params(
        **{f"{make.__name__.lower()}__client__workers": ["a"]}
    )
    found = pipeline[-1].get_params(deep=True)
    assert found["client__client"] is client
    assert (found["client__transport"], found["client__workers"]) == ("tcp", ["a"])
    assert clone(model).client is model.client
    assert pickle.loads(pickle.dumps(model)).client == Gang(transport="tcp", timeouts=Timeouts(hung=9))
    assert eval(repr(Gang(transport="tcp", elastic=True))) == Gang(transport="tcp", elastic=True)
    with pytest.raises(InvalidParameterError, match="no field 'wire'"):
        model.set_params(client__wire="tcp")


def test_a_grid_may_differ_in_fields() -> None:
    """scikit-learn's search sets them on clones."""
    search = GridSearchCV(SGDClassifier(random_state=0), {"client__out_of_core": [True, False]}, cv=2).fit(X, Y)
    assert len(set(search.cv_results_["mean_test_score"])) == 1
    assert search.best_estimator_.client == Gang(out_of_core=True)


MACHINES = [SVC, NuSVC, SVR, NuSVR, OneClassSVM]
PROVEN = [*MACHINES, LinearSVC, LinearSVR, Ridge]


@pytest.mark.parametrize(
    ("makes", "fields", "says"),
    [
        (PROVEN, {"elastic": True}, "does not take elastic"),
        (PROVEN, {"out_of_core": True}, "does not take out_of_core"),
        (PROVEN[5:], {"checkpoint": "there"}, "does not take checkpoint"),
        (PROVEN[5:], {"resume_from": "there"}, "does not take resume_from"),
        (PROVEN[7:], {"on_failure": "restart"}, "does not take on_failure"),
        *((PROVEN[:7], {"on_failure": each}, "without the rows") for each in ("shrink", Shrink(2))),
        *((MACHINES, {name: "there"}, "is of fits on a cluster") for name in ("checkpoint", "resume_from")),
    ],
)
def test_what_a_family_does_not_take_is_refused(makes: Any, fields: dict[str, Any], says: str) -> None:
    """By its name, before anything is trained."""
    for make in makes:
        said = rf"{make.__name__}\(client=Gang\(.*{next(iter(fields))}=.*{says}"
        with pytest.raises(InvalidParameterError, match=said):
            make(client=Gang(**fields)).fit(X, Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("make", [SGDClassifier, SGDRegressor, *PROVEN])
def test_what_only_workers_can_do_is_not_silently_ignored(make: Any) -> None:
    """A field that changes nothing in this process is named in a warning."""
    fields = {"transport": "tcp", "timeouts": Timeouts(hung=9), "on_failure": "restart", "elastic": True}
    for name in list(fields)[: 2 if make is Ridge else 3 if make in PROVEN else 4]:
        said = re.escape(f"{make.__name__}(client=Gang({name}={fields[name]!r})) has an effect on worker")
        with pytest.warns(UserWarning, match=said):
            make(client=Gang(**{name: fields[name]})).fit(X, Y)
