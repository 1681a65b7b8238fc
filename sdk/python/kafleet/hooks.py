"""Hooks around attempts: generator functions that yield once, where the attempt runs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

from .context import Context

Hook = Callable[[Any], Any]


class Hooks:
    """Hooks of one attempt. Those that have been entered are left in reverse order, each with the error so far."""

    __slots__ = ("_cx", "_entered", "_hooks")

    def __init__(self, hooks: Sequence[Hook], cx: Context) -> None:
        self._hooks, self._cx = hooks, cx
        self._entered: list[tuple[Hook, Generator[Any, Any, Any]]] = []

    def enter(self) -> None:
        """Runs the part of each hook before its `yield`."""
        for hook in self._hooks:
            running = hook(self._cx)
            if not inspect.isgenerator(running):
                raise _broken(hook, f"returned a `{type(running).__name__}` instead of a generator: `yield` once")
            try:
                next(running)
            except StopIteration:
                raise _broken(hook, "has ended without a `yield`, where the attempt runs") from None
            self._entered.append((hook, running))

    def leave(self, error: BaseException | None) -> BaseException | None:
        """Runs the part of each hook behind its `yield`. Returns the error that is left: a hook may replace or catch it."""
        while self._entered:
            hook, running = self._entered.pop()
            try:
                caught = _resume(hook, running, error)
            except BaseException as replaced:
                error = replaced
            else:
                error = None if caught else error
        return error


def _resume(hook: Hook, running: Generator[Any, Any, Any], error: BaseException | None) -> bool:
    """Returns whether the hook has ended, and so has caught the error."""
    try:
        if error is None:
            next(running)
        else:
            running.throw(error)
    except StopIteration as end:
        return end is not error
    except RuntimeError as raised:
        # Python replaces a `StopIteration` that leaves a generator.
        if isinstance(error, StopIteration) and raised.__cause__ is error:
            return False
        raise
    with contextlib.suppress(BaseException):
        running.close()
    raise _broken(hook, "has a second `yield`: the attempt runs once") from error


def _broken(hook: Hook, problem: str) -> RuntimeError:
    code = getattr(inspect.unwrap(hook), "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return RuntimeError(f"the hook `{getattr(hook, '__name__', hook)}`{place} {problem}")
