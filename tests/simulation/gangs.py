"""Fits on a simulated cluster: the product's own client, scheduler plugin and worker plugin, hurt as a seed says.

Only what a rank does between its rendezvous and its end is a model here (`Member`): it trains epochs, meets its peers
after each, keeps snapshots. Everything else is the product, on the clock and the network of `simulation.clock`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import pickle
import queue
import random
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import psutil

from dsgd import Gang
from dsgd.errors import (
    AbortedError,
    ClusterUnreachableError,
    DsgdError,
    GangTimeoutError,
    PausedError,
    WorkerLostError,
)
from dsgd.ledger import RankLedger
from dsgd.runtime import dask_internals, messages
from dsgd.runtime.gang import client as client_module
from dsgd.runtime.gang import cluster, job, job_handle
from dsgd.runtime.scheduler import jobs, plugin, registry
from dsgd.runtime.timeouts import Restart, Timeouts, as_policy
from dsgd.runtime.worker import member as member_module
from dsgd.runtime.worker import plugin as worker_plugin
from dsgd.runtime.worker import rendezvous
from simulation.clock import WORLD, Answer, Clock, Event, Queue, Thread, World
from simulation.nodes import Client, Scheduler, Worker

LIMITS: Final = Timeouts(peer=4.0, queue=40.0, hung=2.0, lease=5.0, scheduler=6.0)
#: Within this time every fit has ended, whatever happens; faults end after `_FAULTS_S`.
_END_S: Final = 90.0
_FAULTS_S: Final = 14.0
#: After the last client: a lease, and how long ranks that hang keep something then.
_LINGER_S: Final = 18.0


class Wire:
    """The connections between the ranks of one gang."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.workers, self.event = list(workers), Event()
        self.present: dict[int, Member] = {}
        self.left: set[int] = set()
        self.done: dict[int, int] = {}  # epochs of each member
        self.snapshots: dict[int, int] = {}
        self.pauses: dict[int, bool] = {}


class Member(member_module._Member):
    """The ranks of one worker: one rank that trains epochs."""

    def run(self, cleanup: contextlib.ExitStack) -> member_module.MemberOutcome:
        """Do what a member does, in the order in which it does it."""
        task, state, worker = self._task, self._job, self._worker
        shown = task.credentials
        world: Any = WORLD[0]
        state.abort.check()
        n_epochs, raises_at = self._args
        self._pack_blocks(world)
        state.abort.check()
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
        wire.present[shown.member] = self
        wire.snapshots[shown.member] = keeper.latest or 0
        worker.when_killed.append(wire.event.notify)
        cleanup.callback(self._leave)
        state.abort.on_set(wire.event.notify)
        wire.event.notify()
        self._await(lambda peer: peer in wire.present)
        first = max(wire.snapshots.values())
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
            if wire.pauses[epoch] and epoch + 1 < n_epochs:
                raise PausedError("the gang is formed again with more ranks")
        records = [RankLedger(shown.member).records()]
        stats = [{"rank": shown.member, "worker": worker.address, "host": worker.host}]
        return member_module.MemberOutcome(True, pickle.dumps(n_epochs), stats, records, [])

    def _pack_blocks(self, world: Any) -> None:
        """Fetch blocks from who has them, unless the same ones are packed here, and pack them."""
        task, kept = self._task, self._job.kept
        if not task.orders.keeps or kept.blocks != task.place.blocks:
            kept.drop_data()
            for key in task.keys:
                deadline = world.now + task.orders.timeout_s
                while key not in world.scheduler.tasks or not world.scheduler.tasks[key].who_has:
                    was_known = world.scheduler.lost_at.get(key, world.now) < world.surveyed_at.get(key, 0.0)
                    if was_known and world.runs(task.credentials):
                        world.broken(f"a gang was planned that needs {key}, which was lost before")
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


class WatchedRegistry(registry.Registry):
    """The registry, whose promises are checked."""

    def _fenced(self, job_id: str, epoch: int, token: bytes, member: int) -> Any:
        found = super()._fenced(job_id, epoch, token, member)
        if found is not None and found.epoch != epoch:
            WORLD[0].broken("an epoch that is over was heard")
        return found

    def check(self) -> None:
        """Check leases and queue."""
        world: Any = WORLD[0]
        for worker, job_id in self.leases.items():
            found = self.jobs.get(job_id)
            if found is None or found.phase == "queued" or worker not in found.workers:
                world.broken(f"{worker} is leased to a job that does not hold it")
        earlier: set[str] = set()
        for found in self.jobs.values():
            if found.phase == "granted" and found.failure is None:
                if not all(self.leases.get(worker) == found.job_id for worker in found.workers):
                    world.broken("a gang runs on a worker that is leased to another")
                if (found.job_id, found.epoch) not in world.granted and not earlier.isdisjoint(found.workers):
                    world.broken("a later job was let past an earlier one that waits for its workers")
            if found.phase != "queued":
                world.granted.add((found.job_id, found.epoch))
            elif not found.stopped:
                if earlier.isdisjoint(found.workers) and self.leases.keys().isdisjoint(found.workers):
                    world.broken("a job waits for workers that are free")
                earlier.update(found.workers)


@dataclass
class Fit:
    """One fit of a client: what it is to do, and how it has ended."""

    n_epochs: int
    raises_at: tuple[int, int] | None
    options: dict[str, Any]
    is_scattered: bool
    client: Client
    title: str = ""
    ended: float | None = None
    outcome: Any = None


def program(*args: Any) -> None:
    """What the ranks run, if they were any."""


def pack(blocks: Any, rank: int) -> None:
    """Make nothing of blocks."""


class Schedule(World):
    """Clients that fit on a small cluster, and what happens to it; everything is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance("schedule")
        self.wires: dict[Any, Wire] = {}
        self.granted: set[tuple[str, int]] = set()
        self.trained: dict[tuple[str, int, int], int] = {}
        self.faults: list[str] = []
        self.surveyed_at: dict[str, float] = {}  # when a client last asked for a block
        self.slowness = chance.choice((0.2, 1.0, 1.0, 4.0, 10.0))
        self.scheduler = Scheduler(self)
        self._numbers_of = itertools.count(1)
        self.workers: dict[str, Worker] = {}
        for k in range(chance.randint(2, 4)):
            self.come(f"w{k}")
        self.clients: list[Client] = []
        self.fits: list[Fit] = []
        for k in range(chance.choice((1, 1, 2, 2, 3))):
            self._begin_client(k, chance)
        #: Faults that come as long after the job log has so many entries.
        self.later: dict[int, list[tuple[float, Callable[[], object]]]] = {}
        self.scheduler.when_logged = self._when_logged
        self.scheduler.when_removed = self._removes
        for _ in range(chance.choice((0, 1, 2, 3, 4, 6))):
            fault = getattr(self, chance.choice(FAULTS))
            hurt = partial(self._hurt, fault, random.Random(chance.random()))
            if chance.random() < 0.5:
                self.push(chance.choice((0.5, 2.0, 6.0)) * chance.random(), None, hurt)
            else:
                delay = chance.choice((0.0, 0.001, 0.01, 0.1, 1.0)) * chance.random()
                self.later.setdefault(chance.randint(1, 8), []).append((delay, hurt))

    def _when_logged(self, n_entries: int) -> None:
        for delay, hurt in self.later.pop(n_entries, ()):
            self.push(self.now + delay, None, hurt)

    def _begin_client(self, k: int, chance: random.Random) -> None:
        client = Client(self, f"c{k}", self.scheduler)
        fits = [self._draw_fit(client, chance) for _ in range(chance.randint(1, 2))]
        self.clients.append(client)
        for number, fit in enumerate(fits):
            fit.title = f"fit {number} of {client.name}"
        self.fits += fits
        self.push(chance.choice((0.0, 0.5, 2.0)) * chance.random(), client, partial(self._start, client, fits))

    def _start(self, client: Client, fits: list[Fit]) -> None:
        # Fits of one client one after the other, or at the same time.
        at_once = [[fit] for fit in fits] if self.chance(f"at once {client.name}").random() < 0.3 else [fits]
        for some in at_once:
            Thread(client, partial(self._use, client, some))

    def _draw_fit(self, client: Client, chance: random.Random) -> Fit:
        raises_at = (chance.randint(0, 1), chance.randint(0, 3)) if chance.random() < 0.1 else None
        n_ranks = chance.choice((None, None, 1, 2))
        policy = chance.choice(("raise", "restart", "restart", "shrink", Restart(at_most=1, remove_hung=True)))
        options = {"on_failure": policy, "elastic": chance.random() < 0.3, "n_ranks": n_ranks}
        return Fit(chance.choice((1, 4, 12, 24)), raises_at, options, chance.random() < 0.5, client)

    # ---- what happens

    def _hurt(self, fault: Callable[[random.Random], object], chance: random.Random) -> None:
        self.faults.append(fault.__name__)
        self.say(f"-- {fault.__name__}")
        fault(chance)

    def come(self, host: str) -> None:
        """Start a worker, also one that was there before."""
        if host in self.workers and self.workers[host].alive:
            # It may have to end first.
            self.push(self.now + 0.5, None, partial(self.come, host))
        else:
            self.workers[host] = Worker(self, f"{host}.{next(self._numbers_of)}", self.scheduler)

    def _some_worker(self, chance: random.Random) -> Worker:
        return self.workers[chance.choice(sorted(self.workers))]

    def crash(self, chance: random.Random) -> None:
        """Kill a worker; another one may come at its address."""
        worker = self._some_worker(chance)
        worker.kill()
        self.push(self.now + chance.choice((0.001, 0.1)), self.scheduler, partial(self._miss, worker, chance))

    def _miss(self, worker: Worker, chance: random.Random, how: str = "") -> None:
        state = self.scheduler.workers.get(worker.address)
        if state is not None and state.node is worker:
            self.scheduler.drop_worker(worker.address, how)
        self.push(self.now + chance.choice((0.05, 0.2, 1.0, 5.0)), None, partial(self.come, worker.host))

    def leave(self, chance: random.Random) -> None:
        """Lose the connection of a worker to the scheduler: both take it for gone."""
        worker = self._some_worker(chance)
        self.push(self.now, self.scheduler, partial(self._miss, worker, chance, chance.choice(("", "retire-workers"))))

    def newcomer(self, chance: random.Random) -> None:
        """Let a worker join."""
        self.come(f"n{len(self.workers)}")

    def stranger(self, chance: random.Random) -> None:
        """Let a worker join, or take the place of another, that has no dsgd."""
        worker = self._some_worker(chance)
        host = f"n{len(self.workers)}" if worker.alive else worker.host
        self.come(host)
        self.workers[host].has_dsgd = False

    def pause_worker(self, chance: random.Random) -> None:
        """Stop a worker for a while, or for good."""
        self._some_worker(chance).stall(self.now + chance.choice((0.2, 1.0, 3.0, 6.0, 6.0, 1000.0)))

    def stall_scheduler(self, chance: random.Random) -> None:
        """Let the scheduler do nothing for a while."""
        self.scheduler.stall(self.now + chance.choice((0.2, 1.0, 4.0, 8.0)))

    def pause_client(self, chance: random.Random) -> None:
        """Stop a client for a while."""
        chance.choice(self.clients).stall(self.now + chance.choice((0.2, 1.0, 4.0, 8.0)))

    def cut_worker(self, chance: random.Random) -> None:
        """Cut a worker off from the scheduler for a while."""
        self.cut(self._some_worker(chance).name, "scheduler", self.now + chance.choice((0.2, 1.0, 3.0, 6.0)))

    def cut_peers(self, chance: random.Random) -> None:
        """Cut two workers off from each other."""
        one, other = self._some_worker(chance), self._some_worker(chance)
        if one is not other:
            self.cut(one.name, other.name, self.now + chance.choice((0.2, 1.0, 6.0)))

    def cut_client(self, chance: random.Random) -> None:
        """Cut a client off from the scheduler for a while."""
        self.cut(chance.choice(self.clients).name, "scheduler", self.now + chance.choice((0.2, 1.0, 4.0, 8.0)))

    def hang_up(self, chance: random.Random) -> None:
        """Lose all calls that the scheduler has not answered."""
        self.scheduler.hang_up()

    def busy(self, chance: random.Random) -> None:
        """Let other tasks have the thread of a worker."""
        self._some_worker(chance).busy_until = self.now + chance.choice((0.5, 3.0, 6.0))

    def kill_client(self, chance: random.Random) -> None:
        """End a client."""
        client = chance.choice(self.clients)
        if client.alive:
            client.kill()
            self.push(self.now + 0.01, self.scheduler, partial(self.scheduler.remove_client, client))

    def interrupt(self, chance: random.Random) -> None:
        """Press ctrl-C in a client, perhaps twice."""
        client = chance.choice(self.clients)
        for k in range(chance.randint(1, 2)):
            self.push(self.now + k * chance.choice((0.001, 0.1, 1.0)), client, partial(self._press, client))

    def _press(self, client: Client) -> None:
        for thread in client.threads:
            thread.interrupt(KeyboardInterrupt())

    def cancel(self, chance: random.Random) -> None:
        """Let somebody cancel a job."""
        if self._jobs():
            (found,) = self.scheduler.plugins.values()
            job_id = chance.choice(sorted(found.registry.jobs))
            self.push(self.now, self.scheduler, partial(found.cancel, job_id, "cancelled by somebody"))

    def restart(self, chance: random.Random) -> None:
        """Restart the cluster."""

        def restart() -> None:
            self.scheduler.restart()
            for worker in list(self.workers.values()):
                self._miss(worker, chance)

        self.push(self.now, self.scheduler, restart)

    # ---- what clients do

    def _use(self, client: Client, fits: list[Fit]) -> None:
        for fit in fits:
            numbers = itertools.count()

            def send(k: int, *, fit: Fit = fit, numbers: Iterator[int] = numbers) -> Any:
                """Give the cluster a block: one that Dask can compute again, or one that only this client has."""
                return client.submit(None, key=f"{fit.title}, block {next(numbers)}", is_scattered=fit.is_scattered)

            blocks = [send(k) for k in range(4)]
            options = dict(fit.options)
            n_ranks = options.pop("n_ranks")
            gang = Gang(client, timeouts=LIMITS, transport="tcp", **options)
            arguments = {"pack": pack, "args": (fit.n_epochs, fit.raises_at), "n_ranks": n_ranks, "title": fit.title}
            arguments["reload"] = send if fit.is_scattered else None
            try:
                fit.outcome = job.run_on_cluster(program, blocks, client=gang, block_rows=[1] * 4, **arguments)
                self.say(f"{client.name} has its model")
            except (DsgdError, ValueError, KeyboardInterrupt) as error:
                fit.outcome = error
                self.say(f"{client.name} raises {error!r}"[:300])
            fit.ended = self.now
            self._judge(fit)
            for future in [future for key, future in client.futures.items() if key.startswith(fit.title)]:
                future.release()

    def trains(self, member: Member, epoch: int, first: int) -> None:
        """Check that a rank trains each epoch once, in order, and that no other gang trains on its worker."""
        shown = member._task.credentials
        key = shown.job_id, shown.epoch, shown.member
        for wire in self.wires.values():
            for other in wire.present.values():
                is_there = other._worker is member._worker and other._task.credentials.member not in wire.left
                if is_there and other is not member and not other._job.abort.is_set:
                    self.broken(f"two gangs train on {member._worker.name}")
        if self.trained.get(key, first - 1) != epoch - 1:
            self.broken(f"member {shown.member} trains epoch {epoch} after {self.trained.get(key)}")
        self.trained[key] = epoch

    def _judge(self, fit: Fit) -> None:
        """Check that a fit has ended as it may, for a reason that there is."""
        error = fit.outcome
        if not isinstance(error, BaseException):
            if error.value != fit.n_epochs:
                self.broken("a fit returned another model")
            policy = as_policy("", fit.options["on_failure"])
            if sum(event["kind"] != "joined" for event in error.recoveries) > (policy.at_most if policy else 0):
                self.broken("a fit went on after more failures than it may")
            jobs_left = [found for found in self._jobs() if found.label.title == fit.title and found.phase != "closed"]
            if jobs_left and not _DELAYS & set(self.faults):
                self.broken("a fit has ended, and its job has not")
            return
        if isinstance(getattr(error, "__cause__", None), ValueError):
            reasons = {"program"} if fit.raises_at is not None else set()
        else:
            reasons = next((names for kind, names in REASONS.items() if isinstance(error, kind)), {*FAULTS})
            if fit.is_scattered and isinstance(error, GangTimeoutError):  # a block may be lost that a rank waits for
                reasons = reasons | {"crash", "leave"}
        if not reasons & set(self.faults):
            self.broken(f"a fit failed for no reason: {error!r}", error)
        self._check_cause(fit)

    def _removes(self, worker: Worker) -> None:
        """Start a worker again that a fit has removed, as a nanny does; check that it did not answer."""
        was_cut = frozenset((worker.name, "scheduler")) in self._cut
        has_hung = was_cut or worker.stalled_until or self.scheduler.stalled_until or not worker.alive
        # Of very slow messages an answer takes longer than a fit is patient.
        if self.slowness <= 4.0 and not has_hung:
            self.broken(f"{worker.name} was removed, which answers")
        self.push(self.now + 1.0, None, partial(self.come, worker.host))

    def runs(self, shown: Any) -> bool:
        """Return whether a gang has been formed and has no failure yet."""
        return any(
            (found.job_id, found.epoch, found.phase, found.failure) == (shown.job_id, shown.epoch, "granted", None)
            for found in self._jobs()
        )

    def _jobs(self) -> list[Any]:
        return [found for one in self.scheduler.plugins.values() for found in one.registry.jobs.values()]

    def _check_cause(self, fit: Fit) -> None:
        """Check that the client was told why its gang stopped first."""
        mine = {record["job"] for record in self.scheduler.log if record.get("title") == fit.title}
        stops = [record for record in self.scheduler.log if record["job"] in mine and record["state"] == "stopping"]
        if len({(record["job"], record["formed"]) for record in stops}) < len(stops):
            self.broken("a gang stopped for two causes")
        error, causes = fit.outcome, {(record["rank"], record["worker"]) for record in stops}
        if isinstance(error, WorkerLostError) and not error.host:
            self.broken(f"nobody knows where that was: {error!r}")
        # Results go with a worker although its gang has ended, which the client alone notices.
        if (
            isinstance(error, WorkerLostError)
            and not error.how.endswith("with its result")
            and (error.rank, error.worker) not in causes
        ):
            self.broken(f"the client was told {error!r}, which was not the cause: {causes}")

    # ---- all of it

    def run_all(self) -> None:
        """Run the schedule; raise `BrokenPromiseError` if an invariant does not hold."""
        try:
            self.run(0.0)
            while self._waiting() and self.now < _END_S and self.failure is None:
                self.run(self.now + 1.0)
            if self._waiting():
                self.broken(f"{self._waiting()[0].title} has no end")
            self.run(max(self.now, _FAULTS_S) + _LINGER_S)
            self._check_rest()
        finally:
            failure = self.failure
            for process in self.processes:
                process.kill()
                process.asyncio_loop.close()
        if failure is not None:
            raise failure

    def _waiting(self) -> list[Fit]:
        """Return the fits that have not ended, and whose clients have not either."""
        return [fit for fit in self.fits if fit.ended is None and fit.client.alive]

    def _check_rest(self) -> None:
        """Check that nothing is held after the end."""
        if self.failure is not None:
            return
        rest: list[str] = []
        for found in self.scheduler.plugins.values():
            held = found.registry
            rest += [f"job {job.phase}" for job in held.jobs.values()] + [f"lease of {w}" for w in held.leases]
            rest += [f"meeting {m}" for m in (*found._meetings, *found._changed)]
        rest += [f"task {task.key}" for task in self.scheduler.tasks.values() if "rank" in task.key]
        for worker in self.workers.values():
            if worker.alive and worker.stalled_until < self.now:
                rest += ["an open job of a worker"] * len(worker.store) + [f"task {key}" for key in worker.running]
        if rest:
            self.broken(f"left behind: {', '.join(rest)}")


FAULTS: Final = (
    "crash",
    "crash",
    "crash",
    "leave",
    "leave",
    "newcomer",
    "stranger",
    "pause_worker",
    "pause_worker",
    "stall_scheduler",
    "pause_client",
    "cut_worker",
    "cut_peers",
    "cut_client",
    "hang_up",
    "busy",
    "kill_client",
    "interrupt",
    "cancel",
    "restart",
)


_DELAYS: Final = {"stall_scheduler", "pause_client", "cut_client", "hang_up"}
_SILENCES: Final = {"pause_worker", "cut_worker", "cut_peers", "busy", *_DELAYS}
#: Of what must have happened one thing at least where a client is told such an error; else something.
REASONS: Final = {
    KeyboardInterrupt: {"interrupt"},
    ClusterUnreachableError: _DELAYS,
    GangTimeoutError: _SILENCES,
    WorkerLostError: {"crash", "leave", "restart", *_SILENCES},
}


def _worker_of_thread() -> Worker:
    running = WORLD[0].running
    assert running is not None
    worker = running.process
    assert isinstance(worker, Worker)
    return worker


class _Log:
    def exception(self, text: str, *args: Any) -> None:
        WORLD[0].broken(f"a message was not understood: {sys.exc_info()[1]!r}", sys.exc_info()[1])

    def warning(self, *args: Any) -> None:
        pass


class _Psutil:
    """What a worker says of its process is of no use."""

    Error = psutil.Error

    class Process:
        pid = -1

        def __init__(self, pid: int | None = None) -> None:
            if pid is not None:
                raise psutil.NoSuchProcess(pid)

        def create_time(self) -> float:
            return 0.0


def _noted(client: Client, call: str, *args: Any, **options: Any) -> Any:
    """Call the scheduler; note when it is asked for blocks."""
    if call == "dsgd_survey":
        WORLD[0].surveyed_at.update(dict.fromkeys(options["keys"], WORLD[0].now))
    return client_module.call_scheduler(client, call, *args, **options)


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect garbage after a schedule, and not among all that was imported."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Put the product on virtual time, in a ``with`` block."""
    versions = messages.local_versions()
    now = Clock.monotonic
    unmeasured = SimpleNamespace(expose=lambda found: None, withdraw=lambda found: None)
    plain = SimpleNamespace(dumps=lambda value: value)
    events = SimpleNamespace(Lock=threading.Lock, Event=Event)

    def draw_id() -> Any:
        return uuid.UUID(int=WORLD[0].chance("ids").getrandbits(128))

    def draw_token(n: int) -> bytes:
        return WORLD[0].chance("ids").randbytes(n)

    patches = [
        (client_module, {"queue": SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty)}),
        (cluster, {"time": Clock, "local_versions": lambda: versions, "call_scheduler": _noted}),
        (job, {"time": Clock, "require_cluster": lambda found: found, "out_of_pool": contextlib.nullcontext}),
        (job, {"servers_here": lambda found: []}),
        (job_handle, {"time": Clock, "threading": events, "uuid": SimpleNamespace(uuid4=draw_id), "_log": _Log()}),
        (job_handle, {"_LOOK_S": 0.5}),  # ten times a second, half of all events would be its
        (job_handle, {"secrets": SimpleNamespace(token_bytes=draw_token), "owner_here": lambda: "somebody"}),
        (plugin, {"monotonic": now, "Registry": partial(WatchedRegistry, clock=now), "keep_log": lambda: None}),
        (plugin, {"Vigil": partial(jobs.Vigil, now), "OF_SCHEDULER": unmeasured}),
        (jobs, {"time": Clock, "cloudpickle": plain, "make_installer": lambda *args: b"", "psutil": _Psutil}),
        (messages, {"local_versions": lambda: versions}),
        (jobs, {"local_versions": lambda: versions}),
        (dask_internals, {"_log": _Log(), "has_dashboard": lambda found: False}),
        (rendezvous, {"time": Clock, "asyncio": SimpleNamespace(run_coroutine_threadsafe=Answer), "_log": _Log()}),
        (rendezvous, {"cpu_count": lambda: 1}),
        (member_module, {"get_worker": _worker_of_thread, "secede": lambda: None, "_Member": Member}),
        (member_module, {"gc": SimpleNamespace(collect=lambda: None)}),
        (worker_plugin, {"psutil": _Psutil, "keep_log": lambda: None, "OF_WORKERS": unmeasured}),
    ]
    with contextlib.ExitStack() as stack:
        for module, changes in patches:
            stack.enter_context(mock.patch.multiple(module, **changes))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_garbage_kept())
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        yield


def play(seed: int) -> tuple[list[str], BaseException | None]:
    """Run the schedule of a seed; return what has happened, and the invariant that does not hold."""
    schedule = Schedule(seed)
    try:
        schedule.run_all()
    except Exception as error:
        return schedule.trace, error
    finally:
        gc.collect()  # of the schedule before
    return schedule.trace, None


def replay_line(seed: int) -> str:
    """Return the command that runs a schedule again."""
    return f"PYTHONPATH=tests python -m simulation {seed}"
