"""Test app: the types of docs/app-protocol.md."""

import asyncio
import base64
import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

from kafleet import App, Cancelled, Context, Dead, Fail, Params, Remote, Retry
from kafleet.task import Options

app = App(slots=int(os.environ.get("TEST_SLOTS", "1")), threads=int(os.environ.get("TEST_THREADS", "1")))


@app.task
def t_echo(params: Params[Any]) -> Any:
    return params


@app.task
def t_error(outcome: str, kind: str, message: str, after_ms: int | None = None) -> None:
    if outcome == "retry":
        raise Retry(message, kind=kind, after=None if after_ms is None else timedelta(milliseconds=after_ms))
    if outcome == "cancelled":
        raise Cancelled
    raise {"fail": Fail, "dead": Dead}[outcome](message, kind=kind)


@app.task
def t_output(
    cx: Context,
    progress: Any = None,
    log: list[str] | None = None,
    warn: str | None = None,
    attach: dict[str, str] | None = None,
    heartbeat: bool = False,
    silent: bool = False,
) -> None:
    if progress is not None:
        cx.progress(progress, silent=silent)
    if log:
        cx.log(*log, silent=silent)
    if warn:
        cx.warn(warn, silent=silent)
    if attach:
        cx.attach(attach["name"], base64.b64decode(attach["data"]), media=attach["media"])
    if heartbeat:
        cx.heartbeat()


@app.task
def t_spawn(cx: Context, tasks: list[dict[str, Any]], call: bool = False) -> list[str] | None:
    if call:
        return cx.spawn_now(_remote(task)[0].call(_remote(task)[1]) for task in tasks)
    for task in tasks:
        cx.spawn(*_remote(task))
    return None


@app.task
def t_then(cx: Context, task: dict[str, Any]) -> None:
    cx.then(*_remote(task))


@app.task
def t_wait(cx: Context, ms: int) -> str:
    end = time.monotonic() + ms / 1000
    while time.monotonic() < end:
        cx.check()
        time.sleep(0.005)
    return "waited"


@app.task
async def t_wait_async(ms: int) -> str:
    await asyncio.sleep(ms / 1000)
    return "waited"


@app.task
def t_exit(code: int) -> None:
    os._exit(code)


@app.task
def t_child() -> int:
    return len(
        subprocess.run([sys.executable, "-c", "import sys; print(sys.stdin.read(), end='')"], stdout=subprocess.PIPE).stdout
    )


@app.task
def t_retire(cx: Context, reason: str) -> None:
    cx.retire(reason)


def _remote(task: dict[str, Any]) -> tuple[Remote, Any]:
    options: Options = {key: task[key] for key in task.keys() - {"type", "params"}}  # type: ignore[assignment]
    return app.remote(task["type"]).using(**options), task.get("params")  # type: ignore[return-value]
