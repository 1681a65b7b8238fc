"""Test app with synchronous and asynchronous handlers, hooks, and handlers that end the process."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from kafleet import App, Context, Fail, current


@contextlib.contextmanager
def lifespan(app: App) -> Iterator[str]:
    yield "state"
    print("left the lifespan", flush=True)


SLOTS = int(os.environ.get("TEST_SLOTS", "1"))

app = App(lifespan=lifespan, slots=SLOTS, threads=SLOTS)


@app.around
def outer(cx: Context) -> Iterator[None]:
    cx.log("outer begins")
    try:
        yield
    except KeyError as error:
        raise Fail(f"translated: {error}", kind="translated") from error
    finally:
        cx.log("outer ends")


@app.around
def inner(cx: Context) -> Iterator[None]:
    if cx.number > 1:
        raise Fail("refused before the handler", kind="refused")
    cx.log("inner begins")
    yield
    cx.log("inner ends")


@app.task
def sync(fails: bool = False) -> str:
    current().log("handler")
    if fails:
        raise KeyError("a")
    return str(current().state)


@app.task
async def asynchronous(fails: bool = False) -> str:
    await asyncio.sleep(0)
    return str(sync.fn(fails))


@app.task
def log() -> None:
    print("printed", end="")
    print(" line")
    logging.getLogger("shop").warning("logged")
    logging.getLogger("shop").info("info")
    print("error", file=sys.stderr)
    print("without an end", end="")


@app.task
def end(how: str, words: str = "") -> None:
    if words == "flush":
        print("last words", flush=True)
    elif words == "stderr":
        print("last words", file=sys.stderr)
    elif words == "logging":
        logging.getLogger("shop").warning("last words")
    elif words == "bytes":
        sys.stdout.buffer.write(b"last words\n")
        sys.stdout.buffer.flush()
    elif words == "thread":
        threading.Thread(target=lambda: print("last words", flush=True)).start()
        time.sleep(0.01)  # Less than a tick.
    if how == "sys.exit":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        os.abort()
    os._exit(0)


@app.task
def hang(until_file: str) -> str:
    """Ignores the cancel until a file exists."""
    while not os.path.exists(until_file):
        time.sleep(0.005)
    return "finished"


@app.task
def barrier(count: int) -> str:
    """Ends when `count` attempts of the process are running."""
    arrived.append(1)
    while len(arrived) < count:
        current().check()
        time.sleep(0.001)
    print(threading.current_thread().name)
    return threading.current_thread().name


arrived: list[int] = []


@app.task
def fork() -> int:
    """Forks a child process that prints and exits, as `multiprocessing` does."""
    child = os.fork()
    if child == 0:
        print("in the fork", flush=True)
        current_is_unset = False
        try:
            current()
        except LookupError:
            current_is_unset = True
        os._exit(7 if current_is_unset else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task
def processes(method: str) -> list[int]:
    """Computes in child processes of `multiprocessing`."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(abs, [-1, -2])


@app.task
def large(bytes: int) -> str:
    return "x" * bytes


@app.task
def not_a_number() -> float:
    return float("nan")


@app.task
def debug() -> None:
    breakpoint()
