"""Sums of low-rank matrices for `PowerSGD`: the factors of all matrices in two all-reduces.

Problem: a module has many matrices, and a sum for each of their short factors costs more in messages than in bytes.

Update, for every matrix M with the row factors V of the last time: ``U <- sum V M'`` over ranks, made orthonormal;
``W <- sum U M``; the sum is ``U' W``.

Cost: two all-reduces, of all U and of all W.

Source: Vogels, Karimireddy and Jaggi 2019, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsgd.collectives.compressed.encoding import encoding
from dsgd.collectives.group import Group
from dsgd.compress import PowerMemory, PowerSGD
from dsgd.compress.powersgd import times_rows
from dsgd.kernels import quantize
from dsgd.types import AnyArray, FloatVector


def sum_of_factors(
    group: Group, matrices: Sequence[tuple[FloatVector, PowerSGD, PowerMemory, FloatVector | None]]
) -> None:
    """Replace vectors by the sums of their low-rank matrices, whose factors are sent together."""
    wholes = [compressor.matrix(vector, memory) for vector, compressor, memory, _ in matrices]
    # Each of these passes over the matrices once for each of their factors.
    n_passed = sum(whole.size * int(each[1].rank) for whole, each in zip(wholes, matrices, strict=True))

    def column_factors() -> list[AnyArray]:
        return [
            compressor.project(whole, memory)
            for whole, (_, compressor, memory, _) in zip(wholes, matrices, strict=True)
        ]

    lefts = encoding(group, n_passed, column_factors)
    sum_together(group, lefts)

    def row_factors() -> list[AnyArray]:
        rights: list[AnyArray] = []
        for left, whole, (_, _, _, rest) in zip(lefts, wholes, matrices, strict=True):
            quantize.orthonormalise(left)
            rights.append(times_rows(left, whole))
            if rest is not None:
                quantize.add_outer(left, rights[-1], rest, -1.0)
        return rights

    with_rest = any(rest is not None for *_, rest in matrices)
    rights = encoding(group, n_passed * (2 if with_rest else 1), row_factors)
    sum_together(group, rights)

    def products() -> None:
        for left, right, (vector, compressor, memory, _) in zip(lefts, rights, matrices, strict=True):
            compressor.keep(right, memory)
            vector.fill(0.0)
            quantize.add_outer(left, right, vector, 1.0)

    encoding(group, n_passed, products)


def sum_together(group: Group, arrays: Sequence[AnyArray]) -> None:
    """Replace arrays by their sums over ranks, with one all-reduce."""
    if len(arrays) == 1:
        group.allreduce(arrays[0])
        return
    whole = np.concatenate([array.reshape(-1) for array in arrays])
    group.allreduce(whole)
    at = 0
    for array in arrays:
        array[...] = whole[at : at + array.size].reshape(array.shape)
        at += array.size
