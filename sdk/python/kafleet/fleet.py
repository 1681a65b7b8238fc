"""Real fleets in memory for tests and debuggers: `kafleet dev` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from .attached import AttachedApp
from .errors import TaskFailed
from .loading import load

SHOWN_LINES = 50
"""Number of lines of a log that a message shows."""
_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_CANCEL_SECONDS = 5.0
_LOG_SECONDS = 5.0


class Fleet:
    """A running `kafleet dev`."""

    def __init__(self, app: Sequence[str], cwd: Path | None, log: Path, attached: AttachedApp | None = None) -> None:
        self.api = ""
        """URL of its API; also in KAFLEET_API, so that the clients of all apps use it."""
        self.log = log
        """File with its output."""
        self._app, self._cwd, self._attached = app, cwd, attached

    def start(self, address: str) -> None:
        """Starts it, and waits until it is ready."""
        command = [program(), "dev", "--no-sample", "--no-reload", "--listen", address, *self._app]
        with self.log.open("ab") as output:
            start = output.tell()
            # Its own group: a SIGINT of the terminal ends the tests first.
            self._process = subprocess.Popen(
                command, cwd=self._cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
                env={**os.environ, "VIRTUAL_ENV": sys.prefix},
            )  # fmt: skip
        self.api = _wait_for_url(self._process, self.log, start)

    def stop(self) -> None:
        """Ends it. What it knows is lost."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def reset(self) -> None:
        """Starts it again at the same address, in about a second, without tasks or schedules. Earlier handles are void."""
        self._process.kill()
        self._process.wait()
        if self._attached:
            self._attached.cancel(_CANCEL_SECONDS)
        self.start(self.api.rpartition("/")[2])


@contextlib.contextmanager
def fleet(target: str = "", *, cwd: Path | None = None, in_process: bool = False) -> Iterator[Fleet]:
    """Runs `kafleet dev` with the app of a target, in memory, on a free port. The program is KAFLEET_BINARY or `kafleet`.

    Without a target, the apps of kafleet.toml run. A `TaskFailed` has the log of the failed task. `in_process`: the handlers
    of the target run in this process, without timeouts, so that mocks and breakpoints work.
    """
    earlier, explain = os.environ.get("KAFLEET_API"), TaskFailed.explain
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.NamedTemporaryFile(prefix="kafleet-dev-"))
        attached = stack.enter_context(attach(target, cwd)) if in_process else None
        command = [target] if target else []
        if attached:
            command = ["--no-timeouts", "--", *attached.command(program(), target)]
        running = Fleet(command, cwd, Path(output.name), attached)
        try:
            running.start("127.0.0.1:0")
            os.environ["KAFLEET_API"], TaskFailed.explain = running.api, _log_of_failed
            yield running
        finally:
            TaskFailed.explain = explain
            os.environ.pop("KAFLEET_API", None)
            os.environ |= {"KAFLEET_API": earlier} if earlier else {}
            running.stop()


def attach(target: str, folder: Path | None = None) -> AttachedApp:
    """Returns the app of a target, to be attached to a fleet. Raises `Unable`."""
    if not target:
        raise ValueError('`in_process` needs a target: the handlers of one app; hint: `fleet("tasks.py", in_process=True)`')
    return AttachedApp(load(target, folder))


def _log_of_failed(error: TaskFailed) -> str:
    """Returns the last log lines of a failed task, or of the one below it that has failed it."""
    url, headers = f"{os.environ['KAFLEET_API']}/v1/tasks/", {"accept": "text/plain, application/json"}
    if token := os.environ.get("KAFLEET_TOKEN"):
        headers["authorization"] = f"Bearer {token}"

    def read(path: str) -> str:
        with urlopen(Request(url + path, headers=headers), timeout=_LOG_SECONDS) as answer:
            return str(answer.read().decode())

    try:
        findings = json.loads(read(f"{error.id}/why"))["findings"]
        id = next((finding["task"] for finding in findings if finding["code"] == "failed_child"), error.id)
        lines = read(f"{id}/log").splitlines()[-SHOWN_LINES:]
    except (OSError, ValueError, KeyError) as problem:
        if isinstance(problem, HTTPError):
            problem.close()
        return f"(the log of `{error.id}` cannot be read: {problem})"
    return "\n".join([f"log of `{id}`:", *(f"│ {line}" for line in lines or ["(empty)"])])


def program() -> str:
    """Returns the path of the program `kafleet`."""
    beside = Path(sys.executable).with_name("kafleet")
    found = os.environ.get("KAFLEET_BINARY") or (str(beside) if beside.exists() else shutil.which("kafleet"))
    if not found:
        raise RuntimeError("the program `kafleet` is not installed; hint: install it, or set KAFLEET_BINARY to its path")
    return found


def _wait_for_url(process: subprocess.Popen[bytes], log: Path, start: int) -> str:
    """Waits for the address in the output from the byte `start` on."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        output = log.read_bytes()[start:].decode(errors="replace")
        if "serving until" in output and (found := re.search(r"^ +api +(http://\S+)", output, re.MULTILINE)):
            return found[1]
        time.sleep(0.02)
    state = "is not ready" if process.returncode is None else f"ended with code {process.returncode}"
    raise RuntimeError(f"`kafleet dev` {state}:\n{log.read_text(errors='replace')[-4096:]}")
