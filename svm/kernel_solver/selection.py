"""The best of the candidates of all ranks, found on the way up and down a tree.

Problem: a block takes the worst violators of all samples, which are divided among P ranks. Each rank can offer its own
worst ones, but to hand all offers to all ranks takes P - 1 messages, and every rank then sorts P lists to find one.

Method: a list holds the best candidates of some ranks, by key and, of equal keys, by number. Of two such lists the best
of both together are a list of the same length, in whichever order ranks are taken. So the lists are combined as numbers
are in a sum, by recursive doubling, and every rank ends with the same one: what sorting all offers would give. Words
that follow the lists are added up.

Cost: ceil(log2 P) messages of all lists, 16 bytes for each candidate that there is room for and 8 for each number that
is told of it, and one or two more where P is no power of two (`dsgd.collectives.cost.allreduce_cost`). Merging two
lists takes as many steps as there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.types import AnyArray, FloatVector, IntVector


def best(keys: FloatVector, numbers: IntVector, most: int) -> tuple[FloatVector, IntVector]:
    """Return at most `most` smallest keys and their numbers; of equal keys the smaller number is better."""
    some = best_of(keys, numbers, most)
    return keys[some], numbers[some]


def best_of(keys: FloatVector, numbers: IntVector, most: int) -> IntVector:
    """Return the places of what `best` returns."""
    some = np.arange(len(keys))
    if len(keys) > most:
        last = np.partition(keys, most - 1)[most - 1]
        under, level = np.flatnonzero(keys < last), np.flatnonzero(keys == last)
        n_more = most - len(under)
        if len(level) > n_more:
            level = level[np.argpartition(numbers[level], n_more - 1)[:n_more]]
        some = np.concatenate([under, level])
    found: IntVector = some[np.lexsort((numbers[some], keys[some]))]
    return found


@kernel
def merge(a, b, ends, n_words, out):  # type: ignore[no-untyped-def]
    """Set `out` to the best of the lists in `a` and `b`, and to the sums of what follows them; see `BestLists`."""
    size = ends[-1]
    for t in range(len(ends) - 1):
        i, j = ends[t], ends[t]
        for k in range(ends[t], ends[t + 1]):
            if a[i] < b[j] or (a[i] == b[j] and a[size + i] <= b[size + j]):
                for w in range(n_words):
                    out[w * size + k] = a[w * size + i]
                i += 1
            else:
                for w in range(n_words):
                    out[w * size + k] = b[w * size + j]
                j += 1
    for k in range(n_words * size, len(out)):
        out[k] = a[k] + b[k]


@dataclass(frozen=True)
class BestLists:
    """What ranks say to find the best of all: some lists, and words that are added up; combines two such vectors.

    It is an operation of `dsgd.collectives.Group.allreduce`: commutative and associative to the last bit, as far as the
    added words are.

    Examples
    --------
    >>> lists = BestLists((2, 1))
    >>> ours = lists.pack([([1.0, 3.0], [5, 2]), ([], [])], [1.0])
    >>> theirs = lists.pack([([2.0], [4]), ([7.0], [9])], [2.0])
    >>> lists.unpack(lists(ours, theirs))
    ([(array([1., 2.]), array([5, 4])), (array([7.]), array([9]))], array([3.]))
    """

    rooms: tuple[int, ...]
    n_told: int = 0

    @cached_property
    def _ends(self) -> IntVector:
        return np.array([0, *accumulate(self.rooms)], dtype=np.int64)

    @property
    def _n_words(self) -> int:
        return 2 + self.n_told

    def pack(self, lists: Sequence[tuple[AnyArray, ...]], added: AnyArray) -> FloatVector:
        """Return lists of finite keys, their numbers and what is told, sorted as `best` does, and words, in one vector.

        Numbers are exact up to 2**53.
        """
        size = int(self._ends[-1])
        words = np.zeros(self._n_words * size + len(added))
        words[:size] = np.inf
        for start, columns in zip(self._ends, lists, strict=False):
            for first, column in zip(range(int(start), self._n_words * size, size), columns, strict=True):
                words[first : first + len(column)] = column
        words[self._n_words * size :] = added
        return words

    def unpack(self, words: FloatVector) -> tuple[list[tuple[AnyArray, ...]], FloatVector]:
        """Return the lists and the words of a vector."""
        size, lists = int(self._ends[-1]), []
        for start, stop in pairwise(self._ends):
            n = int(np.count_nonzero(np.isfinite(words[start:stop])))
            keys, numbers, *told = (words[w * size + start :][:n].copy() for w in range(self._n_words))
            lists.append((keys, numbers.astype(np.int64), *told))
        return lists, words[self._n_words * size :]

    def __call__(self, a: AnyArray, b: AnyArray, out: AnyArray | None = None) -> AnyArray:
        """Return two vectors combined, or as many pairs of them, shape (..., n); `out` may be one of them."""
        found = np.empty_like(a)
        n = a.shape[-1]
        for one, other, both in zip(a.reshape(-1, n), b.reshape(-1, n), found.reshape(-1, n), strict=True):
            merge(one, other, self._ends, self._n_words, both)
        if out is None:
            return found
        out[...] = found
        return out
