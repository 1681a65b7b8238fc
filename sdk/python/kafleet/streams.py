"""Output of handlers: `print` and `logging` go to the log of the running task."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from .context import Context, Stream, _current
from .outcomes import Fail

_BURST_BYTES = 1 << 20
_BYTES_PER_SECOND = 64 << 10


def _nobody() -> Context | None:
    return None


_alone: Callable[[], Context | None] = _nobody


def attribute(alone: Callable[[], Context | None]) -> None:
    """Sends output of threads that belong to no attempt to the attempt that `alone` returns."""
    global _alone
    _alone = alone


class Allowance:
    """Bound of the output outside of attempts, which the worker writes to its own log: a burst, and a rate after it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._then, self._left = now, now(), float(_BURST_BYTES)
        self._dropped: int | None = None

    def admit(self, data: bytes) -> bytes:
        """Returns what is to be written instead of the data: all of it, or nothing, and a line where the output has a gap."""
        now = self._now()
        self._left = min(self._left + (now - self._then) * _BYTES_PER_SECOND, _BURST_BYTES)
        self._then = now
        if self._dropped is not None and self._left > _BURST_BYTES / 2:
            data, self._dropped = b"kafleet: %d bytes of output were dropped here\n" % self._dropped + data, None
        if self._dropped is None and len(data) <= self._left:
            self._left -= len(data)
            return data
        note = b"" if self._dropped else b"kafleet: more output than %d bytes at once is dropped\n" % _BURST_BYTES
        self._dropped = (self._dropped or 0) + len(data)
        return note


class TaskBytes(io.BufferedIOBase):
    """Binary stream that writes UTF-8 to the log of the running task, and outside of attempts to the stream it replaces.

    What a thread writes that belongs to no attempt goes to the only one that runs.

    It stays open: a wrapper that is dropped, such as `io.TextIOWrapper(sys.stdout.buffer)`, would close it for all attempts.
    """

    def __init__(self, original: TextIO, stream: Stream) -> None:
        self._original, self._allowance = original, Allowance()
        self._stream: Stream = stream
        self.name: str = str(getattr(original, "name", "<stream>"))
        self.mode = "wb"

    @property
    def raw(self) -> Any:
        """This stream, which has no buffer."""
        return self

    def write(self, data: Any) -> int:
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        text = bytes(data)
        cx = _current.get() or _alone()
        if cx is None:
            self._write_outside(self._allowance.admit(text))
        else:
            cx.write_bytes(text, stream=self._stream)
        return len(text)

    def _write_outside(self, data: bytes) -> None:
        binary = getattr(self._original, "buffer", None)
        if binary is None:
            self._original.write(data.decode(errors="replace"))
            return
        binary.write(data)
        if getattr(self._original, "line_buffering", False):
            binary.flush()

    def flush(self) -> None:
        cx = _current.get() or _alone()
        if cx is not None:
            cx.flush_output()
        if not self._original.closed:
            self._original.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.flush()

    @property
    def closed(self) -> bool:
        return False

    def detach(self) -> Any:
        return self

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True


class TaskLog(io.TextIOWrapper):
    """Text stream that writes to the log of the running task, and outside of attempts to the stream it replaces."""

    def __init__(self, original: TextIO) -> None:
        self._stream: Stream = "stderr" if original is sys.stderr else "stdout"
        binary = TaskBytes(original, self._stream)
        super().__init__(binary, encoding="utf-8", errors="replace", newline="\n", write_through=True)

    @property
    def mode(self) -> str:
        return "w"

    def write(self, text: str) -> int:
        cx = _current.get()
        if cx is None or not isinstance(text, str):
            return super().write(text)
        cx.write(text, stream=self._stream)
        if self._stream == "stderr":  # Python itself buffers no lines of it.
            cx.flush_output()
        return len(text)

    def reconfigure(
        self, *, encoding: str | None = None, newline: str | None = None, write_through: Any = None, **more: Any
    ) -> None:
        """Changes `errors` and `line_buffering`. The log is UTF-8, and text that is kept could get into that of another task."""
        super().reconfigure(**more)


def install() -> None:
    """Replaces the output streams, before user code keeps a reference to them."""
    faulthandler.enable(all_threads=False)  # The error of the attempt quotes ten lines.
    sys.stdout, sys.stderr = TaskLog(sys.stdout), TaskLog(sys.stderr)
    sys.breakpointhook = _no_debugger


def flush_replaced() -> None:
    """Flushes streams that a handler has put in place of ours, and that may keep text of its log."""
    for stream in (sys.stdout, sys.stderr):
        if type(stream) is not TaskLog:
            with contextlib.suppress(BaseException):
                stream.flush()


class LogHandler(logging.StreamHandler[TextIO]):
    """Handler that writes records to the log of the running task, and outside of attempts to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        cx = _current.get() or _alone()
        if cx is None:
            super().emit(record)
            return
        try:
            # A record is no output of a stream: stderr would mark each as something unusual.
            cx.write(self.format(record) + self.terminator)
            cx.flush_output()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)


def configure_logging() -> None:
    """Sends log records to the task's log, unless the app has configured logging itself."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", handlers=[LogHandler()])


def _no_debugger(*_: object, **__: object) -> NoReturn:
    frame = sys._getframe(1)
    raise Fail(
        f"`breakpoint()` in {frame.f_code.co_filename}:{frame.f_lineno} has no terminal in a worker; hint: run the attempt with "
        "`trial` of `kafleet.testing`, or run `python -m kafleet attach FILE` instead of `kafleet dev FILE`",
        kind="breakpoint",
    )
