"""Test app that runs on a real fleet."""

import asyncio
import os
import signal
from pathlib import Path

from kafleet import App, Context, Fail, Joined, Retry

app = App()


@app.task(retries=0)
async def waits(cx: Context, mark: Path) -> str:
    mark.touch()
    await asyncio.sleep(600)
    return "never"


@app.task(retries=2, min_backoff="10ms", max_backoff="20ms")
def dies_once(cx: Context) -> int:
    print("attempt", cx.number)
    if cx.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return cx.number


@app.task(retries=1)
def retries(cx: Context) -> str:
    if cx.number == 1:
        raise Retry("busy", after="10ms")
    return cx.idempotency_key


@app.task
def reports(cx: Context) -> None:
    print("printed")
    cx.progress({"done": 1})
    cx.warn("careful")
    cx.attach("note.txt", "hello", media="text/plain")


@app.task
def parent(cx: Context, now: bool = False) -> list[str]:
    ids = cx.spawn_now(leaf.using(id=f"{n}").call(n) for n in range(2)) if now else []
    for n in range(2, 4):
        cx.spawn(leaf.using(id=f"{n}"), n)
    cx.then(total, factor=10)
    return ids


@app.task
def leaf(n: int) -> int:
    return n


@app.task
def total(cx: Joined[int], factor: int) -> int:
    return factor * sum(result.output or 0 for result in cx.results)


@app.task
def parent_of_failed(cx: Context) -> None:
    cx.spawn(fails.using(id="child"))


@app.task
def fails() -> None:
    raise Fail("no such picture")


@app.task
def submits() -> str:
    return leaf.submit(5).id
