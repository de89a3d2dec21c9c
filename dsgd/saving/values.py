"""Values and texts in files, and the classes that can be saved.

A file holds names alone, and each stands for a class in a table: nothing that a file says is imported. JSON has None,
bools, whole and finite numbers, texts and lists. Everything else is an object with one entry, whose key says what it
is: one row of a table for each, with how it is written and read. What has no row cannot be saved. Texts of parameters
such as ``sync`` may name parts of this package, and no other code.

**Whether a model that was read can be used.** The checksum of a file says that it is as somebody wrote it, and not that
its arrays fit each other. So a record is compared with the annotations of its class, and a model that says how many
columns it takes answers for one row of them. What compiled code indexes by is checked where it is read, before.
"""

from __future__ import annotations

import math
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from dsgd.errors import DsgdError, InvalidDataError, InvalidParameterError
from dsgd.runtime.checkpoints.container import DamagedError
from dsgd.types import AnyArray

#: Where the estimators and transformers are that can be saved, by name.
ESTIMATORS: Final = {
    "ColumnEncoder": "dsgd.preprocessing",
    "ElasticNet": "dsgd.linear_model",
    "Lasso": "dsgd.linear_model",
    "LinearSVC": "dsgd.svm",
    "LinearSVR": "dsgd.svm",
    "LogisticRegression": "dsgd.linear_model",
    "NuSVC": "dsgd.svm",
    "NuSVR": "dsgd.svm",
    "Nystroem": "dsgd.kernel_approximation",
    "OneClassSVM": "dsgd.svm",
    "PoissonRegressor": "dsgd.linear_model",
    "RandomFeatures": "dsgd.kernel_approximation",
    "Ridge": "dsgd.linear_model",
    "SGDClassifier": "dsgd.estimators",
    "SGDRegressor": "dsgd.estimators",
    "SGDSearchCV": "dsgd.model_selection",
    "SVC": "dsgd.svm",
    "SVMSearchCV": "dsgd.model_selection",
    "SVR": "dsgd.svm",
}

#: Modules with records that parameters and fitted attributes are made of, and the classes that these derive from, or
#: are. Making one of them stores and checks its fields, and does nothing else.
_RECORDS: Final = {
    "dsgd.sync": ("AbstractStrategy", "AbstractPeriod"),
    "dsgd.sync.adaptive": ("AbstractRule",),
    "dsgd.compress": ("AbstractCompressor",),
    "dsgd.comm.topology": ("AbstractTopology",),
    "dsgd.local": ("AbstractRule", "AbstractReduction", "AbstractCycle", "Importance"),
    "dsgd.local.features": ("RandomMap",),
    "dsgd.sim": ("RunRecord", "SimulatedCluster", "Network", "Compute", "AbstractStragglers", "Failures"),
    "dsgd.collectives.cost": ("Link",),
    "dsgd.runtime": ("Gang", "Restart", "Shrink", "Timeouts"),
    "dsgd.svm": ("Elimination", "EliminationRecord"),
    "dsgd.preprocessing.layout": ("Layout", "Numbers", "OneHot"),
    "dsgd.runtime.checkpoints.checkpoint": ("SavedState",),
}


@cache
def record_of(name: str) -> type[Any] | None:
    """Return the record of a name, None if there is none."""
    for home, bases in _RECORDS.items():
        module = import_module(home)
        found = getattr(module, name, None)
        known = tuple(getattr(module, base) for base in bases)
        if isinstance(found, type) and is_dataclass(found) and issubclass(found, known):
            return found
    return None


def name_of_record(value: Any) -> str | None:
    """Return the name by which a file has an object, None if it is no record of the table."""
    kind = type(value)
    return kind.__name__ if is_dataclass(kind) and record_of(kind.__name__) is kind else None


@cache
def history() -> type[Any]:
    """Return the class of the histories of fits."""
    found: type[Any] = import_module("dsgd.inputs.callbacks").History
    return found


#: What answers for rows, where a model has it.
_METHODS: Final = ("predict", "decision_function", "predict_proba", "transform")

#: Wider rows are tried as CSR: what a file says of its width takes no memory then.
_MOST_DENSE: Final = 1 << 16


def zeros(n_features: Any, *, sparse: bool) -> Any:
    """Return a row of zeros; None where it would be wide and has to be dense."""
    if not isinstance(n_features, Integral) or n_features < 1:
        raise DamagedError(f"its n_features_in_ is {n_features!r}")
    if n_features <= _MOST_DENSE:
        return np.zeros((1, int(n_features)))
    return sp.csr_matrix((1, int(n_features))) if sparse else None


def check_use(model: Any) -> None:
    """Refuse a fitted model whose attributes do not fit each other."""
    if not any(name.endswith("_") and name[0] != "_" for name in vars(model)):
        return
    what, row = "repr", None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of names that the row does not have
            repr(model)
            row = model._row_to_try()
            for what in _METHODS if row is not None else ():
                method = getattr(model, what, None)
                if method is not None:
                    _check_answer(method, row, len(getattr(model, "classes_", ())))
    except NotFittedError:
        return
    except (DsgdError, DamagedError) as error:
        # Other parameters may be set, and columns of a table may hold what this row does not.
        is_table = getattr(row, "dtype", np.dtype(float)).hasobject
        if isinstance(error, DamagedError) or (isinstance(error, InvalidDataError) and not is_table):
            raise DamagedError(f"its {type(model).__name__} does not answer ({what}: {error})") from error
    except Exception as error:
        raise DamagedError(
            f"the attributes of its {type(model).__name__} do not fit each other ({what}: {type(error).__name__}: "
            f"{error})"
        ) from error


def _check_answer(method: Any, row: Any, n_classes: int) -> None:
    answer = method(row)
    shape, dtype = np.shape(answer), answer.dtype
    if shape[:1] != (1,) or (method.__name__ == "predict" and len(shape) != 1) or dtype.kind == "c":
        raise DamagedError(f"of one row it makes {shape}, {dtype}")
    n = shape[1] if len(shape) > 1 else 1
    are_as_many = n in ((1,) if n_classes == 2 else (n_classes, n_classes * (n_classes - 1) // 2))
    if method.__name__ == "decision_function" and n_classes and not are_as_many:
        raise DamagedError(f"its decisions of {n_classes} classes are {n}")
    if dtype.kind == "f" and not np.isfinite(answer.data if sp.issparse(answer) else answer).all():
        raise DamagedError("of a row of zeros it makes numbers that are not finite")


def check_fields(kind: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse fields of other types than their class says; a record with a `__post_init__` checks itself."""
    typed: Any = kind
    hints = {} if hasattr(kind, "__post_init__") else _hints(typed)
    for name, value in given.items():
        if not _fits(value, hints.get(name, Any)):
            raise DamagedError(f"{kind.__name__}({name}=...) is {value!r:.80}")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    known = typing.get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type, items included; what is no plain type holds for all."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(value is part or (isinstance(value, str) and value == part) for part in parts)
    if origin is types.NoneType:
        return value is None
    if origin in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if origin is int else Real)
    if origin is bool:
        return isinstance(value, (bool, np.bool_))
    if origin is Any or not isinstance(origin, type):
        return True
    if not isinstance(value, origin):
        return False
    return all(_fits(item, part) for item, part in _items(value, origin, parts))


def _items(value: Any, origin: type[Any], parts: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container, each with its type."""
    if not parts or not issubclass(origin, (tuple, list, frozenset, Mapping)):
        return ()
    if issubclass(origin, Mapping):
        return [(each, part) for item in value.items() for each, part in zip(item, parts, strict=True)]
    if origin is tuple and parts[-1] is not Ellipsis:
        # One that is too long or too short has an item of no type.
        return zip(value, parts, strict=True) if len(value) == len(parts) else [(value, types.NoneType)]
    return ((item, parts[0]) for item in value)


#: Values may be copies of arrays, so many of each on average and so many bytes more; a file may name one array often.
_MOST_COPIES: Final = 16
_MOST_COPIED: Final = 1 << 20


class UnsavedError(Exception):
    """A value that is neither data nor made of known parts; the text says what it is."""


class Writer:
    """Makes JSON of values, and collects their arrays."""

    def __init__(
        self, models: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any, Writer], Any]]] | None = None
    ) -> None:
        self.arrays: dict[str, AnyArray] = {}
        self._names: dict[int, str] = {}
        self._rows = {key: (codec.takes, codec.write) for key, codec in _CODECS.items()} | dict(models or {})

    def value(self, value: Any) -> Any:
        """Return a value as JSON."""
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return [self.value(item) for item in value]
        for key, (takes, write) in self._rows.items():
            if takes(value):
                return {key: write(value, self)}
        what = f"{kind.__name__} {value.__name__!r}" if hasattr(value, "__name__") else f"a {kind.__qualname__}"
        raise UnsavedError(what)

    def named(self, name: Any, value: Any) -> Any:
        """Return a value that is kept under a name as JSON; it may name parts of this package alone."""
        if (text := foreign_part(name, value)) is not None:
            raise UnsavedError(f"{name}={text!r}, which names code")
        return self.value(value)

    def array(self, array: AnyArray) -> str:
        """Take in an array without objects, and return its name; one that is given twice is written once."""
        name = self._names.setdefault(id(array), f"{len(self._names)}")
        self.arrays[name] = array
        return name


class Reader:
    """Makes values of JSON and arrays; the inverse of a `Writer`."""

    def __init__(
        self, arrays: Mapping[str, AnyArray], models: Mapping[str, Callable[[Any, Reader], Any]] | None = None
    ) -> None:
        self._arrays = arrays
        self._left = _MOST_COPIES * sum(array.nbytes for array in arrays.values()) + _MOST_COPIED
        self._rows = {key: codec.read for key, codec in _CODECS.items()} | dict(models or {})

    def value(self, coded: Any) -> Any:
        """Return the value that JSON stands for."""
        if isinstance(coded, list):
            return [self.value(item) for item in coded]
        if not isinstance(coded, dict):
            return coded
        ((key, content),) = coded.items()
        if key not in self._rows:
            raise DamagedError(f"it holds a value of the unknown kind {key!r}")
        return self._rows[key](content, self)

    def named(self, name: Any, coded: Any) -> Any:
        """Return the value that is kept under a name; it may name parts of this package alone."""
        value = self.value(coded)
        if (text := foreign_part(name, value)) is not None:
            raise DamagedError(f"{name}={str(text)!r} may name code")
        return value

    def array(self, name: str) -> AnyArray:
        """Return an array by its name."""
        return self._arrays[name]

    def copies(self, n_bytes: int) -> None:
        """Note that a value has a copy of so much; a file that names one array again and again is refused."""
        self._left -= n_bytes
        if self._left < 0:
            raise DamagedError("it stands for more arrays than it holds")


@dataclass(frozen=True)
class _Codec:
    """A row of the table: whether a value is of this kind, its JSON, and the value again."""

    takes: Callable[[Any], bool]
    write: Callable[[Any, Writer], Any]
    read: Callable[[Any, Reader], Any]


_BUILTIN_TYPES: Final = {"bool": bool, "float": float, "int": int, "str": str}
_SPARSE: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.csc_array)
}


def _of_type(*kinds: type) -> Callable[[Any], bool]:
    """Return what tells values of exactly one of some types: those of a subclass may be more than they look."""
    return lambda value: type(value) in kinds


def _is_plain_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) and _is_plain(value.dtype)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufU" and dtype.itemsize <= 8 * (1 if dtype.kind != "U" else 2**20)


def _read_scalar(content: Any, of: Reader) -> Any:
    name, coded = content
    dtype, value = np.dtype(name), of.value(coded)
    if not _is_plain(dtype) or not isinstance(value, (bool, int, float, str)):
        raise DamagedError(f"it holds a scalar of type {name!r}")
    return dtype.type(value)


def _read_dtype(text: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(text)
    if not isinstance(text, str) or dtype.names is not None or dtype.hasobject or dtype.subdtype is not None:
        raise DamagedError(f"it holds the type {text!r}")
    return dtype


def _read_number_type(text: Any) -> type[Any]:
    kind = _read_dtype(text).type
    if not issubclass(kind, (np.number, np.bool_)):
        raise DamagedError(f"it holds the type of numbers {text!r}")
    return kind


def _read_sparse(content: Any, of: Reader) -> Any:
    name, shape, parts = content
    data, indices, indptr = (of.array(part) for part in parts)
    of.copies(indices.nbytes + indptr.nbytes)  # if scipy narrows them
    matrix = _SPARSE[name]((data, indices, indptr), shape=tuple(shape))
    # Compiled code trusts them.
    matrix.check_format(full_check=True)
    return matrix


def _read_objects(content: Any, of: Reader) -> AnyArray:
    shape, items = content
    flat = np.empty(len(items), dtype=object)
    flat[:] = [of.value(item) for item in items]
    return flat.reshape(shape)


def _read_masked(content: Any, of: Reader) -> Any:
    data, mask, fill_value = (of.value(part) for part in content)
    if not isinstance(data, np.ndarray) or not isinstance(mask, np.ndarray) or data.shape != mask.shape:
        raise DamagedError("it holds a mask of another shape than its values")
    of.copies(mask.nbytes)
    return np.ma.MaskedArray(data, mask, fill_value=fill_value)


def _read_item(name: Any, item: Any, of: Reader) -> tuple[Any, Any]:
    key = of.value(name)
    return key, of.named(key, item)


def _write_record(value: Any, to: Writer) -> Any:
    given = {field.name: to.named(field.name, getattr(value, field.name)) for field in fields(value) if field.init}
    return [name_of_record(value), given]


def _read_record(content: Any, of: Reader) -> Any:
    name, given = content
    kind = record_of(name)
    if kind is None:
        raise DamagedError(f"it holds a part of the unknown class {name!r}")
    found = {field: of.named(field, coded) for field, coded in given.items()}
    check_fields(kind, found)
    return kind(**found)


def _read_random_state(content: Any, of: Reader) -> Any:
    given = of.value(content)
    key, position = given["state"]["key"], given["state"]["pos"]
    n = 624  # numbers of a Mersenne Twister, from which compiled code takes the one at `pos` unseen
    if not (
        isinstance(key, np.ndarray)
        and isinstance(position, int)
        and key.shape == (n,)
        and key.dtype.kind == "u"
        and 0 <= position <= n
    ):
        raise DamagedError(f"it holds a random state that is none (pos={position!r})")
    of.copies(8 * n)
    state = np.random.RandomState()
    state.set_state(given)
    return state


#: In this order; a value is of the first kind that takes it.
_CODECS: Final[dict[str, _Codec]] = {
    "float": _Codec(_of_type(float), lambda value, to: repr(value), lambda text, of: float(text)),
    "tuple": _Codec(
        _of_type(tuple),
        lambda value, to: [to.value(item) for item in value],
        lambda items, of: tuple(of.value(item) for item in items),
    ),
    "dict": _Codec(
        _of_type(dict),
        lambda value, to: [[to.value(name), to.named(name, item)] for name, item in value.items()],
        lambda items, of: dict(_read_item(name, item, of) for name, item in items),
    ),
    "frozenset": _Codec(
        _of_type(frozenset),
        lambda value, to: [to.value(item) for item in sorted(value, key=repr)],
        lambda items, of: frozenset(of.value(item) for item in items),
    ),
    "history": _Codec(
        lambda value: type(value) is history(),
        lambda value, to: [to.value(line) for line in value],
        lambda lines, of: history()(of.value(line) for line in lines),
    ),
    "bytes": _Codec(_of_type(bytes), lambda value, to: value.hex(), lambda text, of: bytes.fromhex(text)),
    "scalar": _Codec(
        _is_plain_scalar,
        lambda value, to: [value.dtype.str, to.value(value.item())],
        _read_scalar,
    ),
    "texts": _Codec(  # numpy's strings of any length, which no file of arrays holds
        lambda value: type(value) is np.ndarray and value.dtype == np.dtypes.StringDType(),
        lambda value, to: [list(value.shape), value.ravel().tolist()],
        lambda pair, of: np.array(pair[1], dtype=np.dtypes.StringDType()).reshape(pair[0]),
    ),
    "objects": _Codec(
        lambda value: type(value) is np.ndarray and value.dtype == object,
        lambda value, to: [list(value.shape), [to.value(item) for item in value.ravel()]],
        _read_objects,
    ),
    "array": _Codec(
        lambda value: type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject,
        lambda value, to: to.array(value),
        lambda name, of: of.array(name),
    ),
    "element": _Codec(
        lambda value: isinstance(value, np.generic) and not value.dtype.hasobject,
        lambda value, to: to.array(np.asarray(value)),
        lambda name, of: of.array(name)[()],
    ),
    "masked": _Codec(
        _of_type(np.ma.MaskedArray),
        lambda value, to: [to.value(value.data), to.value(np.ma.getmaskarray(value)), to.value(value.fill_value)],
        _read_masked,
    ),
    "sparse": _Codec(
        _of_type(*_SPARSE.values()),
        lambda value, to: [
            type(value).__name__,
            list(value.shape),
            [to.array(part) for part in (value.data, value.indices, value.indptr)],
        ],
        _read_sparse,
    ),
    "dtype": _Codec(
        lambda value: isinstance(value, np.dtype) and value.names is None and not value.hasobject,
        lambda value, to: value.str,
        lambda text, of: _read_dtype(text),
    ),
    "number type": _Codec(
        lambda value: isinstance(value, type) and issubclass(value, (np.number, np.bool_)),
        lambda value, to: np.dtype(value).str,
        lambda text, of: _read_number_type(text),
    ),
    "type": _Codec(
        lambda value: value in _BUILTIN_TYPES.values() if isinstance(value, type) else False,
        lambda value, to: value.__name__,
        lambda name, of: _BUILTIN_TYPES[name],
    ),
    "random state": _Codec(
        _of_type(np.random.RandomState), lambda value, to: to.value(value.get_state(legacy=False)), _read_random_state
    ),
    "path": _Codec(lambda value: isinstance(value, Path), lambda value, to: str(value), lambda text, of: Path(text)),
    "record": _Codec(lambda value: name_of_record(value) is not None, _write_record, _read_record),
}

#: Parameters that are or may become texts of `dsgd.named`.
_OF_PARTS: Final = frozenset({"compressor", "features", "optimizer", "sampling", "sync", "topology"})


def foreign_part(name: Any, value: Any) -> str | None:
    """Return a text in a value that names a part which is not of this package; None if there is none."""
    if not isinstance(name, str):
        return None
    parameter = name.rpartition("__")[2].removeprefix("param_")
    if parameter not in _OF_PARTS:
        return None
    return next((text for text in _texts(value) if not _is_own(parameter, text)), None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "OUT":
            yield from _texts(np.ma.getdata(value).ravel().tolist())
    elif isinstance(value, (list, tuple, frozenset)):
        for item in value:
            yield from _texts(item)


def _is_own(parameter: str, text: str) -> bool:
    """Return whether a text names a part of this package, or none at all."""
    if parameter not in ("sync", "optimizer"):
        return ":" not in text
    from dsgd.named import installed, part_of  # seldom needed: an SVM would load all strategies for it

    if parameter == "sync":
        from dsgd.sync.names import STRATEGY_KIND as KIND
    else:
        from dsgd.local.rules import OPTIMIZER_KIND as KIND
    if ":" not in text:
        return text in KIND.names or text not in installed(KIND.group)
    try:
        return part_of(replace(KIND, loads=False), text, text) is not None
    except InvalidParameterError:
        return False
