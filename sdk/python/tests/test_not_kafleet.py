"""Addresses at which something answers that is no kafleet."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from test_client import CREATED, Server

from kafleet import App, NotFound, Unavailable

LOGIN = "https://login.example.org/?next=/v1/tasks"
PAGE = b"<!doctype html><title>Welcome</title>"


def answer(status: int, media: str, body: bytes, *headers: str) -> bytes:
    fields = [f"HTTP/1.1 {status} X", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*fields, *([f"content-type: {media}"] if media else []), "", ""]).encode() + body


BAD_GATEWAY = answer(502, "text/plain; charset=utf-8", b"no upstream\n")


@pytest.fixture(params=["sync", "async"])
def submit(request: pytest.FixtureRequest) -> Callable[[App], Any]:
    """Submits a task, in both ways."""
    if request.param == "sync":
        return lambda app: app.remote("echo").submit(n=1)
    return lambda app: asyncio.run(app.remote("echo").asubmit(n=1))


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (answer(200, "text/html", PAGE), "200 text/html"),
        (answer(404, "text/html; charset=utf-8", PAGE), "404 text/html"),
        (answer(200, "application/json", b'{"message": "hello"}'), "200 application/json, JSON without `id`"),
        (answer(404, "application/json", b'{"error": "Not Found"}'), "404 application/json, JSON without `code`"),
        (answer(401, "application/json", b'["no"]'), "401 application/json, JSON without `code`"),
        (answer(200, "", b""), "200 without a media type, empty"),
        (answer(200, "application/json", b"OK"), "200 application/json, no JSON"),
        (answer(302, "text/html", PAGE, f"location: {LOGIN}"), f"302 text/html, a redirect to {LOGIN}"),
        (answer(404, "text/plain", b"404 page not found\n"), "404 text/plain, 404 page not found"),
    ],
)
def test_answer_of_something_else_is_named_with_the_url(response: bytes, what: str, submit: Callable[[App], Any]) -> None:
    server = Server(response)
    with pytest.raises(Unavailable) as refused:
        submit(App(api=server.url))
    assert refused.value.detail == f"`{server.url}` answered, but it is not kafleet (POST /v1/tasks: {what})"
    assert refused.value.code == "not_kafleet" and "check KAFLEET_API" in str(refused.value)
    assert len(server.requests) == 1, "a wrong address does not become a right one"


def test_answer_of_a_proxy_is_repeated_and_then_named(submit: Callable[[App], Any]) -> None:
    assert submit(App(api=Server(BAD_GATEWAY, CREATED).url)).id == "a"
    server = Server(BAD_GATEWAY, BAD_GATEWAY)
    app = App(api=server.url)
    app.client.patience = 0.05
    with pytest.raises(Unavailable, match="502 text/plain, no upstream") as refused:
        submit(app)
    assert refused.value.hint and "check the proxy in front of kafleet" in refused.value.hint
    assert len(server.requests) == 2


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_stream_of_something_else_is_no_stream(asynchronous: bool) -> None:
    handle = App(api=Server(answer(200, "text/html", PAGE)).url).handle("a")
    with pytest.raises(Unavailable, match="GET /v1/tasks/a/watch: 200 text/html"):
        asyncio.run(handle.aresult(5)) if asynchronous else handle.result(5)


def test_reads_name_what_is_missing() -> None:
    other = answer(200, "application/json", b"{}")
    app = App(api=Server(*[other] * 6).url)
    reads: list[tuple[Callable[[], object], str]] = [
        (app.types, "GET /v1/types: 200 application/json, JSON without `types`"),
        (app.workers, "JSON without `workers`"),
        (lambda: next(app.tasks.search("a")), "JSON without `tasks`"),
        (app.handle("a").status, "GET /v1/tasks/a: 200 application/json, JSON without `state`"),
        (app.handle("a").log, "JSON without `lines`"),
        (lambda: next(app.handle("a").children()), "JSON without `tasks`"),
    ]
    for read, what in reads:
        with pytest.raises(Unavailable) as refused:
            read()
        assert what in refused.value.detail


def test_pages_of_kafleet_are_no_errors() -> None:
    note = answer(200, "text/html", PAGE)
    app = App(api=Server(note, answer(404, "application/problem+json", b'{"code": "not_found", "detail": "x"}'), note).url)
    assert app.client.request("GET", "/v1/tasks/a/attachments/note.html") == PAGE
    with pytest.raises(NotFound, match="not_found: x"):
        app.client.request("GET", "/v1/tasks/a/attachments/note.html")
    with pytest.raises(Unavailable, match="not_kafleet"):
        app.client.request("GET", "/v1/anything")
