"""Processes on a virtual clock: event loops, threads that run one at a time, and a network between them.

A process has an event loop and threads. All of them are driven by one queue of events in virtual time, so that a seed
decides everything: `World.run` takes the next event, and runs it if its process is alive and awake. Product code blocks
in a thread of a process, so it has a stack of its own: a greenlet, which runs until it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import queue
import random
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from greenlet import getcurrent, greenlet


class BrokenPromiseError(Exception):
    """An invariant does not hold."""


class Killed(BaseException):
    """Raised in the threads of a process that has died."""


class Handle:
    """Something that a loop is to call; like `asyncio.TimerHandle`, which takes thrice as long to make."""

    __slots__ = ("_call", "_loop")

    def __init__(self, loop: Loop, call: Callable[[], object]) -> None:
        self._loop, self._call = loop, call

    def cancel(self) -> None:
        self._call = nothing

    def cancelled(self) -> bool:
        return self._call is nothing

    def __call__(self) -> None:
        asyncio._set_running_loop(self._loop)
        try:
            self._call()
        except Exception as error:
            self._loop.call_exception_handler({"message": f"{self._call!r} raised", "exception": error})
        finally:
            asyncio._set_running_loop(None)


def nothing() -> None:
    """Do what was cancelled."""


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._process.world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._process.alive

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._process.world.now, callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._process.world.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        call = partial(callback, *args) if context is None else partial(context.run, callback, *args)
        handle = Handle(self, call)
        self._process.world.push(when, self._process, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        self._tasks.append(asyncio.Task(coro, loop=self, name=name, context=context))
        return self._tasks[-1]

    def close(self) -> None:
        """Let go of what nobody will ever go on with."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive and not isinstance(context.get("exception"), OSError):
            self._process.world.broken(f"{self._process.name}: {context['message']}: {context.get('exception')!r}")


class Process:
    """One process; `stalled_until` is when it runs on, if something has stopped it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive, self.stalled_until = world, name, True, 0.0
        self.asyncio_loop = Loop(self)
        self.threads: list[Thread] = []
        self.when_killed: list[Callable[[], object]] = []
        self.check: Callable[[], object] = lambda: None
        self.unanswered: dict[asyncio.Future[Any], Process] = {}  # calls of others, with who has made them
        world.processes.append(self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def stall(self, until: float) -> None:
        """Let it do nothing until then."""
        self.stalled_until = max(self.stalled_until, until)

    def kill(self) -> None:
        """End it at once; whoever waits for an answer notices a moment later."""
        self.alive = False
        for thread in list(self.threads):
            thread.interrupt(Killed())
        for notify in self.when_killed:
            notify()
        self.hang_up()

    def hang_up(self) -> None:
        """Lose the connections of the calls that it has not answered; it may have done what they asked for."""
        for future, caller in self.unanswered.items():
            self.world.push(self.world.now + 0.001, caller, partial(settle, future, None, OSError("connection lost")))
        self.unanswered.clear()


class Thread:
    """A thread of a process, which runs until it waits."""

    def __init__(self, process: Process, function: Callable[[], object]) -> None:
        self.process, self._function = process, function
        self._turn, self._error, self.ended = 0, None, False
        self._greenlet = greenlet(self._main)
        process.threads.append(self)
        process.world.push(process.world.now, process, partial(self.wake, 0))

    def wake(self, turn: int) -> None:
        """Let it run until it waits again, if it still waits for this."""
        if turn == self._turn and not self.ended:
            world = self.process.world
            before, world.running = world.running, self
            self._greenlet.parent = getcurrent()
            self._greenlet.switch()
            world.running = before

    def interrupt(self, error: BaseException) -> None:
        """Raise an error where it waits."""
        self._error = error
        self.wake(self._turn)

    def wait(self, timeout_s: float) -> int:
        """Give the turn back, until it is woken or some time has passed; called in this thread."""
        world = self.process.world
        if not self.process.alive:
            raise Killed
        if timeout_s < inf:
            world.push(world.now + timeout_s, self.process, partial(self.wake, self._turn))
        self._greenlet.parent.switch()
        self._turn += 1
        if not self.process.alive:
            raise Killed
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._turn

    def waker(self) -> Callable[[], None]:
        """Return what ends the wait that comes next."""
        world, turn = self.process.world, self._turn
        return lambda: world.push(world.now, self.process, partial(self.wake, turn))

    def _main(self) -> None:
        self._turn += 1
        try:
            if self.process.alive:
                self._function()
        except Killed:
            pass
        except BaseException as error:
            self.process.world.broken(f"a thread of {self.process.name} raised {error!r}", error)
        finally:
            self.ended = True
            self.process.threads.remove(self)


class Event:
    """A `threading.Event` of virtual time."""

    def __init__(self) -> None:
        self._is_set = False
        self._wakers: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.notify()

    def notify(self) -> None:
        """Wake whoever waits, which then has to look for itself."""
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait(self, timeout: float = inf) -> bool:
        thread = WORLD[0].running
        if not self._is_set:
            self._wakers.append(thread.waker())
            thread.wait(timeout)
        return self._is_set


def settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its outcome, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(value) if error is None else future.set_exception(error)


#: The world whose schedule runs.
WORLD: list[World] = []


class World:
    """Time, chance, the network, and what has happened."""

    def __init__(self, seed: int) -> None:
        self.seed, self.now = seed, 0.0
        self.running: Thread | None = None
        self.processes: list[Process] = []
        self.trace: list[str] = []
        self.failure: BrokenPromiseError | None = None
        self.slowness = 1.0
        self._queue: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._chances: dict[str, random.Random] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._cut: dict[frozenset[str], float] = {}
        WORLD[:] = [self]

    def chance(self, what: str) -> random.Random:
        """Return the random numbers of a purpose, which do not depend on how many others were drawn."""
        if what not in self._chances:
            self._chances[what] = random.Random(f"{self.seed}/{what}")
        return self._chances[what]

    def say(self, text: str) -> None:
        """Note an event."""
        self.trace.append(f"{self.now:.6f} {text}")

    def broken(self, text: str, cause: BaseException | None = None) -> None:
        """Note that an invariant does not hold; the first counts."""
        if self.failure is None:
            self.say(f"BROKEN: {text}")
            self.failure = BrokenPromiseError(text)
            self.failure.__cause__ = cause

    def push(self, when: float, process: Process | None, call: Callable[[], object]) -> None:
        """Let something happen in a process, or to all of them."""
        heapq.heappush(self._queue, (when, next(self._numbers), process, call))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until_s and self.failure is None:
            when, number, process, call = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            if process is not None and process.stalled_until > self.now:
                heapq.heappush(self._queue, (process.stalled_until, number, process, call))
            elif process is None or process.alive:
                call()
                if process is not None:
                    process.check()
        if not self._queue or self._queue[0][0] > until_s:
            self.now = max(self.now, until_s)

    # ---- the network

    def cut(self, a: str, b: str, until: float) -> None:
        """Let nothing pass between two processes for a while; it arrives later."""
        self._cut[frozenset((a, b))] = until

    def is_cut(self, a: str, b: str) -> bool:
        return self._cut.get(frozenset((a, b)), 0.0) > self.now

    def send(self, a: Process, b: Process, call: Callable[[], object], *, in_order: bool = True) -> None:
        """Send a message: in the order of others on a stream, or on a connection of its own."""
        link = (a.name, b.name)
        chance = self.chance(f"{a.name}>{b.name}{in_order}")
        delay = self.slowness * chance.choice((0.0002, 0.001, 0.005, 0.05)) * (0.5 + chance.random())
        at = max(self.now, self._cut.get(frozenset(link), 0.0)) + delay
        if in_order:
            at = self._last[link] = max(at, self._last.get(link, 0.0) + 1e-6)
        self.push(at, b, call)

    async def call(self, a: Process, b: Process, op: str, handler: Callable[[], Any]) -> Any:
        """Call a handler of another process, and return what it answers."""
        future = a.asyncio_loop.create_future()
        if not b.alive:
            self.push(self.now + 0.001, a, partial(settle, future, None, OSError(f"{b.name} is not there")))
            return await future
        b.unanswered[future] = a

        def reply(value: Any, error: BaseException | None = None) -> None:
            if b.unanswered.pop(future, None) is not None:
                self.send(b, a, partial(settle, future, value, error), in_order=False)

        async def finish(value: Any) -> None:
            try:
                reply(await value)
            except Exception as error:
                reply(None, error)

        def arrive() -> None:
            self.say(f"{a.name} > {b.name} {op}")
            try:
                value = handler()
            except Exception as error:
                self.broken(f"{op} raised {error!r} on {b.name}", error)
                return
            if asyncio.iscoroutine(value):
                b.asyncio_loop.create_task(finish(value))
            else:
                reply(value)

        # An event of the loop, so that what the handler starts belongs to it.
        self.send(a, b, lambda: b.asyncio_loop.call_soon(arrive), in_order=False)
        try:
            return await future
        finally:
            b.unanswered.pop(future, None)


class Clock:
    """The module `time`, in virtual time."""

    @staticmethod
    def monotonic() -> float:
        return WORLD[0].now

    time = perf_counter = monotonic

    @staticmethod
    def sleep(seconds: float) -> None:
        thread = WORLD[0].running
        assert thread is not None
        thread.wait(seconds)


class Queue:
    """A `queue.SimpleQueue` of virtual time for one value."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._event = Event()

    def put(self, value: Any) -> None:
        self._values.append(value)
        self._event.set()

    def get(self, timeout: float) -> Any:
        if not self._values:
            self._event.wait(timeout)
        if not self._values:
            raise queue.Empty
        return self._values[0]


class Answer:
    """What `asyncio.run_coroutine_threadsafe` returns, in virtual time."""

    def __init__(self, coroutine: Any, loop: Loop) -> None:
        self._future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        self._event = Event()
        self._future.add_done_callback(lambda _: self._event.set())

    def result(self, timeout: float) -> Any:
        self._event.wait(timeout)
        return self._future.result(0)

    def cancel(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._future.cancel()
