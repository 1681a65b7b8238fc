"""Output of handlers: `print` and `logging` go to the log of the running task."""

from __future__ import annotations

import faulthandler
import io
import logging
import sys
from typing import Any, NoReturn, TextIO

from .context import _current
from .outcomes import Fail


class TaskLog(io.TextIOBase):
    """Text stream that writes to the log of the running task, and outside of attempts to the stream it replaces."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def write(self, text: str) -> int:
        cx = _current.get()
        if cx is None:
            return self._original.write(text)
        cx.write(text)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def writable(self) -> bool:
        return True

    @property
    def buffer(self) -> Any:
        """Binary stream of the process, which is not part of any task's log."""
        return self._original.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def install() -> None:
    """Replaces the output streams, before user code keeps a reference to them."""
    faulthandler.enable()
    sys.stdout, sys.stderr = TaskLog(sys.stdout), TaskLog(sys.stderr)
    sys.breakpointhook = _no_debugger


def configure_logging() -> None:
    """Sends log records to the task's log, unless the app has configured logging itself."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


def _no_debugger(*_: object, **__: object) -> NoReturn:
    frame = sys._getframe(1)
    raise Fail(
        f"`breakpoint()` in {frame.f_code.co_filename}:{frame.f_lineno} has no terminal in a worker; hint: run the attempt with "
        "`trial` of `kafleet.testing`, or attach a debugger with `debugpy.listen`",
        kind="breakpoint",
    )
