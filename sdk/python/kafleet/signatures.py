"""Signatures of functions that are declared as tasks."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from .task import Task


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # Annotations are evaluated when read: they may name classes that are defined further down.
        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def place_of(fn: Callable[..., Any]) -> str:
    """Returns file and line of a function, not those of its decorators."""
    code = getattr(inspect.unwrap(fn), "__code__", None) or fn.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def locals_of_caller() -> dict[str, Any]:
    """Local variables of the function that declares a task: annotations may name classes defined there."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]:
        frame = frame.f_back
    return dict(frame.f_locals) if frame and frame.f_locals is not frame.f_globals else {}


class _Annotation(str):
    """Annotation that was written as text."""

    def __repr__(self) -> str:
        return str.__str__(self)


def shown(task: Task[..., Any]) -> str:
    """Returns the name of a task with its params and its result, as in Python."""
    signature = task._signature
    params = [
        p.replace(annotation=_Annotation(p.annotation)) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
        if p.name != task._context_name
    ]
    returned = signature.return_annotation
    result = _Annotation(returned) if isinstance(returned, str) else returned
    return f"{task.name}{signature.replace(parameters=params, return_annotation=result)}"


def help_of(task: Task[..., Any]) -> str:
    """Returns the text that `help` shows."""
    where = f"Task of the bundle `{task.bundle}`" if task.bundle else "Task type"
    use = "`submit`, `call`, `using`, `map` and `handle` take or create tasks; `fn` is the function itself."
    return f"{shown(task)}\n\n{f'{task.doc}{chr(10) * 2}' if task.doc else ''}{where}, declared at {task.place}. {use}"


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of any other annotation, itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
