"""Exceptions of the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .status import Status

_REQUEST = re.compile(r"`?\b((?:GET|POST|PUT|PATCH|DELETE) /(?:v1/|openapi)[^\s`,;)]+)`?")
_CALLS = [
    (r"GET /v1/types", r"app.types()"),
    (r"GET /v1/tasks(\?.*)?", r"app.tasks.search(…)"),
    (r"POST /v1/tasks/([^/]+)/retry", r'app.handle("\1").retry()'),
    (r"POST /v1/tasks/([^/]+)/start", r'app.handle("\1").start_now()'),
    (r"GET /v1/tasks/([^/]+)/children", r'app.handle("\1").children()'),
    (r"GET /v1/schedules", r"app.schedules.list()"),
    (r"PUT /v1/schedules/([^/]+)", r'app.schedules.upsert("\1", …)'),
    (r"DELETE /v1/schedules/([^/]+)", r'app.schedules.delete("\1")'),
    (r"(\w+) (.*)", r'app.client.request("\1", "\2")'),
]
"""Calls of the SDK for requests to the API; the first one that matches."""


def in_python(hint: str) -> str:
    """Returns a hint of the API with calls of the SDK instead of requests."""
    return _REQUEST.sub(_call_for, hint)


def _call_for(found: re.Match[str]) -> str:
    return next(f"`{match.expand(call)}`" for request, call in _CALLS if (match := re.fullmatch(request, found[1])))


class ApiError(Exception):
    """The API refuses a request. `code` is the stable name of the problem."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        """HTTP status; 0: no answer."""
        self.code: str = document.get("code") or f"http_{status}"
        self.detail: str = document.get("detail") or document.get("title") or ""
        self.hint: str | None = in_python(document.get("hint") or "") or None
        self.pointer: str | None = document.get("pointer")
        """JSON pointer of the invalid value in the request."""
        self.existing: str | None = document.get("existing")
        """Id of the task concerned."""
        hint = f"; hint: {self.hint}" if self.hint else ""
        super().__init__(f"{self.code}: {self.detail}{f' at {self.pointer}' if self.pointer else ''}{hint}")


class Invalid(ApiError):
    """The request is invalid: params that do not match the schema, unknown fields, a task that is too large."""


class Forbidden(ApiError):
    """The token is missing, invalid, or not sufficient."""


class NotFound(ApiError):
    """There is no such task, parent or type."""


class Conflict(ApiError):
    """The request contradicts the state of the task, or its id belongs to another task."""


class Unavailable(ApiError):
    """The API, Kafka or the store is unavailable. The request can be repeated with the same ids."""


_BY_STATUS: dict[int, type[ApiError]] = {
    0: Unavailable, 400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 410: NotFound, 413: Invalid,
    415: Invalid, 422: Invalid, 502: Unavailable, 503: Unavailable, 504: Unavailable,
}  # fmt: skip


def problem(status: int, document: dict[str, Any]) -> ApiError:
    """Returns the exception for a problem document."""
    return _BY_STATUS.get(status, ApiError)(status, document)


class TaskFailed(Exception):
    """A task has ended without success. `kind` and `message` are those of the descendant that decided this, if one did."""

    explain: ClassVar[Callable[[TaskFailed], str] | None] = None
    """Returns a note, such as the log of the task in tests."""

    def __init__(self, status: Status, decisive: Status | None = None) -> None:
        failed = decisive or status
        error: Mapping[str, Any] = failed["error"] or {}
        self.id: str = status["id"]
        self.state: str = status["state"]
        """`failed`, `cancelled` or `expired`."""
        self.descendant: str | None = decisive["id"] if decisive else None
        """Id of the descendant that decided this; `None` if it was the task itself."""
        self.kind: str | None = error.get("kind")
        """Stable name of the last error."""
        self.message: str = error.get("message") or ""
        reason = "".join(f": {part}" for part in (self.kind, self.message) if part)
        if decisive:
            reason = f" because of its descendant `{self.descendant}`{reason}"
        elif status["own_state"] == "succeeded":
            reason = f" because of a descendant; hint: `kafleet why {self.id}` names that task"
        super().__init__(f"the task `{self.id}` ended as {self.state}{reason}")
        if TaskFailed.explain:
            self.add_note(TaskFailed.explain(self))
