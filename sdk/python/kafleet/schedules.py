"""Schedules that are declared beside the tasks: the decorator, and their form in the `ready` message."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar, Unpack, get_type_hints, overload

from . import foreign
from .call import Call, _plain
from .checks import call_of, check_params, check_value, closest
from .outcomes import Duration, Time, whole_milliseconds
from .task import Submittable, Task, error_at
from .values import encode

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
    start_at: Time
    """No firing before this time."""
    end_at: Time
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


KINDS = {**get_type_hints(ScheduleSpec), "zone": str}
"""Keys of a schedule with their types. `zone` is another name for `timezone`, as in the decorator."""

_CRON = re.compile(r"@(annually|daily|hourly|midnight|monthly|weekly|yearly)|\S+(\s+\S+){4,5}")
_MILLISECONDS_OF_SECOND = 1000


def checked_spec(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a schedule in the words of `[schedules.NAME]`. Raises `TypeError` for a wrong key or value.

    All schedules of the code go through here: those of the decorator, of dicts and of `upsert`.
    """
    for key, value in given.items():
        if key not in KINDS:
            hint = foreign.SCHEDULE.get(foreign.plain(key)) or closest(key, KINDS)
            raise TypeError(f"`{key}` is not a key of a schedule" + (f"; hint: {hint}" if hint else ""))
        if key != "task":
            check_value(key, value, KINDS[key])
    spec = {key: value for key, value in given.items() if value is not None}
    if "zone" in spec:
        if "timezone" in spec:
            raise TypeError("a schedule has `zone` and `timezone`, which are the same; hint: remove one")
        spec["timezone"] = spec.pop("zone")
    if ("cron" in spec) == ("every" in spec):
        raise TypeError("a schedule needs either a cron expression or `every`")
    _check_times(spec)
    return spec


def _check_times(spec: Mapping[str, Any]) -> None:
    if "every" in spec:
        interval = whole_milliseconds(spec["every"], "every")
        if not interval or interval % _MILLISECONDS_OF_SECOND:
            raise TypeError(f'`every={spec["every"]!r}` is not a number of whole seconds from 1; hint: "10m"')
        if "timezone" in spec:
            raise TypeError("`zone` is for a cron expression: an interval is the same everywhere; hint: remove it")
    elif not _CRON.fullmatch(spec["cron"].strip()):
        fields = "five fields, or six with seconds in front, or `@daily` and the like"
        raise TypeError(f'`{spec["cron"]}` is not a cron expression: {fields}; hint: "0 3 * * *" is 3:00 each day')


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
        try:
            name, document = scheduled(task)
        except (TypeError, ValueError) as error:
            raise error_at(self.place, f"the schedule cannot create its task: {error}") from None
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


def scheduled(task: Any) -> tuple[str, dict[str, Any]]:
    """Returns the name of a scheduled task, and its document. Raises `TypeError` or `ValueError`.

    `task`: a call, a task without params, or the fields of a task.
    """
    if isinstance(task, Mapping):
        if not isinstance(task.get("type"), str):
            raise TypeError("the `task` of the schedule has no `type`; hint: `task=report.call()`")
        return task["type"], _plain(dict(task))
    (call,) = call_of(task)._calls()
    check_params(call)
    return call.target.name, call.document("schedule")


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
        spec = {**({"cron": given[0]} if given and given[0] else {}), **named}

        def declare(target: T) -> T:
            self._add(spec, target, params, place)
            return target

        return declare

    def _add(self, spec: dict[str, Any], target: Any, params: Any, place: str) -> None:
        try:
            spec = checked_spec(spec)
        except TypeError as error:
            raise error_at(place, str(error)) from None
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
