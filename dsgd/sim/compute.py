"""The virtual time of computation: seconds of kernels, and stragglers.

Problem: on a virtual clock a kernel takes no time, so its time must be computed from its work; and machines vary in
ways that decide which strategy is best.

Model: a call of a kernel over rows costs ``call_s + rows row_s + entries entry_s + params param_s`` seconds, times the
factor that a straggler distribution draws for the rank and its round. Bytes that arrive and are added up cost
``added_byte_s`` each (gamma), the end of an epoch ``end_s``.

Source: distributions of delays as in Dutta et al. 2018 (exponential and Pareto service times).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.kernels.order import draw_each, draw_one
from dsgd.types import FloatMatrix
from dsgd.validation import check_number


@dataclass(frozen=True)
class Compute:
    """The virtual time of computation.

    Parameters
    ----------
    entry_s : float, default 1.2e-9
        Per entry of a row that a kernel visits, once for each output.
    row_s : float, default 2.5e-8
        Per row.
    param_s : float, default 1.0e-9
        Per parameter that a call passes over, and per element that a compressor encodes or decodes.
    call_s : float, default 1.0e-5
        Per call of a kernel over rows, including the work of the rank loop.
    added_byte_s : float, default 1.5e-10
        Per byte that arrives and is added up.
    source : str
        Where the numbers are from. The defaults are rough estimates for dense float64 rows on a core of a server, not
        measurements: `dsgd.sim.calibrate` measures yours.
    end_s : float, default 0
        Per epoch: the work of the rank loop at its end, besides its message.

    Raises
    ------
    InvalidParameterError
        A number is negative.
    """

    entry_s: float = 1.2e-9
    row_s: float = 2.5e-8
    param_s: float = 1.0e-9
    call_s: float = 1.0e-5
    added_byte_s: float = 1.5e-10
    source: str = "estimates for a core of a server"
    end_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative times."""
        for name, value in vars(self).items():
            if name != "source":
                check_number(f"Compute({name}=...)", value, low=0)

    def seconds(self, rows: int, entries: int, params: int) -> float:
        """Return the seconds of one call of a kernel; one that visits no rows only passes over parameters."""
        return (self.call_s if rows else 0.0) + rows * self.row_s + entries * self.entry_s + params * self.param_s


class AbstractStragglers(ABC):
    """A distribution of stragglers: how much longer than usual a rank works in a round."""

    @abstractmethod
    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the factor of the work of a rank in its round `number`; equal arguments give equal factors."""


@dataclass(frozen=True)
class NoStragglers(AbstractStragglers):
    """All ranks are equally fast, always."""

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return 1."""
        del seed, rank, number
        return 1.0


@dataclass(frozen=True)
class Exponential(AbstractStragglers):
    """Every round of every rank takes ``1 + mean E`` times as long, E exponential with mean one.

    Parameters
    ----------
    mean : float, default 0.5
        Mean of the added time.

    Raises
    ------
    InvalidParameterError
        `mean` is negative.
    """

    mean: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a negative mean."""
        check_number("Exponential(mean=...)", self.mean, low=0)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return ``1 - mean log(u)``, u uniform on (0, 1]."""
        return 1.0 - self.mean * math.log(_uniform(seed, rank, number))

    def factors(self, seed: int, size: int, n_rounds: int) -> FloatMatrix:
        """Return the factors of many ranks and rounds, shape (size, n_rounds), to rounding."""
        return 1.0 - self.mean * np.log(_uniforms(seed, size, n_rounds))


@dataclass(frozen=True)
class SlowRank(AbstractStragglers):
    """One rank is slower than all others, always.

    Parameters
    ----------
    rank : int, default 0
        Which.
    slowdown : float, default 5
        How many times as long its work takes.

    Raises
    ------
    InvalidParameterError
        `slowdown` is not positive.
    """

    rank: int = 0
    slowdown: float = 5.0

    def __post_init__(self) -> None:
        """Refuse a slowdown that is not positive."""
        check_number("SlowRank(slowdown=...)", self.slowdown, low=0, open_low=True)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the slowdown for the slow rank, 1 for the others."""
        del seed, number
        return self.slowdown if rank == self.rank else 1.0


@dataclass(frozen=True)
class HeavyTail(AbstractStragglers):
    """Rounds take at least as long as usual, and now and then much longer: factors follow Pareto's law.

    Parameters
    ----------
    shape : float, default 2
        A factor exceeds f with probability ``f ** -shape``; the mean is infinite from 1 downwards.

    Raises
    ------
    InvalidParameterError
        `shape` is not positive.
    """

    shape: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a shape that is not positive."""
        check_number("HeavyTail(shape=...)", self.shape, low=0, open_low=True)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return ``u ** (-1 / shape)``, u uniform on (0, 1]."""
        return float(_uniform(seed, rank, number) ** (-1.0 / self.shape))

    def factors(self, seed: int, size: int, n_rounds: int) -> FloatMatrix:
        """Return the factors of many ranks and rounds, shape (size, n_rounds), to rounding."""
        drawn: FloatMatrix = _uniforms(seed, size, n_rounds) ** (-1.0 / self.shape)
        return drawn


_NAMED: Final = {
    "none": NoStragglers(),
    "exponential": Exponential(),
    "slow-rank": SlowRank(),
    "heavy-tail": HeavyTail(),
}


def stragglers_for(given: AbstractStragglers | str | None) -> AbstractStragglers:
    """Return the distribution that a parameter names; None is ``"none"``."""
    if given is None:
        return NoStragglers()
    if isinstance(given, AbstractStragglers):
        return given
    if given not in _NAMED:
        known = ", ".join(repr(name) for name in _NAMED)
        raise InvalidParameterError(f"stragglers=... must be one of {known} or of dsgd.sim. Got {given!r}.")
    return _NAMED[given]


def _uniform(seed: int, rank: int, number: int) -> float:
    """Return the number of a round of a rank in (0, 1]; it depends on nothing drawn before."""
    key = draw_one(np.uint64(seed % 2**64), np.uint64(rank))
    return (float(draw_one(np.uint64(key), np.uint64(number)) >> np.uint64(11)) + 1.0) * 2.0**-53


def _uniforms(seed: int, size: int, n_rounds: int) -> FloatMatrix:
    """Return `_uniform` of the first ranks and rounds, shape (size, n_rounds)."""
    keys = draw_each(np.array([seed % 2**64], np.uint64), np.arange(size, dtype=np.uint64))
    drawn = draw_each(keys[:, None], np.arange(n_rounds, dtype=np.uint64)[None])
    uniforms: FloatMatrix = ((drawn >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return uniforms
