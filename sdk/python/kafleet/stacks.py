"""Stacks of running attempts, for the logs of tasks that exceed their time."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .outcomes import seconds_text

if TYPE_CHECKING:
    from .attempt import Attempt

_MAX_FRAMES = 100
_MAX_CHARS = 16 << 10
_SDK = str(Path(__file__).parent)
_ATTEMPT = str(Path(__file__).with_name("attempt.py"))


def log_stack(attempt: Attempt, reason: str, blocked: int | None = None) -> None:
    """Adds the stack of an attempt to its log, once. `blocked`: the thread of its event loop, if that does not run."""
    if attempt.is_shown:
        return
    attempt.is_shown = True
    frames = _frames(attempt.runs_in if blocked is None else blocked)
    lines = "".join(traceback.StackSummary.extract(iter(frames)).format())[-_MAX_CHARS:].rstrip()
    what = f"timeout of {seconds_text(attempt.cx.timeout)}" if reason == "timeout" else "no activity within `stall_timeout`"
    more = "" if blocked is None else ", and the event loop is blocked"
    attempt.cx.log(f"{what}{more}, at:", lines or "  (before the handler)", silent=True)


def _frames(where: Any) -> list[tuple[FrameType, int]]:
    """Returns the frames of a thread or of a task of asyncio, the newest last, without those of the SDK."""
    found = _thread(where) if isinstance(where, int) else _awaits(where)
    frames = [frame for frame in islice(found, _MAX_FRAMES) if not frame[0].f_code.co_filename.startswith(_SDK)]
    return frames[::-1] if isinstance(where, int) else frames


def _thread(ident: Any) -> Iterator[tuple[FrameType, int]]:
    """Returns the frames of a thread from the newest on, up to the start of its attempt."""
    for frame, line in traceback.walk_stack(sys._current_frames().get(ident)):
        if frame.f_code.co_filename == _ATTEMPT:
            return
        yield frame, line


def _awaits(task: Any) -> Iterator[tuple[FrameType, int]]:
    """Returns the frames of a task of asyncio from its start on, and of the tasks that it waits for."""
    while task is not None and hasattr(task, "get_coro"):
        step = task.get_coro()
        while step is not None:
            frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None) or getattr(step, "ag_frame", None)
            if frame:
                yield frame, frame.f_lineno
            step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None) or getattr(step, "ag_await", None)
        task = getattr(task, "_fut_waiter", None)
