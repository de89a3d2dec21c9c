"""An estimator as a line of code to paste."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator

# Objects of this process, which no call can make again: a cluster, or a random generator in some state.
_LEFT_OUT: Final = ("client", "random_state")


def call_text(part: Any) -> str:
    """Return the call that makes a strategy, rule, compressor or encoder, without arguments at their defaults.

    Examples
    --------
    >>> from dsgd.sync import LocalSGD
    >>> call_text(LocalSGD(every=256))
    'LocalSGD(every=256)'
    """
    if isinstance(part, BaseEstimator):
        return f"{type(part).__name__}({', '.join(_given(part))})"
    if not is_dataclass(part) or isinstance(part, type):
        return repr(_plain(part))
    values = ((f, getattr(part, f.name)) for f in fields(part) if f.init)
    given = [f"{f.name}={call_text(value)}" for f, value in values if f.default is MISSING or value != f.default]
    return f"{type(part).__name__}({', '.join(given)})"


def estimator_line(estimator: Any) -> str:
    """Return the call that makes an estimator, without parameters at their defaults.

    A client is called ``client``, see `client_lines`. A generator of random numbers is left out: it is an object of
    this process.
    """
    given = _given(estimator)
    # The tuned parameters come first.
    given.sort(key=lambda text: text.split("=")[0] not in ("loss", "sync", "learning_rate", "eta0"))
    if client_lines(estimator.client):
        given.append("client=client")
    return f"{type(estimator).__name__}({', '.join(given)})"


def _given(estimator: Any) -> list[str]:
    """Return the parameters of an estimator that are not at their defaults, as they are passed."""
    defaults = {name: p.default for name, p in inspect.signature(type(estimator)).parameters.items()}
    given = []
    for name, value in estimator.get_params(deep=False).items():
        if name in _LEFT_OUT and not isinstance(value, (int, np.integer)):
            continue
        default = defaults[name]
        if type(value) is type(default) and value == default:
            continue
        given.append(f"{name}={call_text(value)}")
    return given


def client_lines(client: Any) -> list[str]:
    """Return the lines that make a client of a cluster like the one that it has; none for a simulated one or None."""
    if not hasattr(client, "scheduler_info"):
        return []
    cluster = client.cluster
    if type(cluster).__name__ == "LocalCluster":
        threads = [spec["options"].get("nthreads", 1) for spec in cluster.worker_spec.values()]
        call = f"n_workers={len(threads)}, threads_per_worker={max(threads, default=1)}"
    else:
        # Not before there is a client: training in this process does not load Dask.
        from dsgd.runtime.dask_internals import scheduler_address

        address = scheduler_address(client)
        call = repr(address) if address else ""
    return ["from dask.distributed import Client", f"client = Client({call})"]


def import_lines(estimator: Any) -> list[str]:
    """Return the imports without which the line of an estimator does not run, one per module."""
    names: dict[str, set[str]] = {"dsgd": {type(estimator).__name__}}
    parts = [value for value in estimator.get_params(deep=False).values() if _is_part(value)]
    while parts:
        part = parts.pop()
        package = ".".join(type(part).__module__.split(".")[:2])
        if package == "dsgd.sim":
            continue
        names.setdefault(package, set()).add(type(part).__name__)
        parts += [value for value in vars(part).values() if _is_part(value)]
    return [f"from {package} import {', '.join(sorted(found))}" for package, found in sorted(names.items())]


def _is_part(value: Any) -> bool:
    return is_dataclass(value) or isinstance(value, BaseEstimator)


def _plain(value: Any) -> Any:
    """Return a value whose text can be read without numpy."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value
