"""Acceleration where every fit is worth it."""

from __future__ import annotations

import pytest

from dsgd.accel import classes, worth
from dsgd.accel.worth import Worth


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit is worth it, whatever the size."""
    monkeypatch.setattr(worth, "WORTH_S", 0.0)
    monkeypatch.setattr(worth, "TINY_S", 0.0)
    monkeypatch.setattr(classes, "_worth", Worth())
    monkeypatch.setattr(classes, "_MOST_PRODUCTS_OF_A_TINY_PREDICTION", 0)
