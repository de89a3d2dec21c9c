"""Lines of text on the standard output for ``verbose=1``, as in scikit-learn."""

from __future__ import annotations

import sys
from typing import Any

from dsgd.progress.event import Notice, ProgressEvent


class PrintedLines:
    """Prints a line for everything a fit tells."""

    def on_begin(self, estimator: Any) -> None:
        """Say nothing yet."""

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Print a line."""
        sys.stdout.write(f"{event.text}\n")

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Say nothing more: the caller has the result."""
