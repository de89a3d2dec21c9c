"""Blocks that bring the hashes of their rows along."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd.estimators.packing import Packer
from dsgd.inputs.blocks import HashedBlock, make_block
from dsgd.inputs.partition import partition_rows
from dsgd.local import Shard
from dsgd.local.blocks import fingerprints
from dsgd.stages import recorded, recording

N, D = 400, 6
RNG = np.random.default_rng(11)
X = np.where(RNG.random((N, D)) < 0.4, RNG.integers(-2, 3, (N, D)), 0.0)  # with equal rows, and rows of zeros
Y = RNG.integers(0, 2, N)
WEIGHTS = RNG.integers(0, 3, N).astype(float)
FORMS = {
    "float32": X.astype(np.float32),
    "float64": X,
    "integers": X.astype(int),
    "columns first": np.asfortranarray(X),
    "CSR": sp.csr_array(X),
    "CSR float32": sp.csr_array(X.astype(np.float32)),
}


def packed(blocks: list[Any], *, dtype: str = "float64", sparse: bool = False, held_out: float = 0.0) -> Any:
    """Return what a rank packs blocks into, and how many bytes it has read for hashes."""
    pack = Packer(np.unique(Y), D, dtype, sparse=sparse, shuffle=True, seed=5, validation_fraction=held_out)
    with recording():
        data = pack(blocks, 0)
        stages = recorded("here")
    return data, sum(found.nbytes for found in stages if found.name == "hash")


def bits(shard: Shard | None) -> Any:
    """Return the bytes of all arrays of a shard."""
    arrays = () if shard is None else (shard.values, shard.indices, shard.indptr, shard.targets, shard.weights)
    return [None if array is None else array.tobytes() for array in arrays]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("form", FORMS)
def test_hashes_that_are_sent_along_change_no_bit(form: str, held_out: float, weights: Any) -> None:
    """A rank packs the same shards and holds out the same rows, and reads none for hashes."""
    rows = FORMS[form]
    options = {"dtype": "float32" if rows.dtype == np.float32 else "float64", "sparse": sp.issparse(rows)}
    options["held_out"] = held_out
    given = (rows, Y, weights)
    partition = partition_rows(rows, weights, 2, pieces=2, seed=1)
    blocks = [partition.block(given, k) for k in (0, 1)]
    assert all(isinstance(block, HashedBlock) for block in blocks)
    (found, n_read), (expected, _) = packed(blocks, **options), packed([tuple(block) for block in blocks], **options)
    assert bits(found.shard) == bits(expected.shard)
    assert bits(found.validation) == bits(expected.validation)
    assert n_read == 0


def test_hashes_that_do_not_belong_to_the_rows_are_not_used() -> None:
    """Those of another number of rows, another type or other kernels are made anew."""
    prints = fingerprints(X)
    wrong = [prints[:-1], prints.astype(np.int64), np.stack([prints, prints])]
    expected = packed([(X, Y, None)])
    for each in wrong:
        found = packed([HashedBlock((X, Y, None), each)])
        assert bits(found[0].shard) == bits(expected[0].shard)
        assert found[1] == expected[1] > 0
    for options in ({"dtype": "float32"}, {"sparse": True}):
        ours, plain = (packed([block], **options) for block in (HashedBlock((X, Y, None), prints), (X, Y, None)))
        assert bits(ours[0].shard) == bits(plain[0].shard)


def test_false_hashes_change_the_order_of_their_own_rows_alone() -> None:
    """The rows are all there, checkpoints have the same sum of them, and other blocks are packed as ever."""
    before = packed([(X, Y, None)])[0].shard
    lying = packed([HashedBlock((X, Y, None), RNG.integers(0, 2**63, N).astype(np.uint64))])[0].shard
    assert bits(lying) != bits(before)
    assert lying.content() == before.content()
    assert bits(packed([HashedBlock((X, Y, None), fingerprints(X))])[0].shard) == bits(before)


def test_a_block_keeps_its_hashes_where_dask_moves_it() -> None:
    """Pickled, and taken as a block of a list, it is the same; rows that are dealt in order have no hashes."""
    block = partition_rows(X, None, 2, seed=0).block((X, Y, None), 1)
    for found in (pickle.loads(pickle.dumps(block)), make_block(block)):
        assert isinstance(found, HashedBlock)
        assert np.array_equal(found.prints, fingerprints(found[0]))
    assert type(partition_rows(X, None, 2).block((X, Y, None), 1)) is tuple
