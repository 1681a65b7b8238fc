"""Operations of the client: generators of steps without IO, and the methods that carry them out.

A step is a `Request`, a `Line`, an `Item` or a pause in seconds. Each method that talks to the API has an asynchronous twin
with the same parameters, whose name begins with `a`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
P = ParamSpec("P")

_REQUEST_SECONDS = 60.0
"""Time for one response: longer than any wait of the API."""


class Request(NamedTuple):
    """Step: sends a request; the answer is a `Response`. The body of a stream is read with `Line`."""

    method: str
    path: str
    body: bytes = b""
    stream: bool = False
    seconds: float = _REQUEST_SECONDS
    """Time for the response."""
    headers: tuple[tuple[str, str], ...] = ()
    once: bool = False
    """Whether the request is not repeated unless the API has surely not carried it out."""


class Line(NamedTuple):
    """Step: reads a line of the stream; the answer is empty at its end, and if it is lost."""

    seconds: float


class Item(NamedTuple, Generic[T]):
    """Step: passes a value to the caller, who iterates."""

    value: T


class Response(NamedTuple):
    """Answer to a `Request`; status 0: the API cannot be reached, for the reason in the body."""

    status: int
    body: bytes = b""
    media: str = ""
    """Media type of the body; empty: JSON."""
    is_sent: bool = True
    """Whether the API may have received the request."""
    location: str = ""
    """URL of a redirect."""


Steps = Generator[Request | Line | Item[Any] | float, Any, T]
Items = Generator[Request | Line | Item[T] | float, Any, Any]


class Caller(Protocol):
    """Object with methods that talk to the API."""

    @property
    def client(self) -> Client:
        """Client of the API."""
        ...


C = TypeVar("C", bound=Caller)
F = TypeVar("F")


def blocking(steps: Callable[Concatenate[C, P], Steps[T]]) -> Callable[Concatenate[C, P], T]:
    """Makes a method of an operation: it returns when the operation has ended."""

    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.client.run(steps(self, *args, **kwargs))

    return _named(call, steps)


def awaited(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Returns the asynchronous twin of a `blocking` method."""
    steps: Any = inspect.unwrap(method)

    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.client.arun(steps(self, *args, **kwargs))

    return _named(call, steps, "a")


def iterated(steps: Callable[Concatenate[C, P], Items[T]]) -> Callable[Concatenate[C, P], Iterator[T]]:
    """Makes a method of an operation: it returns an iterator over its items."""

    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.client.iterate(steps(self, *args, **kwargs))

    return _named(call, steps)


def aiterated(method: Callable[Concatenate[C, P], Iterator[T]]) -> Callable[Concatenate[C, P], AsyncIterator[T]]:
    """Returns the asynchronous twin of an `iterated` method."""
    steps: Any = inspect.unwrap(method)

    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.client.aiterate(steps(self, *args, **kwargs))

    return _named(call, steps, "a")


def _named(call: F, steps: Any, prefix: str = "") -> F:
    """Gives a method name, signature and text of its operation, for `help`."""
    signature, name = inspect.signature(steps), prefix + steps.__name__
    returned = str(signature.return_annotation)
    vars(call)["__signature__"] = signature.replace(return_annotation=returned[returned.find("[") + 1 : -1])
    update_wrapper(call, steps)  # type: ignore[arg-type]
    call.__name__, call.__qualname__ = name, f"{steps.__qualname__.rpartition('.')[0]}.{name}"  # type: ignore[attr-defined]
    return call
