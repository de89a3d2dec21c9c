"""Searches along one line, and by halving.

An estimator as a line of code to paste.

**Successive halving within a budget of seconds.**

Problem: many candidates, little time. Most of them show early that they are no good.

Method: all candidates run for an equal slice of a rung's time; the best third advances to the next rung, whose slices
are three times as long, until two or three are left. Each rung gets an equal share of the budget that remains when it
begins, so that a rung that took too long shortens the later ones but does not prevent an answer.

Candidates are compared by the seconds of training until their held-out score has reached the target for good. The
target is the best score that any of them has reached for good, less a margin; those that never reach it come after
those that do, by score.

Source: Jamieson and Talwalkar 2016 (successive halving); Karnin, Koren and Somekh 2013.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from dsgd.runtime.deployment import Gang, as_gang

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
    gang = as_gang(estimator.client)
    fields = [f"{name}={call_text(value)}" for name, value in gang.given().items()]
    client = ["client"] if client_lines(gang.client) else []
    if fields:
        given.append(f"client=Gang({', '.join([*client, *fields])})")
    elif client:
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
        if isinstance(part, Gang) and not part.given():
            continue
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


#: Of how many candidates one survives a rung.
FACTOR: Final = 3
_FINALISTS: Final = 3


class Point(NamedTuple):
    """What a fit had reached at the end of an epoch."""

    seconds: float
    score: float


class Standing(NamedTuple):
    """What candidates are sorted by: seconds to the target, then score; less is better."""

    seconds: float
    loss: float


def rung_sizes(n: int) -> list[int]:
    """Return how many candidates each rung has: n, and a third of those before until three or fewer are left.

    Examples
    --------
    >>> rung_sizes(40)
    [40, 14, 5, 2]
    """
    sizes = [n] if n else []
    while sizes and sizes[-1] > _FINALISTS:
        sizes.append(-(-sizes[-1] // FACTOR))
    return sizes


def slice_s(left_s: float, sizes: Sequence[int]) -> float:
    """Return the seconds that each candidate of the next rung may take."""
    return max(0.0, left_s) / len(sizes) / sizes[0]


def epochs_within(seconds: float, overhead_s: float, epoch_s: float, most: int) -> int:
    """Return how many epochs fit into some seconds, less the cost of a fit without epochs; 0 if none does."""
    if epoch_s <= 0.0:
        return most
    return max(0, min(most, math.floor((seconds - overhead_s) / epoch_s)))


def held_score(curve: Sequence[Point]) -> float:
    """Return the best score of a curve that is not a lucky epoch; minus infinity if there is none.

    It is the largest over epochs of the score, or of the mean of all scores from there on where that is less: the
    highest target that the curve has reached for good.
    """
    rest, held = 0.0, -math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        held = max(held, min(point.score, rest / n))
    return held


def seconds_to(curve: Sequence[Point], target: float) -> float:
    """Return the seconds after which a curve has reached a target for good; infinite if it never does.

    For good means that the scores from there on are not below it in the mean: of a curve that jumps up and down, one
    lucky epoch does not count.
    """
    rest, reached = 0.0, math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        # A score that is not a number makes the sum one for all epochs before.
        if point.score >= target and rest / n >= target:
            reached = point.seconds
    return reached


def standing(curve: Sequence[Point], target: float) -> Standing:
    """Return the sort key of a curve."""
    return Standing(seconds_to(curve, target), -held_score(curve))
