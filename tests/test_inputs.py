"""From a user's data to row blocks: what one look at a block tells, without a cluster."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.inputs import make_block, widen
from dsgd.inputs.blocks import summarise
from dsgd.inputs.sources import to_delayed_blocks


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
