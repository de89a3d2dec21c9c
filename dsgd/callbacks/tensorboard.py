"""Fits as event files of TensorBoard.

TensorBoard's own package writes them: neither torch nor TensorFlow is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsgd.callbacks.tracker import AbstractTracker, library

__all__ = ["TensorBoardCallback"]

_WRITER: Final = "tensorboard.summary.writer.event_file_writer"
_EVENT: Final = "tensorboard.compat.proto.event_pb2"
_SUMMARY: Final = "tensorboard.compat.proto.summary_pb2"
_PARAMETERS: Final = "tensorboard.plugins.hparams.summary_v2"


class TensorBoardCallback(AbstractTracker):
    """Writes a fit for TensorBoard, into a new folder of `log_dir`; its parameters are on the page ``HParams``.

    Parameters
    ----------
    log_dir : str or path, default "runs"
        The folder that ``tensorboard --logdir`` is given.

    Raises
    ------
    MissingPackageError
        tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs") -> None:
        super().__init__()
        self.log_dir = log_dir
        _module(_WRITER)

    def open(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return a writer of event files."""
        writer = _module(_WRITER).EventFileWriter(str(self._new_folder(name)))
        self._write(writer, _module(_PARAMETERS).hparams_pb(dict(parameters)), step=0)
        return writer

    def log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of a step."""
        summary = _module(_SUMMARY).Summary
        values = [summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(run, summary(value=values), step=step)

    def close(self, run: Any, error: BaseException | None) -> None:
        """Write what is left; event files have no status."""
        run.close()

    def _new_folder(self, name: str) -> Path:
        """Make a folder that no other fit has, not even one that begins in the same second elsewhere."""
        started, number = time.strftime("%Y%m%d-%H%M%S"), 0
        while True:
            folder = Path(self.log_dir, f"{name}-{started}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return folder

    @staticmethod
    def _write(writer: Any, summary: Any, *, step: int) -> None:
        writer.add_event(_module(_EVENT).Event(summary=summary, step=step, wall_time=time.time()))


def _module(name: str) -> Any:
    return library(name, "TensorBoardCallback", "tensorboard")
