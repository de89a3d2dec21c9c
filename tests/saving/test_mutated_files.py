"""Files that are broken or made to break: each is read, or refused with an error of ours, in bounded memory.

What was read is used: a model predicts and trains, and training goes on from a checkpoint. That ends well or in an
error of ours, too.

Each kind gets a third of ``DSGD_FUZZ_FILES`` mutated files, 20,000 by default; ``DSGD_FUZZ_FILES=200000 pytest -s
tests/saving/test_mutated_files.py`` draws ten times as many, and says what became of them. Case n of a kind is the same
in every run; ``DSGD_FUZZ_FIRST`` is the first one. Every fourth case is used, and each where the number is given.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import random
import re
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError

import dsgd
from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.cli.files import read_rows
from dsgd.errors import DsgdError
from dsgd.files import MOST_INFLATED
from dsgd.kernel_approximation import Nystroem, RandomFeatures
from dsgd.linear_model import Lasso, LogisticRegression
from dsgd.model_selection import SGDSearchCV
from dsgd.preprocessing import ColumnEncoder
from dsgd.runtime.checkpoints.checkpoint import Checkpoint, read_newest
from dsgd.svm import SVC, SVR, LinearSVC, NuSVR, OneClassSVM
from svm_gangs import fit_on_ranks

N_CASES = int(os.environ.get("DSGD_FUZZ_FILES", "20000")) // 3
FIRST = int(os.environ.get("DSGD_FUZZ_FIRST", "0"))
USED_EVERY = 1 if "DSGD_FUZZ_FILES" in os.environ else 4
pytestmark = pytest.mark.timeout(7200)

#: Reading takes at most so many bytes for each of the file, and so many for itself. What costs most are empty objects
#: of JSON, ``{},{}``.
FACTOR, CONSTANT = 64, 16 << 20

_PREFIX = struct.Struct("<8sII32s")
_NUMBERS = (0, -1, 1, 2**31, -(2**63), 2**63, 10**8, 10**40, 1e308, float("nan"), float("inf"), True)
_TEXTS = (
    "",
    "f8",
    "O",
    "V",
    "(1000000000,)f8",
    "<U99999999",
    "\x1b[31m",
    "[/b]",
    "é" * 9,
    "sync",
    "os:system",
    "\ud800",
)
_DEEP = functools.reduce(lambda inner, _: [inner], range(300), 0)
_KINDS = (
    "record",
    "dict",
    "array",
    "scalar",
    "sparse",
    "random state",
    "estimator",
    "masked",
    "dtype",
    "type",
    "texts",
)


class Draw(random.Random):
    """The choices of one case."""

    def near(self, data: bytes, other: bytes) -> bytes:
        """Return bytes that are like some, but for a few; cut short, or with a part of others inside."""
        changed, n = bytearray(data), len(data)
        match self.randrange(5):
            case 0:
                for _ in range(self.choice((1, 1, 2, 8))):
                    changed[self.randrange(n)] ^= 1 << self.randrange(8)
            case 1:
                for _ in range(self.choice((1, 2, 8))):
                    changed[self.randrange(n)] = self.choice((0, 255, 10, 32, 58, self.randrange(256)))
            case 2:
                del changed[self.randrange(n) :]
            case 3:
                at = self.randrange(n)
                del changed[at : at + self.randrange(1, 40)]
            case 4:
                begin = self.randrange(len(other))
                at = self.randrange(n)
                changed[at : at + self.choice((0, 8, 64))] = other[begin : begin + self.choice((1, 8, 200))]
        return bytes(changed)

    def value(self, pool: list[Any]) -> Any:
        """Return a value that JSON can hold and that should not be where it is put."""
        match self.randrange(8):
            case 0 | 1:
                return self.choice(_NUMBERS)
            case 2:
                return self.choice(_TEXTS)
            case 3:
                return self.choice((None, [], {}, [[]], _DEEP, [0] * 99, {"": 0}))
            case 4:
                return {self.choice(_KINDS): self.value(pool)}
            case 5:
                return {self.choice(_KINDS): [self.choice(pool) for _ in range(self.randrange(4))]}
            case _:
                return self.choice(pool)

    def tree(self, root: Any) -> Any:
        """Return JSON with a few nodes replaced, removed, doubled, renamed or put elsewhere."""
        root = json.loads(json.dumps(root))
        for _ in range(self.choice((1, 1, 1, 2, 4))):
            nodes: list[tuple[Any, Any]] = []
            pool: list[Any] = []
            _walk(root, nodes, pool)
            holder, key = self.choice(nodes)
            match self.randrange(5):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, dict):
                    holder[self.choice((*_TEXTS, *_KINDS))] = holder.pop(key)
                case 2 if isinstance(holder, list):
                    holder.insert(key, holder[key])
                case _:
                    holder[key] = json.loads(json.dumps(self.value(pool)))
        return root

    def archive(self, data: bytes) -> bytes:
        """Return an archive whose arrays have other headers, other values, or are others."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        for _ in range(self.choice((1, 1, 3)) if entries else 0):
            name = self.choice(list(entries))
            match self.randrange(6):
                case 0:
                    entries[name] = self.head(entries[name])
                case 1:
                    entries[name] = _entry(self.array(entries[name]))
                case 2:
                    entries[name] = self.choice(list(entries.values()))
                case 3:
                    entries[name] = self.near(entries[name] or b"\0", self.choice(list(entries.values())) or b"\0")
                case 4:
                    entries[self.choice((*_TEXTS[1:5], "X.npy", "data.npy", "shape.npy", name + "/.."))] = entries.pop(
                        name
                    )
                case 5 if len(entries) > 1:
                    del entries[name]
        target, how = io.BytesIO(), self.choice((zipfile.ZIP_STORED,) * 8 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
        with warnings.catch_warnings(), zipfile.ZipFile(target, "w", how) as archive:
            warnings.simplefilter("ignore")  # of a name twice
            for name, content in entries.items():
                archive.writestr(name.encode("utf-8", "replace").decode(), content)
        return target.getvalue()

    def head(self, entry: bytes) -> bytes:
        """Return an array with another header."""
        what, by = self.choice(
            (
                (rb"'shape': \([^)]*\)", b"'shape': (%d,)" % self.choice((0, 10**6, 10**12, 2**62, 2**64, 10**30))),
                (
                    rb"'shape': \([^)]*\)",
                    b"'shape': (%d, %d)" % self.choice(((0, 2**62), (2**62, 0), (-1, -4), (2**32, 2**32))),
                ),
                (rb"'shape': \(", b"'shape': (" + b"(" * self.choice((1, 200))),
                (
                    rb"'descr': '[^']*'",
                    b"'descr': '%s'" % self.choice((b"|O", b"<f4", b">f8", b"|S0", b"<U0", b"|V999999999")),
                ),
                (rb"'descr': '[^']*'", b"'descr': [('a', '<f8'), ('b', '|O')]"),
                (rb"False", self.choice((b"True ", b"1**9**9", b"None"))),
                (rb"\n", b" " * self.choice((1, 70_000)) + b"\n"),
                (rb"^.NUMPY..", b"\x93NUMPY" + bytes((self.randrange(5), self.randrange(2)))),
            )
        )
        return re.sub(what, by.replace(b"\\", rb"\\"), entry, count=1)

    def array(self, entry: bytes) -> np.ndarray:
        """Return an array with other values, of another type or shape."""
        try:
            array = np.load(io.BytesIO(entry), allow_pickle=False)
        except Exception:  # that has been changed before
            return np.zeros(self.randrange(4))
        match self.randrange(4):
            case 0 if array.size and array.dtype.kind in "iuf":
                array.reshape(-1)[self.randrange(array.size)] = self.choice(
                    (0, 1, np.iinfo(np.int8).max) if array.dtype.kind == "u" else (-1, 100, np.iinfo(np.int8).min)
                )
            case 1:
                array = array.reshape(-1)[: self.randrange(array.size + 1)]
            case 2 if array.dtype.kind in "iufb":
                array = array.astype(self.choice(("i1", "u4", "i8", "f4", "f8", "c16", "U3", "?", "M8[s]")))
            case _:
                array = np.stack([array] * self.randrange(1, 4))
        return array


def _walk(node: Any, nodes: list[tuple[Any, Any]], pool: list[Any]) -> None:
    """Collect where nodes are, and what they are."""
    for key, item in list(node.items() if isinstance(node, dict) else enumerate(node)):
        nodes.append((node, key))
        pool.append(item)
        if isinstance(item, (dict, list)):
            _walk(item, nodes, pool)
    if not nodes:  # all is gone
        nodes.append(({"": 0}, ""))
        pool.append(0)


def _entry(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def mutated_container(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Return a file of a model or a checkpoint, most with a right checksum, which anybody can compute."""
    if draw.randrange(10) == 0:
        return draw.near(data, other)
    magic, version, n_header, _ = _PREFIX.unpack_from(data)
    said, archive = data[_PREFIX.size : _PREFIX.size + n_header], data[_PREFIX.size + n_header :]
    match draw.randrange(8):
        case 0:
            said = draw.near(said, other)
        case 1:
            archive = draw.near(archive, other)
        case 2 | 3:
            archive = draw.archive(archive)
        case _:
            said = json.dumps(draw.tree(json.loads(said))).encode()
    n_header = len(said) if draw.randrange(20) else draw.choice((0, 1, len(said) + 1, 2**32 - 1))
    body = said + archive
    return _PREFIX.pack(magic, version, n_header, hashlib.sha256(body).digest()) + body


def mutated_npz(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Return an archive of rows."""
    return draw.near(data, other) if draw.randrange(3) == 0 else draw.archive(data)


@functools.cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows and three classes that are strings."""
    X = np.random.default_rng(0).standard_normal((24, 4))
    return X, np.array(["no", "perhaps", "yes"])[np.argmax(X[:, :3], axis=1)]


def table() -> Any:
    """Return them as columns of numbers, categories and texts."""
    X, y = rows()
    return pytest.importorskip("pandas").DataFrame({"size": X[:, 0], "city": y, "note": y})


def models(folder: Path) -> list[bytes]:
    """Return files of models whose attributes are of all kinds."""
    X, y = rows()
    encoder = ColumnEncoder({"note": "text"}, n_hashed=8)
    found: list[Any] = [
        SGDClassifier(
            "log_loss", features=RandomFeatures(5), average=True, random_state=np.random.RandomState(0), n_jobs=2
        ),
        SGDRegressor(max_iter=2, tol=None, sync="slowmo"),
        SVC(class_weight={"yes": 2.0}),
        SGDSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2], "sync": [64]}, cv=2),
    ]
    fitted = [
        found[0].partial_fit(X, y, classes=np.unique(y)), found[1].fit(X, X[:, 0]), found[2].fit(sp.csr_matrix(X), y),
        found[3], encoder.fit(table()),
        *(model.fit(X, y) for model in (LinearSVC(), LogisticRegression())),
        SGDSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2]}, cv=2).fit(X, X[:, 0] > 0),
        SVC(probability="isotonic").fit(X, X[:, 0] > 0),
        *(model.fit(X, X[:, 0]) for model in (Lasso(0.01), SVR(kernel="linear"), NuSVR(kernel="poly"))),
        *(model.fit(X) for model in (RandomFeatures(7), Nystroem(n_components=9), OneClassSVM())),
        SGDClassifier(encoder=clone(encoder), max_iter=2, tol=None).fit(table(), y),
    ]  # fmt: skip
    for number, model in enumerate(fitted):
        model.save(folder / f"{number}")
    return [(folder / f"{number}").read_bytes() for number in range(len(fitted))]


def checkpoints(folder: Path) -> list[bytes]:
    """Return files of checkpoints."""
    classifier(client=Gang(checkpoint=Checkpoint(folder / "sgd", every_s=0.0))).fit(*rows())
    train_machine(client=Gang(checkpoint=Checkpoint(folder / "svm", every_s=0.0)))
    return [path.read_bytes() for path in sorted(folder.glob("*/*.dsgd"))]


def archives(folder: Path) -> list[bytes]:
    """Return archives of dense rows and of rows in CSR form."""
    X, y = rows()
    targets, sparse = np.unique(y, return_inverse=True)[1], sp.csr_matrix(np.maximum(X, 0))
    parts = {"data": sparse.data, "indices": sparse.indices, "indptr": sparse.indptr, "shape": np.array(X.shape)}
    found = []
    for save, arrays in ((np.savez, {"X": X}), (np.savez, parts), (np.savez_compressed, parts)):
        save(folder / "x.npz", y=targets, **arrays)
        found.append((folder / "x.npz").read_bytes())
    return found


#: What is used of a model, and what of it would take long if a file says so.
_METHODS = ("predict", "decision_function", "predict_proba", "predict_log_proba", "transform", "score", "__repr__")
_LONG = {"max_iter": 3, "n_jobs": 2, "n_components": 5, "cv": 2, "n_hashed": 8}


def use_model(model: Any, path: Path) -> None:
    """Predict and train."""
    X, y = rows()
    given = table() if isinstance(model, ColumnEncoder) or hasattr(model, "encoder_") else X
    targets = X[:, 0] if is_regressor(model) else y
    for name in _METHODS:
        if name == "score" and list(getattr(model, "classes_", np.unique(y))) != list(np.unique(y)):
            continue  # scikit-learn's error for labels of another type
        with suppress(DsgdError, NotFittedError):
            if (method := getattr(model, name, None)) is not None:
                method(*{"score": (given, targets), "__repr__": ()}.get(name, (given,)))
    for name, value in model.get_params().items():
        most = _LONG.get(name.rpartition("__")[2])
        if most is not None and isinstance(value, (int, float)) and value > 1000:
            model.set_params(**{name: most})
    for name in ("partial_fit", "fit"):
        with suppress(DsgdError):
            if (method := getattr(model, name, None)) is not None:
                method(given, targets)


def use_checkpoint(state: Any, path: Path) -> None:
    """Go on with the training of it."""
    with suppress(DsgdError):
        if "estimator" in state.configuration:
            train_machine(client=Gang(resume_from=path.parent))
        else:
            classifier(client=Gang(resume_from=path.parent)).fit(*rows())


def classifier(**places: Any) -> SGDClassifier:
    """Return an estimator of two ranks that remember something."""
    return SGDClassifier(max_iter=3, tol=None, n_jobs=2, sync="slowmo", average=True, random_state=0, **places)


def train_machine(**places: Any) -> None:
    """Train a kernel machine on a gang of one, as workers do."""
    X, y = rows()
    model = SVC(**places)
    fit_on_ranks(model, X, [[(X, y, None, 0)]], np.unique(y))


def read_checkpoint(path: Path, draw: Draw) -> Any:
    """Read a checkpoint; the list beside it is as good as the file."""
    name = "checkpoint-00000001-00000000.dsgd"
    path.replace(path.with_name(name))
    authors = {"version": 1, "names": [name], "written_by": {name: ["x", 0]}}
    said = json.dumps(draw.tree(authors) if draw.randrange(3) == 0 else authors)
    (path.parent / "newest.json").write_text(said if draw.randrange(9) else said[draw.randrange(len(said)) :])
    said = path.with_name(name).read_bytes()[_PREFIX.size :]
    configuration: Any = {}
    with suppress(Exception):
        configuration = json.JSONDecoder().raw_decode(said[: said.index(b"PK")].decode())[0]["configuration"]
    return read_newest(path.parent, configuration)


def read_model(path: Path, draw: Draw) -> Any:
    """Load a model."""
    return dsgd.load(path)


def read_archive(path: Path, draw: Draw) -> Any:
    """Read rows as the command line does."""
    return read_rows([str(path.replace(path.with_suffix(".npz")))])


KINDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "model": (models, mutated_container, read_model, use_model),
    "checkpoint": (checkpoints, mutated_container, read_checkpoint, use_checkpoint),
    "npz": (archives, mutated_npz, read_archive, lambda found, path: None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory, where there is one: opening a file on a disk takes longer than reading it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_mutated_file_is_read_or_refused(kind: str, folder: Path, tmp_path: Path) -> None:
    """Every file is read or ends in an error of ours, and takes no more memory than its bytes account for."""
    make, mutate, read, use = KINDS[kind]
    good, path = make(tmp_path), folder / "file"
    for number, data in enumerate(good):  # also so that everything is loaded and compiled
        path.write_bytes(data)
        use(read(path, Draw(number)), path)
    outcomes: Counter[str] = Counter()
    found: Any = None
    for case in range(FIRST, FIRST + N_CASES):
        draw = Draw(f"{kind} {case}")
        data = mutate(draw, draw.choice(good), draw.choice(good))
        path.write_bytes(data)
        if is_measured := case % 4 == 0:  # which takes as long as reading itself
            tracemalloc.start()
        try:
            found = read(path, draw)
            outcomes["read"] += 1
        except DsgdError as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{kind} {case} ends in a raw error") from error
        finally:
            grown = tracemalloc.get_traced_memory()[1] if is_measured else 0
            tracemalloc.stop()
        most = FACTOR if kind != "npz" else MOST_INFLATED
        assert grown <= most * len(data) + CONSTANT, f"{kind} {case}: {len(data)} bytes took {grown}"
        if found is not None and case % USED_EVERY == 0:
            try:
                use(found, path)
                outcomes["used"] += 1
            except Exception as error:
                raise AssertionError(f"{kind} {case} ends in a raw error where it is used") from error
        found = None
    print(kind, dict(outcomes))  # noqa: T201
    assert sum(outcomes.values()) - outcomes["used"] == N_CASES
