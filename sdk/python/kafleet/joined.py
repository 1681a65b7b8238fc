"""Context of a continuation, with the outcomes of the tasks before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from .context import Context
from .values import settled

T = TypeVar("T")


@dataclass(frozen=True)
class Ended(Generic[T]):
    """Outcome of one task."""

    id: str
    type: str | None
    state: str
    output: T | None = None
    """Result of a task that succeeded."""
    error: dict[str, Any] | None = None
    """Error of a task that did not: `kind`, `message`, `attempt`."""


class Outcomes(NamedTuple):
    """Loaded params of a continuation, with what comes before it."""

    params: dict[str, Any]
    task: dict[str, Any]
    results: list[dict[str, Any]]
    load: Callable[[Any], Any]
    """Loads the result of a child."""


class Joined(Context, Generic[T]):
    """Context of a continuation with the outcomes of the task before it and of that task's children."""

    __slots__ = ("results", "task")

    task: Ended[Any]
    """Task that this one continues."""
    results: list[Ended[T]]
    """Its other children, in the order in which they were spawned."""

    def join(self, loaded: Outcomes) -> dict[str, Any]:
        """Takes the outcomes out of the loaded params, and returns the params of the handler."""
        self.task = _ended(loaded.task, None)
        self.results = [_ended(result, loaded.load) for result in loaded.results]
        return loaded.params


def _ended(document: dict[str, Any], load: Callable[[Any], Any] | None) -> Ended[Any]:
    read = load if load and document["state"] == "succeeded" else settled
    return Ended(document["id"], document.get("type"), document["state"], read(document.get("output")), document.get("error"))
