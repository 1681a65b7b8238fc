"""Apps: programs that declare task types and run their attempts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from .declare import Bundle, TaskDecorator, add
from .settings import Policy
from .task import DeclarationError, Remote, Task
from .values import text_of

if TYPE_CHECKING:
    from .client import Client, Handle
    from .errors import ApiError
    from .task import Call

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Collection of task types.

    `slots`: attempts at once in one process; default 10 if all handlers are async, else 1. `strict`: unknown params
    are refused. `lifespan`: a function of the app that returns a context manager, entered before the first attempt;
    its value is `cx.state`. `api`, `token`: URL of the API and bearer token; default: KAFLEET_API and KAFLEET_TOKEN.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        strict: bool = False,
        lifespan: Callable[[App], Any] | None = None,
        api: str | None = None,
        token: str | None = None,
    ) -> None:
        if slots is not None and not 1 <= slots <= 1000:
            raise DeclarationError(f"`slots` is {slots}: 1 to 1,000 are allowed")
        self.strict, self.lifespan = strict, lifespan
        self.tasks: dict[str, Task[..., Any] | Bundle] = {}
        """Declared types by name."""
        self.handlers: list[Task[..., Any]] = []
        """Declared tasks, also those in bundles."""
        self.task = TaskDecorator(self)
        """Declares a task type, as `@app.task` or `@app.task(retries=5)`."""
        self.arounds: list[Callable[[Any], Any]] = []
        self._slots, self._api, self._token = slots, api, token
        self._client: Client | None = None

    def bundle(self, name: str, /, **policy: Unpack[Policy]) -> Bundle:
        """Declares one type for many small tasks, which share its topic and its policy: `@small.task` adds a function."""
        bundle = Bundle(self, name, policy)
        add(self.tasks, bundle)
        return bundle

    def new_task(self, fn: Callable[..., Any], name: str | None, policy: dict[str, Any]) -> Task[..., Any]:
        """Returns a task that is a type of its own."""
        return Task(self, fn, name, policy)

    def around(self, fn: F) -> F:
        """Wraps each attempt in a generator function: it receives the context, and yields once."""
        if not inspect.isgeneratorfunction(inspect.unwrap(fn)):
            name = getattr(fn, "__name__", text_of(fn))
            raise DeclarationError(f"`{name}` is not a generator function: `yield` once, where the attempt runs")
        self.arounds.append(fn)
        return fn

    def remote(self, name: str) -> Remote:
        """Returns a task type that another program runs."""
        return Remote(self, name)

    @property
    def client(self) -> Client:
        """Client of the API."""
        from .client import DEFAULT_URL, Client

        url = self._api or os.environ.get("KAFLEET_API") or DEFAULT_URL
        if self._client is None or self._client.url != url.rstrip("/"):
            self._client = Client(url, self._token)
        return self._client

    def submit_many(self, calls: Iterable[Call[R]]) -> list[Handle[R] | ApiError]:
        """Creates tasks in batches of up to 1,000; each has its own outcome, in order."""
        return self.client.run(self.client.create_many(calls))

    async def asubmit_many(self, calls: Iterable[Call[R]]) -> list[Handle[R] | ApiError]:
        """Creates tasks in batches of up to 1,000; each has its own outcome, in order."""
        return await self.client.arun(self.client.create_many(calls))

    @property
    def slots(self) -> int:
        """Attempts at once in one process."""
        all_async = bool(self.handlers) and all(task.is_async for task in self.handlers)
        return self._slots or (10 if all_async else 1)

    def main(self) -> None:
        """Serves the worker that started this program; for `kafleet worker -- python shop.py`."""
        from .session import serve

        serve(lambda: self)
