"""What dsgd uses of Dask beyond its documented interface.

Problem: a gang needs more than tasks. Its members and the scheduler send each other messages, a worker that hangs must
get no new tasks, and the dashboard gets a page. Dask can do all of this, but only documents part of it, and what is
not documented may change with any release.

Method: every such use is a function here that says what it relies on, and what is lost if that goes away. No other
module touches what is not documented (``tests/project/test_dask_internals.py``); ``tests/runtime`` uses each function
on a real cluster, which CI runs with the oldest Dask that is supported (``make test-oldest``) and the newest.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from distributed import Client, LocalCluster

if TYPE_CHECKING:
    import ssl

    from distributed import Scheduler, Worker
    from distributed.core import Server
    from distributed.scheduler import WorkerState
    from tornado.ioloop import PeriodicCallback


_log: Final = logging.getLogger("dsgd.runtime")

# ------------------------------------------------------------------------------------------------------------ messages


def serve(
    server: Server, calls: Mapping[str, Callable[..., Any]], streams: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """Let a scheduler or worker answer calls, and take messages of a stream, under new names.

    Uses ``Server.handlers`` and ``Server.stream_handlers``. The documented way to run code on the scheduler,
    `Client.run_on_scheduler`, pickles a function for every call and is not open to workers. Without them no gang forms.
    """
    server.handlers.update(calls)
    server.stream_handlers.update({name: _logged(function) for name, function in (streams or {}).items()})


def _logged(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that logs what `function` raises."""

    @functools.wraps(function)
    def call(**message: Any) -> None:
        try:
            function(**message)
        except Exception:
            _log.exception("a message of dsgd was not understood, and is ignored: %s", sorted(message))

    return call


def ask_scheduler(node: Client | Worker, op: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
    """Call the scheduler by the name of one of its handlers; returns what to await on the loop of `node`.

    Uses the RPC object ``Client.scheduler`` or ``Worker.scheduler``. Without it no gang forms.
    """
    call: Coroutine[Any, Any, Any] = getattr(node.scheduler, op)(**arguments)
    return call


def ask_worker(worker: Worker, address: str, op: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
    """Call another worker by the name of one of its handlers; returns what to await on the loop of `worker`.

    Uses the connection pool ``Worker.rpc``. Without it ranks need a port besides that of their worker.
    """
    call: Coroutine[Any, Any, Any] = getattr(worker.rpc(address), op)(**arguments)
    return call


def as_frame(array: Any) -> Any:
    """Return an array as an argument or answer of a call of a worker; the other end gets an array.

    Uses ``distributed.protocol.to_serialize``: arrays go in frames of their own, not pickled into the message. Between
    servers of one process, where Dask serialises nothing, it comes as it is, with the array in ``data``. Without it
    calls take bytes alone, and ``dsgd study transports`` has no RPC.
    """
    from distributed.protocol import to_serialize

    return to_serialize(array)


def tell_worker(scheduler: Scheduler, worker: str, message: Mapping[str, Any]) -> bool:
    """Send a message to a worker over the stream that brings its tasks; returns False if it has left.

    Uses ``Scheduler.stream_comms`` and ``Scheduler.worker_send``: messages arrive in order, and before tasks that are
    sent later. Without them the orders of a job could come after its members.
    """
    if worker not in scheduler.stream_comms:
        return False
    scheduler.worker_send(worker, dict(message))
    return True


def tell_scheduler(worker: Worker, message: Mapping[str, Any]) -> None:
    """Send a message to the scheduler over the stream that tells of tasks; may be called in any thread.

    Uses ``Worker.batched_send``: messages arrive in order, and before the end of the task that sent them. The
    documented ``Worker.log_event`` sends the same way, but only to the log. Without it every event is a call.
    """
    worker.loop.add_callback(worker.batched_send, dict(message))


def event_loop(node: Client | Worker) -> asyncio.AbstractEventLoop:
    """Return the event loop of a client or worker.

    Uses that it is a loop of tornado, ``node.loop``, around one of asyncio. `Client.sync` would do on clients, but
    prints tracebacks of its own where ctrl-C interrupts it. Without it nothing waits for an answer with a deadline.
    """
    loop: asyncio.AbstractEventLoop = node.loop.asyncio_loop
    return loop


def scheduler_address(node: Client | Worker) -> str:
    """Return the address of the scheduler; empty if a client has none any more.

    Uses ``node.scheduler.address``. `Client.scheduler_info` asks the scheduler for it, and workers have no such call.
    """
    return "" if node.scheduler is None else str(node.scheduler.address)


# ------------------------------------------------------------------------------------------------------------- clients


def open_client(address: str, timeout_s: float) -> Client:
    """Connect to a scheduler; where that fails, no thread is left.

    Uses ``Client._loop_runner``: distributed 2026.8 leaves the thread of the event loop running when the constructor
    fails, and closing the client does not end it. So the constructor is called by hand, to have something to end it
    by. Without it every failed attempt leaves a thread.
    """
    client = Client.__new__(Client)
    try:
        client.__init__(address, timeout=timeout_s, set_as_default=False)
    except BaseException:
        stop_loop(client)
        raise
    return client


def open_client_beside(worker: Worker, name: str) -> Client:
    """Return a client of a worker's cluster for the task that asks, with a name of its own.

    Uses ``Worker.loop`` and ``Worker.security``. The documented ``get_client`` gives all tasks of a worker the same
    client: then the jobs of one could not be told from those of another. Without them there are no detached fits.
    """
    return Client(
        scheduler_address(worker),
        loop=worker.loop,
        security=worker.security,
        set_as_default=False,
        direct_to_workers=True,
        name=name,
    )


def stop_loop(client: Client) -> None:
    """End the thread of a client's event loop, if it still runs.

    Uses ``Client._loop_runner``: a client that lost its scheduler is closed, but its thread runs on. Without it one
    thread is left for each scheduler that was lost.
    """
    if hasattr(client, "_loop_runner"):
        client._loop_runner.stop()


#: Code for worker processes that are closed all at once, when a heartbeat in progress loses its connection. Uses the
#: name of a logger and the text of its message. Without it, tracebacks are printed that mean nothing.
QUIET_HEARTBEATS: Final = """\
import logging
logging.getLogger("distributed.worker").addFilter(lambda record: "during heartbeat" not in record.msg)
"""


class BlockedCall(NamedTuple):
    """A call that a cluster has disallowed."""

    call: str
    where: str


_BLOCKED: Final = re.compile(r"The '(?P<call>[^']+)' handler has been explicitly disallowed in (?P<where>\w+)")


def blocked_call(error: BaseException) -> BlockedCall | None:
    """Return which call a cluster has disallowed (``distributed.scheduler.blocked-handlers``), if that is the error.

    Uses the text of the error, which has no type of its own: on its way from a worker through the scheduler it even
    loses that of a ``ValueError``. Without it users see that text in place of what to allow.
    """
    found = _BLOCKED.search(str(error))
    if found is None:
        return None
    return BlockedCall(found["call"], "Scheduler" if found["where"] == "Scheduler" else "Worker")


# ----------------------------------------------------------------------------------------------------------- scheduler


def make_scheduler_probe(versions: Callable[[], Mapping[str, str]]) -> Callable[..., dict[str, Any]]:
    """Return a function for `Client.run_on_scheduler` that says what is there: versions and plugins.

    Uses ``Scheduler.plugins``. Without it the plugin is sent again.
    """

    # A nested function is pickled by value, so it also runs where dsgd is not installed.
    def look(dask_scheduler: Any) -> dict[str, Any]:
        return {"versions": versions(), "plugins": list(dask_scheduler.plugins)}

    return look


async def add_worker_plugin(scheduler: Scheduler, worker: str, plugin: bytes, name: str) -> None:
    """Install a pickled plugin on one worker.

    Uses the RPC ``plugin-add`` of workers through ``Scheduler.rpc``. The documented ``Client.register_plugin`` gives a
    plugin to every worker that ever joins, and one without dsgd then refuses to start; and it answers at once where
    another client is installing the same plugin. Without it no gang forms.
    """
    await getattr(scheduler.rpc(worker), "plugin-add")(plugin=plugin, name=name)


async def ping_worker(scheduler: Scheduler, worker: str) -> None:
    """Return when the event loop of a worker has answered.

    Uses the RPC ``echo`` of all servers through ``Scheduler.rpc``. Without it nobody notices that a worker which holds
    rows or results is stopped, until Dask removes it.
    """
    await scheduler.rpc(worker).echo(data=b"")


def offers(worker: WorkerState, names: Sequence[str] | None, resources: Mapping[str, float]) -> bool:
    """Return whether a worker is among some names, addresses and hosts, and has these resources.

    Uses ``WorkerState.resources``, as ``Client.submit(resources=...)`` does. Without it fits cannot be restricted to
    resources.
    """
    is_named = names is None or not {worker.address, str(worker.name), worker.host}.isdisjoint(names)
    return is_named and all(worker.resources.get(what, 0.0) >= amount for what, amount in resources.items())


def needed_workers(scheduler: Scheduler, keys: Iterable[Any]) -> list[list[str]]:
    """Return the workers that keys wait for: a list for each part of them, of those that could give it.

    Uses ``TaskState.processing_on``, ``who_has``, ``worker_restrictions`` and ``dependencies``. Without them a
    computation that waits for a stopped worker ends only when Dask removes that worker, and one that was meant for a
    worker that has left never does.
    """
    found: list[list[str]] = []
    seen: set[Any] = set()
    stack = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    while stack:
        task = stack.pop()
        if task in seen:
            continue
        seen.add(task)
        if task.who_has:
            found.append([ws.address for ws in task.who_has])
        else:
            found += [[task.processing_on.address]] if task.processing_on is not None else []
            found += (
                [sorted(task.worker_restrictions)] if task.state == "no-worker" and task.worker_restrictions else []
            )
            stack.extend(task.dependencies)
    return found


def make_installer(wanted: Mapping[str, str], op: str) -> Any:
    """Return a worker plugin that puts ours in its place, or goes away again, and says which in a message.

    Uses ``Worker.batched_send``, and that Dask puts a plugin into ``Worker.plugins`` before its ``setup``. Without them
    workers are not ready for jobs.
    """
    from distributed.diagnostics.plugin import WorkerPlugin

    # A nested class is pickled by value, so it also arrives where dsgd is not installed.
    class Installer(WorkerPlugin):
        async def setup(self, worker: Any) -> None:
            import asyncio
            import importlib

            (name,) = [name for name, plugin in worker.plugins.items() if plugin is self]
            del worker.plugins[name]
            try:
                # All that its ranks need, beside the event loop: it takes seconds.
                await asyncio.to_thread(importlib.import_module, "dsgd.runtime.worker.member")
                found = importlib.import_module("dsgd.runtime.messages").local_versions()
                wrong = [f"{what} {found.get(what)}" for what, number in wanted.items() if found.get(what) != number]
                problem = f"has {', '.join(wrong)}" if wrong else ""
                if not problem:
                    plugin = importlib.import_module("dsgd.runtime.worker.plugin").GangWorkerPlugin()
                    plugin.setup(worker)
                    worker.plugins[name] = plugin
            except Exception as error:
                problem = f"cannot import dsgd ({type(error).__name__}: {error})"
            worker.batched_send({"op": op, "problem": problem})

    return Installer()


def plugins_of(scheduler: Scheduler) -> Mapping[str, Any]:
    """Return the plugins of a scheduler by name.

    Uses ``Scheduler.plugins``, as workers document it. Without it a second client would replace the queue of the first.
    """
    plugins: Mapping[str, Any] = scheduler.plugins
    return plugins


def state_of(worker: WorkerState) -> str:
    """Return ``"init"``, ``"running"``, ``"paused"`` or another state of a worker.

    Uses ``WorkerState.status``, an enumeration that is not documented. Without it ranks are planned on paused workers.
    """
    return str(worker.status.name)


def pause_worker(scheduler: Scheduler, worker: WorkerState, stimulus: str) -> None:
    """Let Dask give a worker no new tasks, as if its memory were full.

    Uses ``Scheduler.handle_worker_status_change``. A worker that hangs cannot be asked to pause itself, and retiring it
    would wait for its data. Without it a hung worker keeps getting tasks.
    """
    scheduler.handle_worker_status_change("paused", worker, stimulus)


def resume_worker(scheduler: Scheduler, worker: WorkerState, stimulus: str) -> None:
    """Let Dask use a worker again; see `pause_worker`."""
    scheduler.handle_worker_status_change("running", worker, stimulus)


def forget_replicas(scheduler: Scheduler, worker: WorkerState, keys: Iterable[Any], stimulus: str) -> None:
    """Forget that a worker holds some keys, as Dask does for all keys of a worker that leaves.

    Uses ``Scheduler.remove_replica``, ``Scheduler.transitions`` and the message ``free-keys`` to the worker. Without
    them blocks that only a hung worker holds are not computed again.
    """
    next_states: dict[Any, Any] = {}
    held = [ts for ts in map(scheduler.tasks.get, keys) if ts is not None and worker in (ts.who_has or ())]
    for ts in held:
        scheduler.remove_replica(ts, worker)
        if not ts.who_has:
            next_states[ts.key] = "released" if ts.run_spec else "forgotten"
    if held:
        # The worker reads this when it wakes.
        freed = {"op": "free-keys", "keys": [ts.key for ts in held], "stimulus_id": stimulus}
        tell_worker(scheduler, worker.address, freed)
    scheduler.transitions(next_states, stimulus)


async def remove_worker(scheduler: Scheduler, worker: WorkerState, stimulus: str) -> None:
    """Remove a worker from the cluster at once, with its tasks and data.

    Uses ``Scheduler.remove_worker``. `Client.retire_workers` waits for the worker to hand over its data, which one that
    hangs never does. Without it ``remove_hung=True`` does nothing.
    """
    await scheduler.remove_worker(worker.address, stimulus_id=stimulus)


_DEPARTURES: Final = {
    "retire-workers": "was retired (the cluster was scaled down, or somebody closed it)",
    "check-worker-ttl": "was removed by Dask (no heartbeat within distributed.scheduler.worker-ttl)",
}


def departure(stimulus: str) -> str:
    """Return how a worker has left, to follow "worker ..." in a text.

    Uses how the names of stimuli begin. Without it the text only says that it left.
    """
    return next((text for cause, text in _DEPARTURES.items() if stimulus.startswith(cause)), "left the cluster")


class PublishedTask(NamedTuple):
    """The task that a dataset of its name holds: where it runs, if it does, and the text of its error."""

    name: str
    state: str
    worker: str
    annotations: Mapping[str, Any]
    error: str


def published_tasks(scheduler: Scheduler, prefix: str) -> list[PublishedTask]:
    """Return the tasks that datasets of the same name hold, with these names.

    Uses ``Scheduler.extensions["publish"]``, and what ``TaskState`` has of a task; only clients have a documented way.
    Without it detached fits are not listed.
    """
    names = [str(name) for name in scheduler.extensions["publish"].datasets if str(name).startswith(prefix)]
    tasks = [scheduler.tasks[name] for name in names if name in scheduler.tasks]
    return [
        PublishedTask(
            str(task.key),
            task.state,
            task.processing_on.address if task.processing_on else "",
            task.annotations or {},
            str(task.exception_text or ""),
        )
        for task in tasks
    ]


def cancel_task(scheduler: Scheduler, name: str, reason: str) -> None:
    """Cancel the task that a dataset of its name holds, whoever else wants it.

    Uses ``Scheduler.stimulus_cancel``, which older versions give no reason. A client that cancels has to want the task
    first. Without it a detached fit that is cancelled begins again.
    """
    given = {"force": True, "reason": "cancelled", "msg": reason}
    known = inspect.signature(scheduler.stimulus_cancel).parameters
    options = {option: value for option, value in given.items() if option in known}
    scheduler.stimulus_cancel([name], client=f"published-{name}", **options)


# ----------------------------------------------------------------------------------------------------------- dashboard


def has_dashboard(scheduler: Scheduler) -> bool:
    """Return whether a scheduler has a dashboard, and so has loaded bokeh.

    Uses ``Scheduler.http_application``. Without it there is no page.
    """
    return bool(_dashboards(scheduler))


def add_page(
    scheduler: Scheduler, path: str, title: str, fill: Callable[[Any], Callable[[], None]], every_ms: int
) -> None:
    """Add a page to the dashboard of a scheduler, unless it has one of that path; each of its pages links to it.

    Uses the template, theme and applications of ``distributed.dashboard``. Without them there is no page, and nothing
    else changes.
    """
    from distributed.dashboard import scheduler as dask_dashboard
    from distributed.dashboard.components import add_periodic_callback
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env
    from distributed.dashboard.core import BokehApplication
    from tornado.ioloop import IOLoop

    applications = _dashboards(scheduler)
    prefix = applications[0].prefix
    if any(f"{prefix}{path}" in app.app_paths for app in applications):
        return
    variables = dask_dashboard.template_variables(scheduler)
    # The list has all pages of this scheduler.
    if path.strip("/") not in variables["pages"]:
        variables["pages"].append(path.strip("/"))

    class Drawn:
        """What Dask calls to draw a page."""

        def __init__(self, update: Callable[[], None]) -> None:
            self.update = update

    def document(scheduler: Scheduler, extra: dict[str, Any], doc: Any) -> None:
        page = Drawn(fill(doc))
        doc.title = title
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
        doc.theme = BOKEH_THEME
        page.update()
        add_periodic_callback(doc, page, every_ms)

    application = BokehApplication({path: document}, scheduler, prefix=prefix, template_variables=variables)
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def _dashboards(scheduler: Scheduler) -> list[Any]:
    return [app for app in scheduler.http_application.applications if hasattr(app, "app_paths")]


# ------------------------------------------------------------------------------------------------- workers and machines


async def fetch_block(worker: Worker, key: Any) -> tuple[list[Any], bool]:
    """Return a block in a list, which is empty if no worker has it now, and whether it was transferred.

    Uses the RPC of the scheduler and ``gather_from_workers``: the worker keeps no copy, and its task needs no client of
    its own. Without them a block that lies elsewhere comes through a client, which keeps it.
    """
    from distributed.utils_comm import gather_from_workers

    if key in worker.data:
        return [worker.data[key]], False
    who_has = await ask_scheduler(worker, "who_has", keys=[key])
    holders = [address for address in who_has[key] if address != worker.address]
    if not holders:
        return [], False
    data, *_ = await gather_from_workers({key: holders}, rpc=worker.rpc, who=worker.address)
    return list(data.values()), True


def servers_here(client: Client) -> Sequence[Server]:
    """Return the scheduler, and the nannies or workers, of the cluster of a client that live in this process.

    Uses ``LocalCluster.scheduler`` and ``LocalCluster.workers``. Without them their timers interrupt ranks.
    """
    cluster = client.cluster
    return [cluster.scheduler, *cluster.workers.values()] if isinstance(cluster, LocalCluster) else []


def timers_of(server: Server, names: Sequence[str]) -> list[PeriodicCallback]:
    """Return those timers of a server that it has.

    Uses ``Server.periodic_callbacks``; the configuration sets their periods only before a server starts. Without it
    ranks are interrupted a hundred times a second.
    """
    timers = server.periodic_callbacks
    return [timers[name] for name in names if name in timers]


def ssl_context(worker: Worker, *, server_side: bool) -> ssl.SSLContext:
    """Return a new context with the certificates of a worker on a cluster with TLS.

    Uses ``Security.get_listen_args`` and ``Security.get_connection_args`` of ``Worker.security``, which read the
    certificates from disk. Without them ranks on a cluster with TLS could only use the ports of their workers.
    """
    security = worker.security
    settings = security.get_listen_args("worker") if server_side else security.get_connection_args("worker")
    context: ssl.SSLContext = settings["ssl_context"]
    return context


def interface_address(name: str) -> str:
    """Return the address of this machine on a network interface, as the option ``--interface`` of workers does.

    Uses ``distributed.utils.get_ip_interface``. Without it ``dsgd.comm.interface`` does nothing.
    """
    from distributed.utils import get_ip_interface

    try:
        address: str = get_ip_interface(name)
    except KeyError as error:
        raise ValueError(f"no interface {name!r}") from error
    return address


def cpu_count() -> int:
    """Return how many processors Dask gives a worker of this machine by default, within the limits of a container.

    Uses ``dask.system.CPU_COUNT``. Without it ranks of a container with less than a core each might spin.
    """
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def memory_bytes() -> int:
    """Return how much memory Dask divides among the workers of this machine, within the limits of a container.

    Uses ``distributed.system.MEMORY_LIMIT``. Without it ``dsgd info`` says less.
    """
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)
