"""Run unchanged scikit-learn scripts with the solvers of this package.

`install` changes methods of classes of ``sklearn.svm`` and ``sklearn.linear_model``. Their ``fit`` trains with
`dsgd.svm`, `dsgd.linear_model` or `dsgd.SGDClassifier`, and sets the attributes that scikit-learn's ``fit`` sets.
scikit-learn still does every fit that is not supported, too small to pay, or that raises an error, and all of
subclasses. ``python -m dsgd.accel script.py`` does this for a script, ``%load_ext dsgd.accel`` for a notebook. Source:
scikit-learn-intelex and ``cuml.accel`` work the same way.
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
    """Install, for ``%load_ext dsgd.accel``."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """Uninstall, for ``%unload_ext dsgd.accel``."""
    uninstall()
