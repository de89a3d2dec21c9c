"""Compressors as communication hooks of torch's `DistributedDataParallel`.

Problem: a script that runs under torchrun has its process group already, and wants its gradients compressed.

`compress_hook` makes a communication hook: each bucket of gradients that DDP has ready is averaged over the ranks by
`dsgd.collectives.compressed_mean`, the very function that strategies call, over the process group of torch.

DDP cuts new buckets after the first backward pass. What a compressor has left out of the old buckets would be lost.
So the first gradient of every bucket is sent whole, and memory starts with its second.

Cost per bucket: `dsgd.collectives.compressed_cost`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dsgd.collectives import Group
from dsgd.collectives.compressed.mean import compressed_mean
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import check_limit
from dsgd.compress import AbstractCompressor, Layerwise
from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.ledger import RankLedger
from dsgd.sync.averaging import weighted_mean
from dsgd.types import AnyArray

# Random numbers of compressors start here, on all ranks.
_SEED = 0


def compress_hook(compressor: AbstractCompressor[Any], group: Any = None) -> Callable[[Any, Any], Any]:
    """Return a communication hook: ``ddp_model.register_comm_hook(None, compress_hook(...))``.

    Parameters
    ----------
    compressor : AbstractCompressor
        How gradients are encoded. A lossy one without memory must be wrapped in `dsgd.compress.ErrorFeedback`.
    group : ProcessGroup or None, default None
        The ranks; None is all of them. The hook makes a group of its own of them, so all ranks must call this.

    Returns
    -------
    callable
        Takes (state, bucket), returns a future of the mean gradient. Buckets are float32 or float64.

    Raises
    ------
    IncompatiblePartsError
        The compressor loses what it leaves out of gradients, or goes tensor by tensor.
    """
    if isinstance(compressor, Layerwise):
        raise IncompatiblePartsError(
            f"compress_hook({compressor!r}): the buckets of DDP have no names of tensors. Use dsgd.torch.Synchronizer."
        )
    if compressor.needs_feedback and not compressor.remembers:
        raise IncompatiblePartsError(
            f"{compressor!r} loses what it leaves out of gradients. Wrap it: ErrorFeedback({compressor!r})."
        )
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    ranks = Group(_ProcessGroup(dist.new_group(members, backend="gloo"), members))
    memories: dict[tuple[int, ...], Any] = {}

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and wants none or its own
        buffer = bucket.buffer()
        if buffer.dtype not in (torch.float32, torch.float64):
            raise InvalidDataError(f"compress_hook averages float32 and float64 gradients. Got {buffer.dtype}.")
        key = tuple(id(parameter) for parameter in bucket.parameters())
        vector = buffer.detach().cpu().numpy()
        weight = 1.0 / ranks.size
        if key not in memories:
            memories[key] = compressor.init(vector.size, vector.dtype, _SEED, ranks.rank, ranks.size)
            weighted_mean(ranks, vector, weight)
        else:
            compressed_mean(ranks, vector, weight, compressor, memories[key])
        if buffer.device.type != "cpu":
            buffer.copy_(torch.from_numpy(vector))
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    return hook


class _ProcessGroup(AbstractTransport):
    """A process group of torch as a wire of this library."""

    def __init__(self, group: Any, members: list[int]) -> None:
        self._group, self._members = group, members
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ledger = RankLedger(self.rank)
        self.hosts = tuple(range(self.size))
        self.wire = "torch.distributed"
        self.deadline_s = 1800.0

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send and receive at once; see `AbstractTransport.exchange`."""
        waits = []
        if source is not None and incoming is not None:
            waits.append(dist.irecv(_bytes(incoming), self._members[source], group=self._group))
        if to is not None and outgoing is not None:
            waits.append(dist.isend(_bytes(outgoing), self._members[to], group=self._group))
        for wait in waits:
            wait.wait()

    def set_deadline(self, deadline_s: float) -> None:
        """Note the limit; how long torch waits was decided when its process group was made."""
        check_limit("set_deadline(deadline_s)", deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Let go of the process group."""
        self._group = None


def _bytes(array: AnyArray) -> Any:
    flat = array.reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        flat = flat.copy()
    return torch.from_numpy(flat)
