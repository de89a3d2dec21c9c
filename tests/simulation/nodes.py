"""What a gang sees of Dask: a scheduler, workers and clients, each a process of a `World`.

They have what `dsgd.runtime.dask_internals` uses, and behave as Dask does where a gang depends on it. Streams keep
their order, calls do not. A task waits for the worker that it is meant for, also if that comes back. A worker that
leaves takes its results with it, and blocks that it held are computed again elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from dsgd.errors import DsgdError
from dsgd.runtime.messages import HEARTBEAT, WORKER_ANSWER
from dsgd.runtime.worker.plugin import WORKER_PLUGIN, GangWorkerPlugin
from simulation.clock import Process, Thread, World

_COMPUTE_S = 0.1


class Remote:
    """Calls of one process to another."""

    def __init__(self, caller: Process, there: Callable[[], Node | None]) -> None:
        self._caller, self._there, self.address = caller, there, "tcp://scheduler:1"

    def __getattr__(self, op: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            node, world = self._there(), self._caller.world
            if node is None:
                await asyncio.sleep(0.001)
                raise OSError("there is no such worker")
            return await world.call(self._caller, node, op, partial(node.handlers[op], **arguments))

        return call


class Node(Process):
    """A process with handlers."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.handlers: dict[str, Any] = {}
        self.stream_handlers: dict[str, Any] = {}
        # What `dask_internals` takes for a loop of tornado.
        self.loop = SimpleNamespace(
            asyncio_loop=self.asyncio_loop,
            add_callback=lambda function, *args: self.asyncio_loop.call_soon(partial(function, *args)),
        )

    def stream(self, to: Node, message: dict[str, Any]) -> None:
        """Send a message that keeps its place among those before and after."""
        if self.alive:
            self.world.send(self, to, partial(to.asyncio_loop.call_soon, partial(to.receive, self, message)))

    def receive(self, sender: Node, message: dict[str, Any]) -> None:
        message = dict(message)
        op = message.pop("op")
        if op != HEARTBEAT:
            told = {name: message[name] for name in ("action", "member", "epoch") if name in message}
            self.world.say(f"{sender.name} > {self.name} {op} {told or ''}")
        self.stream_handlers[op](**message)


@dataclass(eq=False)
class Task:
    """A task or a block, as the scheduler knows it."""

    key: str
    client: Client
    function: Any
    args: tuple[Any, ...]
    worker_restrictions: set[str]
    state: str = "no-worker"
    processing_on: WorkerState | None = None
    who_has: set[WorkerState] = field(default_factory=set)
    dependencies: tuple[Task, ...] = ()
    run_spec: bool = True
    nbytes: int = 8
    annotations: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class WorkerState:
    """A worker, as the scheduler knows it."""

    node: Worker
    status: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="running"))
    nthreads: int = 1
    memory_limit: int = 0
    last_seen: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    memory: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(optimistic=0))

    @property
    def address(self) -> str:
        return self.node.address

    host = property(lambda self: self.node.host)
    name = property(lambda self: self.node.host)


class Scheduler(Node):
    """The scheduler."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "scheduler")
        self.workers: dict[str, WorkerState] = {}
        self.clients: dict[str, Client] = {}
        self.tasks: dict[str, Task] = {}
        self.log: list[dict[str, Any]] = []
        self.lost_at: dict[str, float] = {}  # blocks that nobody can compute again
        self.when_logged: Callable[[Any], object] = lambda moment: None
        self.when_removed: Callable[[Worker], object] = lambda worker: None
        self.when_aside = self.when_removed
        self.lost_calls: set[str] = set()
        self.plugins: dict[str, Any] = {}
        self.extensions = {"publish": SimpleNamespace(datasets={})}
        self.stream_comms = self.workers
        self.handlers |= {"run_function": self.run_function, "broadcast": self.broadcast, "plugin": self.add_plugin}
        self.stream_handlers |= {
            "update_graph": self.update_graph,
            "release": self.release,
            "task-finished": self.finished,
        }

    def receive(self, sender: Node, message: dict[str, Any]) -> None:
        # With a worker goes its stream, and what is still on the way there.
        if not isinstance(sender, Worker) or (
            sender.address in self.workers and self.workers[sender.address].node is sender
        ):
            super().receive(sender, message)

    def log_event(self, topic: str, record: dict[str, Any]) -> None:
        shown = {name: record[name] for name in ("title", "state", "formed", "kind", "rank") if name in record}
        self.world.say(f"job {record['job'][:4]} {shown}")
        self.log.append(record)
        self.when_logged(len(self.log))
        self.when_logged(record["state"])

    def run_function(self, function: Callable[..., Any]) -> Any:
        return function(dask_scheduler=self)

    async def add_plugin(self, plugin: Any) -> None:
        if plugin.name not in self.plugins or not plugin.idempotent:
            await plugin.start(self)
            self.plugins[plugin.name] = plugin
            self.check = plugin.registry.check

    async def broadcast(self, function: Callable[..., Any], shown: Any, workers: Iterable[str]) -> dict[str, Any]:
        (worker,) = workers
        if worker not in self.lost_calls and self.world.chance("lost calls").random() < 0.2:
            self.lost_calls.add(worker)  # not twice in a row
            raise OSError("connection lost")
        self.lost_calls.discard(worker)
        found = await self.rpc(worker).run(function=function, shown=shown) if worker in self.workers else []
        return {worker: found[0]} if found else {}

    def rpc(self, worker: str) -> Remote:
        return Remote(self, lambda: self.workers[worker].node if worker in self.workers else None)

    def worker_send(self, worker: str, message: dict[str, Any]) -> None:
        self.stream(self.workers[worker].node, message)

    # ---- workers and clients that come and go

    def add_worker(self, node: Worker) -> None:
        if not node.alive:
            return
        self.world.say(f"{node.name} comes")
        if node.address in self.workers:
            self.drop_worker(node.address)
        self.workers[node.address] = WorkerState(node)
        self.schedule()

    def drop_worker(self, address: str, stimulus_id: str = "") -> None:
        state = self.workers.pop(address, None)
        if state is None:
            return
        self.world.say(f"{state.node.name} has left")
        self.world.push(self.world.now + 0.01, state.node, state.node.close)
        lost: dict[str, str] = {}
        for task in self.tasks.values():
            if task.processing_on is state:
                task.processing_on, task.state = None, "no-worker"
            if state in task.who_has:
                self.remove_replica(task, state)
                if not task.who_has:
                    lost[task.key] = "released" if task.run_spec else "forgotten"
        self.transitions(lost, stimulus_id)
        for plugin in list(self.plugins.values()):
            plugin.remove_worker(self, address, stimulus_id=stimulus_id)

    async def remove_worker(self, address: str, stimulus_id: str = "") -> None:
        self.when_removed(self.workers[address].node)
        self.drop_worker(address, stimulus_id)

    def remove_client(self, client: Client) -> None:
        self.world.say(f"{client.name} has left")
        del self.clients[client.id]
        for task in [task for task in self.tasks.values() if task.client is client]:
            self.release(task.key)
        for plugin in list(self.plugins.values()):
            plugin.remove_client(self, client.id)

    def handle_worker_status_change(self, status: str, worker: WorkerState, stimulus: str) -> None:
        worker.status.name = status
        if status == "paused":
            self.when_aside(worker.node)
        self.schedule()

    def restart(self) -> None:
        for plugin in list(self.plugins.values()):
            plugin.restart(self)
        for task in list(self.tasks.values()):
            self.release(task.key)
            self.stream(task.client, {"op": "cancelled-keys", "key": task.key})

    # ---- tasks

    def update_graph(
        self, client: Client, key: str, function: Any, args: tuple[Any, ...], workers: list[str], run_spec: bool
    ) -> None:
        if client.id in self.clients:
            self.tasks[key] = Task(key, client, function, args, set(workers), run_spec=run_spec)
            self.schedule()

    def schedule(self) -> None:
        """Send tasks to workers that may take them, and compute lost blocks."""
        for task in self.tasks.values():
            places = [self.workers[w] for w in sorted(task.worker_restrictions or self.workers) if w in self.workers]
            places = [place for place in places if place.status.name == "running"]
            if task.state == "no-worker" and places:
                place = self.world.chance("dask").choice(places)
                task.state, task.processing_on = "processing", place
                self.worker_send(place.address, {"op": "compute-task", "key": task.key, "task": task})

    def finished(self, worker: str, key: str, value: Any) -> None:
        task, state = self.tasks.get(key), self.workers.get(worker)
        if task is not None and state is not None and task.processing_on is state:
            task.state, task.processing_on, task.who_has = "memory", None, {state}
            self.stream(task.client, {"op": "key-in-memory", "key": key, "value": value})

    def remove_replica(self, task: Task, worker: WorkerState) -> None:
        task.who_has.discard(worker)

    def transitions(self, states: dict[str, str], stimulus: str) -> None:
        for key, state in states.items():
            task = self.tasks[key]
            task.state, task.processing_on = "no-worker", None
            if state == "forgotten":
                del self.tasks[key]
                self.lost_at[key] = self.world.now
            self.stream(task.client, {"op": "lost-data" if key in self.tasks else "cancelled-keys", "key": key})
        self.schedule()

    def release(self, key: str) -> None:
        task = self.tasks.pop(key, None)
        if task is not None:
            for state in [*task.who_has, *filter(None, [task.processing_on])]:
                self.stream(state.node, {"op": "free-keys", "keys": [key], "stimulus_id": "released"})


class Worker(Node):
    """A worker; another one may come at its address later."""

    def __init__(self, world: World, name: str, scheduler: Scheduler) -> None:
        super().__init__(world, name)
        self.host = name.partition(".")[0]
        self.address, self.status = f"tcp://{self.host}:1", "running"
        self._scheduler = scheduler
        self.scheduler = Remote(self, lambda: scheduler)
        self.plugins: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self.busy_until = self.starved_until = 0.0
        self.began = world.now
        self.has_dsgd = True
        self.handlers |= {"plugin-add": self.add_plugin, "echo": lambda data: data, "run": self.run}
        self.stream_handlers |= {"compute-task": self.compute, "free-keys": self.free}
        world.send(self, scheduler, partial(scheduler.add_worker, self))

    async def add_plugin(self, plugin: bytes, name: str) -> None:
        await asyncio.sleep(self.world.chance(f"imports {self.name}").choice((0.0, 0.01, 0.5)))
        if name not in self.plugins and self.has_dsgd:
            self.plugins[name] = GangWorkerPlugin()
            self.plugins[name].setup(self)
        self.batched_send({"op": WORKER_ANSWER, "problem": "" if self.has_dsgd else "cannot import dsgd"})

    @property
    def store(self) -> Any:
        return self.plugins[WORKER_PLUGIN].store if self.plugins else {}

    def run(self, function: Callable[..., Any], shown: Any) -> list[Any]:
        """Return what a function returns; nothing if it raises, which the clients of gangs ignore."""
        with contextlib.suppress(DsgdError):
            return [function(shown, dask_worker=self)]
        return []

    def batched_send(self, message: dict[str, Any]) -> None:
        self.stream(self._scheduler, {**message, "worker": self.address})

    def compute(self, key: str, task: Task) -> None:
        def work() -> None:
            thread = self.world.running
            assert thread is not None
            if (wait_s := self.busy_until - self.world.now if task.function else _COMPUTE_S) > 0:
                thread.wait(wait_s)
            if self.running.get(key) is thread:
                value = task.function(*task.args) if task.function else None
                if self.running.get(key) is thread:
                    del self.running[key]
                    message = {"op": "task-finished", "key": key, "value": value}
                    self.asyncio_loop.call_soon(partial(self.batched_send, message))

        if key not in self.running:
            self.running[key] = Thread(self, work)

    def current_task(self) -> str:
        return next(key for key, thread in self.running.items() if thread is self.world.running)

    get_current_task = current_task

    def free(self, keys: Iterable[str], stimulus_id: str) -> None:
        for key in keys:
            if self.running.pop(key, None) is not None:
                for plugin in self.plugins.values():
                    plugin.transition(key, "long-running", "released")

    def close(self) -> None:
        """Close, as a worker does that the scheduler has dropped; its threads see that its loop has ended."""
        if self.alive and self.status == "running":
            self.status = "closed"
            for plugin in self.plugins.values():
                plugin.teardown(self)
            self.world.push(self.world.now + 0.05, None, self.kill)


class Future:
    """A task, as its client knows it."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self.key, self.status, self.value = client, key, "pending", None
        self._settled = asyncio.Event()

    def done(self) -> bool:
        return self.status not in ("pending", "lost")

    def settle(self, status: str, value: Any = None) -> None:
        self.status, self.value = status, value
        if status == "lost":
            self._settled = asyncio.Event()
        else:
            self._settled.set()

    async def exception(self) -> None:
        await self._settled.wait()

    def result(self) -> Any:
        return self.value

    def release(self) -> None:
        if self._client.futures.pop(self.key, None) is not None:
            self._client.tell("release", key=self.key)


class Client(Node):
    """A client."""

    def __init__(self, world: World, name: str, scheduler: Scheduler) -> None:
        super().__init__(world, name)
        self.id, self.status, self.cluster = f"Client-{name}", "running", None
        self._scheduler = scheduler
        self.scheduler = Remote(self, lambda: scheduler)
        self.futures: dict[str, Future] = {}
        self._n_tasks = 0
        self.stream_handlers |= {"key-in-memory": self._in_memory, "lost-data": self._lost}
        self.stream_handlers["cancelled-keys"] = partial(self._lost, status="cancelled")
        scheduler.clients[self.id] = self

    def __repr__(self) -> str:
        return f"<{self.id}>"

    def tell(self, op: str, **message: Any) -> None:
        self.asyncio_loop.call_soon(partial(self.stream, self._scheduler, {"op": op, **message}))

    def submit(
        self,
        function: Any,
        *args: Any,
        key: str = "",
        workers: Iterable[str] | None = (),
        is_scattered: bool = False,
        **options: Any,
    ) -> Future:
        self._n_tasks += 1
        key = key or f"task {self._n_tasks} of {self.name}"
        found = self.futures[key] = Future(self, key)
        task = {"key": key, "function": function, "args": args, "workers": list(workers or ())}
        task["run_spec"] = not is_scattered
        self.tell("update_graph", client=self, **task)
        return found

    def _in_memory(self, key: str, value: Any) -> None:
        if key in self.futures:
            self.futures[key].settle("finished", value)

    def _lost(self, key: str, status: str = "lost") -> None:
        if key in self.futures:
            self.futures[key].settle(status)

    async def gather(self, futures: list[Future], asynchronous: bool) -> list[Any]:
        await asyncio.sleep(0.002)
        return [future.value for future in futures]

    async def run(self, function: Callable[..., Any], shown: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.scheduler.broadcast(function=function, shown=shown, workers=workers)
        return found

    async def run_on_scheduler(self, function: Callable[..., Any]) -> Any:
        return await self.scheduler.run_function(function=function)

    async def register_plugin(self, plugin: Any) -> None:
        await self.scheduler.plugin(plugin=plugin)
