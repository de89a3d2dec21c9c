"""The history of a fit: a line for every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.errors import MissingPackageError
from dsgd.ledger import Ledger
from dsgd.runtime.train import EpochRecord
from dsgd.types import FloatMatrix

if TYPE_CHECKING:
    import pandas as pd


class History(list[dict[str, Any]]):
    """Lines of a history; ``history[-1, "train_loss"]`` is an entry of a line and ``history[:, "epoch"]`` a column."""

    @classmethod
    def of(cls, records: Sequence[EpochRecord], ledger: Ledger) -> History:
        """Return the history of a fit."""
        validates = any(np.isfinite(record.validation_score) for record in records)
        spent = _spent(ledger)
        n_before = len(records) - len(spent)
        history = cls(line_of(vars(record), validates=validates) for record in records)
        for number, line in enumerate(history):
            is_known = number >= n_before
            n_bytes, seconds = spent[number - n_before] if is_known else (np.nan, np.nan)
            line["bytes_sent"] = int(n_bytes) if is_known else n_bytes
            line["communication_s"] = float(seconds)
        return history

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, tuple):
            return super().__getitem__(place)
        lines, name = super().__getitem__(place[0]), place[1]
        return lines[name] if isinstance(lines, dict) else [line[name] for line in lines]

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a pandas frame, one row per epoch."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError(
                "history_.to_frame() needs pandas, which is not installed here. Install it with: pip install pandas; "
                "or use the history as it is, a list of dictionaries."
            ) from error
        return pd.DataFrame(list(self))


def line_of(record: Any, *, validates: bool) -> dict[str, Any]:
    """Return a line of the history from the fields of an `EpochRecord`, under skorch's names."""
    line = {"epoch": record["epoch"], "train_loss": record["train_loss"], "seconds": record["seconds"]}
    if validates:
        line["valid_score"] = record["validation_score"]
    if "dispersion" in record:
        line["dispersion"] = record["dispersion"]
    return line


def _spent(ledger: Ledger) -> FloatMatrix:
    """Return the bytes of all ranks and the mean seconds of one, shape (n_epochs, 2); servers have no epochs."""
    found = [records.epochs for records in ledger.ranks if len(records.epochs)]
    if not found:
        return np.zeros((0, 2))
    n_epochs = min(map(len, found))
    table = np.stack([epochs[-n_epochs:] for epochs in found])
    return np.column_stack([table[..., 0].sum(axis=0), table[..., 1].mean(axis=0)])
