"""What ranks with a training loop of their own agree on before they exchange."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import nn

from dsgd.collectives import Group
from dsgd.errors import InvalidDataError, InvalidParameterError, VersionMismatchError
from dsgd.runtime.rank import Rank
from dsgd.torch.fingerprint import fingerprint
from dsgd.torch.statistics import ModuleStatistics
from dsgd.types import AnyArray

_SHARE_TOL: Final = 1e-6


def check_ranks(rank: Rank, module: nn.Module, weight: float) -> None:
    """Raise unless all ranks have the same module, and shares that add up to one; called by all ranks."""
    ours = fingerprint(module)
    digest = np.frombuffer(bytes.fromhex(ours["parameters"] + ours["code"]), dtype=np.int64)
    total = np.array([weight])
    rank.ledger.begin_round("setup")
    digests: AnyArray = rank.group.roll_call(digest)
    rank.group.allreduce(total)
    rank.ledger.end_round()
    for number, theirs in enumerate(digests):
        if (theirs != digests[0]).any():
            what = "parameters" if theirs[0] != digests[0][0] else "code"
            raise VersionMismatchError(
                f"the {type(module).__name__} of rank {number} is not that of rank 0: its {what} differ. Bring the "
                "same version of the file to all workers."
            )
    if abs(total[0] - 1.0) > _SHARE_TOL:
        raise InvalidParameterError(
            f"Synchronizer(weight=...) is the share of a rank, and those of all {rank.size} must add up to one. They "
            f"add up to {total[0]:.6g}."
        )


def share_buffers(group: Group, module: nn.Module, buffers: ModuleStatistics) -> None:
    """Give all ranks the buffers of rank 0, of whatever dtype, such as masks of bools; called by all ranks."""
    for vector in buffers.vectors().values():
        group.broadcast(vector.view(np.uint8))
    for tensor in module.buffers():
        if tensor.dtype == torch.bfloat16:
            words = tensor.detach().cpu().reshape(-1)
            group.broadcast(words.view(torch.uint8).numpy())
            tensor.copy_(words.view(tensor.shape))


def agree(group: Group, *, leaves_out: bool = False, ends: bool = False, moved: bool = False) -> tuple[bool, bool]:
    """Tell all ranks what this one is about to do; called by all of them before every exchange.

    - returned: whether any rank does, and whether that of any has; the same on all ranks.
    """
    message = np.array([leaves_out, ends, moved], dtype=np.float64)
    group.allreduce(message)
    n_leaving, n_ending, n_moved = message.tolist()
    if 0 < n_ending < group.size:
        raise InvalidDataError(
            f"{n_ending:.0f} of {group.size} ranks have ended their loop, but the others have not: all ranks must "
            "take the same number of steps. Synchronizer.rows gives each the same number of rows; call step() after "
            "every step, including skipped ones."
        )
    return n_leaving > 0, n_moved > 0
