"""The ranks of simulated gangs: a model of what happens between the rendezvous of a rank and its end.

A rank trains epochs, meets its peers after each, and keeps snapshots.
"""

from __future__ import annotations

import contextlib
import errno
import pickle
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dsgd.errors import AbortedError, GangTimeoutError, PausedError
from dsgd.ledger import RankLedger
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.worker import member as member_module
from dsgd.runtime.worker import rendezvous
from simulation.clock import WORLD, Clock, Event


class Wire:
    """The connections between the ranks of one gang."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.workers, self.event = list(workers), Event()
        self.present: dict[int, Member] = {}
        self.left: set[int] = set()
        self.done: dict[int, int] = {}  # epochs of each member
        self.snapshots: dict[int, int] = {}
        self.pauses: dict[int, bool] = {}


class Folder:
    """A folder of checkpoints that all workers share; it takes a moment to write a file."""

    def __init__(self, path: str) -> None:
        self.path, self.files = path, dict[str, bytes]()

    def names(self) -> list[str]:
        return list(self.files)

    def get(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def head(self, name: str, n_bytes: int) -> bytes | None:
        return self.files[name][:n_bytes]

    def put(self, name: str, content: bytes, mode: int) -> None:
        if name.startswith("checkpoint"):  # its list is short
            Clock.sleep(WORLD[0].chance(f"disk {self.path}").choice((0.001, 0.05, 0.2)))
        self.files[name] = content

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


class Member(member_module._Member):
    """The ranks of one worker: one rank that trains epochs."""

    def run(self, cleanup: contextlib.ExitStack) -> member_module.MemberOutcome:
        """Do what a member does, in the order in which it does it."""
        task, state, worker = self._task, self._job, self._worker
        shown = task.credentials
        world: Any = WORLD[0]
        state.abort.check()
        n_epochs, raises_at, place = self._args
        target = checkpoint.Checkpoint(place, every_s=0.0) if place and shown.member == 0 else None
        self._pack_blocks(world)
        state.abort.check()
        if world.now < worker.starved_until:
            raise OSError(errno.EMFILE, "too many open files")
        context = rendezvous.MemberContext(worker, state, shown, task.orders.wires, task.orders.timeout_s)
        listener: Any = SimpleNamespace(address=f"{worker.name}/{shown.epoch}", look=lambda *args: None)
        table = rendezvous._wait_for_all(context, listener, self._link)
        key = shown.job_id, shown.epoch
        wire = self.wire = world.wires.setdefault(key, Wire(table["workers"]))
        if wire.workers != table["workers"] or wire.workers[shown.member] != worker.address:
            world.broken(f"member {shown.member} of {worker.name} got the table of another gang")
        if shown.member in wire.present:
            world.broken(f"member {shown.member} of a gang runs twice")
        keeper = state.kept.keepers[0]
        world.resumes(worker, shown, keeper.latest or 0)
        wire.present[shown.member] = self
        wire.snapshots[shown.member] = self._newest(target, keeper.latest or 0)
        worker.when_killed.append(wire.event.notify)
        cleanup.callback(self._leave)
        state.abort.on_set(wire.event.notify)
        wire.event.notify()
        self._await(lambda peer: peer in wire.present)
        first = max(wire.snapshots.values())
        if target is not None and first < world.acknowledged.get(shown.job_id, 0):
            world.broken(f"a checkpoint of {world.acknowledged[shown.job_id]} epochs was lost")
        for epoch in range(first, n_epochs):
            self._work(world.chance(f"train {worker.name}").choice((0.02, 0.1, 0.3)))
            if raises_at == (shown.member, epoch):
                world.faults.append("program")
                raise ValueError("as planned")
            world.trains(self, epoch, first)
            wire.done[shown.member] = epoch
            wire.pauses[epoch] = wire.pauses.get(epoch, False) or keeper.pause_requested
            wire.event.notify()
            self._await(lambda peer: wire.done.get(peer, -1) >= epoch)  # noqa: B023
            if task.orders.keeps:
                keeper.latest = epoch + 1
                world.kept[shown.job_id, worker.name] = shown.epoch, epoch + 1
            if target is not None:
                at = (epoch + 1, 0), len(wire.workers)
                state = checkpoint.SavedState(*at, {}, {}, job_id=shown.job_id, formed=shown.epoch)
                checkpoint.write(target, state)
                self._job.abort.check()
                world.acknowledged[shown.job_id] = epoch + 1
            if wire.pauses[epoch] and epoch + 1 < n_epochs:
                raise PausedError("the gang is formed again with more ranks")
        records = [RankLedger(shown.member).records()]
        stats = [{"rank": shown.member, "worker": worker.address, "host": worker.host}]
        return member_module.MemberOutcome(True, pickle.dumps(n_epochs), stats, records, [])

    def _newest(self, target: checkpoint.Checkpoint | None, n_epochs: int) -> int:
        """Return how many epochs have been trained, as a snapshot or a checkpoint says."""
        shown = self._task.credentials
        if target is not None and not shown.epoch:
            checkpoint.place_to_resume(target, None, formed=0)
        rank = SimpleNamespace(number=shown.member, formed=shown.epoch, job_id=shown.job_id)
        own = checkpoint.newest_own(target, rank, checkpoint.Snapshot((n_epochs, 0), {}))
        return n_epochs if own is None else own.position[0]

    def _pack_blocks(self, world: Any) -> None:
        """Fetch blocks from who has them, unless the same ones are packed here, and pack them."""
        task, kept = self._task, self._job.kept
        if not task.orders.keeps or kept.blocks != task.place.blocks:
            kept.drop_data()
            began = world.now
            for key in task.keys:
                deadline = world.now + task.orders.timeout_s
                while key not in world.scheduler.tasks or not world.scheduler.tasks[key].who_has:
                    was_known = world.scheduler.lost_at.get(key, world.now) < world.surveyed_at.get(key, 0.0)
                    if was_known and world.runs(task.credentials):
                        world.broken(f"a gang was planned that needs {key}, which was lost before")
                    gone_s = min(world.now - world.scheduler.lost_at.get(key, world.now), world.now - began)
                    if gone_s > 3.0 and world.is_prompt() and world.runs(task.credentials):
                        world.broken(f"a gang waits for {key}, which is lost")
                    if world.now >= deadline:
                        raise GangTimeoutError(f"no worker holds {key}")
                    self._work(0.1)
        chance = world.chance(f"pack {self._worker.name}")
        self._work(chance.choice((0.0, 0.0, 0.05, 0.05, 0.05, 0.3, 0.3, 0.3, 0.3, 6.0)))
        kept.blocks = task.place.blocks if task.orders.keeps else None

    def _work(self, seconds: float) -> None:
        Clock.sleep(seconds)
        self._job.abort.check()

    def _leave(self) -> None:
        self.wire.left.add(self._task.credentials.member)
        self.wire.event.notify()

    def _await(self, has_come: Callable[[int], bool]) -> None:
        """Wait for all peers, as transports do."""
        world, wire = WORLD[0], self.wire
        deadline = world.now + self._task.orders.timeout_s
        while True:
            late = [
                peer
                for peer in range(len(wire.workers))
                if not has_come(peer) or world.is_cut(self._worker.name, wire.present[peer]._worker.name)
            ]
            if not late:
                return
            self._job.abort.check()
            for peer in late:
                if peer in wire.left or (peer in wire.present and not wire.present[peer]._worker.alive):
                    raise AbortedError(f"rank {peer} has gone")
            if world.now >= deadline:
                raise GangTimeoutError(f"nothing from rank {late[0]}")
            wire.event.wait(min(0.5, deadline - world.now))
