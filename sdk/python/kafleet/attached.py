"""Attempts of a fleet in this process: a worker of `kafleet dev` runs `kafleet app attach`, which connects to it.

So mocks, fixtures and breakpoints of this process are those of the handlers.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .attempt import Attempt
from .captured import Capture
from .connection import Connection, ConnectionProblem
from .context import Context
from .loop import AsyncSession
from .session import Unable, read_welcome, serve_app

if TYPE_CHECKING:
    from .app import App

_POLL_SECONDS = 0.2
_MAX_CONNECTIONS = 16


class AttachedConnection(Connection):
    """Connection with a relay. Its loss ends the attempts, but not this process."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.is_lost = False
        self.on_lost: Callable[[], object] = lambda: None

    def lost(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.on_lost()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # Ends the read of another thread.

    def _send(self, lines: bytes) -> None:
        if not self.is_lost:
            super()._send(lines)


class AttachedSession(AsyncSession):
    """Session beside a test: threads and an event loop of its own run the handlers."""

    def __init__(self, connection: AttachedConnection, app: App, welcome: dict[str, Any], capture: Capture) -> None:
        super().__init__(connection, app, welcome)
        self._capture = capture
        connection.on_lost = self._cancel_all

    def prepare_process(self) -> None:
        """Changes nothing: the process belongs to the test."""

    def alone(self) -> Context | None:
        return None

    def start(self, attempt: Attempt) -> None:
        self._capture.renew()
        super().start(attempt)
        self.watcher.wake()

    def tick(self) -> bool:
        if self.running:
            self._capture.renew()
            if self.connection.ended and self.connection.is_dead():
                self.connection.lost()
        return bool(self.running)

    def _cancel_all(self) -> None:
        for attempt in list(self.running.values()):
            attempt.cx.cancel("shutdown")


class AttachedApp:
    """Socket at which relays connect, each for one process of the worker, and the sessions with them."""

    def __init__(self, app: App) -> None:
        self._app, self._capture = app, Capture()
        self._folder = tempfile.TemporaryDirectory(prefix="kafleet-")  # Others cannot access it.
        self._path = Path(self._folder.name) / "app.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sessions: dict[threading.Thread, AttachedConnection] = {}
        self._is_open = True

    def __enter__(self) -> AttachedApp:
        self._listener.bind(str(self._path))
        self._listener.listen(_MAX_CONNECTIONS)
        self._listener.settimeout(_POLL_SECONDS)
        self._capture.start()
        threading.Thread(target=self._accept, name="kafleet-attach", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self.cancel(_POLL_SECONDS)
        self._capture.stop()
        self._listener.close()
        self._folder.cleanup()

    def command(self, program: str, target: str) -> list[str]:
        """Returns the command of the app that `kafleet dev` is to run."""
        return [program, "app", "attach", str(self._path), target]

    def cancel(self, seconds: float) -> None:
        """Cancels the running attempts, and waits for their ends, at most this time."""
        deadline = time.monotonic() + seconds
        for thread, connection in list(self._sessions.items()):
            connection.lost()
            thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while self._is_open:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # Closed.
                return
            connection = AttachedConnection(sock)
            thread = threading.Thread(target=self._serve, args=(connection,), name="kafleet-attached", daemon=True)
            self._sessions[thread] = connection
            thread.start()

    def _serve(self, connection: AttachedConnection) -> None:
        try:
            welcome = read_welcome(connection)
            serve_app(self._app, lambda lifespan: AttachedSession(connection, self._app, welcome, self._capture))
        except Unable as error:
            connection.send(error.line())
        except ConnectionProblem:  # The relay has ended before it was served.
            pass
        finally:
            connection.close()
            self._sessions.pop(threading.current_thread(), None)
