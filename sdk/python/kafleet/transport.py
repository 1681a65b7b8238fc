"""HTTP/1.1 for the client, synchronous and on an event loop: carries out the steps of operations."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from threading import local
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from .context import _current
from .forks import in_children
from .steps import Item, Line, Request, Response, Steps

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Transport:
    """Connections with the API at a URL. Any thread and any event loop may use it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self.token = url, token
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = f"write `http://{self.url.rpartition('://')[2]}`"
            raise ValueError(f"`{self.url}` is not the URL of an API; hint: {hint}")
        self._host, self._prefix = parts.hostname, parts.path
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._host_header = parts.netloc.rpartition("@")[2]

    # Synchronous driver

    def run(self, steps: Steps[T]) -> T:
        """Carries out an operation."""
        for _ in (driver := _Driver(self, steps)):
            pass
        result: T = driver.result
        return result

    def iterate(self, steps: Steps[Any]) -> Iterator[Any]:
        """Carries out an operation and passes its items on."""
        return iter(_Driver(self, steps))

    def send(self, request: Request) -> Response | _Stream:
        """Sends a request."""
        idle = None if request.stream or request.once else _idle.__dict__.pop(self.url, None)
        connection = idle.take() if idle else self._connection()
        connection.timeout, is_sent = request.seconds, False
        try:
            if connection.sock:
                connection.sock.settimeout(request.seconds)
            else:
                connection.connect()
            is_sent = True
            connection.request(request.method, self._prefix + request.path, request.body or None, self._headers(request))
            answer = connection.getresponse()
            if request.stream and answer.status == 200:
                return _Stream(connection, answer)
            media, location = answer.getheader("content-type", ""), answer.getheader("location", "")
            response = Response(answer.status, answer.read(), media, location=location)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Response(0, (str(error) or type(error).__name__).encode(), is_sent=is_sent)
        if request.stream:
            connection.close()
        else:
            _idle.__dict__[self.url] = _Idle(connection)
        return response

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port)

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **dict(request.headers)}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        cx = _current.get()
        if cx and cx.trace:
            headers |= {f"trace{name}": value for name, value in cx.trace.items() if name in ("parent", "state")}
        return headers

    # Asynchronous driver

    async def arun(self, steps: Steps[T]) -> T:
        """Carries out an operation on the running event loop."""
        driver = _AsyncDriver(self, steps)
        async for _ in driver.iterate():
            pass
        result: T = driver.result
        return result

    async def aiterate(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        """Carries out an operation and passes its items on."""
        async for document in _AsyncDriver(self, steps).iterate():
            yield document

    async def asend(self, request: Request) -> Response | _AsyncStream:
        """Sends a request on the running event loop."""
        import asyncio

        stream, kept = None, False
        try:
            async with asyncio.timeout(request.seconds):
                stream = _AsyncStream(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))
                headers = {"host": self._host_header, "connection": "close", **self._headers(request)}
                status = await stream.exchange(request.method, self._prefix + request.path, request.body, headers)
                kept = request.stream and status == 200
                return stream if kept else Response(status, await stream.read(), stream.media, location=stream.location)
        except (OSError, ValueError, EOFError) as error:
            return Response(0, (str(error) or type(error).__name__).encode(), is_sent=stream is not None)
        finally:
            if stream and not kept:
                await stream.close()


class _Idle:
    """Connection of a thread for its next request; closed at the end of the thread."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection: http.client.HTTPConnection | None = connection

    def take(self) -> http.client.HTTPConnection:
        connection, self._connection = self._connection, None
        assert connection
        return connection

    def __del__(self) -> None:
        if self._connection:
            self._connection.close()


_idle = local()
"""Idle connections of each thread by URL; not of each client, which may be garbage together with its connections."""
in_children(lambda: _idle.__dict__.clear())


class _Driver:
    """Carries out steps one after the other."""

    def __init__(self, client: Transport, steps: Steps[Any]) -> None:
        self._client, self._steps = client, steps
        self._stream: Any = None  # A `_Stream` or an `_AsyncStream`, once one is open.
        self.result: Any = None

    def __iter__(self) -> Iterator[Any]:
        answer: Any = None
        try:
            while True:
                step = self._steps.send(answer)
                if isinstance(step, Item):
                    yield step.value
                answer = self._carry_out(step)
        except StopIteration as end:
            self.result = end.value
        finally:
            if self._stream:
                self._stream.close()

    def _carry_out(self, step: Request | Line | Item[Any] | float) -> Any:
        if isinstance(step, Request):
            answer = self._client.send(step)
            if isinstance(answer, _Stream):
                if self._stream:
                    self._stream.close()
                self._stream = answer
                return Response(200, media=answer.media)
            return answer
        if isinstance(step, Line):
            return self._stream.line(step.seconds) if self._stream else b""
        if isinstance(step, float):
            time.sleep(step)
        return None


class _Stream:
    """Response that is read line by line."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.media = response.getheader("content-type", "")

    def line(self, seconds: float) -> bytes:
        try:
            if self._connection.sock:
                self._connection.sock.settimeout(seconds)
            return self._response.readline()
        except (OSError, ValueError, http.client.HTTPException):
            return b""

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class _AsyncDriver(_Driver):
    """Carries out steps one after the other, on an event loop."""

    async def iterate(self) -> AsyncIterator[Any]:
        answer: Any = None
        try:
            while True:
                try:
                    step = self._steps.send(answer)
                except StopIteration as end:
                    self.result = end.value
                    return
                if isinstance(step, Item):
                    yield step.value
                answer = await self._carry_out(step)
        finally:
            if self._stream:
                await self._stream.close()

    async def _carry_out(self, step: Request | Line | Item[Any] | float) -> Any:
        import asyncio

        if isinstance(step, Request):
            answer = await self._client.asend(step)
            if isinstance(answer, _AsyncStream):
                if self._stream:
                    await self._stream.close()
                self._stream = answer
                return Response(200, media=answer.media)
            return answer
        if isinstance(step, Line):
            return await self._stream.line(step.seconds) if self._stream else b""
        if isinstance(step, float):
            await asyncio.sleep(step)
        return None


class _AsyncStream:
    """HTTP/1.1 connection of an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._headers: dict[str, str] = {}
        self._rest = b""

    async def exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Sends a request, and reads the status and the headers of the response."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), f"content-length: {len(body)}"]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()
        status = (await self._line()).split()[1]
        self._headers = {}
        while line := (await self._line()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            self._headers[name.lower()] = value.strip()
        return int(status)

    @property
    def media(self) -> str:
        """Media type of the body."""
        return self._headers.get("content-type", "")

    @property
    def location(self) -> str:
        """URL of a redirect."""
        return self._headers.get("location", "")

    async def read(self) -> bytes:
        """Reads the rest of the body."""
        parts = []
        while part := await self._part():
            parts.append(part)
            if self._headers.get("transfer-encoding") != "chunked":
                break
        return b"".join(parts)

    async def line(self, seconds: float) -> bytes:
        """Reads a line of the body."""
        import asyncio

        with suppress(OSError, ValueError, EOFError):
            async with asyncio.timeout(seconds):
                while b"\n" not in self._rest:
                    part = await self._part()
                    if not part:
                        return b""
                    self._rest += part
                line, _, self._rest = self._rest.partition(b"\n")
                return line + b"\n"
        return b""

    async def _part(self) -> bytes:
        if self._headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(self._headers.get("content-length", 0)))
        part = await self._reader.readexactly(int((await self._line()).split(b";")[0], 16))
        await self._line()
        return part

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the API closed the connection")
        return line

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
