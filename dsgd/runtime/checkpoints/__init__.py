"""Keeping the state of training: checkpoints in files, snapshots in the memory of the ranks.

When it is kept, and what of it, is decided by `dsgd.runtime.train.snapshots`. Begin with `checkpoint`.
"""

__all__: list[str] = []
