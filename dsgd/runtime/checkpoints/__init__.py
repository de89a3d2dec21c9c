"""The state of training, kept: `checkpoint` on disk or in an object store, `snapshot` in the memory of the ranks.

When it is kept, and what of it, is decided by `dsgd.runtime.train.snapshots`. Begin with `snapshot`.
"""

__all__: list[str] = []
