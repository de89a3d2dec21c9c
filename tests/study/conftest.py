"""What the tests of all studies have in common."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dsgd.report import png, provenance
from dsgd.report.figures import Figure


@pytest.fixture(autouse=True)
def hasty_look(monkeypatch) -> None:
    """Let a study look only for a moment at what else the machine does: no test judges seconds."""
    monkeypatch.setattr(provenance, "_LOOK_S", 0.01)


@pytest.fixture(autouse=True)
def drawn_here(monkeypatch) -> None:
    """Draw the pictures of pages in this process: every other one would import matplotlib first."""
    monkeypatch.setattr(png, "drawn_beside", _drawn_here)


@contextlib.contextmanager
def _drawn_here(figures: Sequence[Figure], folder: Path) -> Iterator[None]:
    parcel = pickle.dumps(list(figures))
    folder.mkdir(parents=True, exist_ok=True)
    yield
    for figure in pickle.loads(parcel):
        (folder / f"{figure.name}.png").write_bytes(png.draw(figure))
