"""Calls of task types: tasks to create, with their params and options."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from . import outbox
from .foreign import Unpiped
from .outcomes import Duration, Time, milliseconds
from .settings import Limits, Policy
from .values import encode

if TYPE_CHECKING:
    from .handle import Handle
    from .task import Submittable

R = TypeVar("R")


class Options(Limits, total=False):
    """Attributes of a single task besides its type and params."""

    id: str
    key: str
    parent: str
    name: str
    creator: str
    tags: Sequence[str]
    link: str
    reply_to: str
    on_failure: Literal["fail", "ignore"]
    options: Mapping[str, Any]
    headers: Mapping[str, str]
    fail_fast: bool
    max_failed: int
    then: Sequence[Call[Any] | Mapping[str, Any]]
    actions: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    unique: str | Mapping[str, Any]
    delay: Duration
    at: Time
    expires: Duration
    on: Literal["succeeded", "failed", "ended"]
    with_results: bool


Scope = Literal["submit", "spawn", "then", "schedule"]
_NOT_IN: dict[Scope, set[str]] = {
    "submit": {"on", "with_results"},
    "spawn": {"on", "with_results", "parent", "unique"},
    "then": {"id", "parent", "delay", "at", "expires", "creator", "link", "total_timeout", "reply_to", "options", "unique"},
    "schedule": {"id", "parent", "delay", "at", "on", "with_results", "total_timeout", "reply_to", "unique"},
}
_PLACES = {"submit": "a submitted task", "spawn": "a child", "then": "a continuation", "schedule": "a scheduled task"}


@dataclass(frozen=True)
class Call(Unpiped, Generic[R]):
    """One task to create: a type with its params and options."""

    target: Submittable[Any, R]
    params: Any
    options: Options = field(default_factory=Options)

    def document(self, scope: Scope) -> dict[str, Any]:
        """Returns the task as the API and the worker accept it."""
        wrong = sorted(_NOT_IN[scope].intersection(self.options))
        if wrong:
            raise TypeError(f"`{wrong[0]}` is not an option of {_PLACES[scope]} (`{self.target.name}`)")
        if scope != "then" and (problem := self.target.missing(self.params)):
            raise TypeError(f"`{self.target.name}` {problem}")
        options = {key: _plain(value) for key, value in self.options.items()}
        joined = {"with_results": True} if scope == "then" and self.target.takes_results(self.params) else {}
        return {"type": self.target.type, "params": self.params, **joined, **self.target.labelled(options)}

    def encoded(self, scope: Scope) -> bytes:
        """Returns the document as JSON."""
        try:
            return encode(self.document(scope))
        except ValueError as error:
            raise ValueError(f"the task of type `{self.target.name}` is {error}") from None

    def submit(self) -> Handle[R]:
        """Creates the task and returns its handle. Raises `ApiError`."""
        client = self.target.app.client
        return client.run(client.create(self))

    async def asubmit(self) -> Handle[R]:
        """Creates the task and returns its handle. Raises `ApiError`."""
        client = self.target.app.client
        return await client.arun(client.create(self))

    def submit_in(self, tx: Any) -> Handle[R]:
        """Creates the task with a transaction of a database: see `Submittable.submit_in`."""
        return self.target.handle(outbox.insert(tx, self))

    async def asubmit_in(self, tx: Any) -> Handle[R]:
        """Creates the task with a transaction of an asynchronous driver: see `Submittable.submit_in`."""
        return self.target.handle(await outbox.ainsert(tx, self))

    def _calls(self) -> Sequence[Call[Any]]:
        return (self,)

    def _as_call(self) -> Call[R]:
        return self

    def unwritable_labels(self) -> list[str]:
        """Returns those options for people that have no JSON form, such as a name with half of an emoji."""
        return [key for key in _LABELS if not _is_json(self.options.get(key))]

    def without(self, labels: Iterable[str]) -> Call[R]:
        """Returns the same task without these options."""
        options: Any = {key: value for key, value in self.options.items() if key not in labels}
        return replace(self, options=options)


_LABELS = ("name", "tags", "creator", "link")


def _is_json(value: object) -> bool:
    try:
        encode(value)
    except ValueError:
        return False
    return True


OPTIONS, POLICY = typing.get_type_hints(Options), typing.get_type_hints(Policy)
"""Keys with their types."""


def _plain(value: Any) -> Any:
    if isinstance(value, Call):
        return value.document("then")
    if isinstance(value, timedelta):
        # A bare number of more than 18 days may be epoch seconds, and is refused.
        return f"{milliseconds(value)}ms"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
