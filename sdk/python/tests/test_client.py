"""The client against a real fleet in memory."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kafleet import ApiError, App, Conflict, Forbidden, Invalid, NotFound, TaskFailed, Unavailable
from kafleet.client import Client, Handle
from kafleet.testing import Fleet, fleet

PATIENCE = 60.0


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    """A fleet without an app: it has built-in types."""
    with fleet() as running:
        yield running


@pytest.fixture
def app(running: Fleet) -> App:
    return App(api=running.api)


@pytest.fixture
def hidden() -> Iterator[str]:
    """URL of an address that accepts no connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_result_is_returned(app: App) -> None:
    handle = app.remote("echo").submit(n=1)
    assert handle.result(PATIENCE) == {"n": 1}
    status = handle.status()
    assert (status["state"], status["type"], status["id"]) == ("succeeded", "echo", handle.id)
    assert [status["state"] for status in handle.watch()][-1] == "succeeded"


def test_result_is_returned_on_an_event_loop(app: App) -> None:
    async def main() -> None:
        handles = [await app.remote("echo").asubmit(n) for n in range(20)]
        assert await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles)) == list(range(20))
        assert (await handles[0].astatus())["state"] == "succeeded"
        assert [status["state"] async for status in handles[0].awatch()] == ["succeeded"]

    asyncio.run(main())


def test_result_has_the_annotated_type(app: App) -> None:
    @app.task(name="echo")
    def echo(day: str) -> dict[str, set[int]]:
        raise NotImplementedError

    handle: Handle[dict[str, set[int]]] = echo.handle(app.remote("echo").submit({"day": [1, 2, 1]}).id)
    assert handle.result(PATIENCE) == {"day": {1, 2}}


def test_options_are_those_of_the_task(app: App) -> None:
    handle = app.remote("echo").using(id="with-options", tags=["shop"], name="Name", delay="1h").submit()
    status = handle.status()
    assert (status["id"], status["tags"], status["name"], status["state"]) == ("with-options", ["shop"], "Name", "scheduled")
    with pytest.raises(TimeoutError, match="`with-options` has not ended in time: it is scheduled"):
        handle.result(2)  # Long enough for the answer of a busy machine, which has the state.
    handle.cancel("not needed")
    with pytest.raises(TaskFailed) as failed:
        handle.result(PATIENCE)
    assert (failed.value.state, failed.value.id) == ("cancelled", "with-options")
    handle.cancel()


def test_cancel_and_timeout_work_on_an_event_loop(app: App) -> None:
    async def main() -> None:
        handle = await app.remote("echo").using(delay="1h").asubmit()
        with pytest.raises(TimeoutError):
            await handle.aresult(0.1)
        await handle.acancel()
        with pytest.raises(TaskFailed, match="ended as cancelled"):
            await handle.aresult(PATIENCE)

    asyncio.run(main())


def test_repeated_id_is_the_same_task(app: App) -> None:
    echo = app.remote("echo").using(id="same")
    assert echo.submit(n=1).id == echo.submit(n=1).id == "same"
    with pytest.raises(Conflict) as conflict:
        echo.submit(n=2)
    assert (conflict.value.code, conflict.value.existing) == ("duplicate_id", "same")


def test_errors_have_the_code_of_the_problem(app: App) -> None:
    with pytest.raises(NotFound, match="unknown_type"):
        app.remote("nowhere").submit()
    with pytest.raises(NotFound, match="not_found"):
        app.remote("echo").handle("nobody").status()
    with pytest.raises(NotFound, match="not_found"):
        app.remote("echo").handle("nobody").result(PATIENCE)
    with pytest.raises(Invalid, match="bad_id"):
        app.remote("echo").using(id="not an id").submit()
    for id in ("", ".", "..", "a:..", "a::b"):
        with pytest.raises(Invalid, match="bad_id"):
            app.remote("echo").handle(id).cancel()
    with pytest.raises(Invalid) as invalid:
        app.remote("foreach").submit(5)
    assert invalid.value.code == "schema"


def test_batches_have_one_outcome_for_each_task(app: App) -> None:
    calls = [app.remote("echo" if n % 500 != 7 else "nowhere").call(n=n) for n in range(2100)]
    outcomes = app.submit_many(calls)
    assert len(outcomes) == 2100
    refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ApiError)]
    assert refused == [7, 507, 1007, 1507, 2007]
    last = outcomes[-1]
    assert isinstance(last, Handle) and last.result(PATIENCE) == {"n": 2099}
    assert app.submit_many([]) == []


def test_batches_work_on_an_event_loop(app: App) -> None:
    async def main() -> None:
        first, second = await app.asubmit_many(app.remote("echo").call(n) for n in range(2))
        assert isinstance(first, Handle) and isinstance(second, Handle)
        assert await second.aresult(PATIENCE) == 1

    asyncio.run(main())


def test_threads_share_a_client(app: App) -> None:
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(app.remote("echo").submit(n).result(PATIENCE))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(str, results)) == [str(n) for n in range(8)]


def test_forked_process_opens_its_own_connection(running: Fleet) -> None:
    program = """
import os
from kafleet import App
echo = App().remote("echo")
echo.submit(1)
child = os.fork()
results = [echo.submit(n).result(60) for n in range(20)]
if child == 0:
    os._exit(0 if results == list(range(20)) else 1)
assert results == list(range(20)) and os.waitpid(child, 0)[1] == 0
"""
    environment = {**os.environ, "KAFLEET_API": running.api}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_removed_task_is_not_found() -> None:
    running = {"id": "a", "state": "running", "position": "0:2", "result": None}
    gone = response(404, {"code": "not_found", "detail": "no such task"})
    server = Server(CREATED, stream(("status", running), ("end", {"reason": "gone"})), gone)
    with pytest.raises(NotFound):
        App(api=server.url).remote("echo").submit().result(PATIENCE)


def test_wait_for_a_result_ends_at_its_timeout_without_an_api(hidden: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    for url in (hidden, f"http://127.0.0.1:{silent.getsockname()[1]}"):
        handle = App(api=url).remote("echo").handle("a")
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            handle.result(0.3)
        with pytest.raises(TimeoutError):
            asyncio.run(handle.aresult(0.3))
        assert time.monotonic() - started < Client().patience / 2
    silent.close()


def test_unreachable_api_is_named(hidden: str) -> None:
    for operation in ("run", "arun"):
        client = Client(hidden, patience=0)
        steps = client.create(App(api=hidden).remote("echo").call())
        with pytest.raises(Unavailable, match=f"`{hidden}` cannot be reached.*start `kafleet dev`"):
            asyncio.run(client.arun(steps)) if operation == "arun" else client.run(steps)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_repetition_is_logged_once_for_each_call(asynchronous: bool, hidden: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(hidden, patience=0.7)
    for _ in range(2):
        steps = client.create(App(api=hidden).remote("echo").call())
        with pytest.raises(Unavailable):
            asyncio.run(client.arun(steps)) if asynchronous else client.run(steps)
    messages = [record.getMessage() for record in caplog.records if record.name == "kafleet"]
    assert len(messages) == 2
    assert all(text.startswith(f"unreachable: the API at `{hidden}` cannot be reached: ") for text in messages)
    assert all(text.endswith("; trying again for up to 1 s") for text in messages)


def test_single_repetition_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    App(api=Server(b"", CREATED).url).remote("echo").submit()
    assert not [record for record in caplog.records if record.name == "kafleet"]


def test_url_is_checked() -> None:
    for url in ("myhost:9", "ftp://myhost:9"):
        with pytest.raises(ValueError, match=f"`{url}` is not the URL of an API; hint: write `http://myhost:9`"):
            _ = App(api=url).client


class Server(threading.Thread):
    """Plays an API: answers each connection with one of the given responses, and keeps the requests."""

    def __init__(self, *responses: bytes) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.responses, self.requests = list(responses), list[bytes]()
        self.start()

    def run(self) -> None:
        while self.responses:
            connection, _ = self.socket.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request or len(request.split(b"\r\n\r\n", 1)[1]) < length(request):
                    request += connection.recv(1 << 16)
                self.requests.append(request)
                connection.sendall(self.responses.pop(0))
        self.socket.close()


def length(request: bytes) -> int:
    fields = [line.split(b":")[1] for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(fields[0]) if fields else 0


def response(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def stream(*events: tuple[str, object]) -> bytes:
    body = b"".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode() for kind, data in events)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
    return b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


CREATED = response(201, {"id": "a", "position": "0:1"})
BUSY = response(503, {"code": "kafka_unavailable", "detail": "no answer"})


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_lost_and_refused_requests_are_repeated_with_the_same_id(asynchronous: bool) -> None:
    server = Server(b"", BUSY, b"HTTP/1.1 2", CREATED)
    echo = App(api=server.url, token="secret").remote("echo")
    handle = asyncio.run(echo.asubmit(n=1)) if asynchronous else echo.submit(n=1)
    assert (handle.id, handle.position) == ("a", "0:1")
    bodies = [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in server.requests]
    assert len(bodies) == 4 and len({body["id"] for body in bodies}) == 1
    assert b"uthorization: Bearer secret" in server.requests[0]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_lost_stream_is_opened_again(asynchronous: bool) -> None:
    running = {"id": "a", "state": "running", "position": "0:2", "result": None}
    ended = {**running, "state": "succeeded", "position": "0:3", "result": "line\u2028break"}
    server = Server(
        CREATED,
        stream(("status", running)),
        stream(("status", running), ("end", {"reason": "shutdown"})),
        BUSY,
        stream(("status", ended), ("end", {"reason": "finished"})),
    )
    handle = App(api=server.url).remote("echo").submit()
    result = asyncio.run(handle.aresult(PATIENCE)) if asynchronous else handle.result(PATIENCE)
    assert result == "line\u2028break"
    assert b"after=0:2" in server.requests[2] or b"after=0%3A2" in server.requests[2]


def test_refused_token_is_an_error_at_once() -> None:
    server = Server(response(401, {"code": "unauthorized", "detail": "invalid token"}))
    with pytest.raises(Forbidden, match="unauthorized: invalid token"):
        App(api=server.url).remote("echo").submit()


def test_unavailable_items_of_a_batch_are_sent_again() -> None:
    refused = {"outcome": "unknown", "problem": {"status": 503, "code": "outcome_unknown", "detail": "…"}}
    server = Server(
        response(200, {"items": [{"outcome": "accepted", "id": "a", "position": "0:1"}, refused]}),
        response(200, {"items": [{"outcome": "accepted", "id": "b", "position": "0:2"}]}),
    )
    app = App(api=server.url)
    outcomes = app.submit_many(app.remote("echo").call(n) for n in range(2))
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Handle)] == ["a", "b"]
    sent = [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in server.requests]
    assert sent[1] == sent[0][1:]


def test_tasks_of_earlier_batches_keep_their_handles() -> None:
    items = [{"outcome": "accepted", "id": f"t{n}", "position": "0:1"} for n in range(1000)]
    server = Server(response(200, {"items": items}), response(413, {"code": "too_large", "detail": "…"}))
    app = App(api=server.url)
    calls = [app.remote("echo").call(n) for n in range(1001)]
    outcomes = app.submit_many(calls)
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Handle)] == [f"t{n}" for n in range(1000)]
    assert isinstance(outcomes[1000], ApiError) and outcomes[1000].code == "too_large"
    with pytest.raises(ValueError, match="not JSON"):
        app.submit_many([*calls, app.remote("echo").call(float("nan"))])
    assert len(server.requests) == 2, "nothing is created before all values are encoded"
