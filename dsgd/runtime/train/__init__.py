"""Training on one rank: the loop of local steps, synchronisation and the ledger.

`loop` is the rank program, `run` its set-up, `rounds` and `walk` what happens within an epoch, `epoch` what happens at
its end; `job` is what goes in and what comes out, `state` where training stands between two rounds. The other modules
are what the loop does for one kind of strategy each, or for those who keep its state. Nothing here knows Dask. Called
by `dsgd.estimators`, `dsgd.torch` and `dsgd.tuning`, as the program of a gang. Begin with `loop`.
"""

from dsgd.runtime.train.loop import EpochRecord, TrainData, TrainJob, TrainResult, train

__all__ = ["EpochRecord", "TrainData", "TrainJob", "TrainResult", "train"]
