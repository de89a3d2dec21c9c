"""Unchanged scikit-learn scripts, with the solvers of this package behind scikit-learn's own classes.

Problem: a script that says ``from sklearn.svm import SVC`` works, and nobody wants to change it to find out whether
another solver is faster.

Method: `install` puts subclasses of the same name into ``sklearn.svm`` and ``sklearn.linear_model``. Their ``fit``
trains by `dsgd.svm` or `dsgd.SGDClassifier`, and leaves on the object what scikit-learn's ``fit`` would have left. What
is not supported, too small to pay or raises is scikit-learn's. ``python -m dsgd.accel script.py`` does it around a
script, ``%load_ext dsgd.accel`` in a notebook.

Source: none; the way is that of scikit-learn-intelex and ``cuml.accel``.
"""

from __future__ import annotations

from typing import Any

from dsgd.accel.calls import Call, clear_calls, recorded_calls
from dsgd.accel.patch import install, is_installed, uninstall

__all__ = [
    "Call",
    "clear_calls",
    "install",
    "is_installed",
    "load_ipython_extension",
    "recorded_calls",
    "uninstall",
    "unload_ipython_extension",
]


def load_ipython_extension(ipython: Any) -> None:
    """Do what ``%load_ext dsgd.accel`` stands for."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """Do what ``%unload_ext dsgd.accel`` stands for."""
    uninstall()
