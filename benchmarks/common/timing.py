"""Timing by turns: methods that are compared see the same machine, one after the other, again and again."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dsgd.ledger import PHASES

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """One call: wall-clock seconds, seconds of this process's processor time, and what was returned."""

    seconds: float
    cpu_s: float
    value: Any


def timed(work: Callable[..., Any], *arguments: Any, **options: Any) -> Timing:
    """Call, and say what it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    value = work(*arguments, **options)
    return Timing(time.perf_counter() - begin, time.process_time() - cpu, value)


def in_turns(
    methods: Mapping[Name, Callable[[], Any]], repeats: int, *, warm_up: int = 0, alternate: bool = False
) -> dict[Name, list[Timing]]:
    """Call all methods in turn, `repeats` times.

    Parameters
    ----------
    methods : mapping of callable
        By name.
    repeats : int
        How many turns count.
    warm_up : int, optional
        Turns before these, in which code is compiled and loaded.
    alternate : bool, optional
        Whether every other turn is the other way round.
    """
    found: dict[Name, list[Timing]] = {name: [] for name in methods}
    for turn in range(-warm_up, repeats):
        for name in reversed(list(methods)) if alternate and turn % 2 else list(methods):
            timing = timed(methods[name])
            if turn >= 0:
                found[name].append(timing)
    return found


def median_s(timings: Sequence[Timing]) -> float:
    """Return the median of the seconds."""
    return statistics.median(timing.seconds for timing in timings)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of neighbours, which saw the machine at the same speed."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return that ratio with the least and the largest, as text."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def epoch_s(model: Any) -> float:
    """Return the median seconds of an epoch of a fitted estimator; the first, which loads things, does not count."""
    ends = [epoch["seconds"] for epoch in model.fit_report_["epochs"]]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def waiting_share(totals: Mapping[str, float]) -> float:
    """Return the share of the ranks' time that communication takes, from the totals of a ledger."""
    spent = sum(totals[f"{phase}_s"] for phase in PHASES)
    return (totals["wire_s"] + totals["wait_s"]) / spent
