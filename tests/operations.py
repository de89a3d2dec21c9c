"""The law of collectives: whatever operations follow each other, on whatever gang, the results are numpy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm.frames import DTYPE_CODES

KINDS = ("sum", "min", "max", "broadcast", "allgather", "allgatherv", "gather", "scatter", "barrier")

#: Lists of operations: what, the number of elements, their type, and a seed.
operations = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from([0, 1, 2, 3, 5, 17, 64, 1000, 20_000]),
        st.sampled_from(tuple(DTYPE_CODES)),
        st.integers(0, 2**31),
    ),
    min_size=1,
    max_size=12,
)


def drawn(rank: int, n: int, dtype: Any, seed: int) -> np.ndarray:
    """Return whole numbers, so that sums are exact in every order."""
    # Unsigned ones wrap around alike in every order.
    return np.random.default_rng((seed, rank)).integers(-1000, 1000, size=n).astype(dtype)


def length_on(rank: int, n: int, seed: int) -> int:
    """Return how many elements a rank gathers: from none to n."""
    return int(np.random.default_rng((seed, rank, 1)).integers(0, n + 1))


def check_operations(run: Callable[[Callable[[Group], Any]], list[Any]], size: int, ops: list[Any]) -> None:
    """Run operations one after the other on a gang, and compare what each rank has with numpy."""

    def program(group: Group) -> list[np.ndarray]:
        results = []
        for name, n, dtype, seed in ops:
            root, vector = seed % size, drawn(group.rank, n, dtype, seed)
            if name in ("sum", "min", "max"):
                group.allreduce(vector, name)
            elif name == "broadcast":
                group.broadcast(vector, root)
            elif name == "allgather":
                vector = group.allgather(vector)
            elif name == "allgatherv":
                lengths = [length_on(r, n, seed) for r in range(size)] if seed % 2 else None
                vector = np.concatenate(group.allgatherv(vector[: length_on(group.rank, n, seed)], lengths))
            elif name == "gather":
                parts = group.gather(vector[: length_on(group.rank, n, seed)], root)
                vector = vector if parts is None else np.concatenate(parts)
            elif name == "scatter":
                rows = np.stack([drawn(r, n, dtype, seed) for r in range(size)])
                vector = np.empty(n, dtype)
                group.scatter(rows if group.rank == root else None, vector, root)
            else:
                group.barrier()
            results.append(vector)
        return results

    for rank, results in enumerate(run(program)):
        for (name, n, dtype, seed), result in zip(ops, results, strict=True):
            everyone = np.stack([drawn(r, n, dtype, seed) for r in range(size)])
            joined = np.concatenate([everyone[r, : length_on(r, n, seed)] for r in range(size)])
            expected = {
                "sum": everyone.sum(axis=0, dtype=dtype),
                "min": everyone.min(axis=0),
                "max": everyone.max(axis=0),
                "broadcast": everyone[seed % size],
                "allgather": everyone,
                "allgatherv": joined,
                "gather": joined if rank == seed % size else everyone[rank],
                "scatter": everyone[rank],
                "barrier": everyone[rank],
            }[name]
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
