"""The classes of scikit-learn, replaced where scripts import them from."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from dsgd.accel.calls import SETTINGS, clear_calls

__all__ = ["REPLACED", "install", "is_installed", "uninstall"]

#: Modules that scripts import from, and their classes that are replaced.
REPLACED: Final = {
    "sklearn.svm": ("LinearSVC", "LinearSVR", "NuSVC", "NuSVR", "OneClassSVM", "SVC", "SVR"),
    "sklearn.linear_model": ("SGDClassifier", "SGDRegressor"),
}
#: The module whose searches tell the fits inside them what is to come.
_SEARCHES: Final = "sklearn.model_selection"
_originals: Final[dict[tuple[str, str], type]] = {}


def install(*, verbose: bool = False, compare: bool = False) -> None:
    """Replace classes of ``sklearn.svm`` and ``sklearn.linear_model`` by accelerated ones of the same names.

    Names that were imported before stay what they are. Nothing is loaded before it is needed: neither scikit-learn, if
    it is not yet imported, nor the solvers. Calling it again changes the settings.

    Parameters
    ----------
    verbose : bool, default False
        Whether every fit is listed on standard error, with its solver and its seconds.
    compare : bool, default False
        Whether every fit that is ours is done by scikit-learn as well, on a copy, to tell what it has saved.
    """
    SETTINGS.verbose, SETTINGS.compare = verbose, compare
    if _hook not in sys.meta_path:
        clear_calls()
        sys.meta_path.insert(0, _hook)
    for name in (*REPLACED, _SEARCHES):
        if name in sys.modules:
            _replace(sys.modules[name])


def uninstall() -> None:
    """Put scikit-learn's classes back. Estimators that exist keep what they have learned, and stay accelerated."""
    if _hook in sys.meta_path:
        sys.meta_path.remove(_hook)
    for (module, name), original in _originals.items():
        setattr(sys.modules[module], name, original)
    _originals.clear()
    if _SEARCHES in sys.modules:
        from dsgd.accel.searches import tell_no_more

        tell_no_more(sys.modules[_SEARCHES])


def is_installed() -> bool:
    """Return whether classes that are imported now are accelerated ones."""
    return _hook in sys.meta_path


def _replace(module: ModuleType) -> None:
    if module.__name__ == _SEARCHES:
        from dsgd.accel.searches import tell_fits

        tell_fits(module)
        return
    from dsgd.accel.classes import accelerated

    for name in REPLACED[module.__name__]:
        if (module.__name__, name) not in _originals:
            original = getattr(module, name)
            _originals[module.__name__, name] = original
            setattr(module, name, accelerated(original))


class _Hook(MetaPathFinder):
    """Replaces classes as soon as their module is imported."""

    def __init__(self) -> None:
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of scikit-learn is found by the others, with a loader that replaces its classes."""
        if fullname not in (*REPLACED, _SEARCHES) or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Replacing(spec.loader)
        return spec


class _Replacing(Loader):
    """A loader that replaces classes of what it has loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load, then replace."""
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        _replace(module)


_hook: Final = _Hook()
