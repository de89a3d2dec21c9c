"""The comparison of methods on rows of your own: `dsgd.compare`.

::

    found = dsgd.compare({"local": 64, "gossip": "sgp:every=64"}, X, y, cluster=SimulatedCluster(16, "10GbE"))
    print(found)
    found.save("comparison.html")

`compare` checks, finds rates and periods, and runs; `runs` says what is compared, on what and where, and makes learning
curves; `result` knows the target and who reaches it, and draws and writes it. The study of strategies is made of the
same parts. Begin with `compare`.
"""

from dsgd.study.comparison.compare import compare
from dsgd.study.comparison.result import Comparison, StrategyCell, StrategyGang
from dsgd.study.comparison.runs import Methods

__all__ = ["Comparison", "Methods", "StrategyCell", "StrategyGang", "compare"]
