"""What a gang costs the scheduler, from 64 to 4,096 members, without workers or sockets.

The scheduler's plugin runs on an event loop in a thread of its own, whose processor time is counted. Members are
coroutines in another one: each says that it has begun, gives its address a moment later than the one before, waits for
those of all, and ends; one watches as the client does. Every message is packed and unpacked as Dask does it. The job is
``done`` well, or all that have begun are told to stop and say when they have: one member raises (``fails``), a worker
leaves while members train (``worker``) or while they still come (``join``), or the ``client`` leaves.

    python -m benchmarks run control_plane --out rows.jsonl
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import dask.config
from distributed.broker import Broker
from distributed.core import Status
from distributed.protocol import dumps, loads

from benchmarks.common.measuring import Options, Rows, table
from dsgd.runtime.messages import MEMBER_END, MEMBER_EVENT
from dsgd.runtime.scheduler.plugin import GangSchedulerPlugin
from dsgd.runtime.worker.rendezvous import JOIN_S

PAGE = "cluster"
QUICK_S = 10
QUICK = "64 and 512 members"
CASES = ("done", "fails", "worker", "join", "client")
# How the client sees its job last.
LAST = dict.fromkeys(CASES, "failed") | {"done": "done", "client": "unknown"}

SIZES = (64, 512, 1024, 4096)
QUICK_SIZES = (64, 512)
# Between the arrivals of two members: about as fast as one client starts tasks.
APART_S = 0.004
JOB = {"job_id": "a" * 32, "epoch": 0, "token": b"t" * 32}
CLIENT = "me"


class Traffic:
    """Counts messages, and packs and unpacks each of them."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.n_bytes: Counter[str] = Counter()

    def carry(self, kind: str, message: Any) -> Any:
        """Return what arrives of a message."""
        frames = dumps(message)
        self.messages[kind] += 1
        self.n_bytes[kind] += sum(memoryview(frame).nbytes for frame in frames)
        return loads(frames)


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def cpu_s(self) -> float:
        """Return the processor seconds of its thread."""

        async def look() -> float:
            return time.thread_time()

        return float(self.submit(look()).result())

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@dataclass
class Scheduler:
    """What the plugin needs of Dask's scheduler; `told` are its messages to workers."""

    n: int
    traffic: Traffic = field(default_factory=Traffic)
    told: Callable[[str, dict[str, Any]], None] = lambda worker, message: None

    def __post_init__(self) -> None:
        self.addresses = [f"tcp://10.0.{k // 250}.{k % 250}:40000" for k in range(self.n)]
        self.workers = {a: SimpleNamespace(address=a, status=Status.running) for a in self.addresses}
        self.stream_comms = dict.fromkeys(self.addresses)
        self.clients = {CLIENT: None}
        self.plugins: dict[str, Any] = {}
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.stream_handlers: dict[str, Callable[..., Any]] = {}
        self.http_application = SimpleNamespace(applications=[])
        self.extensions = {"publish": SimpleNamespace(datasets={})}
        self.events = Broker(dask.config.get("distributed.admin.low-level-log-length"), self)  # type: ignore[arg-type]

    def worker_send(self, worker: str, message: dict[str, Any]) -> None:
        """Send to a worker."""
        self.told(worker, self.traffic.carry("to workers", message))

    def log_event(self, topic: str, record: dict[str, Any]) -> None:
        """Keep a record."""
        self.events.publish(topic, record)

    def send_all(self, client_msgs: dict[str, Any], worker_msgs: dict[str, Any]) -> None:
        """Send an event to those who listen: nobody does."""
        assert not client_msgs


class ControlPlane:
    """A scheduler with the plugin, and the ways to it; members come some seconds `apart_s` from each other."""

    def __init__(self, n: int, apart_s: float = APART_S) -> None:
        self._apart_s = apart_s
        self.inside, self.outside = Loop(), Loop()
        self.scheduler = Scheduler(n)
        self.traffic = self.scheduler.traffic
        self.plugin = GangSchedulerPlugin()
        self.inside.submit(self.plugin.start(self.scheduler)).result()  # type: ignore[arg-type]
        for address in self.scheduler.addresses:
            self.plugin.admission.answer(address, "")

    async def ask(self, op: str, **arguments: Any) -> Any:
        """Call a handler from the outside and return its answer."""

        async def answer() -> Any:
            found = self.scheduler.handlers[op](**self.traffic.carry(op, arguments))
            value = await found if isinstance(found, Awaitable) else found
            return self.traffic.carry(f"{op} answer", value)

        return await asyncio.wrap_future(self.inside.submit(answer()))

    def say(self, op: str, worker: str, **fields: Any) -> None:
        """Send a message of a worker's stream."""

        def arrive() -> None:
            self.scheduler.stream_handlers[op](worker=worker, **self.traffic.carry(op, fields))

        self.inside.loop.call_soon_threadsafe(arrive)

    def run(self, how: str) -> dict[str, float]:
        """Run a job from admission to its end; return scheduler seconds, and what it has sent and received."""
        start, begin = self.inside.cpu_s(), time.perf_counter()
        self.outside.submit(self._job(how)).result()
        seconds, elapsed = self.inside.cpu_s() - start, time.perf_counter() - begin
        n = self.scheduler.n
        return {
            "seconds": seconds,
            "elapsed_s": elapsed,
            "messages": self.traffic.messages.total() / n,
            "kilobytes": self.traffic.n_bytes.total() / n / 1e3,
        }

    async def _job(self, how: str) -> None:
        n, last = self.scheduler.n, self.scheduler.n - 1
        stops = [asyncio.Event() for _ in range(n)]
        self._hear_stops(stops)
        members = [(address, "host", 1) for address in self.scheduler.addresses]
        await self.ask("dsgd_admit", **JOB, client=CLIENT, members=members)
        watching = asyncio.create_task(self._watch())
        joining = asyncio.gather(*(self._member(k) for k in range(last if how == "join" else n)))
        if how == "join":
            await asyncio.sleep(n // 2 * self._apart_s)
            await self._leave(worker=self.scheduler.addresses[last])
        states = {answer["join_state"] for answer in await joining}
        assert states <= ({"stopped", "stale"} if how == "join" else {"ready"}), states
        if how == "worker":
            await self._leave(worker=self.scheduler.addresses[last])
        if how == "client":
            await self._leave(client=CLIENT)
        staying = range(last if how in ("worker", "join") else n)
        await asyncio.gather(*(self._end(k, how, stops[k]) for k in staying))
        status = await watching
        assert status["job_state"] == LAST[how], status
        await self.ask("dsgd_close", job_id=JOB["job_id"])

    def _hear_stops(self, stops: Sequence[asyncio.Event]) -> None:
        """Set the event of a member when its worker is told to stop."""
        loop, numbers = asyncio.get_running_loop(), {a: k for k, a in enumerate(self.scheduler.addresses)}

        def hear(worker: str, message: dict[str, Any]) -> None:
            if message["action"] == "abort":
                loop.call_soon_threadsafe(stops[numbers[worker]].set)

        self.scheduler.told = hear

    async def _leave(self, *, worker: str = "", client: str = "") -> None:
        """Let Dask lose a worker or a client."""

        async def leave() -> None:
            if worker:
                del self.scheduler.workers[worker], self.scheduler.stream_comms[worker]
                self.plugin.remove_worker(self.scheduler, worker)  # type: ignore[arg-type]
            if client:
                del self.scheduler.clients[client]
                self.plugin.remove_client(self.scheduler, client)  # type: ignore[arg-type]

        await asyncio.wrap_future(self.inside.submit(leave()))

    async def _watch(self) -> dict[str, Any]:
        seen = -2
        while True:
            status = await self.ask("dsgd_watch", job_id=JOB["job_id"], seen=seen, wait_s=0.5)
            seen = status["version"]
            if status["job_state"] in LAST.values() and not status["live"]:
                return dict(status)

    async def _member(self, number: int) -> dict[str, Any]:
        await asyncio.sleep(number * self._apart_s)
        worker = self.scheduler.addresses[number]
        self.say(MEMBER_EVENT, worker, **JOB, member=number, event=None)
        mine = {"address": f"10.0.0.1:{number}", "n_cores": 2}
        while True:
            answer = await self.ask("dsgd_join", **JOB, member=number, **mine, wait_s=JOIN_S)
            if answer["join_state"] != "waiting":
                return dict(answer)

    async def _end(self, number: int, how: str, stop: asyncio.Event) -> None:
        worker = self.scheduler.addresses[number]
        if how == "done":
            self.say(MEMBER_END, worker, **JOB, member=number, failure=None)
            return
        raises = how == "fails" and number == 0
        if not raises:
            await stop.wait()
        failure = {"kind": "raised" if raises else "aborted", "text": "rank 0 went away", "pickled": b"x" * 500}
        await self.ask("dsgd_finish", **JOB, member=number, failure={**failure, "rank": number})

    def close(self) -> None:
        """End both threads."""

        async def stop() -> None:
            await self.plugin.before_close()

        self.inside.submit(stop()).result()
        self.outside.close()
        self.inside.close()


def measure(n: int, how: str) -> dict[str, float]:
    """Run one job of n members."""
    plane = ControlPlane(n)
    try:
        return plane.run(how)
    finally:
        plane.close()


def run(options: Options, rows: Rows) -> None:
    """Run a job of each size, measure and print."""
    measure(8, "done")  # loads what is loaded once
    heads = ("members", "job", "scheduler, s:.2f", "ms per member:.2f", "messages per member:.1f", "KB per member:.1f")
    with table("processor time of the scheduler for one job", *heads) as line:
        for n in QUICK_SIZES if options.quick else SIZES:
            for how in options.only:
                found = measure(n, how)
                rows.add(case=how, members=n, **found)
                per_member = 1e3 * found["seconds"] / n
                line(f"{n:,}", how, found["seconds"], per_member, found["messages"], found["kilobytes"])
