"""Checks for strategies, compressors and topologies of your own: the laws that those of the package satisfy.

::

    from dsgd.testing import check_strategy

    def test_mine():
        check_strategy(MyStrategy(every=8))

Each check raises `AssertionError` and says which law is broken and how it shows. The lists of checks are there as well,
for a test of its own each. For use in tests: nothing here runs while a model is trained. Begin with `strategies`.
"""

from dsgd.testing.compressors import check_compressor, compressor_checks
from dsgd.testing.laws import check_topology, topology_checks
from dsgd.testing.strategies import check_strategy, strategy_checks

__all__ = [
    "check_compressor",
    "check_strategy",
    "check_topology",
    "compressor_checks",
    "strategy_checks",
    "topology_checks",
]
