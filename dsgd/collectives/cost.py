"""The cost of a collective: what each rank sends, and the seconds that it takes, in closed form.

Problem: the price of a round must be known before it is run, to choose an algorithm and to simulate, and be the same on
every rank; and it is checked after the round (a test holds the counts of the ledger to these numbers).

Model: a message of n bytes takes ``alpha + n beta`` seconds, adding up n bytes that came ``n gamma``; a rank sends to
one and receives from one other at a time. The seconds of each algorithm are a table of docs/collectives.rst. With P
ranks, L = ceil(log2 P) and 2**q the largest power of two up to P, of n elements of s bytes, with a header of h bytes
per message, a rank sends

======================  ====================  =====================================================
collective              messages              bytes
======================  ====================  =====================================================
recursive doubling      L                     L (n s + h)                        P = 2**q
recursive doubling      fold: q + 1 | 1 | q   (n s + h) per message              P > 2**q, see below
ring                    2 (P - 1)             (2 n - #c_(r+1) - #c_(r+2)) s + 2 (P - 1) h
Rabenseifner            2 q                   (n - #c_r + sum_k #b_k) s + 2 q h             P = 2**q
Rabenseifner            fold: 2 q + 1 | 1     as before and n s + h | n s + h               P > 2**q, a pair
binomial                1 up, children down   (n s + h) per message
double tree             K per edge            (n s / 2 + K h) per edge in either tree
torus of X by Y         2 (X + Y - 2)         as a ring of X for n, and one of Y for #c_(x+1)
broadcast               children in the tree  (n s + h) per child
all-gather (ring)       P - 1                 (P - 1) (n s + h)
all-gather (Bruck)      L                     (P - 1) n s + L h
barrier                 L                     L h
======================  ====================  =====================================================

where chunk c_k of a ring holds #c_k elements, ``n k // P`` to ``n (k + 1) // P``, and b_k are the chunks of the 2**k
ranks, aligned, that rank r is among, k < q. In the fold, of the first P - 2**q pairs of ranks the odd one sends its
vector once and receives the result; the even one does q steps of doubling and sends the result back: q + 1. In a double
tree every rank has an edge to its parent, if any, and some to its children, and K is `tree_pieces`. A torus has Y rows
of X ranks, rank r in column x. An all-reduce in levels (the ranks of a process, or of a host) costs a rank one message
of its vector (but for the first rank of a process or host, the leader), what a broadcast in its process or host costs,
and a leader what an all-reduce of the leaders costs.

Source: Hockney 1994 (alpha and beta); Patarasuk and Yuan 2009 (ring); Bruck et al. 1997 (all-gather); Sanders, Speck
and Träff 2009 (double tree, in 4 steps for one piece more; the steps here are those of
`dsgd.collectives.algorithms.plan`); Thakur, Rabenseifner and Gropp 2005 (the others).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Literal, get_args

from dsgd.comm.frames import HEADER_BYTES
from dsgd.validation import Checked, number

#: All-reduces of ranks at equal distances.
FlatAlgorithm = Literal["recursive_doubling", "ring", "rabenseifner", "binomial", "double_tree", "torus"]
ALGORITHMS: Final[tuple[FlatAlgorithm, ...]] = get_args(FlatAlgorithm)

#: Algorithm of an all-reduce: one of `ALGORITHMS`, in two levels, or the fastest.
Algorithm = Literal["auto", FlatAlgorithm, "hierarchical"]
#: All-gathers of ranks at equal distances.
GatherAlgorithm = Literal["ring", "bruck"]


@dataclass(frozen=True, kw_only=True)
class Link(Checked):
    """The cost of a message between two ranks.

    Parameters
    ----------
    byte_s : float
        Seconds per byte, beta.
    overhead_s : float, default 0
        Seconds per message for which both ports are held.
    latency_s : float, default 0
        Seconds per message that pass beside: others may use the ports. Closed forms know but the sum of both, alpha.
    added_byte_s : float, default 0
        Seconds per byte that arrives and is added up, gamma; a simulated cluster has it in its `Compute`.

    Raises
    ------
    InvalidParameterError
        A number is negative.
    """

    byte_s: float = number(low=0)
    overhead_s: float = number(0.0, low=0)
    latency_s: float = number(0.0, low=0)
    added_byte_s: float = number(0.0, low=0)

    @property
    def alpha_s(self) -> float:
        """Seconds of an empty message."""
        return self.latency_s + self.overhead_s

    def seconds(self, n_bytes: float) -> float:
        """Return the seconds of a message of this many bytes between idle ports."""
        return self.alpha_s + n_bytes * self.byte_s

    def busy_s(self, n_bytes: float) -> float:
        """Return how long a message of this many bytes holds its ports."""
        return self.overhead_s + n_bytes * self.byte_s

    def slower(self, factor: float) -> Link:
        """Return this link with the times of messages multiplied."""
        byte_s, overhead_s, latency_s = self.byte_s * factor, self.overhead_s * factor, self.latency_s * factor
        return replace(self, byte_s=byte_s, overhead_s=overhead_s, latency_s=latency_s)


#: Costs of wires between two ranks of one machine, as `dsgd.collectives.calibrate` measured them on two cores of an
#: Intel Xeon of 2.8 GHz. Measure a network with it.
LINKS: Final = MappingProxyType(
    {
        "inproc": Link(latency_s=28e-6, byte_s=0.05e-9, added_byte_s=0.03e-9),
        "shm": Link(latency_s=13e-6, byte_s=0.14e-9, added_byte_s=0.03e-9),
        "tcp": Link(latency_s=22e-6, byte_s=0.5e-9, added_byte_s=0.03e-9),
    }
)

#: Costs from which ``"auto"`` chooses by default. The same for all wires, so that the same vectors are added up in the
#: same order on all of them.
DEFAULT_LINK: Final = Link(latency_s=15e-6, byte_s=0.25e-9, added_byte_s=0.03e-9)


@dataclass(frozen=True)
class Cost:
    """The bytes and messages that one rank sends in a collective."""

    n_bytes: int
    messages: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.n_bytes + other.n_bytes, self.messages + other.messages)


def n_levels(size: int) -> int:
    """Return ``ceil(log2(size))``."""
    return (size - 1).bit_length()


def allreduce_seconds(algorithm: FlatAlgorithm, n_bytes: int, size: int, link: Link) -> float:
    """Return the seconds of an all-reduce."""
    if size == 1:
        return 0.0
    alpha, n_beta, n_gamma = link.alpha_s, n_bytes * link.byte_s, n_bytes * link.added_byte_s
    q = size.bit_length() - 1
    fold = 0.0 if size == 1 << q else 2 * alpha + 2 * n_beta + n_gamma
    if algorithm == "recursive_doubling":
        return q * (alpha + n_beta + n_gamma) + fold
    if algorithm == "rabenseifner":
        return 2 * q * alpha + (1.0 - 0.5**q) * (2 * n_beta + n_gamma) + fold
    if algorithm == "binomial":
        return n_levels(size) * (2 * (alpha + n_beta) + n_gamma)
    if algorithm == "double_tree":
        pieces = tree_pieces(n_bytes, size)
        return tree_steps(pieces, size) * (alpha + n_beta / (2 * pieces) + n_gamma / (4 * pieces))
    from dsgd.comm.topology import grid_shape  # all graphs: a fit in one process needs none

    rows, columns = (1, size) if algorithm == "ring" else grid_shape(size)
    return 2 * (rows + columns - 2) * alpha + (size - 1) / size * (2 * n_beta + n_gamma)


def hierarchical_seconds(
    n_bytes: int, hosts: Sequence[int], inside: Link, between: Link, chosen_by: Link = DEFAULT_LINK
) -> float:
    """Return the seconds of an all-reduce in two levels, up to the last rank of the largest host."""
    counts = list(Counter(hosts).values())
    across = choose_algorithm(n_bytes, len(counts), chosen_by)
    levels = n_levels(max(counts))
    down = levels * inside.seconds(n_bytes)
    up = down + levels * n_bytes * inside.added_byte_s
    return up + allreduce_seconds(across, n_bytes, len(counts), between) + down


def tree_steps(pieces: int, size: int) -> float:
    """Return the steps of a double tree's schedule: 4 L - 2 for the first piece, and some 5 for each one more."""
    if size == 2:
        return 2.0 * pieces
    return 4.0 * n_levels(size) - 2.0 + 5.0 * (pieces - 1)


def tree_pieces(n_bytes: int, size: int, link: Link = DEFAULT_LINK) -> int:
    """Return into how many pieces each tree of a double tree cuts its half of the vector: the fastest number, to 64.

    With S = 4 L - 2 steps for one piece, (S + 5 (K - 1)) (alpha + c / K) is least at K = sqrt((S - 5) c / 5 alpha).
    """
    per_piece = n_bytes * (link.byte_s / 2 + link.added_byte_s / 4)
    extra = tree_steps(1, size) - 5.0
    if size == 2 or extra <= 0.0 or link.alpha_s == 0.0:
        return 1
    return max(1, min(64, round(math.sqrt(extra * per_piece / (5.0 * link.alpha_s)))))


def broadcast_seconds(n_bytes: int, size: int, link: Link) -> float:
    """Return the seconds of a broadcast of n bytes down a binomial tree."""
    return n_levels(size) * link.seconds(n_bytes)


def allgather_seconds(
    n_bytes: float, size: int, link: Link, algorithm: GatherAlgorithm | Literal["auto"] = "auto"
) -> float:
    """Return the seconds until all ranks have n bytes from each, on average."""
    if algorithm == "auto":
        algorithm = choose_gather(n_bytes * size, size, link)
    on_wire = (size - 1) * n_bytes * link.byte_s
    if algorithm == "ring":
        return (size - 1) * link.alpha_s + on_wire
    return n_levels(size) * link.alpha_s + on_wire + size * n_bytes * link.added_byte_s


def choose_gather(n_bytes: float, size: int, link: Link = DEFAULT_LINK) -> GatherAlgorithm:
    """Return the faster way, by the model, in which `size` ranks at equal distances gather n bytes of all of them."""
    saved = (size - 1 - n_levels(size)) * link.alpha_s
    return "bruck" if saved > n_bytes * link.added_byte_s else "ring"


def tally_seconds(n_bytes: int, size: int, link: Link) -> float:
    """Return the seconds until all ranks have the sums of a tally (`dsgd.collectives.algorithms.trees`)."""
    if size == 1:
        return 0.0
    width = math.isqrt(size - 1) + 1
    steps = width + -(-size // width) - 2 + n_levels(size)
    return steps * link.seconds(n_bytes)


def choose_algorithm(n_bytes: int, size: int, link: Link = DEFAULT_LINK) -> FlatAlgorithm:
    """Return what ``"auto"`` means for n bytes: the fastest by the model, of equally fast ones the first."""
    seconds = {algorithm: allreduce_seconds(algorithm, n_bytes, size, link) for algorithm in ALGORITHMS}
    limit = min(seconds.values()) * (1.0 + 1e-9)
    return next(algorithm for algorithm, takes in seconds.items() if takes <= limit)


def fold_of(size: int) -> tuple[int, int]:
    """Return the largest power of two up to `size`, and how many ranks there are beyond it."""
    core = 1 << (size.bit_length() - 1)
    return core, size - core


@lru_cache(maxsize=16)
def ring_bounds(n: int, size: int) -> tuple[int, ...]:
    """Return where the chunks of a ring over n elements begin; size + 1 numbers."""
    return tuple(n * chunk // size for chunk in range(size + 1))


def gather_steps(size: int) -> Iterator[tuple[int, int]]:
    """Yield the distances of an all-gather by Bruck's way, and how many vectors are sent over each."""
    distance = 1
    while distance < size:
        yield distance, min(distance, size - distance)
        distance *= 2


def groups_of(units: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each host or process, ascending, in the order of their first ranks."""
    groups: dict[int, list[int]] = {}
    for rank, unit in enumerate(units):
        groups.setdefault(unit, []).append(rank)
    return list(groups.values())


def is_hierarchical(hosts: Sequence[int]) -> bool:
    """Return whether there are several hosts and one of them has several ranks."""
    return 1 < len(set(hosts)) < len(hosts)


def allreduce_cost(
    rank: int,
    size: int,
    n: int,
    itemsize: int,
    algorithm: Algorithm = "auto",
    hosts: Sequence[int] | None = None,
    processes: Sequence[int] = (),
    link: Link = DEFAULT_LINK,
) -> Cost:
    """Return what `rank` sends in an all-reduce of n elements."""
    if size == 1:
        return Cost(0, 0)
    if processes:
        leaders = [group[0] for group in groups_of(processes)]
        across = None if hosts is None else [hosts[leader] for leader in leaders]
        return _level_cost(
            rank,
            n,
            itemsize,
            processes,
            lambda k: allreduce_cost(k, len(leaders), n, itemsize, algorithm, across, link=link),
        )
    if algorithm == "hierarchical" or (algorithm == "auto" and hosts is not None and is_hierarchical(hosts)):
        hosts = [0] * size if hosts is None else hosts
        n_hosts = len(set(hosts))
        return _level_cost(rank, n, itemsize, hosts, lambda k: allreduce_cost(k, n_hosts, n, itemsize, link=link))
    if algorithm == "auto":
        algorithm = choose_algorithm(n * itemsize, size, link)
    n_elements, messages = _sent(algorithm, rank, size, n, itemsize)
    return Cost(n_elements * itemsize + messages * HEADER_BYTES, messages)


def _sent(algorithm: Algorithm, rank: int, size: int, n: int, itemsize: int) -> tuple[int, int]:
    """Return the elements and messages that `rank` sends in an all-reduce of ranks at equal distances."""
    if algorithm == "ring":
        return _sent_round_ring(rank, size, n)
    if algorithm == "torus":
        from dsgd.comm.topology import grid_shape

        n_rows, n_columns = grid_shape(size)
        row, column = divmod(rank, n_columns)
        bounds, chunk = ring_bounds(n, n_columns), (column + 1) % n_columns
        along = _sent_round_ring(column, n_columns, n)
        across = _sent_round_ring(row, n_rows, bounds[chunk + 1] - bounds[chunk])
        return along[0] + across[0], along[1] + across[1]
    if algorithm == "binomial":
        # The children of a rank are as far away as the powers of two below its lowest bit.
        powers = n_levels(rank & -rank) if rank else n_levels(size)
        messages = (rank > 0) + sum(rank + (1 << k) < size for k in range(powers))
        return messages * n, messages
    if algorithm == "double_tree":
        # Of an in-order tree under number 0 odd numbers are leaves; the last has nothing on its right.
        numbers = rank, size - 1 - rank if size % 2 == 0 else (rank - 1) % size
        edges = [1 if k == 0 or k % 2 else 2 + (k + 1 < size) for k in numbers]
        return edges[0] * (n // 2) + edges[1] * (n - n // 2), sum(edges) * tree_pieces(n * itemsize, size)
    core, n_folded = fold_of(size)
    folds, q = rank < 2 * n_folded, n_levels(core)
    if folds and rank % 2:
        return n, 1
    if algorithm == "recursive_doubling":
        return (q + folds) * n, q + folds
    number, bounds = rank // 2 if folds else rank - n_folded, ring_bounds(n, core)
    blocks = sum(bounds[(number & -(1 << k)) + (1 << k)] - bounds[number & -(1 << k)] for k in range(q))
    return n - (bounds[number + 1] - bounds[number]) + blocks + folds * n, 2 * q + folds


def _sent_round_ring(rank: int, size: int, n: int) -> tuple[int, int]:
    if size == 1:
        return 0, 0
    bounds = ring_bounds(n, size)
    first, second = (rank + 1) % size, (rank + 2) % size
    kept = bounds[first + 1] - bounds[first] + bounds[second + 1] - bounds[second]
    return 2 * n - kept, 2 * (size - 1)


def _level_cost(rank: int, n: int, itemsize: int, units: Sequence[int], above: Callable[[int], Cost]) -> Cost:
    """Return what `rank` sends in its process or host and, if it leads it as number k, `above` of k."""
    number, group = next((number, group) for number, group in enumerate(groups_of(units)) if rank in group)
    down = broadcast_cost(group.index(rank), len(group), n, itemsize)
    if rank != group[0]:
        return down + Cost(n * itemsize + HEADER_BYTES, 1)
    return down + above(number)


def broadcast_cost(rank: int, size: int, n: int, itemsize: int, root: int = 0) -> Cost:
    """Return what `rank` sends in a broadcast of n elements from `root` down a binomial tree."""
    relative = (rank - root) % size
    # A rank is reached at the level of its highest bit and sends at every level after it.
    messages = sum(relative + (1 << level) < size for level in range(relative.bit_length(), n_levels(size)))
    return Cost(messages * (n * itemsize + HEADER_BYTES), messages)


def allgather_cost(size: int, n: int, itemsize: int, link: Link = DEFAULT_LINK) -> Cost:
    """Return what every rank sends when all gather n elements from each; see `allgatherv_cost`."""
    return allgatherv_cost(0, [n] * size, itemsize, known=True, link=link)


def allgatherv_cost(
    rank: int, lengths: Sequence[int], itemsize: int, *, known: bool = False, link: Link = DEFAULT_LINK
) -> Cost:
    """Return what `rank` sends when all gather ``lengths[r]`` elements from each rank r.

    Ring: every vector but that of the next rank. Bruck: in each step its own vector and those of the ranks that follow.
    """
    size = len(lengths)
    if size == 1:
        return Cost(0, 0)
    first = Cost(0, 0) if known else allgather_cost(size, 1, 8, link)
    if choose_gather(sum(lengths) * itemsize, size, link) == "ring":
        sent, messages = sum(lengths) - lengths[(rank + 1) % size], size - 1
    else:
        counts = [count for _, count in gather_steps(size)]
        before = [0, *accumulate((*lengths[rank:], *lengths[:rank]))]
        sent, messages = sum(before[count] for count in counts), len(counts)
    return first + Cost(sent * itemsize + messages * HEADER_BYTES, messages)


def allgathered_bytes(lengths: Sequence[int], itemsize: int, link: Link = DEFAULT_LINK) -> int:
    """Return what all ranks send together when all gather ``lengths[r]`` elements from each rank r, which all know."""
    size = len(lengths)
    if size == 1:
        return 0
    by_ring = choose_gather(sum(lengths) * itemsize, size, link) == "ring"
    messages = size - 1 if by_ring else n_levels(size)
    return (size - 1) * sum(lengths) * itemsize + size * messages * HEADER_BYTES
