"""How often to exchange a model in fragments, and in how many, by the cost of messages and the seconds of a row.

Problem: `StreamingDiLoCo` hides its exchanges behind local steps if each is shorter than a round. More fragments take
less of the wire at a time, and of the steps that a fragment is under way for less is lost; but every exchange takes its
latency, whatever its length, so that too many take longer than the steps that should hide them.

Rule, with T(n) the seconds of an all-reduce of n parameters (`dsgd.collectives.cost`), of P ranks, by the
algorithm that ranks choose, and c those of a row: F fragments of n parameters in a period of H rows are hidden if ::

    T(n / F) <= (H / F) c

The left side falls more slowly than 1 / F, so that this holds up to some F, which is taken: the most that are hidden.
Without a period it is the shortest one in which four fragments are.

When fragments pay: ranks that send whole models and wait take ``H c + T(n)`` for a period, and with fragments
``max(H c, F T(n / F))``, of whose steps a share of ``d (1 - mixing) / F`` is lost with a delay of d rounds. So they get
as far in a period

    g = (1 - d (1 - mixing) / F) (H c + T(n)) / max(H c, F T(n / F))

times as fast. With ``T(n) = a + b n``, a delay of one and a mixing of 1/2, fragments that are hidden, which needs
``F a + b n <= H c``, pay if ``T(n) > H c / (2 F - 1)``: of four, if an exchange takes a seventh of the steps. No more
than ``F < 1 + H c / a`` of them can save any time, and g is less than 2.

Cost: none; all ranks compute the same.

Source: the hiding of exchanges as in Douillard et al. 2025 (Streaming DiLoCo); the cost model of Hockney 1994.
"""

from __future__ import annotations

import math
from typing import Final

from dsgd.collectives.cost import Link, allreduce_seconds, choose_algorithm
from dsgd.errors import InvalidParameterError
from dsgd.sync.contrib.diloco import StreamingDiLoCo
from dsgd.validation import check_number

_USUAL: Final = 4
_MOST: Final = 64


def streaming_for(
    n_params: int, size: int, link: Link, row_s: float, *, period: int | None = None, itemsize: int = 8
) -> StreamingDiLoCo:
    """Return the strategy whose exchanges hide behind local steps, with as many fragments as can be.

    Parameters
    ----------
    n_params : int
        Length of the model.
    size : int
        P, the ranks; 2 or more.
    link : Link
        The seconds of a message, such as `dsgd.collectives.calibrate` measures them.
    row_s : float
        Seconds of local steps per row, above zero.
    period : int or None, default None
        Rows in which the whole model is exchanged once; None is the shortest period that hides four fragments.
    itemsize : int, default 8
        Bytes of a parameter.

    Returns
    -------
    StreamingDiLoCo
        With a delay of one round. If not even the whole model hides in the period, it has one fragment.

    Raises
    ------
    InvalidParameterError
        A number is out of range.

    Examples
    --------
    >>> from dsgd.collectives.cost import Link
    >>> streaming_for(1_000_000, 8, Link(latency_s=1e-4, byte_s=1e-9), row_s=1e-4, period=1024)
    StreamingDiLoCo(every=16, fragments=64, delay=1, mixing=0.5, outer_rate=0.7, outer_momentum=0.3, compressor=None)
    """
    for name, value, low in (("n_params", n_params, 1), ("size", size, 2), ("itemsize", itemsize, 1)):
        check_number(f"streaming_for({name}=...)", value, low=low, integer=True)
    if not row_s > 0.0:
        raise InvalidParameterError(f"streaming_for(row_s=...) must be above zero. Got {row_s!r}.")
    if period is not None:
        check_number("streaming_for(period=...)", period, low=1, integer=True)

    def least_rows(fragments: int) -> int:
        n_bytes = -(-n_params // fragments) * itemsize
        seconds = allreduce_seconds(choose_algorithm(n_bytes, size), n_bytes, size, link)
        return max(1, math.ceil(seconds / row_s))

    if period is None:
        period = _USUAL * least_rows(min(_USUAL, n_params))
    hidden = [f for f in range(1, min(_MOST, n_params, period) + 1) if least_rows(f) <= period // f]
    fragments = max(hidden, default=1)
    return StreamingDiLoCo(period // fragments, fragments, 1)


def kept_of(strategy: StreamingDiLoCo) -> float:
    """Return the share of the local steps that is not lost where the common fragment takes the place of the own."""
    return 1.0 - strategy.delay * (1.0 - strategy.mixing) / strategy.fragments
