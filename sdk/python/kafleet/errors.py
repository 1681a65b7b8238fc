"""Exceptions of the client."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """The API refuses a request. `code` is the stable name of the problem."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        """HTTP status; 0: no answer."""
        self.code: str = document.get("code") or f"http_{status}"
        self.detail: str = document.get("detail") or document.get("title") or ""
        self.hint: str | None = document.get("hint")
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
    """A task has ended without success."""

    def __init__(self, status: dict[str, Any]) -> None:
        error = status.get("error") or {}
        self.id: str = status["id"]
        self.state: str = status["state"]
        """`failed`, `cancelled` or `expired`."""
        self.kind: str | None = error.get("kind")
        """Stable name of its last error; `None` if only a descendant has failed."""
        self.message: str = error.get("message") or ""
        reason = "".join(f": {part}" for part in (self.kind, self.message) if part)
        if status.get("own_state") == "succeeded":
            reason = f" because of a descendant; hint: `kafleet why {self.id}` names that task"
        super().__init__(f"the task `{self.id}` ended as {self.state}{reason}")
