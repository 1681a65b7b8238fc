"""Threads that run synchronous handlers."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from .attempt import Attempt
from .connection import Connection
from .session import Session

if TYPE_CHECKING:
    from .app import App


class HandlerThreads:
    """Threads for the synchronous attempts of a session, started as they are needed.

    They are not those of `concurrent.futures`, which a process that `multiprocessing` forks there tries to join.
    """

    def __init__(self, session: Session, count: int) -> None:
        self._session, self._count = session, count
        self._threads: list[threading.Thread] = []
        self._attempts: SimpleQueue[Attempt | None] = SimpleQueue()

    def start(self, attempt: Attempt) -> None:
        """Runs an attempt in a free thread."""
        self._attempts.put(attempt)
        if len(self._threads) < self._count:
            self._threads.append(threading.Thread(target=self.run, name=f"kafleet-slot-{len(self._threads)}"))
            self._threads[-1].start()

    def run(self) -> None:
        """Runs attempts in the calling thread, until `end`."""
        while attempt := self._attempts.get():
            self._session.answer(attempt, attempt.run())

    def end(self) -> None:
        """Ends the threads behind the attempts that have been started, and waits for those of this object."""
        for _ in self._threads or (None,):
            self._attempts.put(None)
        for thread in self._threads:
            thread.join()


class ThreadedSession(Session):
    """Several slots: synchronous handlers run in threads, and the main thread reads the socket."""

    def __init__(self, connection: Connection, app: App, welcome: dict[str, Any]) -> None:
        super().__init__(connection, app, welcome)
        self._pool = HandlerThreads(self, self.slots)

    def serve(self) -> None:
        try:
            self.begin()
            while not self.connection.ended:
                self.receive()
        finally:
            self._pool.end()

    def start(self, attempt: Attempt) -> None:
        self._pool.start(attempt)
