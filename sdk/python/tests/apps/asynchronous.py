"""Test app whose handlers are all asynchronous."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator

from kafleet import App, Context, Retry


@contextlib.asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
    print("entered")
    await asyncio.sleep(0)
    if os.environ.get("TEST_LIFESPAN") == "fails":
        raise OSError("the database is down")
    yield {"database": "open"}
    print("left")


app = App(lifespan=lifespan)


@app.task
async def together(cx: Context, count: int) -> str:
    """Ends when `count` attempts of the process are running."""
    waiting.append(cx.n)
    while len(waiting) < count:
        await asyncio.sleep(0.001)
    print("attempt", cx.n)
    return str(cx.state["database"])


waiting: list[int] = []


@app.task
async def forever(swallow: bool = False) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if swallow:
            return "finished after the cancel"
        raise
    return "never"


@app.task
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@app.task
async def blocked(cx: Context, until_file: str) -> None:
    """Blocks the event loop until a file exists."""
    cx.heartbeat()
    while not os.path.exists(until_file):
        time.sleep(0.005)


@app.task
async def parent(cx: Context, wrong: bool = False) -> list[str]:
    calls = [app.remote("child").call(n=n) for n in range(3)]
    return cx.spawn_now(calls) if wrong else await cx.aspawn_now(calls)


@app.task
async def busy() -> None:
    raise Retry("busy", after="2s")


@app.task
async def in_thread() -> None:
    await asyncio.to_thread(print, "from a thread")
