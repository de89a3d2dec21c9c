"""Row blocks that are handed to processes of this host through shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd.comm.memory.segment import Segment, shared_folder
from dsgd.inputs import shared, sources
from dsgd.inputs.blocks import Spread, partition_rows, summarise, summarise_part
from dsgd.inputs.shared import neighbours, share_block

N = 1001
RNG = np.random.default_rng(3)
ROWS = {
    "float32": RNG.normal(size=(N, 5)).astype(np.float32),
    "columns first": np.asfortranarray(RNG.normal(size=(N, 3))),
    "images": RNG.integers(0, 255, size=(N, 2, 3, 1)).astype(np.uint8),
    "csr_array": sp.random_array((N, 40), density=0.1, format="csr", rng=RNG),
    "csr_matrix": sp.csr_matrix(sp.random_array((N, 40), density=0.1, format="csr", rng=RNG, dtype=np.float32)),
    "no entries": sp.csr_array((N, 7)),
    "bytes": sp.random_array((N, 40), density=0.1, format="csr", rng=RNG).astype(bool),
    "read-only": sp.random_array((N, 40), density=0.1, format="csr", rng=RNG),
}
for array in (ROWS["read-only"].data, ROWS["read-only"].indices, ROWS["read-only"].indptr):
    array.flags.writeable = False
COLUMNS = {
    "nothing": (None, None),
    "numbers": (RNG.integers(0, 3, N), RNG.random(N)),
    "words": (RNG.choice(["no", "yes"], N), None),
    "objects": (np.array([None, "a"], dtype=object)[RNG.integers(0, 2, N)], RNG.random(N).astype(np.float32)),
    "vectors": (RNG.normal(size=(N, 2)), None),
}


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_FROM_BYTES", 0)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """Return a function that lists the segments that were made here and still have a name."""
    made: list[Segment] = []
    create = Segment.create

    def listed(size: int) -> Segment:
        made.append(create(size))
        return made[-1]

    def names() -> list[Path]:
        assert made
        paths = [shared_folder() / f"dsgd-{segment.name}" for segment in made]
        return [path for path in paths if path.exists()]

    monkeypatch.setattr(Segment, "create", listed)
    return names


def dense(X: Any) -> Any:
    return X.toarray() if sp.issparse(X) else X


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_block_comes_out_of_shared_memory_as_it_would_be_sent(rows: str, columns: str, seed: int | None) -> None:
    """Values, types and kinds are those of the rows cut from the array; kernels may write to them, no name is left."""
    given = (ROWS[rows], *COLUMNS[columns])
    partition = partition_rows(N, None, 3, pieces=2, seed=seed)
    for k in range(partition.n_blocks):
        handed = share_block(given, partition, k)
        assert handed is not None
        found = pickle.loads(pickle.dumps(handed, protocol=5))
        handed.unlink()
        expected = partition.block(given, k)
        for ours, sent in zip(found, expected, strict=True):
            assert type(ours) is type(sent)
            if sent is not None:
                assert (ours.shape, ours.dtype) == (sent.shape, sent.dtype)
                np.testing.assert_array_equal(dense(ours), dense(sent))
        assert (found[0].data if sp.issparse(found[0]) else found[0]).flags.writeable
        with pytest.raises(FileNotFoundError):  # read once, it cannot be read again
            pickle.loads(pickle.dumps(handed))


def test_a_copy_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, named: Callable[[], list[Path]]) -> None:
    """The segment loses its name with the error."""
    X, y = ROWS["float32"], COLUMNS["numbers"][0]
    monkeypatch.setattr(shared, "_take", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        share_block((X, y, None), partition_rows(N, None, 2, seed=0), 0)
    assert not named()


def test_rows_that_cannot_lie_in_shared_memory_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes, Python objects and little memory give None."""
    X, y = ROWS["float32"], COLUMNS["numbers"][0]
    partition = partition_rows(N, None, 2, seed=0)
    assert share_block((X.astype(object), y, None), partition, 0) is None
    monkeypatch.setattr(shared, "_FROM_BYTES", 2 * X.nbytes)
    assert share_block((X, y, None), partition, 0) is None

    def fail(size: int) -> Segment:
        raise OSError("no space left")

    monkeypatch.setattr(shared, "_FROM_BYTES", 0)
    few = mock.Mock(free=X.nbytes)
    with mock.patch.object(shared.shutil, "disk_usage", return_value=few):
        assert share_block((X, y, None), partition, 0) is None  # more than half of what is free
    monkeypatch.setattr(Segment, "create", fail)
    assert share_block((X, y, None), partition, 0) is None


class Cluster:
    """A cluster whose workers are functions of this process, beside some that find nothing."""

    def __init__(self, here: set[str]) -> None:
        self.here, self.asked, self.client = here, [], frozenset(here)
        self.threads = dict.fromkeys(sorted(here), 1)

    def run(self, function: Any, *args: Any, workers: list[str]) -> dict[str, Any]:
        """Call a function for each worker."""
        self.asked += workers
        return {w: function(*args) if w in self.here else OSError("elsewhere") for w in workers}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", [None, 0])
def test_blocks_are_summarised_before_they_exist(rows: str, columns: str, seed: int | None) -> None:
    """What is told of some rows of an array is what a look at their block tells."""
    given = (ROWS[rows], *COLUMNS[columns])
    expected = {"classification": columns in ("numbers", "words"), "any_shape": True, "rows_are_checked": True}
    partition = partition_rows(N, None, 3, pieces=2, seed=seed)
    for k in range(partition.n_blocks):
        found, looked = (
            summarise_part(given, partition.rows(k), **expected),
            summarise(partition.block(given, k), **expected),
        )
        for ours, theirs in zip(astuple(found), astuple(looked), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_workers_are_asked_once_for_a_segment() -> None:
    """A worker that finds none, or is inside this process, is no neighbour; nobody is asked twice."""
    cluster: Any = Cluster({"tcp://a", "tcp://b"})
    workers = ["tcp://a", "tcp://far", "inproc://x"]
    assert neighbours(cluster, workers) == neighbours(cluster, workers) == {"tcp://a"}
    assert neighbours(cluster, [*workers, "tcp://b"]) == {"tcp://a", "tcp://b"}
    assert cluster.asked == ["tcp://a", "tcp://far", "tcp://b"]


def test_a_worker_that_cannot_map_a_block_is_sent_it(named: Callable[[], list[Path]]) -> None:
    """Where handing over fails, that block alone is sent, and no segment keeps its name."""
    X, y = ROWS["float32"], COLUMNS["numbers"][0]

    class Scattering(Cluster):
        def scatter(self, blocks: list[Any], workers: list[list[str]]) -> list[Any]:
            return [self.sent(block, home) for block, home in zip(blocks, workers, strict=True)]

        def sent(self, block: Any, home: list[str]) -> Any:
            if not isinstance(block, shared.SharedBlock):
                return "sent", block
            return OSError("Stream is closed") if home == ["tcp://b"] else ("mapped", pickle.loads(pickle.dumps(block)))

    cluster: Any = Scattering({"tcp://a", "tcp://b"})
    futures, partition = sources.scatter_rows(cluster, X, y, None, Spread(seed=0))
    assert [how for how, _ in futures] == ["mapped", "sent"]
    assert not named()
    for k, (_, block) in enumerate(futures):
        np.testing.assert_array_equal(block[0], partition.block((X, y, None), k)[0])
