"""Text of exceptions for people: tracebacks with causes and groups, whatever the exceptions' own code does."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sized
from pathlib import Path

from .values import class_name, text_of

MAX_MESSAGE_CHARS = 2000
_MAX_STACK_CHARS = 16 << 10
_MAX_CAUSES = 100
_MAX_FRAMES = 1000
_SHOWN_MEMBERS = 10
"""Members of a group whose text and traceback are shown."""
_HIDDEN_FRAMES = (str(Path(__file__).parent), str(importlib.__file__), "<frozen")


def only_member(error: BaseException) -> BaseException:
    """Returns the exception that is alone in a group, as `asyncio.TaskGroup` raises it; others as they are."""
    for _ in range(_MAX_CAUSES):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            break
        error = error.exceptions[0]
    return error


def message_of(error: BaseException) -> str:
    """Returns the text of an exception, or else its class; of a group, also its members."""
    text = text_of(error) or class_name(error)
    if not isinstance(error, BaseExceptionGroup):
        return text
    members = error.exceptions
    parts = [f"{class_name(member)}: {text_of(member)[:MAX_MESSAGE_CHARS]}" for member in members[:_SHOWN_MEMBERS]]
    more = f"; and {len(members) - _SHOWN_MEMBERS} more" if len(members) > _SHOWN_MEMBERS else ""
    return f"{text}: {'; '.join(parts)}{more}"


def stack_of(error: BaseException) -> str:
    """Returns the traceback of an error without the frames of the SDK; its newest part, if it is long."""
    try:
        error = _first_members(error)
        if not _is_small(error):
            return (
                f"{class_name(error)}: {text_of(error)[:MAX_MESSAGE_CHARS]}\n(no traceback: over {_MAX_CAUSES} causes and notes)"
            )
        lines = traceback.TracebackException.from_exception(error, limit=-_MAX_FRAMES)
        _hide_frames(lines)
        return "".join(lines.format())[-_MAX_STACK_CHARS:].rstrip()
    except BaseException as unexpected:
        reason = f"(no traceback: {class_name(unexpected)} while it was formatted)"
        return f"{class_name(error)}: {text_of(error)[:MAX_MESSAGE_CHARS]}\n{reason}"


def _first_members(error: BaseException) -> BaseException:
    """Returns a large group with its first members only."""
    if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) <= _SHOWN_MEMBERS:
        return error
    text = f"{text_of(error)}, of which these are the first"
    kept = BaseExceptionGroup(text, error.exceptions[:_SHOWN_MEMBERS]).with_traceback(error.__traceback__)
    kept.__cause__, kept.__context__, kept.__suppress_context__ = error.__cause__, error.__context__, error.__suppress_context__
    return kept


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


def _hide_frames(error: traceback.TracebackException) -> None:
    """Removes the frames of the SDK, also from causes and members of groups."""
    pending, seen = [error], set[int]()
    while pending:
        found = pending.pop()
        if id(found) not in seen:
            seen.add(id(found))
            frames = [frame for frame in found.stack if not frame.filename.startswith(_HIDDEN_FRAMES)]
            found.stack = traceback.StackSummary.from_list(frames)
            below = (found.__cause__, found.__context__, *(getattr(found, "exceptions", None) or ()))
            pending += [item for item in below if item is not None]
