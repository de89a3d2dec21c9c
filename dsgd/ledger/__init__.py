"""The ledger: where the time and the bytes of a training run went.

Each rank keeps a `RankLedger`: seconds of compute (local steps), encode (weighting, packing), wire (bytes moving), wait
(a peer not there yet) and control (see below), with bytes and messages, for every round. A round is the span from one
exchange to the next. When a job ends, the rank ledgers are combined into a `Ledger`, the ``ledger_`` of a fitted
estimator.

Everything sent belongs either to the algorithm or to control. Control is what ranks send to set up, to agree, to
evaluate the model or to save their state, in rounds of their own (`CONTROL_OPS`) or within a round of the algorithm.
Bytes, messages and seconds of control are counted apart, so everything else is the cost of the method, without what
this library adds.

`rank` is what a rank writes, on the hot path; `job` is what users read. Begin with `rank`.
"""

from dsgd.ledger.job import Ledger
from dsgd.ledger.rank import (
    COMPUTE,
    CONTROL,
    CONTROL_OPS,
    ENCODE,
    PHASES,
    WAIT,
    WIRE,
    RankLedger,
    RankRecords,
)

__all__ = [
    "COMPUTE",
    "CONTROL",
    "CONTROL_OPS",
    "ENCODE",
    "PHASES",
    "WAIT",
    "WIRE",
    "Ledger",
    "RankLedger",
    "RankRecords",
]
