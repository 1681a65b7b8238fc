"""Forked children: copies of an app's process that go on behind `os.fork`, and must not act as the app."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_loops: WeakSet[Any] = WeakSet()


def in_children(callback: Callable[[], object]) -> None:
    """Calls this in every forked child. Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)


def leave_if_child(pid: int, error: BaseException | None) -> None:
    """Ends this process if it is a child of the process `pid`, in which the handler has started."""
    if os.getpid() != pid:
        leave(error)


def leave(error: BaseException | None) -> NoReturn:
    """Ends a forked child as Python ends a program, but runs nothing that belongs to its parent, such as `atexit`."""
    code = 1
    try:
        code = _code(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
    finally:
        os._exit(code)


def _code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def guard(loop: AbstractEventLoop) -> None:
    """Ends forked children that return into an event loop: it would read the sockets of the parent, and run its tasks."""
    if loop not in _loops and hasattr(loop, "_run_once"):
        _loops.add(loop)


class _Ended:
    """Replaces the queue of an event loop in a child."""

    def __len__(self) -> int:
        _leave_loop()

    def popleft(self) -> NoReturn:
        _leave_loop()

    def append(self, handle: object) -> NoReturn:
        _leave_loop()


def _leave_loop() -> NoReturn:
    hint = "hint: start a program with `asyncio.create_subprocess_exec`, or use `multiprocessing`"
    leave(RuntimeError(f"a forked child of an asynchronous handler cannot `await`: its event loop is that of its parent; {hint}"))


def _end_loops() -> None:
    for loop in list(_loops):
        # Neither a further step of another attempt nor an iteration may run. asyncio has no public way to stop at once.
        loop._ready = _Ended()
        loop._run_once = _leave_loop


in_children(_end_loops)
