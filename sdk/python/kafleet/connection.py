"""The socket between the app and its worker."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable

from .forks import in_children
from .forks import leave as leave_child

_CHUNK_BYTES = 64 << 10
_SLACK_BYTES = 1 << 10


class ConnectionProblem(Exception):
    """The worker cannot be reached, or violates the protocol."""


class Connection:
    """Stream of lines in both directions. Any thread may send; one thread at a time reads."""

    def __init__(self, sock: socket.socket, max_line: int = 8 << 20) -> None:
        self._sock, self._max_line = sock, max_line
        self._sending = threading.Lock()
        self._sender: int | None = None
        """Thread that passes lines to the socket."""
        self._parts: list[bytes] = []
        self._size = 0
        self.early: list[bytes] = []
        """Lines that were received together with the first one."""
        self.ended = False
        """Whether the worker has ended its stream."""
        self.abandoned = False
        """Whether this process is a fork, which must not use the socket."""
        in_children(self._abandon)

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return self._sock.fileno()

    def send(self, lines: bytes) -> None:
        """Sends complete lines, and waits until the socket has taken them."""
        with self._sending:
            self._send(lines)

    def send_from(self, produce: Callable[[], bytes]) -> None:
        """Sends the lines that a function returns, so that no other message comes between them and their creation."""
        with self._sending:
            self._send(produce())

    def send_now(self, produce: Callable[[], bytes]) -> None:
        """Sends the lines that a function returns, as `send_from`; nothing in a signal handler that interrupts a send."""
        if self._sender != threading.get_ident():
            self.send_from(produce)

    def read(self) -> list[bytes]:
        """Waits for data and returns the complete lines; none if there is no complete line yet. A forked child ends here."""
        if self.abandoned:
            leave_child(None)
        try:
            chunk = self._sock.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.ended = True
            return []
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        if rest:
            self._keep(rest)
        return lines

    def is_dead(self) -> bool:
        """Returns whether the worker has closed both directions, so that it cannot receive an answer."""
        poll = select.poll()
        poll.register(self._sock, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def lost(self) -> None:
        """Ends this process, because its worker is gone: nothing can receive its results."""
        leave()

    def close(self) -> None:
        """Ends the stream."""
        self._sock.close()

    def _send(self, lines: bytes) -> None:
        if not lines or self.abandoned:
            return
        self._sender = threading.get_ident()
        try:
            self._sock.sendall(lines)
        except OSError:
            self.lost()
        finally:
            self._sender = None

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_line + _SLACK_BYTES:
            raise ConnectionProblem(f"the worker sent a line of over {self._max_line} bytes")

    def _abandon(self) -> None:
        self.abandoned, self._sending, self._sender = True, threading.Lock(), None
        self._sock.close()


def leave() -> None:
    """Ends this process at once, because its worker is gone: nothing can receive its results."""
    os.write(2, b"kafleet: the worker has ended, and its app process ends too\n")
    os._exit(1)


def take_socket() -> Connection:
    """Moves the socket from file descriptor 0, where child processes would read from it."""
    try:
        sock = socket.socket(fileno=os.dup(0))
        if sock.family != socket.AF_UNIX:
            raise OSError
    except OSError:
        raise ConnectionProblem(
            "file descriptor 0 is not the socket of a worker; hint: run an app with `kafleet dev tasks.py` or "
            "`kafleet worker`. In `command`, programs that copy stdin break the socket: `script`, `nodemon`, `docker run -i`"
        ) from None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, closefd=False)
    return Connection(sock)
