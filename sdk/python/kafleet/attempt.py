"""Execution of one attempt: from the params to the answer, of which there is exactly one, whatever the handler does."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from typing import Any

from .context import Channel, Context, _current
from .forks import guard, leave_if_child
from .hooks import Hooks
from .joined import Joined, Outcomes
from .outcomes import Cancelled, Outcome, Retry, SoftTimeout, kind_of
from .scalars import Mismatch
from .soft import AwaitSoftly, call_softly
from .streams import flush_replaced
from .task import Task
from .tracebacks import MAX_MESSAGE_CHARS, message_of, only_member, stack_of
from .values import class_name, encode, encode_text, parse, text_of, with_models

_OUTCOMES = ("retry", "wait", "fail", "dead", "cancelled")
_MAX_AFTER_MS = 1 << 53


class Attempt:
    """One attempt at a task."""

    __slots__ = ("cx", "is_shown", "lines", "named", "runs_in", "task")

    def __init__(self, task: Task[..., Any], message: dict[str, Any], channel: Channel) -> None:
        """Loads the params. Raises `Mismatch` if they do not have the annotated types."""
        self.task, self.lines = task, b""
        loaded = task.compiled.load(message["params"])
        self.cx: Context = (Joined if isinstance(loaded, Outcomes) else Context)(message, channel)
        self.cx.task_name = task.name
        self.named = self.cx.join(loaded) if isinstance(self.cx, Joined) and isinstance(loaded, Outcomes) else loaded
        self.runs_in: Any = None
        """Thread in which it runs, or its task of asyncio."""
        self.is_shown = False
        """Whether its stack has been added to its log."""

    def run(self) -> bytes:
        """Runs a synchronous handler and returns its last messages. Raises nothing."""
        pid, hooks, token = os.getpid(), Hooks(self.task.app.arounds, self.cx), _current.set(self.cx)
        self.runs_in = threading.get_ident()
        value, error, limit = None, None, self.task.soft_timeout
        try:
            hooks.enter()
            leave_if_child(pid, None)
            value = self._call() if limit is None else call_softly(self.cx, limit, self._call)
        except BaseException as raised:
            error = raised
        try:
            return self._answer(pid, hooks, value, error)
        finally:
            _current.reset(token)
            del error  # It refers to this frame, which would keep all that the handler used.

    async def arun(self) -> bytes:
        """Runs an asynchronous handler and returns its last messages. Raises nothing."""
        pid, hooks = os.getpid(), Hooks(self.task.app.arounds, self.cx)
        _current.set(self.cx)
        guard(sys.modules["asyncio"].get_running_loop())
        value, error, limit = None, None, self.task.soft_timeout
        try:
            hooks.enter()
            leave_if_child(pid, None)
            value = await (self._call() if limit is None else AwaitSoftly(self.cx, limit, self._call()))
        except BaseException as raised:
            error = raised
        try:
            self.lines = self._answer(pid, hooks, value, error)
            return self.lines
        finally:
            del error

    def _call(self) -> Any:
        if self.task.context:
            return self.task.fn(self.cx, **self.named)
        return self.task.fn(**self.named)

    def _answer(self, pid: int, hooks: Hooks, value: Any, error: BaseException | None) -> bytes:
        """Returns the last messages of every attempt. All code of others that it runs may raise anything."""
        try:
            leave_if_child(pid, error)
            left = hooks.leave(error)
            leave_if_child(pid, left)
            flush_replaced()
            return self._failed(left) if left is not None else self._succeeded(value, is_of_handler=error is None)
        except BaseException as unexpected:
            message = f"{class_name(unexpected)} while the attempt was answered: {text_of(unexpected)}"
            return self._error("retry", class_name(unexpected if error is None else error), message)

    def _succeeded(self, output: Any, *, is_of_handler: bool) -> bytes:
        try:
            text = encode(output)
        except ValueError as error:
            return self._error("fail", "bad_output", self._unwritable(output, error))
        limit = self.cx._limits["output"]
        if len(text) > limit:
            message = f"the result has {len(text)} bytes: at most {limit} are allowed"
            return self._error("fail", "result_too_large", message)
        if is_of_handler and (problem := self._misfit(output, text)):
            return self._error("fail", "bad_output", f"the result does not fit its type: {problem}")
        return self.cx.finish(True) + b'{"ok":{"n":%d,"output":%b}}\n' % (self.cx.n, text)

    def _misfit(self, output: Any, text: bytes) -> str | None:
        """Returns why a result does not have the annotated type."""
        if self.task.output is None or not self.task.output.schema:
            return None
        try:
            self.task.output.load(parse(text))
        except Exception as error:  # Also of a dataclass's `__post_init__`.
            with contextlib.suppress(Exception):  # A model need not read what it writes, as with an alias of one side.
                self.task.output.load(with_models(output))
                return None
            return text_of(error) or class_name(error)
        return None

    def _unwritable(self, output: Any, error: ValueError) -> str:
        if not inspect.isawaitable(output):
            return f"the result is {error}"
        if inspect.iscoroutine(output):
            output.close()
        name = self.task.fn.__name__
        hint = "hint: `await` it in the decorator, as `async def`"
        return f"`{name}` is `async` behind a decorator that is not, and has not run; {hint}"

    def _failed(self, raised: BaseException) -> bytes:
        error = only_member(raised)
        if isinstance(error, Cancelled) or (self.cx.cancelled and class_name(error) == "CancelledError"):
            reason = f": {self.cx.end_reason}" if self.cx.reason else ""
            return self._error("cancelled", "cancelled", f"the attempt was cancelled{reason}")
        kind, message, outcome = class_name(error), message_of(error), "retry"
        more: dict[str, Any] = {}
        if isinstance(error, Outcome):
            kind = self._attribute(error, "kind", str, kind)
            message = self._attribute(error, "message", str, message)
            outcome = self._attribute(error, "outcome", str, outcome)
            after_ms = self._attribute(error, "after_ms", int, None) if isinstance(error, Retry) else None
            more = {} if after_ms is None else {"after_ms": min(max(after_ms, 0), _MAX_AFTER_MS)}
        if isinstance(error, SoftTimeout) or not isinstance(error, Outcome) or error.__cause__ is not None:
            more["stack"] = stack_of(raised)
        outcome, kind = self.task.errors.decide(error, outcome, kind)
        return self._error(outcome if outcome in _OUTCOMES else "retry", kind, message, **more)

    def _attribute(self, error: Outcome, name: str, kind: type, default: Any) -> Any:
        """Returns an attribute that a subclass may have replaced; `default`, with a line in the log, if it cannot be used."""
        try:
            value = getattr(error, name)
            if value is None and default is None:
                return None
            if kind is str and isinstance(value, str):
                return str.__str__(value)  # Of a subclass, the text alone.
            if kind is int and isinstance(value, int) and not isinstance(value, bool):
                return int.__int__(value)
            problem = f"it is a `{class_name(value)}`"
        except BaseException as raised:
            problem = f"{class_name(raised)}: {text_of(raised)}"
        self.cx.log(f"`{name}` of the exception `{class_name(error)}` cannot be used: {problem}")
        return default

    def _error(self, outcome: str, kind: str, message: str, **more: Any) -> bytes:
        with contextlib.suppress(BaseException):
            return self.cx.finish(False) + error_line(self.cx.n, outcome, kind, message, **more)
        return error_line(self.cx.n, outcome, kind, message, **more)


def error_line(n: int, outcome: str, kind: str, message: str, **more: Any) -> bytes:
    """Returns an `error` message."""
    fields = {"n": n, "outcome": outcome, "kind": kind_of(kind), "message": message[:MAX_MESSAGE_CHARS], **more}
    return b'{"error":%b}\n' % encode_text(fields)


def bad_params(n: int, error: Mismatch | str) -> bytes:
    """Returns the answer to an attempt whose params cannot be used."""
    text = error if isinstance(error, str) else f"the params do not fit the type: {error}"
    return error_line(n, "dead", "bad_params", text)
