"""The rank on which a function runs, and clean-up when it has returned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dsgd.errors import InvalidParameterError
from dsgd.runtime.rank import Rank
from dsgd.torch import process_group

# Ranks may be threads of one process.
_here = threading.local()


def current_rank() -> Rank:
    """Return the rank that this thread runs, or that this process is in the default process group of torch."""
    rank: Rank | None = getattr(_here, "rank", None)
    if rank is None and process_group.is_running():
        return process_group.rank_here()
    if rank is None:
        raise InvalidParameterError(
            "there is no rank here: call this inside a function that dsgd.torch.launch runs, or, in a script that "
            "torchrun starts, after torch.distributed.init_process_group(); or pass rank=..."
        )
    return rank


def finish_with(finish: Callable[[], None], close: Callable[[], None]) -> None:
    """Have `finish` called when the function of this rank has returned, and `close` if it raises.

    On a rank that was passed, nothing is.
    """
    if getattr(_here, "rank", None) is not None:
        _here.finishers.append((finish, close))


def run_function(rank: Rank, data: object, function: Callable[..., Any], takes_rank: bool) -> Any:
    """Run a function of the user on a rank; a rank program."""
    del data  # the function has its own
    _here.rank, _here.finishers = rank, []
    try:
        value = function(rank) if takes_rank else function()
        for finish, _ in _here.finishers:
            finish()
        return value
    except BaseException:
        for _, close in _here.finishers:
            close()
        raise
    finally:
        del _here.rank, _here.finishers
