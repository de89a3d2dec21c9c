"""How many cores BLAS takes for the small products of a fit."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_core"]


def one_core() -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread: its products are small here, and more threads cost more."""
    limited: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _blas() -> ThreadpoolController:
    # Finding the libraries takes milliseconds, longer than a small fit.
    return ThreadpoolController()
