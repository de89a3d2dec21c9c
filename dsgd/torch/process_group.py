"""The ranks of functions, of torchrun and of DDP: `launch`, a wire over ``torch.distributed``, and `compress_hook`.

torchrun: a script that it starts has its ranks already, and needs neither Dask nor `launch`. All ranks open a group of
gloo beside the default one, whatever that is made of. Models that strategies mix are in the memory of the host, on
devices too, so NCCL would only carry them back and forth; and messages of ours never come between those of the user. As
on every wire a header goes before each array, and says which frame and operation it is: ranks that are not at the same
point raise an error instead of adding up wrong numbers. gloo neither authenticates nor encrypts, and takes the network
that ``GLOO_SOCKET_IFNAME`` names. If a peer is gone the wait ends at once, if it is silent at the deadline.

DDP: each bucket of gradients that it has ready is averaged over the ranks by `dsgd.collectives.compressed_mean`, the
very function that strategies call, over the process group of torch (`dsgd.collectives.compressed_cost` a bucket). DDP
cuts new buckets after the first backward pass, and what a compressor has left out of the old buckets would be lost. So
the first gradient of every bucket is sent whole, and memory starts with its second.
"""

from __future__ import annotations

import inspect
import platform
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from dsgd import errors
from dsgd.collectives import Group
from dsgd.collectives.means import compressed_mean
from dsgd.comm import frames
from dsgd.comm.base import AbstractTransport
from dsgd.compress import AbstractCompressor, Layerwise
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.runtime.deployment import as_gang
from dsgd.runtime.gang.client import client_for
from dsgd.runtime.gang.job import run_on_cluster
from dsgd.runtime.rank import GangResult, Rank
from dsgd.sim import SimulatedCluster
from dsgd.sync.averaging import weighted_mean
from dsgd.types import AnyArray

_DEADLINE_S: Final = 600.0
_TAG: Final = 0
_JOB: Final = frames.job_code("torchrun")

# The default group that `rank_here` was last called in, and the rank in it.
_known: list[tuple[Any, Rank]] = []


class _Pending:
    """An array on its way; holds what must not be freed meanwhile."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, limit_s: float) -> None:
        """Return when it is through; raises TimeoutError or ConnectionError where it will not be."""
        try:
            self._work.wait(timedelta(seconds=limit_s))
        except RuntimeError as error:
            if "Timed out" in str(error):
                raise TimeoutError("gloo made no progress") from error
            raise ConnectionAbortedError(str(error)) from error


def _begin(call: Callable[..., Any], peer: int, array: AnyArray) -> _Pending:
    """Begin to send an array to a rank, or to receive into it, by a method of a process group of gloo."""
    tensor = torch.from_numpy(array.reshape(-1).view("u1"))
    return _Pending(call([tensor], peer, _TAG), tensor)


class TorchProcessGroup(AbstractTransport):
    """A rank of the default process group of ``torch.distributed``; all of its ranks make one at once."""

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        frames.check_limit("TorchProcessGroup(deadline_s)", deadline_s)
        if not is_running():
            raise errors.ClusterError(
                "torch.distributed has no default process group: call init_process_group() first."
            )
        if not dist.is_gloo_available():
            raise errors.ClusterError("TorchProcessGroup needs a torch that was built with gloo.")
        group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline_s))
        self.rank, self.size = int(dist.get_rank()), int(dist.get_world_size())
        self.ledger, self.wire, self.deadline_s = RankLedger(self.rank), "gloo", float(deadline_s)
        self.hosts = _hosts(group, self.size)
        self._group: Any = group
        self._n_sent: Counter[int] = Counter()
        self._under_way: list[Any] = []
        self._n_received: Counter[int] = Counter()

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` while receiving `incoming`; see `AbstractTransport.exchange`."""
        group, ledger = self._group, self.ledger
        if group is None:
            raise errors.AbortedError(f"rank {self.rank} has closed its transport and can exchange nothing.")
        to, source = None if outgoing is None else to, None if incoming is None else source
        for peer in (to, source):
            if peer is not None and (peer == self.rank or not 0 <= peer < self.size):
                raise errors.InvalidParameterError(f"rank {self.rank} of {self.size} has no peer {peer}.")
        dtypes = [None if array is None else frames.check_array(array) for array in (outgoing, incoming)]
        start = arrived_at = ledger.clock()
        at = to
        sending: list[Any] = []
        try:
            if to is not None and outgoing is not None:
                header = self._header(self._n_sent[to], op, dtypes[0], outgoing)
                sending = [_begin(group.send, to, part) for part in (header, outgoing) if part.nbytes]
                self._n_sent[to] += 1
                ledger.count(frames.HEADER_BYTES + outgoing.nbytes)
            at = source
            if source is not None and incoming is not None:
                self._receive_header(group, source, self._header(self._n_received[source], op, dtypes[1], incoming))
                self._n_received[source] += 1
                arrived_at = ledger.clock()
                if incoming.nbytes:
                    _begin(group.recv, source, incoming).wait(self.deadline_s)
            at = to
            for pending in sending:
                pending.wait(self.deadline_s)
        except TimeoutError as error:
            raise errors.GangTimeoutError(
                f"rank {self.rank} waited {self.deadline_s:g} s for rank {at}. Its process hangs, is overloaded or "
                "takes fewer steps."
            ) from error
        except errors.ProtocolError:  # a RuntimeError, too
            # gloo forgets a message whose handle is gone, and the peer would wait for it instead of hearing the same.
            self._under_way += sending
            raise
        except (ConnectionError, RuntimeError) as error:
            raise errors.AbortedError(
                f"rank {at} went away during an exchange with rank {self.rank}: {error}."
            ) from error
        if ledger.timing:
            ledger.charge(WAIT, arrived_at - start)
            ledger.charge(WIRE, ledger.clock() - arrived_at)

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        frames.check_limit("set_deadline", deadline_s)
        self.deadline_s = float(deadline_s)

    def close(self) -> None:
        """Let go of the group; torch closes its connections with the default one."""
        self._group = None

    @staticmethod
    def _header(number: int, op: int, dtype: int | None, array: AnyArray) -> AnyArray:
        buffer = bytearray(frames.HEADER_BYTES)
        frames.pack_into(buffer, _JOB, 0, number, op, dtype or 0, array.nbytes)
        return np.frombuffer(buffer, dtype=np.uint8)

    def _receive_header(self, group: Any, source: int, wanted: AnyArray) -> None:
        got = np.empty_like(wanted)
        _begin(group.recv, source, got).wait(self.deadline_s)
        if (got != wanted).any():
            expected, found = (frames.unpack_from(header.tobytes()) for header in (wanted, got))
            what = frames.describe_mismatch(expected, found) or "its header is another one"
            raise errors.ProtocolError(f"rank {self.rank}, frame of rank {source}: {what}.")


def is_running() -> bool:
    """Return whether this process is a rank of ``torch.distributed``."""
    return bool(dist.is_available() and dist.is_initialized())


def rank_here() -> Rank:
    """Return the rank that this process is in the default process group; all ranks call it at once, the first time."""
    world = dist.group.WORLD
    if not (_known and _known[0][0] is world):
        rank = Rank(Group(TorchProcessGroup()), frames.AbortFlag(), n_threads=torch.get_num_threads())
        _known[:] = [(world, rank)]
    return _known[0][1]


def _hosts(group: Any, size: int) -> tuple[int, ...]:
    """Return a number for the host of each rank, by the order in which they come."""
    code = frames.job_code(platform.node()) >> 1  # torch counts with signs
    codes = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(codes, torch.tensor([code]), group=group)
    known: dict[int, int] = {}
    return tuple(known.setdefault(int(code), len(known)) for code in codes)


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
        raise errors.IncompatiblePartsError(
            f"compress_hook({compressor!r}): the buckets of DDP have no names of tensors. Use dsgd.torch.Synchronizer."
        )
    if compressor.needs_feedback and not compressor.remembers:
        raise errors.IncompatiblePartsError(
            f"{compressor!r} loses what it leaves out of gradients. Wrap it: ErrorFeedback({compressor!r})."
        )
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    ranks = Group(_ProcessGroup(dist.new_group(members, backend="gloo"), members))
    memories: dict[tuple[int, ...], Any] = {}

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and wants none or its own
        buffer = bucket.buffer()
        if buffer.dtype not in (torch.float32, torch.float64):
            raise errors.InvalidDataError(f"compress_hook averages float32 and float64 gradients. Got {buffer.dtype}.")
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
        frames.check_limit("set_deadline(deadline_s)", deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Let go of the process group."""
        self._group = None


def _bytes(array: AnyArray) -> Any:
    flat = array.reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        flat = flat.copy()
    return torch.from_numpy(flat)


# Ranks may be threads of one process.
_here = threading.local()


def current_rank() -> Rank:
    """Return the rank that this thread runs, or that this process is in the default process group of torch."""
    rank: Rank | None = getattr(_here, "rank", None)
    if rank is None and is_running():
        return rank_here()
    if rank is None:
        raise errors.InvalidParameterError(
            "there is no rank here: call this inside a function that dsgd.torch.launch runs, or, in a script that "
            "torchrun starts, after torch.distributed.init_process_group(); or pass rank=..."
        )
    return rank


def finish_with(finish: Callable[[], None], close: Callable[[], None]) -> None:
    """Have `finish` called when the function of this rank, if not one passed, returns; `close` if it raises."""
    if getattr(_here, "rank", None) is not None:
        _here.finishers.append((finish, close))


def run_function(rank: Rank, data: object, function: Callable[..., Any], takes_rank: bool) -> Any:
    """Run a function of the user on a rank; a rank program."""
    del data  # the function has its own
    _here.rank, _here.finishers = rank, []
    try:
        value = function(rank) if takes_rank else function()
        for finish, _ in _here.finishers:
            finish()
        return value
    except BaseException:
        for _, close in _here.finishers:
            close()
        raise
    finally:
        del _here.rank, _here.finishers


def launch(
    function: Callable[..., Any],
    client: Any = None,
    *,
    n_ranks: int | None = None,
) -> GangResult:
    """Run a function on every rank of a gang.

    Parameters
    ----------
    function : callable
        Called as ``function(rank)``, or without arguments if it takes none. ``rank.number`` and ``rank.size`` say who
        it is; `Synchronizer` finds the rank by itself.
    client : `dsgd.Gang`, distributed.Client, SimulatedCluster or None, default None
        Where: one rank per thread of the workers of a cluster; None takes the current client, or starts a worker
        process per core and closes them in the end.
    n_ranks : int or None, default None
        How many ranks; None is all there can be.

    Returns
    -------
    GangResult
        ``value`` is what the function returned on rank 0, ``ledger`` the seconds and bytes of all ranks.

    Raises
    ------
    RankError
        The function raised on some rank; the error is its cause.
    ClusterError
        The cluster cannot run it, see `dsgd.runtime.run_on_cluster`.
    """
    arguments = (function, bool(inspect.signature(function).parameters))
    gang = as_gang(client)
    if isinstance(gang.client, SimulatedCluster):
        return gang.client.run(run_function, [None] * gang.client.ranks, arguments)
    with client_for(gang.client, n_workers=n_ranks) as found:
        there = replace(gang, client=found)
        return run_on_cluster(run_function, [], client=there, pack=_nothing, args=arguments, n_ranks=n_ranks)


def _nothing(blocks: object, rank: int) -> None:
    """Pack nothing: the function finds its rows by itself."""
