"""Models in files without code: the loaded model is the saved one, and a file can do nothing but that."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dsgd
from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.comm.topology import Ring
from dsgd.compress import COMPRESSOR_NAMES, ErrorFeedback, Layerwise, TopK, parse_compressor
from dsgd.errors import ModelFileError
from dsgd.kernel_approximation import Nystroem, RandomFeatures
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.local import Cyclical, Importance
from dsgd.local.rules import OPTIMIZER_NAMES, parse_optimizer
from dsgd.model_selection import SGDSearchCV, SVMSearchCV
from dsgd.preprocessing import ColumnEncoder
from dsgd.runtime import Checkpoint, Restart, Timeouts
from dsgd.runtime.checkpoints.container import Container
from dsgd.saving.values import ESTIMATORS, Reader, Writer
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, SVR, Elimination, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM
from dsgd.sync import DPSGD, STRATEGIES, LocalSGD

N = 90
METHODS = ("predict", "decision_function", "predict_proba", "transform", "score_samples")

MODELS: dict[str, Callable[[], Any]] = {
    "ColumnEncoder": ColumnEncoder,
    "ElasticNet": lambda: ElasticNet(0.01),
    "Lasso": lambda: Lasso(0.01),
    "LinearSVC": LinearSVC,
    "LinearSVR": LinearSVR,
    "LogisticRegression": lambda: LogisticRegression(class_weight={"yes": 2.0}),
    "NuSVC": lambda: NuSVC(nu=0.2, class_weight={"yes": 2.0}),
    "NuSVR": NuSVR,
    "Nystroem": lambda: Nystroem(n_components=9, random_state=0),
    "OneClassSVM": OneClassSVM,
    "PoissonRegressor": lambda: PoissonRegressor(alpha=0.1),
    "RandomFeatures": lambda: RandomFeatures(20, random_state=0),
    "Ridge": Ridge,
    "SGDClassifier": lambda: SGDClassifier("log_loss", features=RandomFeatures(20), average=True, random_state=0),
    "SGDRegressor": lambda: SGDRegressor(random_state=0, sync=DPSGD(64, Ring(), keep_models=True), n_jobs=2),
    "SGDSearchCV": lambda: SGDSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2], "loss": ["hinge"]}, cv=3),
    "SVC": lambda: SVC(decision_function_shape="ovo", elimination=Elimination("multi")),
    "SVMSearchCV": lambda: SVMSearchCV(SVC(), {"C": [0.1, 10.0], "gamma": [0.1, "scale"]}, cv=3),
    "SVR": lambda: SVR(kernel="linear"),
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows and three classes that are strings."""
    X = np.random.default_rng(0).standard_normal((N, 5))
    return X, np.array(["no", "perhaps", "yes"])[np.argmax(X[:, :3], axis=1)]


def through(model: Any, folder: Path) -> Any:
    """Return a model that was saved and loaded."""
    model.save(folder / "model.dsgd")
    return dsgd.load(folder / "model.dsgd")


def check_equal(found: Any, wanted: Any, X: Any = None) -> None:
    """Check that two models have the same parameters and attributes, and predict the same bits."""
    assert type(found) is type(wanted)
    assert repr(found) == repr(wanted)
    lost = {"ledger_", "_ledger_is_elsewhere", "_lost_client", "run_"}
    assert set(vars(found)) | lost == set(vars(wanted)) | lost
    for method in METHODS:
        if X is not None and hasattr(wanted, method):
            ours, theirs = getattr(found, method)(X), getattr(wanted, method)(X)
            if sp.issparse(theirs):
                assert ours.indices.tobytes() == theirs.indices.tobytes()
                ours, theirs = ours.data, theirs.data
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()


def test_every_class_that_can_be_saved_is_tested() -> None:
    """The table of classes and the models of these tests name the same ones."""
    assert set(MODELS) == set(ESTIMATORS)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "form"),
    [("SVC", "float32"), *((name, form) for name in MODELS for form in ("dense", "csr") if name != "ColumnEncoder")],
)
def test_a_loaded_model_is_the_saved_one(name: str, form: str, tmp_path: Path) -> None:
    """Parameters, fitted attributes and predictions of every class come back, bit for bit, for all forms of rows."""
    X, y = rows()
    X = sp.csr_matrix(X) if form == "csr" else X.astype(np.float32 if form == "float32" else np.float64)
    target = y if name.endswith(("C", "SGDClassifier", "SearchCV", "LogisticRegression")) else rows()[0][:, 0]
    if name == "PoissonRegressor":
        target = np.abs(target)
    model = MODELS[name]().fit(X, target)
    check_equal(through(model, tmp_path), model, X)
    check_equal(through(MODELS[name](), tmp_path), MODELS[name]())  # and before it is fitted


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -7], np.int8),
        np.array([True, False]),
        np.array([b"left", b"right"]),
        np.array(["å", "b"]),
        np.array(["å", "longer"], dtype=object),
        np.array([1.5, np.float32(2.5)], dtype=object),
        np.array(["x", "y"], dtype=np.dtypes.StringDType()),
    ],
    ids=lambda labels: f"{labels.dtype}",
)
def test_labels_of_any_type(labels: np.ndarray, tmp_path: Path) -> None:
    """Labels have the type that they had."""
    model = SGDClassifier(random_state=0).fit([[-1.0], [1.0]], [0, 1])
    model.classes_ = labels
    found = through(model, tmp_path).classes_
    assert found.dtype == labels.dtype
    assert found.tolist() == labels.tolist()
    assert [type(value) for value in found] == [type(value) for value in labels]


VALUES: list[Any] = [
    *(strategy() for strategy in STRATEGIES.values()),
    *map(parse_compressor, COMPRESSOR_NAMES),
    *map(parse_optimizer, OPTIMIZER_NAMES),
    Layerwise({"*.bias": None, "*": ErrorFeedback(TopK(0.1))}),
    Importance(0.3),
    Cyclical(),
    Restart(at_most=3),
    Timeouts(),
    {1: 2, "a": (None, True, [1e-300, 2**70]), None: frozenset({1, 2})},
    math.inf,
    np.float32(1.5),
    np.str_("ü"),
    np.datetime64("2026-11-26"),
    np.longdouble(1) / 3,
    np.float32,
    np.dtype(">i4"),
    float,
    b"\x00x",
    Path("somewhere"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value: Any) -> None:
    """Parts of every kind and plain values are what they were, with their types, after JSON."""
    writer = Writer()
    coded = json.loads(json.dumps(writer.value(value), allow_nan=False))
    found = Reader(writer.arrays).value(coded)
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)


def test_an_array_keeps_its_order_and_its_mask() -> None:
    """Columns stay columns, which products of matrices depend on; masks and random numbers go along."""
    writer, order = Writer(), np.asfortranarray(np.arange(6.0).reshape(2, 3))
    masked = np.ma.MaskedArray(np.array(["a", None], dtype=object), [False, True])
    given = [order, order, masked, np.random.RandomState(5)]
    coded = writer.value(given)
    arrays = {name: pickle.loads(pickle.dumps(array)) for name, array in writer.arrays.items()}
    first, second, third, state = Reader(arrays).value(coded)
    assert first.flags.f_contiguous
    assert first is second
    assert third.mask.tolist() == [False, True]
    assert third.dtype == object
    assert state.rand() == np.random.RandomState(5).rand()


def test_where_a_fit_ran_is_left_out(tmp_path: Path) -> None:
    """Cluster, checkpoints and ledger stay behind, and the model says so."""
    X, y = rows()
    gang = Gang(SimulatedCluster(2), checkpoint=Checkpoint(tmp_path / "states"))
    model = SGDClassifier(client=gang, random_state=0).fit(X, y)
    found = through(model, tmp_path)
    assert found.client is None
    named = Gang(workers=["a"], resume_from="there", transport="tcp")
    assert through(SGDClassifier(client=named), tmp_path).client == Gang(transport="tcp")
    with pytest.raises(AttributeError, match="pickles and copies of a model leave it out"):
        _ = found.ledger_
    assert found.fit_report_["ranks"] == 2
    model.fit_report_["hook"] = print
    assert not hasattr(through(model, tmp_path), "fit_report_")


class Own(LocalSGD):
    """A strategy that is not of dsgd."""


class Mine(SGDRegressor):
    """An estimator that is not of dsgd."""


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (SVC(kernel=lambda A, B: A @ B.T), r"SVC\(kernel=\.\.\.\) is, or holds, function '<lambda>'"),
        (SGDClassifier(sync=Own()), r"SGDClassifier\(sync=\.\.\.\) is, or holds, a Own"),
        (SGDClassifier(sync="saving.test_saving:Own"), r"SGDClassifier\(sync=\.\.\.\)"),
        (SGDSearchCV(SGDClassifier(sync=Own()), {}), r"SGDClassifier\(sync=\.\.\.\)"),
        (SGDSearchCV(SGDClassifier(), {"loss": iter(["hinge"])}), r"SGDSearchCV\(param_grid=\.\.\.\).*list_iterator"),
        (Mine(), "Mine.save: only the classes of dsgd can be saved"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_code_cannot_be_saved(model: Any, names: str, tmp_path: Path) -> None:
    """A function, a class of the user or a subclass is an error that names it, and no file is written."""
    with pytest.raises(ValueError, match=names):
        model.save(tmp_path / "model.dsgd")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["slowmo", "diloco:every=64", "local:64,compressor=(topk:density=0.1)"])
def test_texts_of_known_parts_stay(text: str, tmp_path: Path) -> None:
    """A text that stands for parts of the package alone is saved as it is, in a grid as well."""
    assert through(SGDClassifier(sync=text), tmp_path).sync == text
    assert through(SGDClassifier(optimizer="momentum:0.5"), tmp_path).optimizer == "momentum:0.5"
    grid = {"sync": [text, None, 64]}
    assert through(SGDSearchCV(SGDClassifier(), grid), tmp_path).param_grid == grid


# -- files ----------------------------------------------------------------------------------------------------------

FILES = Container("a model", b"DSGDMODL", 1)


def write(path: Path, change: Callable[[list[Any]], object] = id, container: Container = FILES, **arrays: Any) -> Path:
    """Write a model whose name, parameters and attributes were changed by hand, with a right checksum."""
    SGDRegressor(random_state=0).fit(rows()[0], rows()[0][:, 0]).save(path)
    header, found = FILES.unpack(path.read_bytes())
    change(header["model"]["estimator"])
    path.write_bytes(container.pack(header, {**found, **arrays}))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.__setitem__(0, "os.system"), "unknown class 'os.system'"),
        (lambda content: content[1].update(new_parameter=1), "parameters of SGDRegressor.*new_parameter"),
        (
            lambda content: content[1].update(client={"record": ["Gang", {"checkpoint": "/tmp/else"}]}),
            "where a fit of SGDRegressor runs.*checkpoint",
        ),
        (lambda content: content[1].update(client="tcp://elsewhere:8786"), "where a fit of SGDRegressor runs"),
        (lambda content: content[1].update(sync="os:system"), "sync='os:system' may name code"),
        (lambda content: content[1].update(sync={"scalar": ["<U9", "os:system"]}), "sync='os:system' may name code"),
        (lambda content: content[1].update(sync={"record": ["LocalCluster", {}]}), "unknown class 'LocalC"),
        (lambda content: content[1].update(sync={"record": ["LocalSGD", {"every": -1}]}), "InvalidParameterError"),
        (lambda content: content[1].update(loss={"pickle": "gASV"}), "unknown kind 'pickle'"),
        (lambda content: content[2].update(__class__="x"), "attributes of SGDRegressor.*__class__"),
        (lambda content: content[2].update(coef_={"array": "no such"}), "KeyError"),
        (lambda content: content.clear(), "ValueError"),
    ],
)
def test_a_file_names_only_what_is_known(change: Callable[[list[Any]], object], says: str, tmp_path: Path) -> None:
    """Classes, parameters and attributes that a file makes up are refused, whatever its checksum says."""
    with pytest.raises(ModelFileError, match=says):
        dsgd.load(write(tmp_path / "model.dsgd", change))


def test_indices_of_sparse_rows_are_checked(tmp_path: Path) -> None:
    """Compiled code trusts the columns of support vectors, so that a file may not name others."""
    X, y = rows()
    model = SVC().fit(sp.csr_matrix(X), y)
    model.support_vectors_.indices[3] = 10**6
    model.save(tmp_path / "model.dsgd")
    with pytest.raises(ModelFileError, match="makes no model"):
        dsgd.load(tmp_path / "model.dsgd")


@pytest.mark.parametrize("position", [-1, 625, 10**8, 2**40, 0.5, None])
def test_random_states_are_checked(position: Any, tmp_path: Path) -> None:
    """Compiled code reads a random state where its position says, which a file may not put elsewhere."""
    path = tmp_path / "model.dsgd"
    SGDRegressor(random_state=np.random.RandomState(0)).save(path)
    header, arrays = FILES.unpack(path.read_bytes())
    state = dict(header["model"]["estimator"][1]["random_state"]["random state"]["dict"])
    assert dict(state["state"]["dict"])["pos"] == 624
    next(pair for pair in state["state"]["dict"] if pair[0] == "pos")[1] = position
    path.write_bytes(FILES.pack(header, arrays))
    with pytest.raises(ModelFileError, match=r"random state that is none|makes no model"):
        dsgd.load(path)


@pytest.mark.parametrize(
    "value",
    [
        {"masked": [{"array": "0"}, {"array": "0"}, 0]},
        {"sparse": ["csr_matrix", [1, 2], ["0", "0", "0"]]},
        {"scalar": ["V", 10**12]},
        {"scalar": ["S", 10**12]},
        {"objects": [[10**12], []]},
        {"texts": [[2**40], ["a"]]},
    ],
    ids=lambda value: next(iter(value)),
)
def test_values_take_no_more_memory_than_the_file_has(value: Any, tmp_path: Path) -> None:
    """One array that is named again and again, and sizes that are claimed, are refused before memory is taken."""
    arrays = {"0": np.zeros(1 << 20, dtype=bool)}
    model = {"estimator": ["SGDRegressor", {"loss": [value] * 3000}, {}]}
    path = tmp_path / "model.dsgd"
    path.write_bytes(FILES.pack({"model": model}, arrays))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            dsgd.load(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * path.stat().st_size
    finally:
        tracemalloc.stop()


class Touches:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_loading_runs_nothing(tmp_path: Path) -> None:
    """A pickle, and one inside of the arrays of a file, are refused and not run; the error says what reads pickles."""
    path, touched = tmp_path / "model.dsgd", tmp_path / "touched"
    path.write_bytes(pickle.dumps(Touches(touched)))
    with pytest.raises(ModelFileError, match=r"not a model of dsgd.*read by joblib\.load"):
        dsgd.load(path)
    write(path, attack=np.array([Touches(touched)], dtype=object))
    with pytest.raises(ModelFileError, match="allow_pickle"):
        dsgd.load(path)
    assert not touched.exists()
    with pytest.raises(FileNotFoundError):
        dsgd.load(tmp_path / "none.dsgd")


def test_damaged_files_and_later_formats_are_told_apart(tmp_path: Path) -> None:
    """A changed or missing byte is damage; a file of a later format says which one this version reads."""
    path = write(tmp_path / "model.dsgd")
    content = path.read_bytes()
    for at in (50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ModelFileError, match="checksum is wrong"):
            dsgd.load(path)
    for n in (20, len(content) - 9):
        path.write_bytes(content[:n])
        with pytest.raises(ModelFileError, match=r"less than a header|checksum is wrong"):
            dsgd.load(path)
    write(path, container=Container("a model", b"DSGDMODL", 2))
    with pytest.raises(ModelFileError, match="format 2; this version of dsgd reads format 1"):
        dsgd.load(path)


def test_compressed_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of a file cannot stand for more than there is memory: we compress nothing."""
    monkeypatch.setattr(np, "savez", np.savez_compressed)
    path = tmp_path / "model.dsgd"
    path.write_bytes(FILES.pack({"model": {}}, {"zeros": np.zeros(10**6)}))
    assert path.stat().st_size < 10**5
    with pytest.raises(ModelFileError, match="compressed arrays"):
        dsgd.load(path)


@pytest.mark.slow
def test_another_process_loads_what_it_needs(tmp_path: Path) -> None:
    """A fresh process that has imported dsgd alone reads a model, which predicts the same; also of a URL."""
    X, y = rows()
    model = SGDClassifier(random_state=0).fit(X, y)
    model.save(tmp_path / "deeper" / "model.dsgd")
    code = "import sys, dsgd; print(*dsgd.load(sys.argv[1]).predict([[0.5, 0.1, 0.2, 0.3, 0.4]]))"
    for place in (str(tmp_path / "deeper" / "model.dsgd"), f"file://{tmp_path}/deeper/model.dsgd"):
        done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=True)
        assert done.stdout.split() == model.predict([[0.5, 0.1, 0.2, 0.3, 0.4]]).tolist()
    model.save("memory://models/one.dsgd")
    check_equal(dsgd.load("memory://models/one.dsgd"), model, X)
