"""Acceleration where every fit is worth it."""

from __future__ import annotations

import pytest

from dsgd.accel import classes, searches
from dsgd.accel.searches import Worth


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit is worth it, whatever the size."""
    monkeypatch.setattr(searches, "WORTH_S", 0.0)
    monkeypatch.setattr(searches, "TINY_S", 0.0)
    monkeypatch.setattr(classes, "_worth", Worth())
    monkeypatch.setattr(classes, "_MOST_PRODUCTS_OF_A_TINY_PREDICTION", 0)
