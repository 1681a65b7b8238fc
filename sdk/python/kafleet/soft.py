"""Soft timeouts: `SoftTimeout` is raised in a handler that has some time left, to end in an orderly way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from .context import Context

R = TypeVar("R")

_AGAIN_SECONDS = 0.01
_SENDING = {str(Path(__file__).with_name(name)) for name in ("connection.py", "context.py", "streams.py")}


def call_softly(cx: Context, seconds: float, handler: Callable[[], R]) -> R:
    """Calls a synchronous handler. A signal interrupts it on the main thread; elsewhere `cx.check()` does."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        with cx.soft_limit(seconds):
            return handler()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_sending(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        elif error := cx.soft_timeout():
            raise error

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with cx.soft_limit(seconds):
            return handler()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier or signal.SIG_DFL)


def _is_sending(frame: FrameType | None) -> bool:
    """Returns whether a message would be cut off, or a log line lost."""
    while frame and frame.f_code.co_filename not in _SENDING:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name != "spawn_now"


class AwaitSoftly(Generic[R]):
    """Awaits an asynchronous handler, which is interrupted at the `await` where it waits."""

    def __init__(self, cx: Context, seconds: float, handler: Coroutine[Any, Any, R]) -> None:
        self._cx, self._seconds, self._handler = cx, seconds, handler

    def __await__(self) -> Generator[Any, Any, R]:
        asyncio = sys.modules["asyncio"]
        task, is_due = asyncio.current_task(), False

        def interrupt() -> None:
            nonlocal is_due
            if not self._cx.cancelled and self._cx.has_soft_limit:
                is_due = task.cancel()

        timer = asyncio.get_running_loop().call_later(self._seconds, interrupt)
        step: Callable[[Any], Any] = self._handler.send
        value: Any = None
        try:
            with self._cx.soft_limit(self._seconds):
                while True:
                    waits_for = step(value)
                    try:
                        step, value = self._handler.send, (yield waits_for)
                    except BaseException as error:
                        step, value = self._handler.throw, error
                        if is_due and isinstance(error, asyncio.CancelledError) and not self._cx.cancelled:
                            is_due = False
                            task.uncancel()
                            value = self._cx.soft_timeout() or error
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            timer.cancel()
