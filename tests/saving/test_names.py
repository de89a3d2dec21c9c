"""Texts in files of models: none is ever imported or called, whatever is done with the model that is loaded."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsgd
from dsgd import SGDClassifier
from dsgd.errors import DsgdError, InvalidParameterError, ModelFileError
from dsgd.local.rules import parse_optimizer, parse_sampling
from dsgd.model_selection import SGDSearchCV, SVMSearchCV
from dsgd.runtime.checkpoints.container import Container
from dsgd.saving.values import ESTIMATORS, Writer
from dsgd.svm import SVC
from dsgd.sync import resolve

FILES = Container("a model", b"DSGDMODL", 1)
X = np.random.default_rng(0).standard_normal((24, 3))
y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]


@pytest.fixture(autouse=True)
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a module in reach that must not be imported, and an entry point that leads to it."""
    (tmp_path / "trap_of_files.py").write_text(
        "def run(command=''):\n    raise SystemExit(command)\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = importlib.metadata.EntryPoint("trap", "trap_of_files:run", "dsgd.strategies")
    monkeypatch.setattr(sys.modules["dsgd.named"], "installed", lambda group: {"trap": point})
    yield
    assert "trap_of_files" not in sys.modules


class Any_(Writer):  # noqa: N801
    """Writes what a `Writer` refuses."""

    named = lambda self, name, value: self.value(value)  # noqa: E731


def forged(path: Path, model: Any, change: Callable[[Any], object]) -> Path:
    """Write a file of a model that was changed by hand, with a right checksum."""
    model.save(path)
    header, arrays = FILES.unpack(path.read_bytes())
    change(header["model"]["estimator"])
    path.write_bytes(FILES.pack(header, arrays))
    return path


def used(path: Path) -> None:
    """Load a model and fit it; errors of ours are what is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = dsgd.load(path)
        except ModelFileError:
            return
        try:
            model.fit(X, y if hasattr(model, "classes_") or "C" in type(model).__name__ else X[:, 0])
        except (DsgdError, ValueError, TypeError):
            return


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "ColumnEncoder"])
def test_no_parameter_of_a_file_names_code(name: str, tmp_path: Path) -> None:
    """Whatever parameter of whatever estimator holds a text: no fit imports what it names."""
    kind: Any = getattr(import_module(ESTIMATORS[name]), name)
    model = kind(SGDClassifier() if name == "SGDSearchCV" else SVC(), {}) if name.endswith("CV") else kind()
    for parameter in kind._get_param_names():
        if parameter not in ("client", "workers", "checkpoint", "resume_from"):
            for text in ("trap_of_files:run:command=x", "trap"):
                used(forged(tmp_path / "model", model, lambda content, p=parameter, t=text: content[1].update({p: t})))


TEXT = "trap_of_files:run:command=x"
GRIDS: dict[str, Any] = {
    "list": {"sync": [TEXT]},
    "grids": [{"alpha": [1e-3]}, {"sync": [1, TEXT]}],
    "tuple": ({"sync": (TEXT,)},),
    "inner": {"sync": [f"local:compressor=({TEXT})"]},
    "first": {"sync": [f"local:{TEXT}"]},
    "entry": {"sync": ["trap"]},
    "parameters of one": {"sync": ["trap:x=1"]},
    "text": {"sync": [np.str_(TEXT)]},
    "array": {"sync": np.array([TEXT])},
    "objects": {"sync": np.array([TEXT, None], dtype=object)},
    "long texts": {"sync": np.array([TEXT], dtype=np.dtypes.StringDType())},
    "masked": {"sync": np.ma.MaskedArray(np.array([TEXT], dtype=object), [False])},
    "deep": {"sync": [[[TEXT]], {"x": (TEXT,)}, {TEXT: 1}]},
    "of the estimator": {"estimator__sync": [TEXT]},
}


@pytest.mark.parametrize("case", GRIDS)
def test_no_grid_of_a_file_names_code(case: str, tmp_path: Path) -> None:
    """Candidates at any depth and in any container are held to the same law, when they are saved and when they load."""
    search = SGDSearchCV(SGDClassifier(), GRIDS[case], cv=2)
    with pytest.raises(ModelFileError, match="names code"):
        search.save(tmp_path / "model")
    writer = Any_()
    coded = writer.value(GRIDS[case])
    plain = SGDSearchCV(SGDClassifier(), {}, cv=2)
    for kind, place, key in (("parameter", 1, "param_grid"), ("attribute", 2, "best_params_")):
        path = forged(tmp_path / kind, plain, lambda content, place=place, key=key: content[place].update({key: coded}))
        header, _ = FILES.unpack(path.read_bytes())
        path.write_bytes(FILES.pack(header, writer.arrays))
        with pytest.raises(ModelFileError, match="may name code"):
            dsgd.load(path)


def test_no_grid_of_a_file_says_where_fits_write(tmp_path: Path) -> None:
    """Candidates of a file set no checkpoints: a fit would write where the file says."""
    search = SVMSearchCV(SVC(), {"client__checkpoint": [str(tmp_path)]})
    with pytest.raises(ModelFileError, match="does not say where fits run, read and write"):
        search.save(tmp_path / "model")
    grid = {"dict": [["estimator__client__checkpoint", [str(tmp_path)]]]}
    with pytest.raises(ModelFileError, match="candidates of SVMSearchCV"):
        dsgd.load(
            forged(tmp_path / "model", SVMSearchCV(SVC(), {}), lambda content: content[1].update(param_grid=grid))
        )


@pytest.mark.parametrize("parse", [resolve, parse_optimizer, parse_sampling])
@pytest.mark.parametrize(
    "text", ["subprocess:getoutput:cmd=touch {}", "os:mkdir:path={}", "builtins:open:{}", "os:environ"]
)
def test_a_text_calls_classes_of_the_family_alone(parse: Callable[[str], Any], text: str, tmp_path: Path) -> None:
    """What a user names is looked at before it is called: functions and other classes are refused, and nothing runs."""
    with pytest.raises(InvalidParameterError, match=r"which is not a (strategy|local optimiser|sampling) of dsgd"):
        parse(text.format(tmp_path / "made"))
    assert not list(tmp_path.glob("made"))
