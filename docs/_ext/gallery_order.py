"""The order of examples: from the question that most people have to those of few. New ones come last, by name."""

from __future__ import annotations

_FIRST = (
    "plot_period.py",
    "plot_ledger.py",
    "plot_svm_boundary.py",
    "plot_svm_path.py",
    "plot_torch.py",
    "plot_compression.py",
    "plot_compare_strategies.py",
    "plot_stragglers.py",
    "plot_variance.py",
    "plot_grid_search.py",
    "plot_resume.py",
    "plot_novelty.py",
    "plot_own_strategy.py",
    "plot_topologies.py",
    "plot_many_ranks.py",
)


class ByPurpose:
    """A sort key of sphinx-gallery."""

    def __init__(self, src_dir: str) -> None:
        self._src_dir = src_dir

    def __call__(self, name: str) -> tuple[int, str]:
        """Return the place of an example."""
        return _FIRST.index(name) if name in _FIRST else len(_FIRST), name

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # Sphinx compares configurations by their texts
