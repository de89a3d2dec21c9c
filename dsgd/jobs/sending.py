"""Estimators and their data as bytes that another process of the cluster reads.

Problem: a pickled estimator of dsgd loses its client and its ledger, as is right for a file, and a future knows its
client only by chance. A detached fit is sent to its driver and comes back, and must find both.

Method: a client is written as the mark of "the client of whoever reads this", and a future as its number in a list.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Final

import cloudpickle
from distributed import Client, Future

from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.sim import SimulatedCluster

_CLIENT: Final = "client"
_FUTURE: Final = "future"
#: What a pickle of an estimator leaves out, and how it says so; see `AbstractClusterEstimator.__getstate__`.
_LEFT_OUT: Final = {"client": "_lost_client", "ledger_": "_ledger_is_elsewhere"}


def packed(value: Any, *, on_cluster: bool = False) -> tuple[bytes, list[Future]]:
    """Return a value as bytes."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, on_cluster)
    pickler.dump(value)
    return stream.getvalue(), pickler.futures


def unpacked(data: bytes, client: Client, futures: Sequence[Future] = ()) -> Any:
    """Return the value that `packed` was given, with a client of this process and futures of this client."""
    return _Unpickler(io.BytesIO(data), client, futures).load()


class _ReadersClient:
    """Stands for the client of whoever reads."""


class _Pickler(cloudpickle.Pickler):
    def __init__(self, stream: io.BytesIO, on_cluster: bool) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._on_cluster = on_cluster
        self.futures: list[Future] = []
        self._numbers: dict[Any, int] = {}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if isinstance(obj, Client | _ReadersClient):
            return _CLIENT, 0
        if isinstance(obj, Future):
            if obj.key not in self._numbers:
                self._numbers[obj.key] = len(self.futures)
                self.futures.append(obj)
            return _FUTURE, self._numbers[obj.key]
        return None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, AbstractClusterEstimator):
            return super().reducer_override(obj)
        state = obj.__getstate__()
        for name, mark in _LEFT_OUT.items():
            if name in vars(obj):
                state[name] = vars(obj)[name]
                if mark not in vars(obj):
                    state.pop(mark, None)
        if self._on_cluster and not isinstance(obj.client, SimulatedCluster):
            state["client"] = _ReadersClient()
            state.pop("_lost_client", None)
        return _restored, (type(obj), state)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, client: Client, futures: Sequence[Future]) -> None:
        super().__init__(stream)
        self._client, self._futures = client, futures

    def persistent_load(self, mark: tuple[str, int]) -> Any:
        kind, number = mark
        return self._client if kind == _CLIENT else self._futures[number]


def _restored(kind: type[AbstractClusterEstimator], state: dict[str, Any]) -> AbstractClusterEstimator:
    estimator = kind.__new__(kind)
    estimator.__setstate__(state)
    return estimator
