"""Schedules that are declared beside the tasks: the decorator, and their form in the `ready` message."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar, Unpack, overload

from .call import Call, _plain
from .outcomes import Duration, refuse_number
from .scalars import Mismatch
from .task import Submittable, Task, error_at
from .values import encode, parse

if TYPE_CHECKING:
    from .app import App

T = TypeVar("T")


class Firing(TypedDict, total=False):
    """Keys of `[schedules.NAME]` for the decorator."""

    every: Duration
    """Interval in whole seconds, instead of a cron expression."""
    overlap: Literal["skip", "allow", "buffer_one", "replace"]
    """Behaviour while the previous task runs; default `skip`."""
    catch_up: Duration
    """Maximum age of missed firings that are caught up; default one day."""
    jitter: Duration
    """Maximum delay of each firing; default none."""
    start_at: str | datetime
    """No firing before this time."""
    end_at: str | datetime
    """No firing at or after this time."""


class ScheduleSpec(Firing, total=False):
    """Keys of `[schedules.NAME]`, and `id`."""

    id: str
    """Name of the schedule; default: that of the task."""
    cron: str
    """Minute, hour, day of month, month, day of week, or `@daily` and the like."""
    timezone: str
    """IANA name of the time zone of `cron`; default UTC."""
    task: Required[Call[Any] | Mapping[str, Any]]
    """Task of each firing."""


_KEYS = ScheduleSpec.__annotations__.keys()


def check_durations(spec: Mapping[str, Any]) -> None:
    """Raises `TypeError` if a duration of a schedule is a number."""
    for key in ("every", "catch_up", "jitter"):
        refuse_number(key, spec.get(key))


@dataclass(frozen=True)
class Declared:
    """One schedule of the code. `target`: the decorated function or task, if `spec` has no `task`."""

    spec: dict[str, Any]
    target: Any
    params: Any
    place: str

    def resolve(self, app: App) -> tuple[str, dict[str, Any]]:
        """Returns its name and its keys. Raises `DeclarationError`."""
        task = self.spec.get("task") or self._call(app)
        if isinstance(task, Call):
            name, document = task.target.name, self._document(task)
        else:
            name, document = str(task.get("type")), _plain(dict(task))
        spec = {key: _plain(value) for key, value in self.spec.items() if key not in ("id", "task")}
        name = self.spec.get("id") or name
        if not re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._~@-]{1,96}", name):
            problem = f"`{name}` is not a name of a schedule: 1 to 96 characters of `A-Z a-z 0-9 . _ ~ @ -`"
            raise error_at(self.place, problem, '`id="…"`')
        try:
            encode(spec)
        except ValueError as error:
            raise error_at(self.place, f"the schedule `{name}` is {error}") from None
        return name, {**spec, "task": document}

    def _call(self, app: App) -> Call[Any]:
        found = [task for task in app.handlers if task is self.target or _is_behind(task.fn, self.target)]
        task = self.target if isinstance(self.target, Submittable) else next(iter(found), None)
        if task is None:
            name = getattr(self.target, "__name__", self.target)
            raise error_at(
                self.place, f"`{name}` has a schedule, but is no task of this app", "`@app.task` for the same function"
            )
        is_named = isinstance(self.params, Mapping) and not (isinstance(task, Task) and task.compiled.whole)
        try:
            return task.call(**self.params) if is_named else task.call(*(() if self.params is None else (self.params,)))
        except TypeError as error:
            raise error_at(self.place, f"the schedule cannot create its task: {error}", "`params={…}`") from None

    def _document(self, call: Call[Any]) -> dict[str, Any]:
        try:
            if isinstance(call.target, Task):
                call.target.load_own(parse(encode(call.params)))
            return call.document("schedule")
        except Mismatch as error:
            raise error_at(self.place, f"the params of the scheduled task do not fit `{call.target.name}`: {error}") from None
        except (TypeError, ValueError) as error:
            raise error_at(self.place, f"the schedule cannot create its task: {error}") from None


class ScheduleDecorator:
    """Declares a schedule: `@app.schedule("0 3 * * *", zone="Europe/Berlin")` above or below `@app.task`.

    `id`: name of the schedule; default: that of the task. `params`: those of the task. `app.schedule({…})` and
    `app.schedule("name", {…})` take the keys of `[schedules.NAME]`; `task` may be a call.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.declared: list[Declared] = []
        """Schedules in the order of their declarations."""

    @overload
    def __call__(
        self, cron: str | None = None, /, *, zone: str = ..., id: str = ..., params: Any = ..., **spec: Unpack[Firing]
    ) -> Callable[[T], T]: ...
    @overload
    def __call__(self, spec: ScheduleSpec, /) -> None: ...
    @overload
    def __call__(self, name: str, spec: ScheduleSpec, /) -> None: ...
    def __call__(self, *given: Any, params: Any = None, **named: Any) -> Any:
        place = "{0.filename}:{0.lineno}".format(inspect.getframeinfo(sys._getframe(1), 0))
        if given and isinstance(given[-1], Mapping):
            ids = {"id": given[0]} if len(given) == 2 else {}
            self._add({**given[-1], **ids, **named}, None, params, place)
            return None
        if len(given) > 1 or (given and not isinstance(given[0], str | None)):
            raise error_at(place, "a schedule is a cron expression, or a dict with the keys of `[schedules.NAME]`")
        zone = {"timezone": named.pop("zone")} if "zone" in named else {}
        spec = {**({"cron": given[0]} if given and given[0] else {}), **zone, **named}

        def declare(target: T) -> T:
            self._add(spec, target, params, place)
            return target

        return declare

    def _add(self, spec: dict[str, Any], target: Any, params: Any, place: str) -> None:
        for key in spec:
            if key not in _KEYS:
                close = [f"`{name}`" for name in get_close_matches({"zone": "timezone"}.get(key, key), _KEYS, 1)]
                raise error_at(place, f"`{key}` is not a key of a schedule", "".join(close))
        try:
            check_durations(spec)
        except TypeError as error:
            raise error_at(place, str(error)) from None
        if ("cron" in spec) == ("every" in spec):
            raise error_at(place, "a schedule needs either a cron expression or `every`")
        if target is None and "task" not in spec:
            raise error_at(place, "the schedule has no `task`", '`"task": report.call()`')
        self.declared.append(Declared(spec, target, params, place))

    def resolve(self, served: Collection[str]) -> dict[str, Any]:
        """Returns the schedules by name, without those of tasks that another process of the app serves."""
        found: dict[str, tuple[Declared, dict[str, Any]]] = {}
        for declared in self.declared:
            name, spec = declared.resolve(self._app)
            if spec["task"]["type"] in self._app.tasks and spec["task"]["type"] not in served:
                continue
            if name in found:
                problem = f"the schedule `{name}` is declared twice, first in {found[name][0].place}"
                raise error_at(declared.place, problem, '`id="…"` for one of them')
            found[name] = declared, spec
        return {name: spec for name, (_, spec) in found.items()}


def _is_behind(fn: Any, target: Any) -> bool:
    """Returns whether a function is another one, or wraps it."""
    while fn is not None and fn is not target:
        fn = getattr(fn, "__wrapped__", None)
    return fn is not None
