"""More classes than before: outputs for labels that come late, beside those that the model has.

Problem: which classes a stream of rows will bring is often not known when it begins.

Method: a new class gets an output of zeros, in the place that its label has among the sorted ones. Others keep theirs:
coefficients, averages and what the local rule remembers of each. Of two classes there is one output w, for the second
against the first; among more each has its own, -w and w, or -w/2 and w/2 where they share one loss, whose differences
are what counts. The decision between the two is the same, and with softmax the ratio of their probabilities.

The step counter goes on, and so does the mean of the iterates, in which a new output is zero at the steps before it
came. These are counted, and the model gets the mean over the others (`present_mean`).

What cannot be said of a new output begins anew for all: the account of the L1 penalty, since one of zeros would owe
what has fallen due before it was there; what was remembered of rows; and what strategies and compressors remember,
whose vectors may be of any form. So do models of ranks that stay apart, from their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.estimators.start import Start
from dsgd.kernels.state import COUNTERS
from dsgd.local import pack, unpack
from dsgd.runtime.checkpoints.checkpoint import SavedState
from dsgd.types import AnyArray, IntVector

#: As `classes` of ``partial_fit``: those of the rows so far.
GROW: Final = "grow"

#: What each of two outputs gets of the one that there was, of vectors that a rule remembers.
_OF_RULE: Final = {"rule.velocity": (-1.0, 1.0), "rule.second": (1.0, 1.0)}


@dataclass(frozen=True)
class _Outputs:
    """Where the outputs of a model go in one of more classes."""

    places: IntVector
    n: int

    @property
    def n_before(self) -> int:
        """Outputs there were."""
        return 1 if len(self.places) == 2 else len(self.places)

    def spread(self, table: AnyArray, pair: tuple[float, float]) -> AnyArray:
        """Return a table of all outputs, shape (n, ...), from that of those before, shape (n_before, ...)."""
        rows = table if self.n_before > 1 else np.concatenate([table * factor for factor in pair])
        whole = np.zeros((self.n, *table.shape[1:]), table.dtype)
        # Added, so that a zero has no sign.
        whole[self.places] += rows
        return whole

    def model(self, coef: Any, intercept: Any, *, coupled: bool) -> tuple[AnyArray, AnyArray]:
        """Return coefficients, shape (n, n_features), and intercepts, shape (n,)."""
        pair = (-0.5, 0.5) if coupled else (-1.0, 1.0)
        dense = np.asarray(coef.toarray() if hasattr(coef, "toarray") else coef).reshape(self.n_before, -1)
        return self.spread(dense, pair), self.spread(np.reshape(intercept, self.n_before), pair)

    def state(self, left: SavedState, *, coupled: bool) -> SavedState:
        """Return what ranks remember: their counters and the memory of their rule."""
        arrays, is_sparse = left.arrays, left.configuration["sparse"]
        counters = arrays["counters"][:, :COUNTERS]
        # The sums of an epoch that is over.
        of_losses = np.zeros((len(counters), 1 if coupled else self.n))
        kept = {name: arrays[name] for name in ("rows", "rule.steps") if name in arrays}
        kept["counters"] = np.hstack([counters, of_losses])
        for name, pair in _OF_RULE.items():
            if name in arrays:
                d = arrays[name].shape[1] // self.n_before - 1
                parts = [unpack(vector, d, self.n_before, sparse=is_sparse) for vector in arrays[name]]
                kept[name] = np.stack(
                    [pack(self.spread(w, pair), self.spread(b, pair), sparse=is_sparse) for w, b in parts]
                )
        return replace(left, arrays=kept)


def grown(start: Start, classes: AnyArray | None, *, coupled: bool) -> Start:
    """Return where training begins with outputs for all classes; the same, if it has them.

    - `classes`, shape (n_classes,): those that there are now, sorted, among them all of `start`; None of a
      regression.
    """
    if classes is None or start.classes is None or len(classes) == len(start.classes):
        return start
    outputs = _Outputs(np.searchsorted(classes, start.classes), len(classes))
    absent = np.zeros(outputs.n_before, np.int64) if start.absent is None else start.absent
    coef, intercept = outputs.model(start.coef, start.intercept, coupled=coupled)
    return replace(
        start,
        classes=classes,
        coef=coef,
        intercept=intercept,
        averaged=None if start.averaged is None else outputs.model(*start.averaged, coupled=coupled),
        absent=start.n_averaged + outputs.spread(absent - start.n_averaged, (1, 1)) if start.n_averaged else None,
        left=None if start.left is None else outputs.state(start.left, coupled=coupled),
    )


def present_mean(
    coef: AnyArray, intercept: AnyArray, absent: IntVector | None, n_averaged: int
) -> tuple[AnyArray, AnyArray]:
    """Return the mean of the iterates, over those in which each output was there."""
    if absent is None:
        return coef, intercept
    # An output that has come after all of them is zero, whatever it is divided by.
    factors = (n_averaged / np.maximum(n_averaged - absent, 1)).astype(coef.dtype)
    return coef * factors[:, None], intercept * factors


def joined(classes: AnyArray, labels: AnyArray) -> AnyArray:
    """Return the classes of both, sorted."""
    are_texts = {array.dtype.kind in "US" for array in (classes, labels) if array.dtype.kind != "O"}
    try:
        if len(are_texts) > 1:
            raise TypeError("texts and numbers")
        return np.union1d(classes, labels)
    except TypeError as error:
        raise InvalidDataError(
            f"y holds labels that cannot be sorted among classes={classes!r}: {labels!r}. Labels of one model are all "
            "texts or all numbers."
        ) from error
