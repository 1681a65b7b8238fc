"""Tests of apps: `trial` runs one attempt, `recorded` collects submitted tasks, `fleet` runs a real fleet in memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

from .attempt import Attempt
from .client import record_into
from .context import LIMITS, Context, Ended
from .scalars import Mismatch
from .streams import TaskLog
from .task import Submittable, Task, task_of
from .values import decode, encode, parse, settled

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Failure", "Fleet", "Trial", "fleet", "recorded", "trial"]

_START_SECONDS = 90.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Failure:
    """Failure of an attempt. `outcome`: `retry`, `wait`, `fail`, `dead` or `cancelled`."""

    outcome: str
    kind: str
    message: str
    after_ms: int | None = None
    stack: str | None = None


@dataclass
class Trial(Generic[R]):
    """One attempt, as the worker would see it. Children and continuations are the documents of tasks."""

    failure: Failure | None = None
    log: list[str] = field(default_factory=list)
    children: list[dict[str, Any]] = field(default_factory=list)
    then: list[dict[str, Any]] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    attachments: dict[str, bytes] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))
    state: Any = None
    _output: Any = None

    @property
    def output(self) -> R:
        """Result, converted to JSON and back. Raises `AssertionError` if the attempt has failed."""
        if self.failure:
            raise AssertionError(f"the attempt failed: {self.failure.kind}: {self.failure.stack or self.failure.message}")
        return cast(R, self._output)

    def send(self, lines: bytes, /) -> None:
        """Takes messages of the attempt."""
        for line in lines.split(b"\n")[:-1]:
            ((kind, fields),) = parse(line).items()
            getattr(self, f"_on_{kind}", lambda fields: None)(fields if kind == "ok" else settled(fields))

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        """Takes children that are published at once."""
        first, done = len(self.children), Future[list[str]]()
        self.children += [decode(task) for task in tasks]
        done.set_result([f"{cx.id}:{child.get('id', first + n)}" for n, child in enumerate(self.children[first:])])
        return done

    def buffered(self, cx: Context) -> None:
        """Leaves log lines in their buffer: the attempt sends them at its end."""

    def _on_ok(self, fields: dict[str, Any]) -> None:
        self._output = fields["output"]

    def _on_error(self, fields: dict[str, Any]) -> None:
        self.failure = Failure(**{key: value for key, value in fields.items() if key != "n"})

    def _on_log(self, fields: dict[str, Any]) -> None:
        self.log += fields["lines"]

    def _on_progress(self, fields: dict[str, Any]) -> None:
        self.progress.append(fields["value"])

    def _on_warn(self, fields: dict[str, Any]) -> None:
        self.warnings.append(fields["message"])

    def _on_attach(self, fields: dict[str, Any]) -> None:
        self.attachments[fields["name"]] = base64.b64decode(fields["data"])

    def _on_spawn(self, fields: dict[str, Any]) -> None:
        self.children += fields["tasks"]

    def _on_then(self, fields: dict[str, Any]) -> None:
        self.then.append(fields["task"])


@dataclass(frozen=True)
class Trials:
    """Runs attempts in this process, through JSON and the schema of the type.

    `state`: value of `cx.state`, since the lifespan is not entered. `task` and `results`: outcomes for a `Joined`
    context; a value that is not an `Ended` is the result of a child that succeeded. `cancelled`: reason of a cancel
    before the attempt starts.
    """

    id: str = "trial"
    run: int = 1
    number: int = 1
    state: Any = None
    task: Ended[Any] | None = None
    results: Sequence[Any] = ()
    cancelled: str | None = None

    def using(self, **attempt: Any) -> Trials:
        """Returns trials with other attributes of the attempt."""
        return replace(self, **attempt)

    def __call__(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> Trial[R]:
        """Runs one attempt. In an event loop, await `atrial` instead."""
        trial, attempt = self._prepare(task_of(task), task.bind(args, kwargs))
        if attempt is None:
            return trial
        with _captured():
            lines = asyncio.run(attempt.arun()) if attempt.task.is_async else attempt.run()
        return self._finish(trial, attempt, lines)

    async def atrial(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> Trial[R]:
        """Runs one attempt of an asynchronous handler on the running event loop."""
        trial, attempt = self._prepare(task_of(task), task.bind(args, kwargs))
        if attempt is None:
            return trial
        with _captured():
            # A task of its own: it has its own context variables.
            lines = await asyncio.create_task(attempt.arun())
        return self._finish(trial, attempt, lines)

    def _prepare(self, task: Task[..., Any], params: Any) -> tuple[Trial[Any], Attempt | None]:
        trial: Trial[Any] = Trial(state=self.state)
        if task.joined:
            results = [self._ended(result, n) for n, result in enumerate(self.results)]
            params = {"params": params, "task": self._ended(self.task, -1), "results": results}
        message = {"n": 1, "type": task.type, "id": self.id, "run": self.run, "number": self.number, "left_ms": 60_000}
        try:
            attempt = Attempt(task, {**message, "params": parse(encode(params))}, trial)
        except Mismatch as error:
            trial.failure = Failure("dead", "bad_params", f"the params do not fit the type: {error}")
            return trial, None
        if self.cancelled:
            attempt.cx.cancel(self.cancelled)
        return trial, attempt

    def _ended(self, outcome: Any, index: int) -> dict[str, Any]:
        if not isinstance(outcome, Ended):
            outcome = Ended(self.id if index < 0 else f"{self.id}:{index}", None, "succeeded", outcome)
        return {key: value for key, value in asdict(outcome).items() if value is not None}

    def _finish(self, trial: Trial[Any], attempt: Attempt, lines: bytes) -> Trial[Any]:
        trial.send(lines)
        output = attempt.task.output
        if not trial.failure:
            trial._output = output.load(trial._output) if output else settled(trial._output)
        return trial


trial = Trials()
"""Runs one attempt at a task: `trial(thumbnail, path="a.jpg")`."""


@contextlib.contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """Collects the documents of submitted tasks; nothing is created. The list holds them in order."""
    submitted: list[dict[str, Any]] = []
    earlier = record_into(submitted)
    try:
        yield submitted
    finally:
        record_into(earlier)


@contextlib.contextmanager
def _captured() -> Iterator[None]:
    """Sends `print` and `logging` to the log of the attempt, as a worker's process does."""
    with contextlib.redirect_stdout(TaskLog(sys.stdout)), contextlib.redirect_stderr(TaskLog(sys.stderr)) as stderr:
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


@dataclass(frozen=True)
class Fleet:
    """A running `kafleet dev`."""

    api: str
    """URL of its API; also in KAFLEET_API, so that the clients of all apps use it."""
    log: Path
    """File with its output."""


@contextlib.contextmanager
def fleet(target: str = "", *, cwd: Path | None = None) -> Iterator[Fleet]:
    """Runs `kafleet dev` with the app of a target, in memory, on a free port. The program is KAFLEET_BINARY or `kafleet`."""
    command = [_binary(), "dev", *([target] if target else []), "--no-sample", "--no-reload", "--listen", "127.0.0.1:0"]
    earlier = os.environ.get("KAFLEET_API")
    with tempfile.NamedTemporaryFile(prefix="kafleet-dev-") as output:
        # Its own group: a SIGINT of the terminal ends the tests first.
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
            env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        )  # fmt: skip
        try:
            running = Fleet(_wait_for_url(process, Path(output.name)), Path(output.name))
            os.environ["KAFLEET_API"] = running.api
            yield running
        finally:
            os.environ.pop("KAFLEET_API", None)
            os.environ |= {"KAFLEET_API": earlier} if earlier else {}
            _stop(process)


def _binary() -> str:
    beside = Path(sys.executable).with_name("kafleet")
    found = os.environ.get("KAFLEET_BINARY") or (str(beside) if beside.exists() else shutil.which("kafleet"))
    if not found:
        raise RuntimeError("the program `kafleet` is not installed; hint: install it, or set KAFLEET_BINARY to its path")
    return found


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        output = log.read_text(errors="replace")
        if "serving until" in output and (found := re.search(r"^ +api +(http://\S+)", output, re.MULTILINE)):
            return found[1]
        time.sleep(0.02)
    state = "is not ready" if process.returncode is None else f"ended with code {process.returncode}"
    raise RuntimeError(f"`kafleet dev` {state}:\n{log.read_text(errors='replace')[-4096:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
