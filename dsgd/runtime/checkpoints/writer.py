"""Writing the checkpoints of a fit, though a disk may be full for a moment.

Problem: a checkpoint is there so that no work is lost, and one that cannot be written must not lose it.

Method: a write that fails is logged, and the next one is due soon after; only several in a row end the fit. The last
one is tried as often at once, and if it fails all the same the model, which is complete, is returned with a note.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dsgd.errors import CheckpointError
from dsgd.runtime.checkpoints.checkpoint import Checkpoint, SavedState, SupersededError, write

#: How often in a row a checkpoint may fail, and how long after one that failed the next is due.
_MOST_FAILURES: Final = 3
_RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of one fit, on the rank that does."""

    def __init__(self, target: Checkpoint, clock: Callable[[], float] = time.perf_counter) -> None:
        self._target, self._clock = target, clock
        self._written_s, self._n_failed = clock(), 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return self._clock() - self._written_s >= self._target.every_s

    def write(self, state: SavedState) -> None:
        """Write a checkpoint; one that fails is due again soon."""
        self._written_s = self._clock()
        error = self._attempt(state)
        if error is None:
            return
        if self._n_failed >= _MOST_FAILURES:
            raise error
        self._written_s += _RETRY_S - self._target.every_s

    def write_last(self, state: SavedState) -> str:
        """Write the checkpoint of a fit that is complete, and try again if that fails."""
        self._n_failed = 0
        while (error := self._attempt(state)) is not None:
            if self._n_failed >= _MOST_FAILURES:
                return f"The last checkpoint could not be written: {error} The model is complete."
            time.sleep(_RETRY_S)
        return ""

    def _attempt(self, state: SavedState) -> CheckpointError | None:
        """Write a checkpoint; return the error if that failed and may go better the next time."""
        try:
            write(self._target, state)
        except SupersededError:
            raise
        except CheckpointError as error:
            self._n_failed += 1
            _logger.warning("a checkpoint could not be written (%d in a row): %s", self._n_failed, error)
            return error
        self._n_failed = 0
        return None
