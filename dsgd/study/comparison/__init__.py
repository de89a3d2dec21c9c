"""The comparison of methods on rows of your own: `dsgd.compare`.

::

    found = dsgd.compare({"local": 64, "gossip": "sgp:every=64"}, X, y, cluster=SimulatedCluster(16, "10GbE"))
    print(found)
    found.save("comparison.html")

`compare` checks and runs, `methods` says what is compared and where ranks run, `problem` on what, `training` makes
learning curves, `search` finds rates and periods; `summary` knows the target and who reaches it, `figures` and `result`
draw and write it. The study of strategies is made of the same parts. Begin with `compare`.
"""

from dsgd.study.comparison.compare import compare
from dsgd.study.comparison.methods import Methods
from dsgd.study.comparison.result import Comparison
from dsgd.study.comparison.summary import StrategyCell, StrategyGang

__all__ = ["Comparison", "Methods", "StrategyCell", "StrategyGang", "compare"]
