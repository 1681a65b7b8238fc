"""Documents of the API that programs read often, as types."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

State = Literal[
    "expected", "scheduled", "queued", "running", "retrying", "cancelling", "warning", "waiting_for_children",
    "succeeded", "cancelled", "expired", "failed",
]  # fmt: skip
"""State of a task; the last four are final."""


class Error(TypedDict):
    """Reason for the failure of a task or an attempt."""

    kind: str
    """Stable name for programs."""
    message: str
    attempt: int


class Counts(TypedDict):
    """Numbers of a task's direct children."""

    total: int
    pending: int
    successful: int
    failed: int
    by_state: dict[str, int]


class Totals(TypedDict):
    """Numbers and times of a task with all its descendants. Times are text in RFC 3339."""

    total: int
    pending: int
    successful: int
    failed: int
    started_at: str | None
    started_by: str | None
    ended_at: str | None
    ended_by: str | None
    execution_ms: int | None


class Status(TypedDict):
    """Status document of a task. Times are text in RFC 3339."""

    id: str
    parent: str | None
    root: str
    type: str | None
    state: State
    """Combined state of the task and its children."""
    own_state: State
    """State of the task itself, without its children."""
    run: int
    attempt: int
    waits: int
    interruptions: int
    name: str | None
    creator: str | None
    tags: list[str]
    link: str | None
    reply_to: str | None
    options: dict[str, Any] | None
    headers: dict[str, str]
    external: bool
    fail_fast: bool
    max_failed: int | None
    index: int | None
    then: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    unique: Any
    """Uniqueness of the task: its key, or an object with its rule."""
    deliveries: dict[str, Any] | None
    created_at: str | None
    seen_at: str | None
    started_at: str | None
    ended_at: str | None
    due_at: str | None
    state_since: str | None
    """Time since which an open task is in its state; of a running one the start of its attempt."""
    progress: Any
    result: Any
    error: Error | None
    """Last error of the task itself."""
    children: Counts
    tree: Totals
    worker: str | None
    record: str | None
    verdict: Literal["started", "kept", "joined"] | None
    """Verdict about the submission of a unique task, in the answer to it."""
    position: str
    """Position of the last event that is included."""
    duplicates: int
    superseded: bool
    """Whether the task belongs to an earlier run of its parent, and does not count."""
    trace_id: str | None
