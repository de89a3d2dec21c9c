"""The table of a search, with the columns of scikit-learn's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.ma import MaskedArray
from scipy.stats import rankdata

from dsgd.types import AnyArray, FloatMatrix


def make_results(
    candidates: Sequence[Mapping[str, Any]],
    times: Mapping[str, FloatMatrix],
    scores: Mapping[str, Mapping[str, FloatMatrix]],
    rungs: AnyArray,
) -> dict[str, Any]:
    """Return what `cv_results_` of a search of scikit-learn holds.

    - `rungs`, shape (n_candidates,): the last rung of each; candidates of a later one rank before all others.
    """
    results: dict[str, Any] = {}
    for name, values in times.items():
        results[f"mean_{name}"], results[f"std_{name}"] = values.mean(axis=1), values.std(axis=1)
    names = sorted({name for candidate in candidates for name in candidate})
    for name in names:
        results[f"param_{name}"] = _column([candidate.get(name, _MISSING) for candidate in candidates])
    results["params"] = [dict(candidate) for candidate in candidates]
    for kind, metrics in scores.items():
        for metric, values in metrics.items():
            for split in range(values.shape[1]):
                results[f"split{split}_{kind}_{metric}"] = values[:, split]
            results[f"mean_{kind}_{metric}"] = values.mean(axis=1)
            results[f"std_{kind}_{metric}"] = values.std(axis=1)
            if kind == "test":
                results[f"rank_test_{metric}"] = ranked(values.mean(axis=1), rungs)
    return results


def ranked(means: AnyArray, rungs: AnyArray) -> AnyArray:
    """Return ranks from 1 of means, ties with the least; what is not a number ranks last, a later rung first."""
    ranks = np.empty(len(means), np.int32)
    before = 0
    for rung in sorted(set(rungs.tolist()), reverse=True):
        mine = np.flatnonzero(rungs == rung)
        values = np.where(np.isnan(means[mine]), -np.inf, means[mine])
        ranks[mine] = rankdata(-values, method="min").astype(np.int32) + before
        before += len(mine)
    return ranks


_MISSING = object()


def _column(values: Sequence[Any]) -> Any:
    """Return the values of a parameter as a masked array, masked where a candidate has none."""
    mask = [value is _MISSING for value in values]
    kept = [value for value in values if value is not _MISSING]
    is_number = all(isinstance(value, (bool, int, float, np.number)) for value in kept)
    dtype = np.array(kept).dtype if is_number else np.dtype(object)
    column: MaskedArray[Any, Any] = MaskedArray(np.empty(len(values), dtype), mask=mask)
    for place, value in enumerate(values):
        if value is not _MISSING:
            column[place] = value
    return column
