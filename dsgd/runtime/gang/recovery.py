"""Recovery after a failure: whether the job continues, on which workers and with which rows.

Problem: the longer a job and the more workers it has, the likelier it loses one. The results of the others still exist,
and mostly their rows, too.

Method: only failures of machines count (a worker left, hangs, or cannot be reached by its peers); an error of the
program would be raised again. The remaining ranks stop, a new gang is planned as the next epoch of the same job, and
its program resumes from the newest snapshot that a survivor holds. With ``"restart"`` lost blocks are computed again by
Dask, or sent again by the client, and assigned to the current workers; a worker whose blocks are unchanged packs
nothing. With ``"shrink"`` the survivors continue with the rows they hold, and all averages are weighted by the
remaining rows.

Workers are shared by all users of the cluster. The job waits for a late worker, which may be packing rows, as long as
it sends heartbeats, up to the deadline of the job. A hung worker is set aside until its heartbeats return: the gang
continues without it, and blocks that only this worker holds are computed or sent again. Neither kind is removed, unless
a policy asks for it.

With ``elastic`` a new gang is also formed when the cluster has grown, at the end of an epoch of training.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from dsgd.errors import ClusterError, GangError, PausedError
from dsgd.runtime.deployment import Gang
from dsgd.runtime.gang.job_handle import JobHandle
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.plan import Block, Plan, WorkerInfo, make_plan
from dsgd.runtime.timeouts import Shrink, as_policy
from dsgd.runtime.worker.member import kept_blocks, request_pause
from dsgd.validation import warn_user

_OF_MACHINES: Final = ("lost", "hung", "aborted", "unheard", "lapsed", "late")

#: Texts for the rank that a failure of a machine names.
_WHAT: Final = {
    "lost": "was lost",
    "hung": "hangs",
    "aborted": "could not reach its peers",
    "unheard": "waited for a peer in vain",
    "late": "did not start",
}
_ASK_S: Final = 2.0
_LOOK_S: Final = 1.0


class Limits(NamedTuple):
    """The limits of every plan of a job; see `make_plan`."""

    n_ranks: int | None
    ranks_per_worker: int | None
    demand: MemoryDemand | None


class Recovery:
    """The failures of one job so far, and the plan of its next gang."""

    def __init__(self, handle: JobHandle, gang: Gang, block_rows: Sequence[int] | None, limits: Limits) -> None:
        self._handle, self._elastic = handle, gang.elastic
        self._policy = as_policy("Gang(on_failure=...)", gang.on_failure)
        self._left = 0 if self._policy is None else self._policy.at_most
        self._block_rows, self._limits = block_rows, limits
        self._out: set[str] = set()
        self._plan: Plan | None = None
        self._dropped: set[int] = set()
        self._began = self._looked = 0.0
        self._pausing = False
        self.kept: dict[str, tuple[int, ...]] = {}
        self.events: list[dict[str, Any]] = []
        self.cause: BaseException | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a new gang may be formed at all, so that workers keep its data."""
        return self._policy is not None or self._elastic

    def heed(self, error: GangError, plan: Plan | None, keys: Sequence[Any]) -> None:
        """Prepare to form a new gang after an error, or raise the error."""
        record = self._handle.failure or {}
        joined = isinstance(error, PausedError)
        is_survived = self._left > 0 and record.get("kind") in _OF_MACHINES
        if plan is None or not (joined or is_survived):
            if self.events:
                error.add_note(f"the gang had been formed again {len(self.events)} times before")
            raise error
        self._began, self.cause = time.monotonic(), error
        self._left -= not joined
        hung = {str(record["worker"])} if record.get("kind") == "hung" else set()
        silent, late = self._handle.renew(self._out | hung, plan.addresses)
        hung, late = hung | silent, late.union(record.get("late", ()))
        running = {worker["address"] for worker in self._handle.cluster.survey([])["workers"]}
        members = [address for address in plan.addresses if address in running - hung - late - self._out]
        answers = self._handle.ask(kept_blocks, members, self._patience_s)
        # A worker that does not answer hangs, or has just left.
        hung |= set(members) - set(answers)
        remove = self._policy is not None and self._policy.remove_hung
        # Also if the gang shrinks: a survivor that had not packed all its blocks would request them there.
        self._handle.set_aside(hung, keys, remove=remove)
        # A gang that shrinks takes no worker back. Any other does, but is not offered hung ones meanwhile.
        self._out |= late | hung if isinstance(self._policy, Shrink) else late
        self.kept = {worker: tuple(blocks) for worker, blocks in answers.items() if blocks is not None}
        self._plan, self._pausing = plan, False
        if isinstance(self._policy, Shrink) and not joined:
            self._dropped |= {
                index for member in plan.members if member.worker.address not in answers for index in member.blocks
            }
        self.events.append(
            {
                "kind": "joined" if joined else record["kind"],
                "rank": None if joined else record["rank"],
                "worker": "" if joined else record["worker"],
                "host": "" if joined else record["host"],
                "policy": "elastic" if joined else type(self._policy).__name__.lower(),
            }
        )

    def missing(self, survey: Mapping[str, Any]) -> list[int]:
        """Return the blocks that the next gang needs and that are neither packed nor in the memory of a worker."""
        alive = {worker["address"] for worker in survey["workers"]}
        self.kept = {worker: packed for worker, packed in self.kept.items() if worker in alive}
        had = self._dropped.union(*self.kept.values())
        return [k for k, block in enumerate(survey["blocks"]) if k not in had and not block["holders"]]

    def plan(self, blocks: Sequence[Block], workers: Sequence[WorkerInfo]) -> Plan:
        """Return the plan of the next gang; see `make_plan` for errors."""
        free = [worker for worker in workers if worker.address not in self._out]
        if self._plan is not None and isinstance(self._policy, Shrink) and self.events[-1]["kind"] != "joined":
            return self._shrunk(self._plan, {worker.address for worker in free})
        wanted = [self._at_home(block) for block in blocks if block.index not in self._dropped]
        try:
            return make_plan(wanted, free, *self._limits)
        except ClusterError:
            # Late workers are better than none.
            if len(free) == len(workers):
                raise
            return make_plan(wanted, workers, *self._limits)

    @property
    def _patience_s(self) -> float:
        """How long a worker may take to answer: as long as it may be silent."""
        return max(_ASK_S, min(self._handle.hung_after_s, self._handle.timeout_s))

    def _at_home(self, block: Block) -> Block:
        """Keep a packed block where it is packed: elsewhere it would have to be loaded and packed again."""
        owners = tuple(worker for worker, packed in self.kept.items() if block.index in packed)
        # A packed block is already part of the memory use of its worker.
        return replace(block, holders=owners, packed=0) if owners else block

    def _shrunk(self, plan: Plan, workers: Collection[str]) -> Plan:
        left = [member for member in plan.members if member.worker.address in workers]
        if not left and self.cause is not None:
            raise self.cause
        self._dropped |= {index for member in plan.members if member not in left for index in member.blocks}
        first = accumulate((member.n_ranks for member in left), initial=0)
        return Plan(tuple(replace(member, first_rank=rank) for member, rank in zip(left, first, strict=False)))

    def started(self, plan: Plan) -> None:
        """Record that the ranks of a plan begin."""
        self._looked = time.monotonic()
        if not self.events or "ranks" in self.events[-1]:
            return
        lost = sorted(self._dropped)
        rows = None if self._block_rows is None else sum(self._block_rows[index] for index in lost)
        seconds = time.monotonic() - self._began
        self.events[-1] |= {"ranks": plan.n_ranks, "blocks_lost": lost, "rows_lost": rows, "seconds": seconds}
        self._warn(self.events[-1])

    def _warn(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "joined":
            return
        if event["policy"] == "restart":
            after = f"training goes on with {event['ranks']} ranks and all rows"
        else:
            rows = "unknown" if event["rows_lost"] is None else event["rows_lost"]
            after = f"training goes on with {event['ranks']} ranks; rows lost in all: {rows}"
        what = _WHAT.get(event["kind"])
        who = f"rank {event['rank']} on worker {event['worker']} (host {event['host']}) {what}"
        if what is None:
            who = "this process sent no heartbeat for so long that its workers went to other jobs"
        warn_user(f"{who}; {after}.", RuntimeWarning)

    def look_for_newcomers(self, plan: Plan) -> None:
        """Ask the ranks to stop at the end of their epoch if there are workers that could join them."""
        now = time.monotonic()
        full = self._limits.n_ranks is not None and plan.n_ranks >= self._limits.n_ranks
        if not self._elastic or self._pausing or full or now - self._looked < _LOOK_S:
            return
        self._looked = now
        known = self._out | set(plan.addresses)
        if any(not w["busy"] and w["address"] not in known for w in self._handle.cluster.survey([])["workers"]):
            self._pausing = bool(self._handle.ask(request_pause, plan.addresses, _ASK_S))
