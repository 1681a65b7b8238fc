"""Apps: programs that declare task types and run their attempts."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from urllib.parse import urlencode
from weakref import WeakSet

from . import foreign
from .address import url_of
from .canvas import External
from .declare import Bundle, TaskDecorator, add
from .fleet_api import Bulk, DeadLetters, Schedules, Tasks
from .handle import Handle, Unknown
from .schedules import ScheduleDecorator
from .settings import Policy
from .steps import Item, Items, Request, Steps, aiterated, awaited, blocking, iterated
from .task import DeclarationError, Remote, Task
from .values import decode, text_of

if TYPE_CHECKING:
    from .call import Call
    from .client import Client
    from .errors import ApiError

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


_created: WeakSet[App] = WeakSet()


class App(foreign.Named):
    """Collection of task types.

    `slots`: attempts at once in one process; default 10, or 1 if all handlers are synchronous. `threads`: attempts of
    synchronous handlers at once, counted apart from `slots` if there are asynchronous ones; default 1, on the main thread, or
    as many as slots if a bundle has both kinds.
    `strict`: unknown params are refused. `lifespan`: a function of the app that returns a context manager, entered before the
    first attempt; its value is `cx.state`. `include`: names of modules with further tasks. They import this app, and are
    imported when it is served or checked. `api`, `token`: URL of the API and bearer token; default: KAFLEET_API and
    KAFLEET_TOKEN, or the API of `kafleet dev` in the working directory.
    """

    _foreign = ("an app", foreign.APP)

    if not TYPE_CHECKING:  # Type checkers refuse such arguments themselves.

        def __new__(cls, *args: object, **kwargs: object) -> App:
            foreign.check_app(args, kwargs)
            return super().__new__(cls)

    def __init__(
        self,
        *,
        slots: int | None = None,
        threads: int | None = None,
        strict: bool = False,
        lifespan: Callable[[App], Any] | None = None,
        include: Sequence[str] = (),
        api: str | None = None,
        token: str | None = None,
    ) -> None:
        for name, number in (("slots", slots), ("threads", threads)):
            if number is not None and not 1 <= number <= 1000:
                raise DeclarationError(f"`{name}` is {number}: 1 to 1,000 are allowed")
        if isinstance(include, str):
            raise DeclarationError(f"`include={include!r}` is not a list; hint: write `include=[{include!r}]`")
        caller = sys._getframe(1)
        self.place = f"{os.path.abspath(caller.f_code.co_filename)}:{caller.f_lineno}"
        self.module: str = caller.f_globals.get("__name__", "")
        self.strict, self.lifespan, self.include = strict, lifespan, tuple(include)
        self.tasks = Tasks(self)
        """Declared types by name; `search` finds tasks of the fleet."""
        self.bulk, self.dead_letters, self.schedules = Bulk(self), DeadLetters(self), Schedules(self)
        self.handlers: list[Task[..., Any]] = []
        """Declared tasks, also those in bundles."""
        self.task = TaskDecorator(self)
        """Declares a task type, as `@app.task` or `@app.task(retries=5)`."""
        self.schedule = ScheduleDecorator(self)
        """Declares a schedule, as `@app.schedule("0 3 * * *")` beside `@app.task`."""
        self.arounds: list[Callable[[Any], Any]] = []
        self._slots, self._threads, self._api, self._token = slots, threads, api, token
        self._client: Client | None = None
        _created.add(self)

    def others(self) -> list[App]:
        """Returns the other apps of this program that declare tasks."""
        return sorted((app for app in _created if app is not self and app.tasks), key=lambda app: app.place)

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

    def external(self, name: str) -> External:
        """Returns a task type that an external system runs and reports on."""
        return External(self, name)

    def handle(self, id: str) -> Handle[Any]:
        """Returns the handle of an existing task. Its result has the annotated type if this app declares the type."""
        return Handle(Unknown(self), id)

    @property
    def client(self) -> Client:
        """Client of the API."""
        from .client import Client

        url = url_of(self._api)
        if self._client is None or self._client.url != url:
            self._client = Client(url, self._token)
        return self._client

    @blocking
    def submit_many(self, calls: Iterable[Call[R]]) -> Steps[list[Handle[R] | ApiError]]:
        """Creates tasks in batches of up to 1,000; each has its own outcome, in order."""
        return self.client.create_many(calls)

    asubmit_many = awaited(submit_many)

    @blocking
    def types(self) -> Steps[list[dict[str, Any]]]:
        """Returns the fleet's types with their counts, limits and schemas."""
        return (yield from self.client.call("GET", "/v1/types"))["types"]  # type: ignore[no-any-return]

    atypes = awaited(types)

    @blocking
    def workers(self) -> Steps[list[dict[str, Any]]]:
        """Returns the fleet's workers with their types and running attempts."""
        return (yield from self.client.call("GET", "/v1/workers"))["workers"]  # type: ignore[no-any-return]

    aworkers = awaited(workers)

    @iterated
    def events(self, *, type: str | None = None, root: str | None = None, timeout: float | None = None) -> Items[dict[str, Any]]:
        """Returns `{ids, partition, position}` whenever tasks change: of a type, or below a root. `ids` is `None` at the
        beginning and after an interruption: any task may have changed.

        It ends after `timeout` seconds, and else never. Raises `Unavailable` if the API stays away.
        """
        query = urlencode({name: value for name, value in (("type", type), ("root", root)) if value is not None})
        deadline, last = None if timeout is None else time.monotonic() + timeout, ""
        while True:
            headers = (("last-event-id", last),) if last else ()
            request = Request("GET", f"/v1/watch?{query}".rstrip("?"), stream=True, headers=headers)
            yield from self.client.exchange(request, deadline)
            try:
                while (event := (yield from self.client.next_event(deadline))) and event.kind != "end":
                    last = event.id or last
                    yield Item(decode(event.data))
            except TimeoutError:
                return
            yield 0.2

    aevents = aiterated(events)

    def places(self, kinds: set[bool], *, has_mixed: bool = False) -> tuple[int, int]:
        """Returns the slots of a process and its threads beside them; 0: all types share the slots.

        `kinds`: whether types are synchronous, `True` or `False` or both. `has_mixed`: a bundle has handlers of both kinds. Its
        attempts take threads, whatever their kind, so that by default there are as many of these as slots.
        """
        threads = self._threads or (self._slots or 10 if has_mixed else 0)
        if kinds == {True, False}:
            return self._slots or 10, threads or 1
        return (self._slots or 10 if kinds == {False} else threads or self._slots or 1), 0

    def main(self) -> None:
        """Serves the worker that started this program; for `kafleet worker -- python shop.py`."""
        from .loading import complete
        from .session import serve

        serve(lambda: complete(self))
