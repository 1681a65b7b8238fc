"""Declaration of tasks: the decorator, and bundles, which are task types of many tasks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from .checks import DECLARED_ALONE, problem_of_function
from .joined import Joined
from .outcomes import Duration, whole_milliseconds
from .scalars import Mismatch
from .settings import Policy
from .task import DeclarationError, Task, check_name, declared_type, error_at, split_policy

if TYPE_CHECKING:
    from .app import App

P = ParamSpec("P")
R = TypeVar("R")

_MAX_DOC_CHARS = 10_000
_SHOWN_NAMES = 20
_SHOWN_BLOCKING = 3


class TaskDecorator:
    """Declares a function as a task: its annotated parameters are the params.

    The name is that of the function with `-` for `_`; the keywords are the policy, as in `[types.NAME]`. `soft_timeout`:
    time after which `SoftTimeout` is raised in the handler; default: never. `aliases`: earlier names, which stay declared.
    """

    def __init__(self, owner: App | Bundle, name: str | None = None, policy: Any = None) -> None:
        self._owner, self._name, self._policy = owner, name, policy or {}

    @overload
    def __call__(self, fn: Callable[Concatenate[Joined[Any], P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Joined[Any], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self, /, *, name: str = ..., soft_timeout: Duration = ..., aliases: Sequence[str] = ..., **policy: Unpack[Policy]
    ) -> TaskDecorator: ...
    def __call__(self, fn: Any = None, /, *, name: str | None = None, **policy: Any) -> Any:
        name, policy = name or self._name, {**self._policy, **policy}
        if fn is None:
            return TaskDecorator(self._owner, name, policy)
        if problem := problem_of_function(fn):
            raise DeclarationError(problem)
        own = {key: policy.pop(key) for key in DECLARED_ALONE if key in policy}
        task = self._owner.new_task(fn, name, policy)
        task.soft_timeout = _soft_timeout(task, self._owner, own.get("soft_timeout"))
        for named in (task, *_aliases(task, own.get("aliases", ()))):
            add(self._owner.tasks, named)
        task.app.handlers.append(task)
        return task


def _soft_timeout(task: Task[..., Any], owner: App | Bundle, given: Duration | None) -> float | None:
    """Returns a soft timeout in seconds. Raises `DeclarationError` if it cannot take effect."""
    if given is None:
        return None
    timeout = task.policy.get("timeout") or (owner.policy.get("timeout") if isinstance(owner, Bundle) else None)
    try:
        limit = whole_milliseconds(given, "soft_timeout")
    except (TypeError, ValueError) as error:
        raise error_at(task.place, str(error)) from None
    with suppress(ValueError):
        if limit < 1 or (timeout and limit >= whole_milliseconds(timeout, "timeout")):
            raise error_at(task.place, f"`soft_timeout={given!r}` is not between 0 and the `timeout`", "a shorter time")
    return limit / 1000


def _aliases(task: Task[..., Any], names: Sequence[str]) -> list[Task[..., Any]]:
    """Returns the task under its earlier names."""
    if isinstance(names, str):
        raise error_at(task.place, f"`aliases={names!r}` is not a list", f"`aliases=[{names!r}]`")
    for name in names:
        check_name(name, task.place, '`aliases=["{}"]`')
    return [task.renamed(name) for name in names]


class UnknownTask(LookupError):
    """The params name a task that the bundle does not have."""


class Bundle:
    """Task type of many tasks, which share its topic, policy and concurrency. The params name the task."""

    def __init__(self, app: App, name: str, policy: Policy) -> None:
        self.app, self.name = app, name
        self.place = "{0.filename}:{0.lineno}".format(inspect.getframeinfo(sys._getframe(2), 0))
        check_name(name, self.place, '`app.bundle("{}")`')
        self.policy, self.errors = split_policy(policy, self.place)
        self.tasks: dict[str, Task[..., Any]] = {}
        """Tasks by name."""
        self.task = TaskDecorator(self)
        """Adds a function to the bundle, as `App.task`; its keywords are `name`, and classes in `fail_on` and `retry_on`."""

    @property
    def is_sync(self) -> bool:
        """Whether attempts of the type may need a thread."""
        return any(task.is_sync for task in self.members)

    @property
    def is_mixed(self) -> bool:
        """Whether the bundle has handlers of both kinds."""
        return self.is_sync and any(task.is_async for task in self.members)

    def warning(self) -> str:
        """Returns which handlers leave the `async def` of the bundle fewer places than the app's slots; empty, if none do."""
        slots, threads = self.app.places({True, False}, has_mixed=True)
        if not self.is_mixed or threads >= slots:
            return ""
        waiting = [task for task in self.members if task.is_async]
        blocking = [f"`{task.name}` ({task.place})" for task in self.members if task.is_sync]
        names = f"{', '.join(blocking[:_SHOWN_BLOCKING])}{' and others' if len(blocking) > _SHOWN_BLOCKING else ''}"
        verb = "is" if len(blocking) == 1 else "are"
        return (
            f"{names} of the bundle `{self.name}` {verb} synchronous: its {len(waiting)} `async def` share `threads={threads}` "
            f"of the app with it, not its {slots} slots; hint: `async def`, a bundle of its own, or a larger `App(threads=…)`"
        )

    @property
    def members(self) -> list[Task[..., Any]]:
        """Tasks of the type."""
        return list(self.tasks.values())

    def select(self, params: Any) -> Task[..., Any]:
        """Returns the task that params name. Raises `Mismatch`, or `UnknownTask`."""
        if type(params) is dict and type(params.get("task")) is dict:  # A continuation with results.
            params = params.get("params")
        name = params.get("task") if type(params) is dict else None
        if type(name) is not str:
            raise Mismatch("`task` is missing, or not the name of a task")
        if name not in self.tasks:
            names = [f"`{known}`" for known in self.tasks]
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            raise UnknownTask(
                f"the bundle `{self.name}` has no task `{name[:64]}`, but {', '.join(names[:_SHOWN_NAMES])}{more}; "
                "hint: correct the name, or restart the worker with code that declares it"
            )
        return self.tasks[name]

    def declaration(self) -> dict[str, Any]:
        """Returns the type as the `ready` message declares it. Its schema accepts any params of tasks that it does not know."""
        if not self.tasks:
            raise DeclarationError(f"{self.place}: the bundle `{self.name}` has no tasks; hint: put `@….task` above a function")
        form = {"type": "object", "properties": {"task": {"type": ["string", "object"]}}, "required": ["task", "params"]}
        schema = {**form, "dependentSchemas": {"task": {"allOf": [_case(task) for task in self.tasks.values()]}}}
        lines = [f"{task.name}: {(task.doc or '').partition(chr(10))[0]}".rstrip(": ") for task in self.tasks.values()]
        return declared_type(self.name, schema, "\n".join(lines)[:_MAX_DOC_CHARS], self.policy)

    def new_task(self, fn: Callable[..., Any], name: str | None, policy: dict[str, Any]) -> Task[..., Any]:
        """Returns a task for the bundle. Raises `DeclarationError` for a key that a task cannot have for itself."""
        task: Task[..., Any] = Task(self.app, fn, name, policy, self.name)
        for key in task.policy:  # What is left after the classes is decided by the worker, for the whole type.
            problem = f"`{key}` is for the whole bundle; a task has only `name`, and classes in `fail_on` and `retry_on`"
            raise error_at(task.place, problem, f'`app.bundle("{self.name}", {key}=…)`')
        own = {*task.errors.fail_on, *task.errors.retry_on}.difference(self.errors.fail_on, self.errors.retry_on)
        if own and self.errors.named:
            name = min(kind.__name__ for kind in own)
            problem = f"`on_error` and `*` of the bundle decide for all of its tasks, also about `{name}`"
            raise error_at(task.place, problem, f'`app.bundle("{self.name}", retry_on=[{name}], …)`, or the same with `fail_on`')
        task.errors = task.errors.within(self.errors)
        return task


def _case(task: Task[..., Any]) -> dict[str, Any]:
    """Schema of the params of one task; it accepts those of all others. Short, because 200 of them fit into a declaration."""
    named: dict[str, Any] = {"properties": {"task": {"const": task.name}}}
    joined = {"properties": {"task": {"type": "object"}, "params": {**named, "required": ["task"]}}}
    own = task.declaration()["params"]
    if "if" in own:  # Alone, and in a continuation.
        named = {"anyOf": [named, joined]}
    elif task.joined:
        named = joined
    # An id makes it a schema of its own, so that its references stay valid.
    return {"if": named, "then": {"$id": task.name, **own} if "$defs" in own else own}


def add(declared: dict[str, Any], new: Task[..., Any] | Bundle) -> None:
    """Adds a type, or a task of a bundle. Raises `DeclarationError` if its name is taken."""
    earlier = declared.setdefault(new.name, new)
    if earlier is not new:
        twice = f"{new.place}: `{new.name}` is declared twice, first in {earlier.place}"
        raise DeclarationError(f'{twice}; hint: rename one, or give the function a name with `name="…"` in its decorator')
