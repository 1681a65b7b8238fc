"""Plays the worker: starts an app process with a socket as file descriptor 0, and exchanges messages with it."""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
APPS = Path(__file__).parent / "apps"
SESSIONS = sorted((ROOT / "schemas/examples/app").glob("*.jsonl"))
PATIENCE = 60.0
"""Seconds that a test waits for a message or an exit."""

Message = dict[str, Any]


class Worker:
    """One app process and the worker's end of its socket."""

    def __init__(
        self, target: str = "conformance.py", *, cwd: Path = APPS, stdin: Path | None = None, module: bool = True, **env: str
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(PATIENCE)
        command = [sys.executable, "-P", *(["-m", "kafleet"] if module else []), target]
        fd0 = os.open(stdin, os.O_RDONLY) if stdin else theirs.fileno()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env}
        self.process = subprocess.Popen(
            command, stdin=fd0, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, env=environment,
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.socket, self._rest = ours, b""
        self.attempts = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()

    def send_line(self, line: str | bytes) -> None:
        """Sends one line."""
        self.socket.sendall((line.encode() if isinstance(line, str) else line) + b"\n")

    def send_bytes(self, line: bytes) -> None:
        """Sends one line in pieces of one byte; each is sent when the app has received the one before."""
        for byte in line + b"\n":
            self.socket.sendall(bytes([byte]))
            until(lambda: self._unreceived() == 0, "the app receives a byte", pause=0)

    def _unreceived(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message."""
        self.send_line(json.dumps({kind: fields}, ensure_ascii=False, separators=(",", ":")))

    def receive(self) -> Message | None:
        """Waits for the next message; `None` at the end of the stream."""
        while b"\n" not in self._rest:
            chunk = self._recv()
            if not chunk:
                assert not self._rest, self._rest
                return None
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        message: Message = json.loads(line)
        return message

    def _recv(self) -> bytes:
        try:
            return self.socket.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def send_welcome(self, **more: Any) -> None:
        """Sends `welcome`."""
        fields = {"protocol": 1, "app": "shop", "worker": "w-1", "version": "0.1.0", "grace_ms": 5000, "limits": {}, "dev": False}
        self.send("welcome", **{**fields, **more})

    def welcome(self, **more: Any) -> Message:
        """Sends `welcome` and returns the fields of `ready`."""
        self.send_welcome(**more)
        message = self.receive()
        assert message and "ready" in message, message
        ready: Message = message["ready"]
        return ready

    def start(self, type: str, params: Any = None, **more: Any) -> int:
        """Sends an attempt and returns its number."""
        self.attempts += 1
        n = self.attempts
        fields = {
            "n": n,
            "type": type,
            "id": f"task-{n}",
            "run": 1,
            "number": 1,
            "left_ms": 60000,
            **more,
            "params": {} if params is None else params,
        }
        self.send("attempt", **fields)
        return n

    def answer(self) -> Message:
        """Waits for the next `ok` or `error`; a pong, progress and the like are skipped."""
        while message := self.receive():
            if message.keys() & {"ok", "error"}:
                return message
        raise AssertionError(f"no answer: {self.output()}")

    def run(self, type: str, params: Any = None, **more: Any) -> Message:
        """Runs one attempt and returns its answer."""
        self.start(type, params, **more)
        return self.answer()

    def end(self) -> None:
        """Ends the worker's stream."""
        self.socket.shutdown(socket.SHUT_WR)

    def end_after_cancel(self, n: int) -> None:
        """Cancels an attempt and ends the worker's stream, as a worker that stops."""
        self.send("cancel", n=n, reason="shutdown")
        self.end()

    def expect_silence(self) -> None:
        """Fails if the app sends something in the next 100 ms."""
        assert not self._rest and not select.select([self.socket], [], [], 0.1)[0], self.receive()

    def exit_code(self) -> int:
        """Waits for the process to exit."""
        code: int = self.process.wait(PATIENCE)
        return code

    def output(self) -> str:
        """Returns the output of the ended process."""
        assert self.process.stdout
        output: bytes = self.process.stdout.read()
        return output.decode()


def read_session(path: Path) -> tuple[Message, list[Message]]:
    """Returns the description of a session, and its events."""
    head, *events = [json.loads(line) for line in path.read_text().splitlines()]
    return head, events


def wire(events: list[Message]) -> list[bytes]:
    """Returns the worker's lines."""
    lines = []
    for event in events:
        if event["from"] == "worker" and "end" not in event:
            text = event.get("text") or json.dumps(event["message"], ensure_ascii=False, separators=(",", ":"))
            lines.append(text.encode())
    return lines


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Compares a message with a recorded one, as docs/app-protocol.md describes."""
    if path.endswith(("/message", "/stack", "/sdk", "/runtime")) and isinstance(actual, str):
        return []
    if path == "/ready/types":
        by_name = {type["name"]: type for type in actual}
        return [f"{path}: {sorted(by_name)}"] if by_name.keys() != {type["name"] for type in expected} else []
    if isinstance(expected, dict) and isinstance(actual, dict):
        missing = [f"{path}/{key}: missing" for key in expected if key not in actual]
        return missing + [
            d for key in expected if key in actual for d in differences(expected[key], actual[key], f"{path}/{key}")
        ]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [d for n, (e, a) in enumerate(zip(expected, actual, strict=True)) for d in differences(e, a, f"{path}/{n}")]
    same = expected == actual and type(expected) is type(actual)
    return [] if same else [f"{path}: {actual!r} instead of {expected!r}"]


def play(worker: Worker, events: list[Message], send: Any) -> None:
    """Plays a session; `send` sends a line of the worker."""
    sent = b""
    for event in events:
        if event["from"] == "worker" and "end" in event:
            worker.end()
        elif event["from"] == "worker":
            (sent,) = wire([event])
            send(sent)
        elif "end" in event:
            assert worker.receive() is None
            assert worker.exit_code() == 0, worker.output()
        else:
            message = worker.receive()
            assert message, f"the stream ended before {event['message']}: {worker.exit_code()} {worker.output()}"
            if not returns_params(event["message"], message, sent):
                assert not differences(event["message"], message), f"{differences(event['message'], message)} in {message}"


def returns_params(expected: Message, message: Message, sent: bytes) -> bool:
    """Returns whether a handler has returned params that were expected to be unreadable: since Python 3.13 `json` reads them."""
    if expected.get("error", {}).get("kind") != "bad_params" or "ok" not in message:
        return False
    attempt = json.loads(sent)["attempt"]
    return bool(message["ok"] == {"n": attempt["n"], "output": attempt["params"]})


def until(condition: Any, what: str, *, pause: float = 0.01) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for: {what}"
        time.sleep(pause)
