"""What worker processes are forked from: the server of forks imports this, and so has loaded what workers need.

Imports and compiled functions take a worker longer than all that it does in most tests.
"""

from __future__ import annotations

import gc
import logging

import numpy as np

import dsgd.inputs.sources
import dsgd.runtime.worker.member
import gang_programs
import gangs
from dsgd import SGDClassifier
from dsgd.sync import MinibatchSGD

__all__ = ["dsgd", "gang_programs"]

# Workers that are killed are not worth a traceback each.
for _name in ("distributed", "asyncio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

for _sync in (1, MinibatchSGD(batch=1)):
    SGDClassifier(max_iter=1, tol=None, sync=_sync).fit(np.eye(2), [0, 1])
# Two ranks that share memory.
gangs.run_gang("shm", 2, lambda group: group.allreduce(np.ones(1)))
# Or every worker would hold what is left of theirs until it is collected.
gc.collect()
