"""The ranks of a gang and their collectives, as one rank uses them; and the cost of a message between them.

`calibrate` measures alpha, beta and gamma (`dsgd.collectives.cost`). Alpha is the time of a sum of one number by
recursive doubling, divided by its steps; it includes the work in Python for every message. For beta, all ranks send a
long frame to the next rank while receiving one from the rank before, as in collectives. Gamma is the time to add
vectors of that length. Each is the median of many repetitions and the largest value of all ranks, which they find by an
all-reduce: some 500 short sums and 20 messages of a megabyte per rank (Hockney 1994).
"""

from __future__ import annotations

import contextvars
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, Final, get_args

import numpy as np

from dsgd.collectives import cost
from dsgd.collectives.algorithms import trees
from dsgd.collectives.algorithms.hierarchical import Hierarchy, Subset
from dsgd.collectives.algorithms.plan import Combine, Operation, run_plan
from dsgd.collectives.algorithms.rings import bruck_allgather, ring_allgather
from dsgd.collectives.algorithms.whole import PLANS, Tallied, allreduce_call, barrier_call, fill_call, tally_call
from dsgd.comm.base import AbstractMailbox, AbstractTransport, Call, Repeats
from dsgd.comm.frames import OP_ALLREDUCE, check_array
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

_MOST_LENGTHS: Final = 1024
_COMBINE: Final[dict[str, Combine]] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class Group:
    """Collectives over one transport; every rank calls the same ones in the same order.

    Vectors are C-contiguous arrays of any shape and of a dtype in `dsgd.comm.frames.DTYPE_CODES`. Scratch memory is
    kept, one buffer per dtype, so that rounds of equal size allocate nothing.
    """

    def __init__(
        self,
        transport: AbstractTransport,
        algorithm: cost.Algorithm = "auto",
        hosts: Sequence[int] | None = None,
        processes: Sequence[int] | None = None,
        link: cost.Link = cost.DEFAULT_LINK,
    ) -> None:
        if algorithm not in get_args(cost.Algorithm):
            choices = ", ".join(repr(name) for name in get_args(cost.Algorithm))
            raise InvalidParameterError(f"Group(algorithm=...) must be one of {choices}. Got {algorithm!r}.")
        hosts = transport.hosts if hosts is None else hosts
        processes = transport.processes if processes is None else processes
        for name, units in (("hosts", hosts), ("processes", processes)):
            if len(units) != transport.size and (units or name == "hosts"):
                raise InvalidParameterError(
                    f"Group({name}=...) must have one entry per rank ({transport.size}). Got {len(units)}."
                )
        if len(set(processes)) != len([first for first, _ in groupby(processes)]):
            raise InvalidParameterError(
                f"Group(processes=...) must list the ranks of a process one after the other. Got {list(processes)}."
            )
        self.transport = transport
        self.seed = 0
        self.n_whole = 0
        self.algorithm = algorithm
        self.link = link
        self._chosen: dict[int, cost.Algorithm] = {}
        # All collectives go by processes, but only sums by hosts: there every rank can reach every other one, and
        # what else there is to say is short or goes round a ring, which crosses between hosts as seldom as can be.
        self._processes = self._hosts = None
        self._must_go_round = cost.is_hierarchical(hosts)
        if processes:
            self._processes = Hierarchy(
                transport,
                processes,
                lambda wire, leaders: Group(wire, algorithm, [hosts[k] for k in leaders], link=link),
            )
        elif algorithm == "hierarchical" or (algorithm == "auto" and cost.is_hierarchical(hosts)):
            self._hosts = Hierarchy(
                transport, hosts, lambda wire, leaders: Group(wire, "auto", range(len(leaders)), link=link)
            )
        self._blocks = trees.blocks_of(transport.size, processes)
        self._scratch: dict[np.dtype[Any], AnyArray] = {}
        self._nothing = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint8)
        # Infinities are summed as IEEE 754 says: a warning on one rank, raised as an error, would take the gang down.
        # To call something in a context made once takes a tenth of the time of ``with np.errstate(...)``.
        context = contextvars.copy_context()
        context.run(np.seterr, over="ignore", invalid="ignore")
        self._quietly = context.run

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.transport.size

    @property
    def ledger(self) -> RankLedger:
        """The ledger of this rank."""
        return self.transport.ledger

    @property
    def mailbox(self) -> AbstractMailbox:
        """Where this rank sends frames without waiting."""
        mailbox = self.transport.mailbox
        if mailbox is None:
            raise InvalidParameterError(
                f"rank {self.rank} of {self.size} has no mailbox: pass mail=... when starting the gang, see "
                "dsgd.runtime.run_on_threads."
            )
        return mailbox

    def share(self, array: AnyArray) -> AnyArray:
        """Return the array of rank 0, the same memory on every rank; each reads and writes it when it likes."""
        shared_array = self.transport.shared_array
        if self.size == 1:
            return array
        if shared_array is None:
            raise IncompatiblePartsError(
                f"the {self.size} ranks of this gang are not all threads of one process, and cannot share a model. "
                "Train on the threads of one process (n_jobs=...) or of one worker, or exchange models instead."
            )
        if self.rank == 0:
            shared_array.array = array
        self.barrier()
        shared = shared_array.array
        assert shared is not None  # rank 0 has left it before the barrier
        self.barrier()
        return shared

    def allreduce(self, vector: AnyArray, op: Operation = "sum") -> None:
        """Replace `vector` by the sum over ranks, its entries' extremes, or another `op`, bitwise equal on all of them.

        All but sums always go by recursive doubling, of all ranks or of one per process: they are meant for short
        vectors. A NaN stays one.
        """
        combine = op if callable(op) else _COMBINE.get(op)
        if combine is None:
            raise InvalidParameterError(f"allreduce(op=...) must be 'sum', 'min', 'max' or a callable. Got {op!r}.")
        size = self.transport.size
        if size == 1:
            return
        flat = _flat(vector)
        n = flat.shape[0]
        levels = self._processes or (self._hosts if op == "sum" else None)
        if levels is not None:
            self._quietly(levels.allreduce, flat, self._borrow(flat.dtype, n), combine, op)
            return
        algorithm = self.algorithm_for(n, flat.itemsize) if op == "sum" else "recursive_doubling"
        if self.transport.offload is not None:
            self.transport.offload(self._whole_allreduce(flat, algorithm, op))
            return
        plan = PLANS[algorithm](self.rank, size, n, flat.itemsize)
        scratch = self._borrow(flat.dtype, plan.n_scratch)
        self._quietly(run_plan, self.transport, flat, scratch, plan, combine)

    @property
    def offloads(self) -> bool:
        """Whether the wire runs `allreduce` as a whole, and `allreduce_rounds` can be called."""
        return self.size > 1 and self.transport.offload is not None and self._processes is None and self._hosts is None

    def allreduce_rounds(self, vector: AnyArray, step: Callable[[int], None], repeats: Repeats) -> None:
        """Replace `vector`, shape (n,), by the sum over ranks, each time after ``step(k)`` has been called.

        For a wire that runs collectives (`offloads`). All ranks repeat it as often.
        """
        assert self.transport.offload is not None  # asked for before
        once = self._whole_allreduce(vector, self.algorithm_for(vector.shape[0], vector.itemsize), "sum")
        n_rounds = len(repeats.work)

        def finish(brought: Sequence[tuple[Callable[[int], None], AnyArray]]) -> None:
            vectors = [vector for _, vector in brought]
            for k in range(n_rounds):
                for walk, _ in brought:
                    walk(k)
                once.finish(vectors)

        own = step, vector
        kind = (n_rounds, once.kind)
        self.transport.offload(once._replace(kind=kind, own=own, finish=finish, repeats=repeats))

    def algorithm_for(self, n: int, itemsize: int) -> cost.Algorithm:
        """Return how `allreduce` sums vectors of n elements of `itemsize` bytes."""
        if self._processes is not None or self._hosts is not None:
            return "hierarchical"
        if self.algorithm != "auto":
            return self.algorithm
        n_bytes = n * itemsize
        chosen = self._chosen.get(n_bytes)
        if chosen is None:
            if len(self._chosen) >= _MOST_LENGTHS:  # of vectors that are never twice the same
                self._chosen.clear()
            chosen = self._chosen[n_bytes] = cost.choose_algorithm(n_bytes, self.size, self.link)
        return chosen

    def broadcast(self, vector: AnyArray, root: int = 0) -> None:
        """Replace `vector` by that of rank `root`."""
        self._check_root("broadcast", root)
        if self._processes is not None:
            self._processes.broadcast(_flat(vector), root)
        elif self.size > 1:
            trees.binomial_broadcast(self.transport, _flat(vector), root)

    def allgather(self, vector: AnyArray) -> AnyArray:
        """Return the vectors of all ranks, shape (size, n); they all have the same length."""
        flat = _flat(vector)
        n = flat.shape[0]
        gathered = np.empty((self.size, n), dtype=flat.dtype)
        gathered[self.rank] = flat
        self.fill(gathered.reshape(-1), range(0, (self.size + 1) * n, n) if n else [0] * (self.size + 1))
        return gathered

    def fill(self, whole: AnyArray, ends: Sequence[int]) -> None:
        """Fill `whole`, shape (n,), with the vectors of all ranks: rank r's is ``whole[ends[r] : ends[r + 1]]``."""
        if self._processes is not None:
            self._processes.fill(whole, ends)
            return
        if self.size == 1:
            return
        doubles = not self._must_go_round and cost.choose_gather(whole.nbytes, self.size, self.link) == "bruck"
        if self.transport.offload is not None:
            self.transport.offload(fill_call(whole, ends, doubles=doubles))
        elif doubles:
            bruck_allgather(self.transport, whole, ends, self._borrow(whole.dtype, whole.shape[0]))
        else:
            ring_allgather(self.transport, [whole[a:b] for a, b in pairwise(ends)])

    def allgatherv(self, vector: AnyArray, lengths: Sequence[int] | None = None) -> list[AnyArray]:
        """Return the vectors of all ranks, of any lengths, in the order of ranks."""
        flat = _flat(vector)
        if lengths is None:
            lengths = self.allgather(np.array([flat.shape[0]], dtype=np.int64)).ravel().tolist()
        if len(lengths) != self.size or lengths[self.rank] != flat.shape[0]:
            raise InvalidParameterError(
                f"allgatherv(lengths=...) must hold one length per rank, {flat.shape[0]} for rank {self.rank} of "
                f"{self.size}. Got {list(lengths)}."
            )
        ends = [0, *accumulate(lengths)]
        whole = np.empty(ends[-1], dtype=flat.dtype)
        parts = [whole[a:b] for a, b in pairwise(ends)]
        parts[self.rank][:] = flat
        self.fill(whole, ends)
        return parts

    def gather(self, vector: AnyArray, root: int = 0) -> list[AnyArray] | None:
        """Return the vectors of all ranks, of any lengths, on rank `root`, and None on the others."""
        self._check_root("gather", root)
        flat = _flat(vector)
        return (
            self._processes.gather(flat, root)
            if self._processes is not None
            else trees.gather_any(self.transport, flat, root)
        )

    def scatter(self, rows: AnyArray | None, out: AnyArray, root: int = 0) -> None:
        """Fill `out` with row r of `rows` on rank r."""
        self._check_root("scatter", root)
        flat = _flat(out)
        if self.rank == root and (rows is None or rows.shape != (self.size, flat.shape[0])):
            got = None if rows is None else rows.shape
            raise InvalidParameterError(f"scatter(rows=...) must have shape {self.size, flat.shape[0]}. Got {got}.")
        if self._processes is not None:
            self._processes.scatter(rows, flat, root)
        else:
            trees.direct_scatter(self.transport, rows, flat, root)

    def tally(self, sums: AnyArray, own: AnyArray) -> AnyArray | None:
        """Replace `sums`, shape (s,), by their sums over ranks; return, on rank 0, the vectors `own`, shape (k,)."""
        if self.size == 1:
            return own[None].copy()
        if self.transport.offload is not None:
            table = self._whole_tally(sums, own, sums.nbytes)
            return table if self.rank == 0 else None
        found: AnyArray | None = self._quietly(trees.gather_sums, self.transport, self._blocks, sums, own)
        self.broadcast(sums)
        return found

    def roll_call(self, own: AnyArray) -> AnyArray:
        """Return the vectors of all ranks, shape (size, k), as `allgather` does; with 2 messages a rank, not P."""
        if self.size == 1:
            return own[None].copy()
        if self.transport.offload is not None:
            return self._whole_tally(own[:0].copy(), own, self.size * own.nbytes).copy()
        found = trees.gather_sums(self.transport, self._blocks, own[:0].copy(), own)
        table = np.empty((self.size, own.shape[0]), dtype=own.dtype) if found is None else found
        self.broadcast(table)
        return table

    def subgroup(self, members: Sequence[int]) -> Group:
        """Return a group of some of the ranks, this one among them, renumbered in the order given."""
        if self._processes is not None:
            raise IncompatiblePartsError(
                "a group of some ranks needs ranks that reach each other one by one, and the ranks here are threads of "
                "several processes. Start workers with one thread each, or train on the threads of one process."
            )
        return Group(Subset(self.transport, members), self.algorithm)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        if self._processes is not None:
            self._processes.barrier()
        elif self.transport.offload is not None and self.size > 1:
            self.transport.offload(barrier_call(self.size))
        else:
            trees.dissemination_barrier(self.transport, *self._nothing)

    def _whole_allreduce(self, flat: AnyArray, algorithm: cost.Algorithm, op: Operation) -> Call:
        """Return an all-reduce of vectors of one dimension, for a wire that runs collectives."""
        return self._quiet(allreduce_call(flat, self.size, algorithm, op, op if callable(op) else _COMBINE[op]))

    def _whole_tally(self, sums: AnyArray, own: AnyArray, n_down: int) -> AnyArray:
        """Return the vectors `own` of all ranks, after their sums have come down in a message of `n_down` bytes."""
        assert self.transport.offload is not None  # asked for before
        brought = Tallied(sums, own)
        self.transport.offload(self._quiet(tally_call(self._blocks, brought, n_down)))
        assert brought.table is not None  # all ranks have begun
        return brought.table

    def _quiet(self, call: Call) -> Call:
        """Return a call whose sums of infinities warn as little as those made here."""
        finish: Callable[..., None] = call.finish
        return call._replace(finish=partial(self._quietly, finish))

    def _check_root(self, name: str, root: int) -> None:
        if not 0 <= root < self.size:
            raise InvalidParameterError(f"{name}(root=...) must be a rank from 0 to {self.size - 1}. Got {root}.")

    def _borrow(self, dtype: np.dtype[Any], n: int) -> AnyArray:
        scratch = self._scratch.get(dtype)
        if scratch is None or scratch.shape[0] < n:
            scratch = self._scratch[dtype] = np.empty(n, dtype=dtype)
        return scratch[:n]


def _flat(vector: AnyArray) -> AnyArray:
    # A view, never a copy: the result must land in the caller's memory. The transport checks vectors itself.
    if vector.ndim == 1:
        return vector
    check_array(vector)
    return vector.reshape(-1)


_SHORT: Final = 500
_BATCH: Final = 20  # sums between two readings of the clock: who waits in one need not in the next
_LONG: Final = 20


def calibrate(group: Group, n_bytes: int = 1 << 20) -> cost.Link:
    """Return the cost of a message in this gang, the same on every rank; ``Group(transport, link=...)`` chooses by it.

    Sums are then added up in an order that depends on what was measured: leave it where models must repeat to the bit.
    """
    transport = group.transport
    if transport.processes:
        raise IncompatiblePartsError(
            "calibrate(group) needs ranks that reach each other one by one, and those of this group are threads of "
            "several processes. Measure with one rank per process."
        )
    sent, received = (np.ones(max(1, n_bytes // 8)) for _ in range(2))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    clock = group.ledger.clock

    def seconds(work: Callable[[], object], repeats: int) -> float:
        """Return the median of some repetitions, which begin on all ranks at once."""
        group.barrier()
        times = []
        for _ in range(repeats):
            begin = clock()
            work()
            times.append(clock() - begin)
        return statistics.median(times[repeats // 5 :])

    doubling = Group(transport, "recursive_doubling")
    number = np.zeros(1)

    def sum_up() -> None:
        for _ in range(_BATCH):
            doubling.allreduce(number)

    group.ledger.begin_round("setup")
    found = np.zeros(3)
    if group.size > 1:
        core, n_folded = cost.fold_of(group.size)
        n_messages = cost.n_levels(core) + 2 * (n_folded > 0)
        found[0] = seconds(sum_up, _SHORT // _BATCH) / (_BATCH * n_messages)
        found[1] = seconds(lambda: transport.exchange(after, sent, before, received, OP_ALLREDUCE), _LONG)
    found[2] = seconds(lambda: np.add(sent, received, out=received), _LONG)
    group.allreduce(found, "max")
    group.ledger.end_round()
    latency_s, long_s, added_s = found.tolist()
    return cost.Link(
        latency_s=latency_s, byte_s=max(0.0, long_s - latency_s) / sent.nbytes, added_byte_s=added_s / sent.nbytes
    )
