"""Test app that runs on a real fleet."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from kafleet import App, Bundle, Context, Fail, Joined, Params, Retry

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


@app.task(retries=0)
def aborts() -> None:
    """Dies with the stacks of all threads, as after a fault in a library."""
    os.abort()


@app.task(retries=1)
def retries(cx: Context) -> str:
    if cx.number == 1:
        raise Retry("busy", after="10ms")
    return cx.idempotency_key


@app.task(retries=2, min_backoff="10ms", max_backoff="20ms", on_error="fail", retry_on=[LookupError])
def retries_listed(cx: Context, listed: bool) -> int:
    if cx.number == 1:
        raise KeyError("missing") if listed else ValueError("wrong")
    return cx.number


@app.task
def returns_text() -> int:
    return "5"  # type: ignore[return-value]


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
    print("looks for a picture")
    raise Fail("no such picture")


@app.task
def submits() -> str:
    return leaf.submit(5).id


small = app.bundle("small", retries=2, min_backoff="10ms", max_backoff="20ms", fail_on=[LookupError])


@dataclass
class Thumb:
    path: str
    parts: list[Thumb]


@small.task
def resize(cx: Context, path: str, width: int = 200) -> Thumb:
    print(cx.type, cx.task_name)
    return Thumb(f"{path} at {width}", [Thumb(path, [])])


@small.task(name="copy-all")
async def copies(thumbs: Params[list[Thumb]]) -> list[Thumb]:
    return thumbs


@small.task
def album(cx: Context, paths: list[str]) -> None:
    for number, path in enumerate(paths):
        cx.spawn(resize.using(id=f"{number}"), path)
    cx.then(contact_sheet, title="summer")


@small.task
def contact_sheet(cx: Joined[Thumb], title: str) -> str:
    return title + "".join(sorted(f", {result.output.path}" for result in cx.results if result.output))


@small.task(fail_on=[ZeroDivisionError])
def divides(key: str) -> float:
    return {"one": 1.0}[key] if key else 1 / 0


many, too_many = app.bundle("many"), app.bundle("too-many")


def _task(bundle: Bundle, number: int) -> None:
    @bundle.task(name=f"task-{number}")
    def handler(recipient: str, subject: str, attempts: int = number) -> int:
        return attempts


for number in range(400):
    _task(many if number < 200 else too_many, number)
    _task(too_many, 400 + number)
