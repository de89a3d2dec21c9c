"""From a user's data to row blocks: what one look at a block tells, without a cluster."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import SGDClassifier
from dsgd.errors import InvalidDataError
from dsgd.inputs import make_block, widen
from dsgd.inputs.blocks import summarise
from dsgd.inputs.dealing import Deal
from dsgd.inputs.sources import to_delayed_blocks
from dsgd.sim import SimulatedCluster


def test_targets_are_asked_for_only_where_they_are_needed():
    """Without supervision a block needs no targets, and a collection none either; with it both say so."""
    X = np.ones((4, 2))
    assert not summarise(make_block(X), classification=False, supervised=False).problem
    assert "y is missing" in summarise(make_block(X), classification=False).problem
    rows = da.from_array(X, chunks=(2, 2))
    assert len(to_delayed_blocks(rows, None, None, supervised=False)) == 2
    with pytest.raises(InvalidDataError, match="requires y"):
        to_delayed_blocks(rows, None, None)


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ((np.array([[np.nan]]), None, None), "NaN"),
        ((np.array([["a"]]), None, None), "expected numbers"),
        ((np.ones((2, 1)), None, np.array([1.0, -1.0])), "not negative"),
        ((np.ones((2, 1)), None, np.ones(3)), "sample_weight has 3"),
    ],
)
def test_rows_and_weights_are_checked_without_targets(block, match):
    """What is wrong with rows and weights is found whether or not there are targets."""
    assert match in summarise(block, classification=False, supervised=False).problem


def test_widening_shares_the_values():
    """A narrow CSR block gets the width of the model without a copy of its values."""
    X = sp.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]]))
    wide = widen(X, 5)
    assert wide.shape == (2, 5)
    assert np.shares_memory(wide.data, X.data)
    assert widen(X, 2) is X


@pytest.mark.parametrize(("n_rows", "n_ranks"), [(0, 3), (2, 5), (64, 4), (103, 7), (5, 1)])
@pytest.mark.parametrize("pieces", [1, 3])
def test_dealt_rows_are_all_rows_once(n_rows, n_ranks, pieces):
    """Ranks get every row once, as many as they get of neighbours, and the same ones in any number of blocks."""
    rows = np.arange(n_rows)
    dealt = Deal(n_rows, n_ranks, pieces, seed=3)
    blocks = [rows[dealt.rows(k)] for k in range(dealt.n_blocks)]
    neighbours = [rows[Deal(n_rows, n_ranks, pieces).rows(k)] for k in range(dealt.n_blocks)]
    assert [len(block) for block in blocks] == [len(block) for block in neighbours]
    assert np.array_equal(np.concatenate(neighbours), rows)
    assert np.array_equal(np.sort(np.concatenate(blocks)), rows)
    assert sorted(dealt.reading_order()) == list(range(dealt.n_blocks))
    whole = Deal(n_rows, n_ranks, seed=3)
    for rank in range(n_ranks):
        mine = np.concatenate(blocks[rank * pieces : (rank + 1) * pieces])
        assert np.all(np.diff(mine) > 0)
        assert np.array_equal(mine, rows[whole.rows(rank)])


def test_sorted_rows_are_dealt_before_they_are_sent():
    """Of rows that come one class after the other every rank gets both, unless their order is to be kept."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 400)
    X = rng.standard_normal((800, 3)) + 1.5 * y[:, None]
    options = {"max_iter": 5, "tol": None, "random_state": 0, "sync": "one-shot", "client": SimulatedCluster(4)}
    # A rank that sees one class only learns to say it always: its steps find nothing to correct.
    losses = {shuffle: SGDClassifier(**options, shuffle=shuffle).fit(X, y).loss_curve_[-1] for shuffle in (False, True)}
    assert losses[False] < 0.01 < 0.1 < losses[True]
