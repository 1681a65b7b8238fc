"""Execution of one attempt: from the params to the answer, of which there is exactly one, whatever the handler does."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

from .context import Channel, Context, Joined, _current
from .forks import guard, leave_if_child
from .hooks import Hooks
from .outcomes import Cancelled, Outcome, Retry, kind_of
from .scalars import Mismatch
from .streams import flush_replaced
from .task import Task
from .values import class_name, encode, encode_text, parse, text_of

_MAX_MESSAGE_CHARS = 2000
_MAX_STACK_CHARS = 16 << 10
_MAX_CAUSES = 100
_MAX_FRAMES = 1000
_OUTCOMES = ("retry", "wait", "fail", "dead", "cancelled")
_MAX_AFTER_MS = 1 << 53
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
        """Runs a synchronous handler and returns its last messages. Raises nothing."""
        pid, hooks, token = os.getpid(), Hooks(self.task.app.arounds, self.cx), _current.set(self.cx)
        value, error = None, None
        try:
            hooks.enter()
            leave_if_child(pid, None)
            value = self._call()
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
        value, error = None, None
        try:
            hooks.enter()
            leave_if_child(pid, None)
            value = await self._call()
        except BaseException as raised:
            error = raised
        try:
            return self._answer(pid, hooks, value, error)
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
        if is_of_handler and self.task.compiled.checks_output and (problem := self._misfit(text)):
            return self._error("fail", "bad_output", f"the result does not fit its type: {problem}")
        return self.cx.finish(True) + b'{"ok":{"n":%d,"output":%b}}\n' % (self.cx.n, text)

    def _misfit(self, text: bytes) -> str | None:
        """Returns why a result is not in the limits of its annotation."""
        try:
            if self.task.output:
                self.task.output.load(parse(text))
        except Exception as error:  # Also of a dataclass's `__post_init__`.
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

    def _failed(self, error: BaseException) -> bytes:
        if isinstance(error, Cancelled) or (self.cx.cancelled and class_name(error) == "CancelledError"):
            reason = f": {self.cx.reason}" if self.cx.reason else ""
            return self._error("cancelled", "cancelled", f"the attempt was cancelled{reason}")
        kind, message, outcome = class_name(error), text_of(error) or class_name(error), "retry"
        more: dict[str, Any] = {}
        if isinstance(error, Outcome):
            kind = self._attribute(error, "kind", str, kind)
            message = self._attribute(error, "message", str, message)
            outcome = self._attribute(error, "outcome", str, outcome)
            after_ms = self._attribute(error, "after_ms", int, None) if isinstance(error, Retry) else None
            more = {} if after_ms is None else {"after_ms": min(max(after_ms, 0), _MAX_AFTER_MS)}
        else:
            more = {"stack": stack_of(error)}
        # The nearest class decides, as a kind does against `*`.
        listed = [base for base in type(error).__mro__ if base in self.task.fail_on or base in self.task.retry_on]
        if listed and outcome != "dead":
            again = "wait" if outcome == "wait" else "retry"
            outcome = "fail" if listed[0] in self.task.fail_on else again
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
    fields = {"n": n, "outcome": outcome, "kind": kind_of(kind), "message": message[:_MAX_MESSAGE_CHARS], **more}
    return b'{"error":%b}\n' % encode_text(fields)


def bad_params(n: int, error: Mismatch | str) -> bytes:
    """Returns the answer to an attempt whose params cannot be used."""
    text = error if isinstance(error, str) else f"the params do not fit the type: {error}"
    return error_line(n, "dead", "bad_params", text)


def stack_of(error: BaseException) -> str:
    """Returns the traceback of an error without the frames of the SDK; its newest part, if it is long."""
    try:
        if not _is_small(error):
            return (
                f"{class_name(error)}: {text_of(error)[:_MAX_MESSAGE_CHARS]}\n(no traceback: over {_MAX_CAUSES} causes and notes)"
            )
        lines = traceback.TracebackException.from_exception(error, limit=-_MAX_FRAMES)
        _keep_frames(lines, lambda frame: not frame.filename.startswith(_HIDDEN_FRAMES))
        return "".join(lines.format())[-_MAX_STACK_CHARS:].rstrip()
    except BaseException as unexpected:
        reason = f"(no traceback: {class_name(unexpected)} while it was formatted)"
        return f"{class_name(error)}: {text_of(error)[:_MAX_MESSAGE_CHARS]}\n{reason}"


def _is_small(error: BaseException) -> bool:
    """Returns whether a traceback of the error, its causes, its group and their notes ends soon."""
    pending, seen, count = [error], set[int](), 0
    while pending and count <= _MAX_CAUSES:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        notes = getattr(found, "__notes__", ())
        count += 1 + (len(notes) if isinstance(notes, Sized) else 0)
        members = found.exceptions[: _MAX_CAUSES + 1] if isinstance(found, BaseExceptionGroup) else ()
        pending += [below for below in (found.__cause__, found.__context__, *members) if below is not None]
    return count <= _MAX_CAUSES


def _keep_frames(found: traceback.TracebackException | None, keep: Callable[[Any], bool]) -> None:
    while found:
        found.stack = traceback.StackSummary.from_list([frame for frame in found.stack if keep(frame)])
        found = found.__cause__ or found.__context__
