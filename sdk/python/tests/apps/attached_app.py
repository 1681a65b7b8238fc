"""Test app whose handlers run in the process of a test."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from kafleet import App, Context, Fail, Joined

app = App()
log = logging.getLogger("shop")


def size_of(name: str) -> int:
    """Calls a service that tests replace."""
    raise OSError(f"no service has `{name}`")


@app.task(retries=3, min_backoff="10ms", max_backoff="20ms")
def measure(cx: Context, name: str) -> int:
    print("measures", name)
    return size_of(name)


@app.task
async def album(cx: Context, names: list[str]) -> int:
    for name in names:
        cx.spawn(measure, name)
    cx.then(total)
    return len(names)


@app.task
def total(cx: Joined[int]) -> int:
    return sum(result.output or 0 for result in cx.results)


@app.task
def process() -> int:
    return os.getpid()


@app.task
async def speaks() -> None:
    print("said")
    log.warning("noted")


@app.task(retries=0)
async def waits(mark: Path) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        mark.touch()


@app.task(retries=0, timeout="100ms")
def slow(seconds: float) -> None:
    time.sleep(seconds)
    raise Fail("slept", kind="awake")
