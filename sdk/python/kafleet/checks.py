"""Checks of what declares and creates tasks, where it is written: keys, their values, and what is spawned."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from . import foreign
from .call import OPTIONS, POLICY, Call
from .outcomes import Duration, Time, refuse_number, whole_milliseconds
from .scalars import Mismatch
from .values import class_name, encode, parse, text_of

if TYPE_CHECKING:
    from .canvas import Group

DECLARED_ALONE = ("soft_timeout", "aliases")
"""Keywords of the decorator that are not part of the policy."""

_NESTED = {"rate": ("per",), "unique": ("for", "window", "max")}
"""Durations in dicts."""

_SHOWN_CHARS = 60
_FOLLOWS = "`then=[other.call()]` for a task that follows; `link` is a URL for people"


def check_keys(given: Mapping[str, Any], place: foreign.Place) -> None:
    """Raises `TypeError` for an unknown key, and for a value that is not of its kind. `None` stands for no value."""
    kinds, noun = (POLICY, "a key of a policy") if place == "type" else (OPTIONS, "an option of a task")
    for key, value in given.items():
        if key not in kinds:
            hint = _elsewhere(key, place) or foreign.remedy(key, place, value) or closest(key, kinds)
            raise TypeError(f"`{key}` is not {noun}" + (f"; hint: {hint}" if hint else ""))
        check_value(key, value, kinds[key])


def check_value(key: str, value: Any, kind: Any) -> None:
    """Raises `TypeError` for a value that is not of the kind of its key. `None` stands for no value."""
    if value is not None and (problem := _problem(key, value, kind)):
        raise TypeError(problem)


def closest(key: str, names: Iterable[str]) -> str:
    """Returns a hint to the name that was probably meant; empty, if none is near."""
    return "".join(f"did you mean `{name}`?" for name in get_close_matches(key, list(names), 1))


def _elsewhere(key: str, place: foreign.Place) -> str:
    """Returns the hint for a key of kafleet that belongs to another place; empty, if there is none."""
    if key in DECLARED_ALONE:
        where = "in the decorator of each task of the bundle" if place == "type" else "in the decorator of the task"
        return f"{where}: `@….task({key}=…)`"
    if place == "task" and key in POLICY:
        return foreign.belongs("type", f"`@app.task({key}=…)`")
    return foreign.belongs("task", f"`using({key}=…)`") if place == "type" and key in OPTIONS and key != "link" else ""


def _problem(key: str, value: Any, kind: Any) -> str:
    """Returns what is wrong with a value, and what to do; empty, if it is right."""
    if key in ("fail_on", "retry_on"):
        return _problem_of_errors(key, value)
    if key in _NESTED and isinstance(value, Mapping):
        nested = (_problem(name, item, Duration) for name, item in value.items() if name in _NESTED[key])
        return next((f"`{key}`: {problem}" for problem in nested if problem), "")
    origin, hint = typing.get_origin(kind) or kind, ""
    if kind == Duration:
        is_right, noun = _is_duration(key, value) or (key == "expires" and _is_time(value)), "a duration of 0 or more"
        hint = '"30s", or datetime.timedelta(seconds=30)'
    elif kind == Time:
        is_right, noun = _is_time(value), "a time with a time zone"
        hint = _hint_of_time(key, value)
    elif key == "unique":
        is_right, noun = isinstance(value, str | Mapping), "a key or a dict"
        hint = '`unique="customer-42"`, or `unique={"key": "customer-42", "mode": "latest"}`'
    elif origin is typing.Literal:
        choices = typing.get_args(kind)
        is_right, noun = value in choices, f"one of {', '.join(f'`{choice}`' for choice in choices)}"
    elif kind is str:
        is_right, noun, hint = isinstance(value, str), "text", _FOLLOWS if key == "link" else f'`{key}="{_shown(value)}"`'
    elif kind is int:
        is_right, noun = type(value) is int and value >= 0, "a whole number, 0 or more"
    elif kind is bool:
        is_right, noun = isinstance(value, bool), "`True` or `False`"
    elif origin is Mapping:
        is_right, noun = isinstance(value, Mapping), "a dict"
        hint = foreign.remedy("rate_limit", "type", value) if key == "rate" else ""
    else:
        is_right, noun = isinstance(value, Sequence) and not isinstance(value, str | bytes), "a list"
        hint = f"`{key}=[{_shown(value)}]`"
    return "" if is_right else f"`{key}={_shown(value)}` is not {noun}{hint and f'; hint: {hint}'}"


def _is_duration(key: str, value: Any) -> bool:
    """Returns whether a value is a duration with its unit, 0 or more. Raises `TypeError` for a number."""
    refuse_number(key, value)
    if not isinstance(value, str):
        return isinstance(value, timedelta) and value >= timedelta()
    with suppress(ValueError):
        return whole_milliseconds(value) >= 0
    return False


def _is_time(value: Any) -> bool:
    """Returns whether a value is a time with a zone: without one it is another time on each machine."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value.strip())
    return isinstance(value, datetime) and value.tzinfo is not None


def _hint_of_time(key: str, value: Any) -> str:
    if isinstance(value, datetime):
        return "`datetime.now(timezone.utc)`, or `.astimezone()`"
    return '`delay="30s"`' if key == "at" and not isinstance(value, str) else '"2026-12-24T18:00:00+01:00"'


def _problem_of_errors(key: str, value: Any) -> str:
    if isinstance(value, str | type):
        return f"`{key}={_shown(value)}` is not a list; hint: `{key}=[{_shown(value)}]`"
    for kind in value if isinstance(value, Iterable) else [value]:
        if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, BaseException))):
            return f"`{key}` has `{_shown(kind)}`; hint: list classes of exceptions, and names of kinds"
    return ""


def _shown(value: Any) -> str:
    text = value.__name__ if isinstance(value, type) else text_of(repr(value))
    return text if len(text) <= _SHOWN_CHARS else "…"


def calls_of(tasks: Any) -> Iterator[Call[Any]]:
    """Returns the calls in a list. Raises `TypeError` for something else."""
    if not isinstance(tasks, Iterable):
        raise TypeError(f"`{class_name(tasks)}` is not a list of calls; hint: `[task.call(…), …]`")
    return (call_of(task)._as_call() for task in tasks)


def call_of(task: Any, args: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None) -> Call[Any] | Group[Any]:
    """Returns a call of a task, or the call or group that was given. Raises `TypeError` if it is none of them."""
    from .canvas import Group
    from .task import Submittable

    if isinstance(task, Submittable):
        return task.call(*args, **named or {})
    if not isinstance(task, Call | Group):
        name = task if isinstance(task, str) else getattr(task, "__name__", _shown(task))
        hint = f'`app.remote("{name}")`' if isinstance(task, str) else "a function with `@app.task`, then its arguments"
        raise TypeError(f"`{name}`, of the type `{class_name(task)}`, is not a task; hint: {hint}")
    if args or named:
        given = f"the call of `{task.target.name}`" if isinstance(task, Call) else "a group"
        raise TypeError(f"{given} has its arguments already: they belong into `call(…)`")
    return task


def check_params(call: Call[Any]) -> None:
    """Raises `TypeError` if the params of a call, or of those that follow it, do not have the types of the task declared here."""
    from .task import Task

    if isinstance(call.target, Task):
        try:
            call.target.load_own(parse(encode(call.params)))
        except Mismatch as error:
            raise TypeError(f"`{call.target.name}` does not take these params: {error}") from None
    for following in call.options.get("then", ()):
        if isinstance(following, Call):
            check_params(following)


def problem_of_function(fn: Any) -> str:
    """Returns why something cannot be declared as a task, and what to do; empty, if it is a function."""
    if inspect.isfunction(fn):
        return ""
    if isinstance(fn, staticmethod | classmethod) or inspect.ismethod(fn):
        return f"`{fn.__func__.__name__}` is a method; hint: declare a function of the module"
    name = getattr(fn, "name", None)
    problem = f"`{name}` is declared already" if isinstance(name, str) else f"`{text_of(fn)[:100]}` is not a function"
    return f"{problem}: put the decorator directly above `def`"


def problem_of_unannotated(fn: Callable[..., Any], name: str) -> tuple[str, str]:
    """Returns what is wrong with a parameter without an annotation, and what to use."""
    *_, owner, _ = "", *fn.__qualname__.split(".")
    if name == "self" and owner not in ("", "<locals>"):
        problem = f"`{fn.__qualname__}` is a method: a task has no object to call it on"
        return problem, "a function of the module, with what it needs as params"
    hint = "`cx: Context`, the context of the attempt" if name == "self" else f"`{name}: str`, or `cx: Context` for the context"
    return f"the parameter `{name}` of `{fn.__name__}` has no annotation", hint
