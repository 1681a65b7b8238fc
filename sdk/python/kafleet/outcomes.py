"""Exceptions that decide the outcome of an attempt."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

Duration = str | timedelta
"""Duration: text such as `30s`, or a `timedelta`."""

Time = str | datetime
"""Time with its zone: text in RFC 3339, or a `datetime`."""


def milliseconds(duration: timedelta) -> int:
    """Returns a duration in whole milliseconds."""
    return round(duration.total_seconds() * 1000)


def refuse_number(name: str, duration: object) -> None:
    """Raises `TypeError` if a duration is a number: the fleet reads milliseconds, and Python's functions take seconds."""
    if isinstance(duration, int | float):
        raise TypeError(f'`{name}={duration}` is not a duration; hint: write "30s" or datetime.timedelta(seconds=30)')


class Outcome(Exception):
    """Base of the failures that a handler raises on purpose.

    `kind` is the stable name for programs; default: `error`, for subclasses their class name. Constructors of subclasses
    need not call this one.
    """

    outcome = "retry"
    kind = "error"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__module__ != __name__ and "kind" not in cls.__dict__ and not issubclass(cls, Unsuccessful):
            cls.kind = kind_of(cls.__name__)

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        if kind:
            self.kind = kind_of(kind)

    @property
    def message(self) -> str:
        """Reason for people."""
        return str(self) or type(self).__name__


class Fail(Outcome):
    """Ends the task as failed, without another attempt."""

    outcome = "fail"


class Unsuccessful(Fail):
    """Ends work that completed without success, and would end the same way again. The `kind` is that of its subclasses too."""

    kind = "unsuccessful"


class Dead(Outcome):
    """Ends the task as failed and keeps it in the dead letters, for a redrive after the cause is fixed."""

    outcome = "dead"


class Retry(Outcome):
    """Requests another attempt, after the backoff of the type or after `after`."""

    after_ms: int | None = None

    def __init__(self, message: str = "", *, after: Duration | None = None, kind: str | None = None) -> None:
        super().__init__(message, kind=kind)
        self.after_ms = None if after is None else whole_milliseconds(after)


class Wait(Retry):
    """Lets the task wait for `after`, or for a growing time; the attempt is not counted.

    For reasons outside of the task, such as the rate limit of a service.
    """

    outcome = "wait"


class SpawnFailed(Outcome):
    """Children could not be published at once. Unhandled, it leads to another attempt."""


class SoftTimeout(Outcome):
    """The handler has run for its `soft_timeout`, and should end. Unhandled, it leads to another attempt."""

    kind = "soft_timeout"


class Cancelled(BaseException):
    """The attempt was cancelled. Not an `Exception`, so that `except Exception` does not catch it."""


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def whole_milliseconds(duration: Duration, name: str = "after") -> int:
    """Returns a duration in milliseconds, at least 0. Raises `TypeError` or `ValueError`.

    Text needs a unit: a bare number is milliseconds in requests, and seconds in most tools. `0` needs none.
    """
    refuse_number(name, duration)
    if isinstance(duration, timedelta):
        return max(milliseconds(duration), 0)
    found = re.fullmatch(r"([0-9]{1,18})\s*(ms|s|m|h|d)|0", duration.strip())
    if found is None:
        raise ValueError(f"`{duration}` is not a duration; hint: write `1500ms`, `30s`, `10m`, `2h` or `7d`")
    return int(found[1] or 0) * _UNITS[found[2] or "ms"]


def seconds_text(seconds: float) -> str:
    """Returns a time for people: `200 ms`, `6 s`, `1.5 s`."""
    seconds = seconds if seconds < 0.1 else round(seconds, 2)  # 999 ms are left of a second when an attempt starts.
    return f"{round(seconds * 1000)} ms" if seconds < 1 else f"{seconds:.1f}".removesuffix(".0") + " s"


def kind_of(name: str) -> str:
    """Returns a name with the characters and the length that the protocol allows for a kind."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64] or "error"
