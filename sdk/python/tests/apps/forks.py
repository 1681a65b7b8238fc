"""Test app whose handlers fork: what the child does, and who waits for it."""

import asyncio
import contextlib
import multiprocessing
import os
import pty
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kafleet import App, Context

warnings.simplefilter("ignore", DeprecationWarning)  # Since Python 3.12, of forks beside threads.
FORKS_IN = os.environ.get("TEST_FORKS_IN", "")


def fork_at(place: str) -> None:
    """Forks a child at a place outside of the handlers, which the process waits for."""
    if place == FORKS_IN and (child := os.fork()):
        print(f"fork at {place}: {wait_for(child)}", flush=True)


def wait_for(child: int) -> int:
    """Returns the exit code of a child; 99 if it does not exit."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    return 99


@contextlib.contextmanager
def lifespan(app: App) -> Iterator[None]:
    fork_at("lifespan")
    yield
    print("left the lifespan", flush=True)


fork_at("import")
app = App(lifespan=lifespan, slots=int(os.environ.get("TEST_SLOTS", "1")))


@app.around
def around(cx: Context) -> Iterator[None]:
    if cx.id == "in-the-hook" and (child := os.fork()):
        cx.log(f"fork in the hook: {wait_for(child)}")
    yield
    print("left the hook", flush=True)


def say(cx: Context) -> None:
    cx.log("x")
    cx.progress(1)
    cx.retire("x")


def print_it(cx: Context) -> None:
    print("from the child")


def work(text: str) -> None:
    print(text, flush=True)


CHILD: dict[str, Callable[[Context], Any]] = {
    "exit": lambda cx: sys.exit(0),
    "exit code": lambda cx: sys.exit(3),
    "exit text": lambda cx: sys.exit("an error"),
    "raise": lambda cx: [][0],
    "interrupt": lambda cx: (_ for _ in ()).throw(KeyboardInterrupt),
    "back": lambda cx: 1,
    "fork again": lambda cx: os.fork() and 1,
    "exec": lambda cx: os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"]),
    "publish": lambda cx: [publish(cx) for publish in (Context.heartbeat, say, print_it)],
    "spawn": lambda cx: cx.spawn_now([app.remote("x").call()]),
}


def forks(cx: Context, how: str, by: str) -> int:
    child = pty.fork()[0] if by == "pty" else os.fork()
    return wait_for(child) if child else CHILD[how](cx)


def processes(method: str) -> int:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=work, args=("from multiprocessing",))
    process.start()
    process.join(20)
    return 99 if process.exitcode is None else int(process.exitcode)


if os.environ.get("TEST_ASYNC"):

    @app.task(name="forks")
    async def aforks(cx: Context, how: str, by: str) -> int:
        await asyncio.sleep(0)
        if how == "await":
            child = os.fork()
            if child == 0:
                await asyncio.wait({asyncio.create_task(asyncio.sleep(0))}) if by == "task" else await Bare()
            return wait_for(child)
        return forks(cx, how, by)

    class Bare:
        def __await__(self) -> Generator[None, None, None]:
            yield

    @app.task(name="processes")
    async def aprocesses(method: str) -> int:
        return processes(method)

    @app.task(name="nap")
    async def nap(until_file: str) -> str:
        while not os.path.exists(until_file):
            await asyncio.sleep(0)
        return "finished"

else:
    app.task(forks)
    app.task(processes)

    @app.task(name="nap")
    def snap(until_file: str) -> str:
        while not os.path.exists(until_file):
            time.sleep(0.001)
        return "finished"
