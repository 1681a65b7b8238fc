"""Output of attempts that run in the process of a test: in the log of the task, and where the test itself writes."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

from .context import _current
from .streams import TaskLog

_DEBUGGERS = {"pdb", "cmd", "bdb", "_pytest"}
_FORMAT = "%(levelname)s %(name)s: %(message)s"


class Echo(TaskLog):
    """Stream that writes to the log of the attempt and to the stream of the test, which `pytest -s` and debuggers need."""

    def __init__(self, original: TextIO) -> None:
        super().__init__(original)
        self.original = original

    def write(self, text: str) -> int:
        if _current.get() is None:
            return self.original.write(text)
        with contextlib.suppress(ValueError):  # Closed, if the test has ended before the attempt.
            self.original.write(text)
        writer = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        return len(text) if writer in _DEBUGGERS else super().write(text)


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Sends `print` and `logging` to the log of the attempt, as a worker's process does."""
    with contextlib.redirect_stdout(Echo(sys.stdout)), contextlib.redirect_stderr(Echo(sys.stderr)) as stderr:
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


class _TaskHandler(logging.Handler):
    """Writes the records of an attempt to the log of its task."""

    def emit(self, record: logging.LogRecord) -> None:
        if cx := _current.get():
            cx.write(self.format(record) + "\n")


class Capture:
    """Capture of the output of attempts that run beside a test, whose runner replaces the streams between its phases."""

    def __init__(self) -> None:
        self._handler = _TaskHandler()
        self._handler.setFormatter(logging.Formatter(_FORMAT))

    def start(self) -> None:
        """Captures log records."""
        logging.getLogger().addHandler(self._handler)

    def renew(self) -> None:
        """Captures the present streams."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, Echo):
                setattr(sys, name, Echo(stream))

    def stop(self) -> None:
        """Ends the capture."""
        logging.getLogger().removeHandler(self._handler)
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, Echo):
                setattr(sys, name, stream.original)
