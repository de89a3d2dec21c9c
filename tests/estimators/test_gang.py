"""Where and how ranks run, as a parameter of estimators."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dsgd
from dsgd import Gang, SGDClassifier
from dsgd.errors import InvalidParameterError
from dsgd.linear_model import Ridge
from dsgd.runtime import Timeouts
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, LinearSVC

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


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (SVC, {"elastic": True}),
        (SVC, {"out_of_core": True}),
        (LinearSVC, {"checkpoint": "there"}),
        (LinearSVC, {"resume_from": "there"}),
        (Ridge, {"on_failure": "restart"}),
        (Ridge, {"checkpoint": "there"}),
    ],
)
def test_what_a_family_does_not_take_is_refused(make: Any, fields: dict[str, Any]) -> None:
    """By its name, before anything is trained."""
    [name] = fields
    with pytest.raises(InvalidParameterError, match=rf"{make.__name__}\(client=Gang\({name}=.*does not take {name}"):
        make(client=Gang(**fields)).fit(X, Y)


def test_a_file_keeps_fields_but_places(tmp_path: Any) -> None:
    """What says where a fit runs, reads and writes stays behind."""
    gang = Gang(SimulatedCluster(2), checkpoint=tmp_path / "states", workers=["a"], timeouts=Timeouts(peer=7))
    for client, kept in ((gang, Gang(timeouts=Timeouts(peer=7))), (Gang(checkpoint=tmp_path), None)):
        SGDClassifier(client=client).save(tmp_path / "model")
        assert dsgd.load(tmp_path / "model").client == kept
