"""Test app with a bundle that has handlers of both kinds."""

import asyncio
import os
import threading
import time

from kafleet import App

threads, slots = os.environ.get("TEST_THREADS"), os.environ.get("TEST_SLOTS")
app = App(threads=int(threads) if threads else None, slots=int(slots) if slots else None)
bundle = app.bundle("bundle")


@app.task
async def alone() -> str:
    return threading.current_thread().name


@bundle.task
def hang(until_file: str) -> str:
    """Occupies its thread until a file exists."""
    while not os.path.exists(until_file):
        time.sleep(0.005)
    return threading.current_thread().name


@bundle.task
async def together(count: int) -> str:
    """Ends when `count` attempts of the task have started."""
    arrived.append(1)
    while len(arrived) < count:
        await asyncio.sleep(0.001)
    return threading.current_thread().name


arrived: list[int] = []
