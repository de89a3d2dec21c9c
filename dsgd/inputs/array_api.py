"""Arrays of other libraries: numpy inside, and results of the caller's kind where scikit-learn would return such.

scikit-learn computes in the library of X if ``sklearn.set_config(array_api_dispatch=True)``, and with numpy otherwise.
Kernels here read the memory of the host, so arrays on a CPU become numpy views, and results go back under the same
setting. An array on another device is refused: a copy of it is for the user to make.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError


def as_numpy(X: Any, name: str = "X") -> Any:
    """Return an array of another library as one of numpy, a view if it can be; anything else as it is."""
    if isinstance(X, np.ndarray) or _namespace(X) is None:
        return X
    kind = type(X).__module__.partition(".")[0]
    device = str(getattr(getattr(X, "device", "cpu"), "type", getattr(X, "device", "cpu"))).lower()
    if kind == "cupy" or not ("cpu" in device or "host" in device):
        copy = {"cupy": f"{name}.get()", "torch": f"{name}.cpu()"}.get(kind, "a copy in memory of the host")
        raise InvalidDataError(
            f"{name} is an array of {kind} on the device {getattr(X, 'device', 'GPU')}, and ranks train on CPUs. "
            f"Pass {copy}."
        )
    return np.asarray(X.detach() if kind == "torch" else X)


def answers_in_kind(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that takes rows and returns an array: it gets numpy, and returns the kind of the rows.

    A decorator. The result is an array of the library of X if scikit-learn's ``array_api_dispatch`` is on.
    """

    @functools.wraps(method)
    def answering(estimator: Any, X: Any) -> Any:
        found = method(estimator, as_numpy(X))
        library = _namespace(X)
        if library is None or not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
            return found
        from sklearn import get_config

        return library.asarray(found) if get_config()["array_api_dispatch"] else found

    return answering


def _namespace(X: Any) -> Any:
    """Return the library of an array that is not numpy's, None of anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(X, torch.Tensor):
        return torch
    if isinstance(X, np.ndarray) or not hasattr(X, "__array_namespace__") or hasattr(X, "__dask_graph__"):
        return None
    return X.__array_namespace__()
