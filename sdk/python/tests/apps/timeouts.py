"""Test app whose handlers exceed their time, and start threads that print."""

import asyncio
import os
import threading
import time

from kafleet import App, Context, SoftTimeout

slots = int(os.environ.get("TEST_SLOTS", "1"))
app = App(slots=slots, threads=slots)


def wait_for(path: str) -> None:
    print("begins")
    while not os.path.exists(path):
        time.sleep(0.005)  # waits


@app.task
def sync(cx: Context, until_file: str) -> str:
    wait_for(until_file)
    cx.check()
    return "finished"


async def fetch() -> None:
    print("begins")
    await asyncio.Event().wait()  # fetches


@app.task
async def asynchronous() -> None:
    await asyncio.gather(asyncio.create_task(asyncio.sleep(0)), asyncio.sleep(0))
    await asyncio.create_task(fetch())


@app.task
async def blocked(until_file: str) -> None:
    wait_for(until_file)


@app.task(soft_timeout="50ms")
def soft_sync(cx: Context, catches: bool = False, checks: bool = True) -> str:
    try:
        while True:
            if checks:
                cx.check()
            time.sleep(0.005)
    except SoftTimeout:
        if not catches:
            raise
    cx.check()
    return "cleaned up"


@app.task(soft_timeout="50ms")
async def soft_async(catches: bool = False, ends: bool = True) -> str:
    try:
        async with asyncio.timeout(600):
            await fetch()
    except SoftTimeout:
        if not catches:
            raise
        await asyncio.sleep(0)
        if not ends:
            await fetch()
    return "cleaned up"


@app.task(soft_timeout="50ms")
async def soft_unused() -> str:
    await asyncio.sleep(0)
    return "in time"


@app.task(soft_timeout="20ms")
def floods() -> None:
    while True:
        print("x" * 1000)


@app.task
def prints_in_thread(cx: Context, until_file: str = "/") -> None:
    wait_for(until_file)
    thread = threading.Thread(target=print, args=("from", "a", "thread"))
    thread.start()
    thread.join()
