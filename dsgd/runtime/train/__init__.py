"""Training on one rank: the loop of local steps, synchronisation and the ledger.

`loop` is the rank program. `rounds` has its set-up, and with `visits` what happens within an epoch, `epoch` what
happens at its end. `job` is the input and the output, `state` the state of training between two rounds. `decisions` has
the stopping rule, `snapshots` says what is kept for a restart. The other modules are parts of the loop for one kind of
strategy each, or keep its state. Nothing here depends on Dask. Called by `dsgd.estimators`, `dsgd.torch` and
`dsgd.tuning`, as the program of a gang. Start with `loop`.
"""

from dsgd.runtime.train.job import EpochRecord, TrainData, TrainJob, TrainResult
from dsgd.runtime.train.loop import train

__all__ = ["EpochRecord", "TrainData", "TrainJob", "TrainResult", "train"]
