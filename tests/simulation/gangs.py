"""Fits on a simulated cluster: the product's own client, scheduler plugin and worker plugin, hurt as a seed says.

Only what a rank does between its rendezvous and its end is a model (`simulation.ranks`). Everything else is the product
(`simulation.product`).
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dsgd import Gang
from dsgd.errors import (
    CheckpointError,
    ClusterError,
    ClusterUnreachableError,
    DsgdError,
    GangTimeoutError,
    RankError,
    WorkerLostError,
)
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.gang import job
from dsgd.runtime.timeouts import Restart, Timeouts, as_policy
from simulation.clock import Thread, World, nothing
from simulation.nodes import Client, Scheduler, Worker
from simulation.ranks import Folder, Member, Wire

LIMITS: Final = Timeouts(peer=4.0, queue=40.0, hung=2.0, lease=5.0, scheduler=6.0)
#: Within this time every fit has ended, whatever happens; faults end after `_FAULTS_S`.
_END_S: Final = 150.0
_FAULTS_S: Final = 14.0
#: After the last client: a lease, and how long ranks that hang keep something then.
_LINGER_S: Final = 18.0


@dataclass
class Fit:
    """One fit of a client: what it is to do, and how it has ended."""

    n_epochs: int
    raises_at: tuple[int, int] | None
    options: dict[str, Any]
    is_scattered: bool
    saves: bool
    client: Client
    title: str = ""
    ended: float | None = None
    outcome: Any = None


def program(*args: Any) -> None:
    """What the ranks run, if they were any."""


def pack(blocks: Any, rank: int) -> None:
    """Make nothing of blocks."""


class Schedule(World):
    """Clients that fit on a small cluster, and what happens to it; everything is drawn from a seed.

    Clients and faults are its parts, which are numbered; those of `without` are drawn all the same, and do nothing.
    """

    def __init__(self, seed: int, without: Collection[int] = ()) -> None:
        super().__init__(seed)
        self.n_parts, self._without = 0, without
        chance = self.chance("schedule")
        self.wires: dict[Any, Wire] = {}
        self.granted: set[tuple[str, int]] = set()
        self.trained: dict[tuple[str, int, int], int] = {}
        self.places: dict[tuple[str, int], set[str]] = {}  # the workers of each gang
        self.kept: dict[tuple[str, str], tuple[int, int]] = {}  # by job and process: gang and epochs of its snapshot
        self.folders: dict[str, Folder] = {}
        self.littered: set[str] = set()
        self.acknowledged: dict[str, int] = {}  # by job: epochs of its last checkpoint
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
        #: Faults that come as long after the job log has so many entries, or one of a job that stops.
        self.later: dict[Any, list[tuple[float, Callable[[], object]]]] = {}
        self.scheduler.when_logged = self._when_logged
        self.scheduler.when_removed, self.scheduler.when_aside = self._removes, self._sets_aside
        for _ in range(chance.choice((0, 1, 2, 3, 4, 6))):
            fault = getattr(self, chance.choice(FAULTS))
            hurt = self._part(partial(self._hurt, fault, random.Random(chance.random())))
            if chance.random() < 0.5:
                self.push(chance.choice((0.5, 2.0, 6.0)) * chance.random(), None, hurt)
            else:
                delay = chance.choice((0.0, 0.001, 0.01, 0.1, 1.0)) * chance.random()
                moment = chance.choice(("stopping", chance.randint(1, 8)))
                self.later.setdefault(moment, []).append((delay, hurt))

    def _when_logged(self, moment: Any) -> None:
        for delay, hurt in self.later.pop(moment, ()):
            self.push(self.now + delay, None, hurt)

    def _begin_client(self, k: int, chance: random.Random) -> None:
        client = Client(self, f"c{k}", self.scheduler)
        fits = [self._draw_fit(client, chance) for _ in range(chance.randint(1, 2))]
        self.clients.append(client)
        for number, fit in enumerate(fits):
            fit.title = f"fit {number} of {client.name}"
        start = self._part(partial(self._start, client, fits))
        self.fits += fits if start is not nothing else []
        self.push(chance.choice((0.0, 0.5, 2.0)) * chance.random(), client, start)

    def _part(self, call: Callable[[], object]) -> Callable[[], object]:
        self.n_parts += 1
        return nothing if self.n_parts - 1 in self._without else call

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
        is_scattered, saves = chance.random() < 0.5, chance.random() < 0.3
        return Fit(chance.choice((1, 4, 12, 24)), raises_at, options, is_scattered, saves, client)

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
        self.push(self.now + chance.choice((0.05, 0.2, 1.0, 5.0, 1000.0)), None, partial(self.come, worker.host))

    def replace(self, address: str) -> None:
        """Let another process take the place of a worker that hangs, before the scheduler is asked to set it aside."""
        worker = self.workers[address.removeprefix("tcp://").partition(":")[0]]
        self.faults.append("crash")
        worker.kill()
        self.push(self.now, self.scheduler, partial(self.scheduler.drop_worker, address))
        self.push(self.now, None, partial(self.come, worker.host))

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

    def starve(self, chance: random.Random) -> None:
        """Let a worker open no more files for a while."""
        self._some_worker(chance).starved_until = self.now + chance.choice((0.5, 3.0, 6.0))

    def litter(self, chance: random.Random) -> None:
        """Put a file that looks like a checkpoint where fits write theirs."""
        if self.fits:
            path = chance.choice(self.fits).title
            self.littered.add(path)
            self.folder(path).files[LITTER] = b"of somebody else"

    def folder(self, path: str) -> Folder:
        """Return the folder of a path."""
        return self.folders.setdefault(path, Folder(path))

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
            arguments = {
                "pack": pack,
                "args": (fit.n_epochs, fit.raises_at, fit.title if fit.saves else ""),
                "n_ranks": n_ranks,
                "title": fit.title,
            }
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

    def resumes(self, worker: Worker, shown: Any, n_epochs: int) -> None:
        """Check that a worker that has stayed in the gangs of a job has its snapshot."""
        gang, had = self.kept.get((shown.job_id, worker.name), (shown.epoch, 0))
        gangs = (self.places.get((shown.job_id, k)) for k in range(gang, shown.epoch))
        if had > n_epochs and all(workers is None or worker.address in workers for workers in gangs):
            self.broken(f"{worker.name} has lost a snapshot of {had} epochs")

    def answers(self, address: str, for_s: float = 1.0) -> bool:
        """Return whether a worker is there, awake and not cut off, and was for so long."""
        node = self.workers[address.removeprefix("tcp://").partition(":")[0]]
        since = max(0.0, self.now - for_s)
        is_cut = self._cut.get(frozenset((node.name, "scheduler")), 0.0) > since
        # Of very slow messages an answer takes longer than a fit is patient.
        return (
            node.alive
            and node.began <= since
            and node.status == "running"
            and node.stalled_until <= since
            and not is_cut
            and self.slowness <= 4.0
        )

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
        elif isinstance(error, RankError) and isinstance(error.__cause__, OSError):
            reasons = {"starve"}
        else:
            reasons = next((names for kind, names in REASONS.items() if isinstance(error, kind)), {*FAULTS})
            if fit.is_scattered and isinstance(error, GangTimeoutError):  # a block may be lost that a rank waits for
                reasons = reasons | {"crash", "leave", "restart"}
            if isinstance(error, GangTimeoutError) and not self.scheduler.workers:
                reasons = reasons | {"crash", "leave", "restart"}
        if not reasons & set(self.faults):
            self.broken(f"a fit failed for no reason: {error!r}", error)
        self._check_cause(fit)

    def _removes(self, worker: Worker) -> None:
        """Start a worker again that a fit has removed, as a nanny does."""
        self._sets_aside(worker)
        self.push(self.now + 1.0, None, partial(self.come, worker.host))

    def _sets_aside(self, worker: Worker) -> None:
        """Check that a worker which is set aside did not answer."""
        was_cut = frozenset((worker.name, "scheduler")) in self._cut
        has_hung = was_cut or worker.stalled_until or self.scheduler.stalled_until or not worker.alive
        # Of very slow messages an answer takes longer than a fit is patient.
        if self.slowness <= 4.0 and not has_hung:
            self.broken(f"{worker.name} was set aside, which answers")

    def is_prompt(self) -> bool:
        """Return whether messages to and from clients are never late."""
        return self.slowness <= 1.0 and not _DELAYS & set(self.faults)

    def runs(self, shown: Any) -> bool:
        """Return whether a gang has been formed and has no failure yet."""
        return any(
            (found.job_id, found.epoch, found.phase, found.failure) == (shown.job_id, shown.epoch, "granted", None)
            for found in self._jobs()
        )

    def _jobs(self) -> list[Any]:
        return [found for one in self.scheduler.plugins.values() for found in one.registry.jobs.values()]

    def jobs_of(self, fit: Fit) -> set[str]:
        """Return the jobs of a fit."""
        return {record["job"] for record in self.scheduler.log if record.get("title") == fit.title}

    def _check_cause(self, fit: Fit) -> None:
        """Check that the client was told why its gang stopped first."""
        mine = self.jobs_of(fit)
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
        rest += [f"no litter in {path}" for path in self.littered if LITTER not in self.folders[path].files]
        rest += [f"task {task.key}" for task in self.scheduler.tasks.values() if "rank" in task.key]
        for worker in self.workers.values():
            if worker.alive and worker.stalled_until < self.now:
                rest += ["an open job of a worker"] * len(worker.store) + [f"task {key}" for key in worker.running]
        for fit in self.fits:
            n_epochs = max((self.acknowledged.get(job_id, 0) for job_id in self.jobs_of(fit)), default=0)
            if n_epochs and checkpoint.read_newest(fit.title, {}).position[0] < n_epochs:
                self.broken(f"a checkpoint of {n_epochs} epochs is not there in the end")
        if rest:
            self.broken(f"left behind: {', '.join(rest)}")


#: A file that fits take for a checkpoint of another program.
LITTER: Final = "checkpoint-7.pt"
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
    "starve",
    "litter",
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
    CheckpointError: {"litter"},
    ClusterUnreachableError: _DELAYS,
    GangTimeoutError: _SILENCES,
    RankError: _SILENCES,
    WorkerLostError: {"crash", "leave", "restart", *_SILENCES},
    ClusterError: {"crash", "leave", "restart", "pause_worker", "cut_worker"},
}


def play(seed: int, without: Collection[int] = ()) -> tuple[list[str], BaseException | None]:
    """Run the schedule of a seed; return what has happened, and the invariant that does not hold."""
    schedule = Schedule(seed, without)
    try:
        schedule.run_all()
    except Exception as error:
        return schedule.trace, error
    finally:
        gc.collect()  # of the schedule before
    return schedule.trace, None


def shrunk(seed: int) -> tuple[int, ...]:
    """Return the parts without which the schedule of a seed fails all the same."""
    without: tuple[int, ...] = ()
    for part in reversed(range(Schedule(seed).n_parts)):
        fewer = *without, part
        without = fewer if play(seed, fewer)[1] is not None else without
    return without


def replay_line(seed: int, without: Collection[int] = ()) -> str:
    """Return the command that runs a schedule again."""
    return " ".join([f"PYTHONPATH=tests python -m simulation {seed}", *map("--without {}".format, without)])
