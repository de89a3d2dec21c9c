"""Files of models: what is written of an estimator, and how it is made again.

Format: that of `dsgd.runtime.checkpoints.container`, version 1, with the magic ``DSGDMODL``. The header has the version
of dsgd, the time, and the model: the name of its class, its parameters and its fitted attributes, as
`dsgd.saving.values` writes them.

Whatever a model keeps is written, by its type: no attribute is listed. What cannot be written is an error, but for what
tells of the training and not of the model; and where a fit ran (`dsgd.Gang.placeless`) is left out, so that a file from
elsewhere says neither what a further fit reads nor where it writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from inspect import getattr_static
from pathlib import Path
from time import time
from typing import Any, ClassVar, Final

from sklearn.utils import get_tags

from dsgd.errors import ModelFileError
from dsgd.files import regular
from dsgd.runtime.checkpoints.container import Container, DamagedError, LocalFolder, RemoteFolder, folder_of
from dsgd.runtime.deployment import PLACES, Gang, as_gang
from dsgd.saving.values import ESTIMATORS, Reader, UnsavedError, Writer, check_use, zeros

_FILES: Final = Container("a model", b"DSGDMODL", 1)


class SavingMixin:
    """What can be saved to a file, and loaded with `dsgd.load`."""

    #: Attributes that are left out: code of the user, and what `_complete` makes again.
    _left_out: ClassVar[tuple[str, ...]] = ("_skl_callbacks", "_metadata_request")

    #: Attributes that describe the training; they are left out if they are no plain data.
    _of_training: ClassVar[tuple[str, ...]] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this model to a file of arrays and JSON, without code; `dsgd.load` reads it.

        The file has the parameters and all fitted attributes. Predictions of the loaded model are the same, bit for
        bit, and ``partial_fit`` continues as it would have. Left out are the cluster and the folders of checkpoints
        (of a `dsgd.Gang` its ``client``, ``workers``, ``checkpoint`` and ``resume_from``), callbacks, metadata
        requests, the ledger, and reports that are not plain data. Of the ledger there is what ``what_if`` needs, a
        `dsgd.sim.RunRecord`: the loaded model has it as ``run_``.

        Parameters
        ----------
        path : str or os.PathLike
            A file, or the URL of one that fsspec can open (``"s3://bucket/model.dsgd"``). An existing file is replaced
            as a whole, and keeps who may read and write it; a link stays, and the file that it leads to is replaced.

        Raises
        ------
        ModelFileError
            A parameter or a fitted attribute is not data: a function as kernel, a custom strategy. The message names
            it.
        OSError
            The file cannot be written, or is a folder or a device.
        """
        folder, name = _place(path)
        folder.put(name, packed(self))

    def _recorded(self) -> dict[str, Any]:
        """Return attributes that a file has beside the state, and the model has not: all of the training."""
        return {}

    def _complete(self) -> None:
        """Make attributes that files leave out; called when all others are there."""

    def _row_to_try(self) -> Any:
        """Return a row that a fitted model answers for, None if there is none that is small."""
        return zeros(vars(self).get("n_features_in_"), sparse=get_tags(self).input_tags.sparse)


def packed(model: Any) -> bytes:
    """Return the content of the file of a model."""
    writer = Writer({"estimator": (_is_estimator, _write_estimator)})
    if not _is_estimator(model):
        raise ModelFileError(_why_not(model))
    header = {"dsgd": version("dsgd"), "written_at": time(), "model": writer.value(model)}
    return _FILES.pack(header, writer.arrays)


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file of this machine begins as a model of `SavingMixin.save` does."""
    regular(Path(path))
    with open(path, "rb") as file:
        return _FILES.is_begun(file.read(len(_FILES.magic)))


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model written by its ``save``; nothing in the file is executed.

    Parameters
    ----------
    path : str or os.PathLike
        A file, or the URL of one that fsspec can open.

    Returns
    -------
    estimator
        The model, whose predictions are the same, bit for bit. It has no client; see `SGDClassifier.save`.

    Raises
    ------
    ModelFileError
        The file is damaged, has a later format, or is not a model; or it names a class or a parameter that this version
        of dsgd does not have.
    OSError
        There is no such file, or it cannot be read.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> import dsgd
    >>> X = np.array([[-1.0], [-2.0], [1.0], [2.0]])
    >>> model = dsgd.SGDClassifier(random_state=0).fit(X, ["no", "no", "yes", "yes"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(os.path.join(folder, "model.dsgd"))
    ...     same = dsgd.load(os.path.join(folder, "model.dsgd"))
    >>> same.predict([[3.0]]).tolist()
    ['yes']
    """
    folder, name = _place(path)
    content = folder.get(name)
    try:
        header, arrays = _FILES.unpack(content)
        coded = header["model"]
        if not isinstance(coded, dict) or list(coded) != ["estimator"]:
            raise DamagedError("it holds no estimator")
        return Reader(arrays, {"estimator": _read_estimator}).value(coded)
    except ModelFileError:
        raise
    except DamagedError as damage:
        hint = "" if _FILES.is_begun(content) else _HINT
        raise ModelFileError(f"{os.fspath(path)}: {damage}.{hint}") from damage
    except Exception as error:
        # Its checksum is right, so that somebody has written what makes no model: another version, or by hand. That may
        # be anything, and raise anything where it is read.
        raise ModelFileError(
            f"{os.fspath(path)}: what it says makes no model ({type(error).__name__}: {error})."
        ) from error


_HINT: Final = " Files of joblib and pickle are read by joblib.load and pickle.load, which run what is in them."


def _place(path: str | os.PathLike[str]) -> tuple[LocalFolder | RemoteFolder, str]:
    text = os.fspath(path)
    if "://" in text:
        parent, _, name = text.rpartition("/")
    else:
        parent, name = os.path.split(text)
    return folder_of(parent or "."), name


def _is_estimator(value: Any) -> bool:
    kind = type(value)
    home = ESTIMATORS.get(kind.__name__)
    return home is not None and getattr(import_module(home), kind.__name__) is kind


def _why_not(model: Any) -> str:
    name = type(model).__name__
    if hasattr(model, "module_") or hasattr(model, "module"):
        return (
            f"{name}.save: its module is code, which a file of a model does not hold. Save its weights, "
            "torch.save(model.module_.state_dict(), path), or torch.onnx.export(model.module_, ...)."
        )
    return f"{name}.save: only the classes of dsgd can be saved, {', '.join(ESTIMATORS)}; not a subclass."


def _write_estimator(model: Any, to: Writer) -> list[Any]:
    name = type(model).__name__
    given, own = model.get_params(deep=False), type(model)
    if places := _places_in(given.get("param_grid")):
        raise ModelFileError(
            f"{name}(param_grid=...) has {', '.join(sorted(places))}, and a file of a model does not say where fits "
            "run, read and write. Leave it out of the grid."
        )
    if "client" in given:
        given["client"] = as_gang(given["client"]).placeless()
    parameters = {
        parameter: _written(to, f"{name}({parameter}=...)", parameter, value) for parameter, value in given.items()
    }
    attributes = {}
    for attribute, value in {**model.__getstate__(), **model._recorded()}.items():
        if attribute in given or attribute in own._left_out:
            continue
        try:
            attributes[attribute] = _written(to, f"{name}.{attribute}", attribute, value)
        except ModelFileError:
            if attribute not in own._of_training:
                raise
    return [name, parameters, attributes]


def _written(to: Writer, where: str, name: str, value: Any) -> Any:
    try:
        return to.named(name, value)
    except UnsavedError as error:
        raise ModelFileError(
            f"{where} is, or holds, {error}, and a file of a model holds no code: neither functions nor objects of "
            "classes that are not of dsgd. Set another value, or save with joblib.dump."
        ) from None


def _read_estimator(content: Any, of: Reader) -> Any:
    name, parameters, attributes = content
    if name not in ESTIMATORS:
        raise DamagedError(f"it holds a model of the unknown class {name!r}; this version of dsgd has {_all_names()}")
    kind: Any = getattr(import_module(ESTIMATORS[name]), name)
    known = kind._get_param_names()
    _check_names(f"parameters of {name}", set(parameters).difference(known))
    hidden = (each for each in attributes if each in known or each.startswith("__") or _is_code(kind, each))
    _check_names(f"attributes of {name}", hidden)
    given = {parameter: of.named(parameter, coded) for parameter, coded in parameters.items()}
    gang = given.get("client")
    if gang is not None and not (isinstance(gang, Gang) and gang == gang.placeless()):
        raise DamagedError(f"it says where a fit of {name} runs, reads or writes: client={gang!r:.80}")
    _check_names(f"candidates of {name} with parameters", _places_in(given.get("param_grid")))
    model = kind(**given)
    vars(model).update({attribute: of.named(attribute, coded) for attribute, coded in attributes.items()})
    model._complete()
    check_use(model)
    return model


def _is_code(kind: Any, attribute: str) -> bool:
    """Return whether a class has a method or a property of this name, which the attribute would hide."""
    return attribute in kind._left_out or hasattr(getattr_static(kind, attribute, None), "__get__")


def _places_in(grid: Any) -> set[str]:
    """Return the parameters of candidates that say where a fit runs, reads and writes."""
    grids = [grid] if isinstance(grid, Mapping) else grid if isinstance(grid, Iterable) else []
    return {str(name) for each in grids if isinstance(each, Mapping) for name in each if _is_place(str(name))}


def _is_place(parameter: str) -> bool:
    return parameter.rpartition("__")[2] in PLACES


def _check_names(what: str, wrong: Iterable[str]) -> None:
    if found := sorted(wrong):
        raise DamagedError(
            f"it sets {what} that this version of dsgd does not have or set: {', '.join(found)}. A later version may "
            "have written it"
        )


def _all_names() -> str:
    return ", ".join(ESTIMATORS)
