"""Execution of one attempt: from the params to the answer."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from .codec import Mismatch, encode, encode_text
from .context import Channel, Context, Joined, _current
from .outcomes import Cancelled, Outcome, Retry, kind_of
from .task import Task

_MAX_MESSAGE_CHARS = 2000
_MAX_STACK_CHARS = 16 << 10
_NO_AROUNDS = nullcontext()
_HIDDEN_FRAMES = (str(Path(__file__).parent), str(importlib.__file__), "<frozen")


class Attempt:
    """One attempt at a task."""

    __slots__ = ("cx", "named", "task")

    def __init__(self, task: Task[..., Any], message: dict[str, Any], channel: Channel) -> None:
        """Loads the params. Raises `Mismatch` if they do not have the annotated types."""
        self.task = task
        kind = Joined if task.joined else Context
        self.cx: Context = kind(message, channel)
        self.cx.task_name = task.name
        self.named = task.compiled.load(message["params"])
        if isinstance(self.cx, Joined):
            self.named = self.cx.join(self.named)

    def run(self) -> bytes:
        """Runs a synchronous handler and returns its last messages."""
        token = _current.set(self.cx)
        try:
            with self._arounds() if self.task.app.arounds else _NO_AROUNDS:
                value = self._call()
            return self._succeeded(value)
        except BaseException as error:
            return self._failed(error)
        finally:
            _current.reset(token)

    async def arun(self) -> bytes:
        """Runs an asynchronous handler and returns its last messages."""
        _current.set(self.cx)
        try:
            with self._arounds() if self.task.app.arounds else _NO_AROUNDS:
                value = await self._call()
            return self._succeeded(value)
        except BaseException as error:
            return self._failed(error)

    def _call(self) -> Any:
        if self.task.context:
            return self.task.fn(self.cx, **self.named)
        return self.task.fn(**self.named)

    @contextmanager
    def _arounds(self) -> Any:
        with ExitStack() as stack:
            for around in self.task.app.arounds:
                stack.enter_context(contextmanager(around)(self.cx))
            yield

    def _succeeded(self, output: Any) -> bytes:
        try:
            text = encode(output)
        except ValueError as error:
            return self._error("fail", "bad_output", f"the result is {error}")
        limit = self.cx._limits["output"]
        if len(text) > limit:
            message = f"the result has {len(text)} bytes: at most {limit} are allowed"
            return self._error("fail", "result_too_large", message)
        return self.cx.finish(True) + b'{"ok":{"n":%d,"output":%b}}\n' % (self.cx.n, text)

    def _failed(self, error: BaseException) -> bytes:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, Cancelled) or (self.cx.cancelled and type(error).__name__ == "CancelledError"):
            reason = f": {self.cx.reason}" if self.cx.reason else ""
            return self._error("cancelled", "cancelled", f"the attempt was cancelled{reason}")
        kind, message, outcome = kind_of(type(error).__name__), str(error) or type(error).__name__, "retry"
        more: dict[str, Any] = {}
        if isinstance(error, Outcome):
            kind, message, outcome = error.kind, error.message, error.outcome
            more = {"after_ms": error.after_ms} if isinstance(error, Retry) and error.after_ms is not None else {}
        else:
            more = {"stack": stack_of(error)}
        # The nearest class decides, as a kind does against `*`.
        listed = [base for base in type(error).__mro__ if base in self.task.fail_on or base in self.task.retry_on]
        if listed and outcome != "dead":
            again = "wait" if outcome == "wait" else "retry"
            outcome = "fail" if listed[0] in self.task.fail_on else again
        return self._error(outcome, kind, message, **more)

    def _error(self, outcome: str, kind: str, message: str, **more: Any) -> bytes:
        return self.cx.finish(False) + error_line(self.cx.n, outcome, kind, message, **more)


def error_line(n: int, outcome: str, kind: str, message: str, **more: Any) -> bytes:
    """Returns an `error` message."""
    fields = {"n": n, "outcome": outcome, "kind": kind, "message": message[:_MAX_MESSAGE_CHARS], **more}
    return b'{"error":%b}\n' % encode_text(fields)


def bad_params(n: int, error: Mismatch | str) -> bytes:
    """Returns the answer to an attempt whose params cannot be used."""
    text = error if isinstance(error, str) else f"the params do not fit the type: {error}"
    return error_line(n, "dead", "bad_params", text)


def stack_of(error: BaseException) -> str:
    """Returns the traceback of an error without the frames of the SDK; its newest part, if it is long."""
    lines = traceback.TracebackException.from_exception(error)
    _keep_frames(lines, lambda frame: not frame.filename.startswith(_HIDDEN_FRAMES))
    return "".join(lines.format())[-_MAX_STACK_CHARS:].rstrip()


def _keep_frames(found: traceback.TracebackException | None, keep: Callable[[Any], bool]) -> None:
    depth = 0
    while found and depth < 100:
        found.stack = traceback.StackSummary.from_list([frame for frame in found.stack if keep(frame)])
        found, depth = found.__cause__ or found.__context__, depth + 1
