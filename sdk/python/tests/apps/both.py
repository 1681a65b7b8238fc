"""Test app with both kinds of handlers, and a lifespan on the event loop."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator

from kafleet import App, Context


@contextlib.asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
    state = {"database": "open"}
    yield state
    state["database"] = "closed"
    print("left")


threads, slots = os.environ.get("TEST_THREADS"), os.environ.get("TEST_SLOTS")
app = App(lifespan=lifespan, threads=int(threads) if threads else None, slots=int(slots) if slots else None)


@app.task
def hang(cx: Context, until_file: str) -> list[str]:
    """Occupies its thread until a file exists."""
    print("hangs")
    while not os.path.exists(until_file):
        time.sleep(0.005)
    return [threading.current_thread().name, cx.state["database"]]


@app.task
async def together(count: int) -> str:
    """Ends when `count` attempts of the type have started."""
    arrived.append(1)
    while len(arrived) < count:
        await asyncio.sleep(0.001)
    print("together")
    return threading.current_thread().name


arrived: list[int] = []


@app.task
def parent(cx: Context) -> list[str]:
    return cx.spawn_now([together.call(1)])
