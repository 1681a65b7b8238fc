"""The rest of the API: handles, searches, bulk actions, dead letters, schedules, events and external tasks."""

import asyncio
import inspect
import json
import pydoc
import sys
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
from driver import APPS, ROOT, until
from test_client import BUSY, Server, response

from kafleet import App, Bundle, Conflict, Context, Forbidden, Group, Handle, Invalid, NotFound, TaskFailed, Unavailable
from kafleet.client import Client
from kafleet.fleet_api import Bulk, DeadLetters, Schedules, Tasks
from kafleet.status import Counts, Error, State, Status, Totals
from kafleet.testing import fleet

sys.path.insert(0, str(APPS))
import canvas_app as tasks  # pyright: ignore[reportMissingImports]

PATIENCE = 60.0
app = tasks.app


@pytest.fixture(scope="module")
def _fleet() -> Iterator[None]:
    with fleet("canvas_app.py", cwd=APPS):
        yield


def failed_task() -> Handle[int]:
    handle: Handle[int] = tasks.flaky.submit()
    with pytest.raises(TaskFailed):
        handle.result(PATIENCE)
    return handle


@pytest.mark.usefixtures("_fleet")
class TestOnAFleet:
    def test_handle_reads_the_task(self) -> None:
        handle = tasks.crowd.submit([1, 2])
        handle.final_result(PATIENCE)
        assert handle.params() == {"numbers": [1, 2], "now": False} or handle.params() == {"numbers": [1, 2]}
        assert [event["kind"] for event in handle.history()][:2] == ["submitted", "started"]
        assert [finding["code"] for finding in handle.why()] == ["ended"]
        tree = handle.tree(depth=1)
        assert (tree["id"], len(tree["below"]), tree["below"][-1]["omitted"]) == (handle.id, 3, 1)
        children = list(handle.children())
        assert [child["type"] for child in children] == ["add", "add", "total"]
        assert app.handle(children[0]["id"]).log() in (["adding 1 1"], ["adding 2 1"])

    def test_handle_of_an_id_has_the_declared_type(self) -> None:
        assert app.handle(tasks.point.submit(3).id).result(PATIENCE) == tasks.Point(3)
        assert app.handle(tasks.grown.submit(3).id).result(PATIENCE) == tasks.Point(13)
        assert App().handle(tasks.point.submit(4).id).result(PATIENCE) == {"x": 4}

    def test_handle_changes_the_task(self) -> None:
        handle = tasks.add.using(delay="1h").submit(1)
        status = handle.patch(tags=["shop"], name="N", delay="0s")
        assert (status["tags"], status["name"]) == (["shop"], "N")
        assert handle.result(PATIENCE) == 2
        assert handle.patch(name=None)["name"] is None
        assert handle.retry(reason="again") == 2 and handle.result(PATIENCE) == 2
        assert handle.status()["run"] == 2
        with pytest.raises(TypeError, match="`tag` is not an option of a task; hint: did you mean `tags`"):
            handle.patch(tag="shop")
        with pytest.raises(Conflict, match="not_changeable"):
            handle.patch(on_failure="ignore")

    def test_delayed_task_is_started_now(self) -> None:
        handle = tasks.add.using(delay="1h").submit(1)
        assert isinstance(handle.start_now(reason="it is urgent"), list)
        assert handle.result(PATIENCE) == 2
        with pytest.raises(Conflict, match="already_finished"):
            handle.start_now()

    def test_failed_tasks_of_a_tree_are_retried(self) -> None:
        handle = failed_task()
        with pytest.raises(Conflict, match="not_finished"):
            tasks.add.using(delay="1h").submit(1).retry()
        assert handle.retry(only_failed=True) == 2
        assert handle.result(PATIENCE) == 2

    def test_search_reads_page_after_page(self) -> None:
        handles = app.submit_many(tasks.add.using(tags=["paged"], name=f"{n}").call(n) for n in range(205))
        assert all(isinstance(handle, Handle) and handle.result(PATIENCE) for handle in handles)
        found = list(app.tasks.search("type:add tag:paged state:succeeded"))
        assert sorted(int(status["name"] or "") for status in found) == list(range(205))
        assert len(list(app.tasks.search("tag:paged", limit=203))) == 203
        with pytest.raises(Invalid, match="`faild` is not a state"):
            list(app.tasks.search("state:faild"))

    def test_bulk_actions_are_tasks(self) -> None:
        handles = [tasks.add.using(tags=["bulk"], delay="1h").submit(n) for n in range(3)]
        # A status waits until its task is visible; a search does not.
        assert all(handle.status()["state"] == "scheduled" for handle in handles)
        assert {status["id"] for status in app.tasks.search("tag:bulk")} == {handle.id for handle in handles}
        bulk = app.bulk.cancel("tag:bulk", reason="not needed")
        assert bulk.result(PATIENCE)["done"] == 3
        for handle in handles:
            with pytest.raises(TaskFailed, match="cancelled"):
                handle.result(PATIENCE)
        assert app.bulk.start_now("tag:bulk").result(PATIENCE)["done"] == 0
        assert app.bulk.retry("tag:bulk", limit=3).result(PATIENCE)["done"] == 3
        assert app.bulk.retry("tag:bulk", only_failed=True).result(PATIENCE)["done"] == 0

    def test_dead_letters_are_redriven_and_dropped(self) -> None:
        def letter(handle: Handle[int]) -> str:
            (found,) = (found["id"] for found in app.dead_letters.list("flaky", code="exhausted") if found["task"] == handle.id)
            return str(found)

        def succeeds(handle: Handle[int]) -> None:
            # The handle knows nothing of the new run, which is visible only when it has been projected.
            until(lambda: handle.status()["state"] == "succeeded", "the end of the new run")
            assert handle.result(PATIENCE) == 2

        handle, dropped, selected = failed_task(), failed_task(), failed_task()
        assert app.dead_letters.redrive(letter(handle), reason="fixed")["done"]
        succeeds(handle)
        assert app.dead_letters.drop(letter(dropped), reason="not needed")["done"]
        (kind,) = {found["kind"] for found in app.dead_letters.list("flaky") if found["task"] == selected.id}
        assert letter(selected) in {found["id"] for found in app.dead_letters.list("flaky", kind=kind)}
        assert app.bulk.redrive("flaky", kind=kind, limit=5, reason="fixed").result(PATIENCE)["done"] == 1
        succeeds(selected)
        assert app.dead_letters.drop(type="flaky") == {"done": [], "refused": [], "more": False}
        with pytest.raises(Invalid, match="type"):
            app.dead_letters.drop()

    def test_schedules_are_kept_up_to_date(self) -> None:
        for kind in ("weekly", "daily"):
            app.schedules.upsert("n", cron="0 3 * * *", timezone="Europe/Berlin", task=tasks.nightly.using(retries=1).call(kind))
        spec = app.schedules.get("n")["spec"]
        assert (spec["cron"], spec["timezone"], spec["task"]["params"]) == ("0 3 * * *", "Europe/Berlin", {"kind": "daily"})
        assert app.schedules.pause("n", "holiday")["paused"]["reason"] == "holiday"
        assert app.schedules.trigger("n").result(PATIENCE) == "daily"
        assert app.schedules.resume("n")["paused"] is None
        assert [schedule["id"] for schedule in app.schedules.list()] == ["n"]
        app.schedules.delete("n")
        with pytest.raises(NotFound, match="unknown_schedule"):
            app.schedules.get("n")
        with pytest.raises(TypeError, match="`every=60` is not a duration"):
            app.schedules.upsert("n", every=60, task=tasks.nightly.call())

    def test_types_and_workers_are_listed(self) -> None:
        assert {"add", "double", "small"} <= {type["type"] for type in app.types()}
        (worker,) = app.workers()
        assert worker["state"] == "alive"

    def test_events_follow_a_type(self) -> None:
        handle: Handle[Any] | None = None
        for event in app.events(type="point", timeout=PATIENCE):
            if handle is None:
                assert event["ids"] is None, "the first one says that anything may have changed"
                handle = tasks.point.submit(1)
            elif event["ids"] and handle.id in event["ids"]:
                break
        else:
            pytest.fail("no event of the task")
        assert list(app.events(root="nobody", timeout=0.2))[1:] == []

    def test_external_task_is_reported(self) -> None:
        handle = app.external("ci").using(options={"build": 7}).submit()
        assert (handle.status()["state"], handle.status()["options"]) == ("queued", {"build": 7})
        assert handle.report("running", message="compiling")
        assert handle.report("succeeded", result={"tests": 5})
        assert handle.result(PATIENCE) == {"tests": 5}
        assert not handle.report("running"), "it has ended"
        with pytest.raises(Conflict, match="not_external"):
            tasks.add.submit(1).report("succeeded")

    def test_any_request_can_be_sent(self) -> None:
        handle = tasks.add.submit(1)
        handle.result(PATIENCE)
        request = app.client.request
        assert request("GET", f"/v1/tasks/{handle.id}", query={"after": None})["id"] == handle.id
        assert b"flowchart" in request("GET", f"/v1/tasks/{handle.id}/tree", query={"format": "mermaid"})
        path = f"/v1/tasks/{handle.id}/attachments/a.txt"
        assert request("PUT", path, b"hello", media="text/plain")["bytes"] == 5
        assert request("GET", path) == b"hello"
        assert asyncio.run(app.client.arequest("POST", f"/v1/tasks/{handle.id}/log", {"lines": ["done"]}))["lines"] == 1
        assert handle.log() == ["adding 1 1", "done"]

    def test_asynchronous_twins_do_the_same(self) -> None:
        async def main() -> None:
            handle = await tasks.add.using(tags=["twins"]).asubmit(1)
            assert await handle.afinal_result(PATIENCE) == 2
            assert await handle.aretry() == 2 and await handle.aresult(PATIENCE) == 2
            assert (await handle.atree())["id"] == handle.id and await handle.alog() == ["adding 1 1"] * 2
            assert [status["id"] async for status in app.tasks.asearch("tag:twins")] == [handle.id]
            assert [child async for child in handle.achildren()] == []
            assert (await (await app.bulk.aretry("tag:twins")).aresult(PATIENCE))["done"] == 1
            assert await app.schedules.alist() == [] and [worker["state"] for worker in await app.aworkers()] == ["alive"]
            async for event in app.aevents(timeout=PATIENCE):
                assert event["ids"] is None
                break

        asyncio.run(main())


# What is the same for all methods


def operations() -> list[tuple[type, str, Any]]:
    owners = (App, Bulk, Client, DeadLetters, Group, Handle, Schedules, Tasks)
    found = [(owner, name, value) for owner in owners for name, value in vars(owner).items()]
    return [item for item in found if inspect.isfunction(item[2]) and hasattr(item[2], "__wrapped__")]


def test_each_method_that_talks_to_the_api_has_an_asynchronous_twin() -> None:
    found = operations()
    names = {(owner, name) for owner, name, _ in found}
    assert len(names) > 50
    blocking = [(owner, name) for owner, name in names if (owner, name[1:]) not in names or not name.startswith("a")]
    assert [(owner.__name__, name) for owner, name in blocking if (owner, f"a{name}") not in names] == []


@pytest.mark.parametrize(("owner", "name", "method"), operations(), ids=lambda value: getattr(value, "__name__", value))
def test_method_says_what_it_is(owner: type, name: str, method: Any) -> None:
    assert (method.__name__, method.__qualname__) == (name, f"{owner.__qualname__}.{name}")
    assert method.__doc__ and "Steps" not in str(inspect.signature(method)) and "Items" not in str(inspect.signature(method))


def test_status_has_the_fields_of_the_schema() -> None:
    schemas = json.loads((ROOT / "schemas/openapi.json").read_text())["components"]["schemas"]
    for kind, name in ((Status, "Status"), (Counts, "Children"), (Totals, "Tree"), (Error, "ErrorInfo")):
        schema, hints = schemas[name], get_type_hints(kind)
        assert hints.keys() == schema["properties"].keys() and set(schema["required"]) == hints.keys()
        for field, hint in hints.items():
            assert allows_null(schema["properties"][field]) == (hint is Any or type(None) in getattr(hint, "__args__", ())), field
    states = [state for choice in schemas["State"]["oneOf"] for state in choice.get("enum", [choice.get("const")])]
    assert set(State.__args__) == set(states)  # type: ignore[attr-defined]


def allows_null(schema: dict[str, Any]) -> bool:
    return "null" in schema.get("type", ()) or {"type": "null"} in schema.get("anyOf", ())


# Requests that must not be carried out twice

RETRIED = response(202, {"run": 2, "status": {"position": "0:5"}})
ONCE: list[Callable[[App], Any]] = [
    lambda app: app.handle("a").retry(),
    lambda app: app.handle("a").start_now(),
    lambda app: app.handle("a").report("running"),
    lambda app: app.schedules.trigger("a"),
    lambda app: app.bulk.cancel("tag:a"),
    lambda app: app.bulk.redrive("a", patch={"n": 1}),
    lambda app: app.client.request("POST", "/v1/anything"),
    lambda app: asyncio.run(app.handle("a").aretry()),
]


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize(
    "answer", [b"", response(503, {"code": "not_visible_yet"}), response(502, {})], ids=["lost", "503", "502"]
)
def test_request_that_may_have_been_carried_out_is_not_repeated(call: Callable[[App], Any], answer: bytes) -> None:
    server = Server(answer, RETRIED)
    with pytest.raises(Unavailable):
        call(App(api=server.url))
    assert len(server.requests) == 1


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_request_that_was_not_carried_out_is_repeated(asynchronous: bool) -> None:
    server = Server(BUSY, RETRIED)
    handle = App(api=server.url).handle("a")
    assert (asyncio.run(handle.aretry()) if asynchronous else handle.retry()) == 2
    assert handle.position == "0:5" and len(server.requests) == 2


def test_kept_connection_is_not_used_for_a_request_that_is_sent_once() -> None:
    # The API may have closed it, and nobody would know whether the request had arrived.
    kept = b'HTTP/1.1 200 X\r\ncontent-length: 13\r\n\r\n{"types": []}'
    server = Server(kept, RETRIED)
    app = App(api=server.url)
    assert app.types() == []
    assert app.handle("a").retry() == 2


def test_events_go_on_where_the_stream_was_lost() -> None:
    def stream(*events: str) -> bytes:
        body = b":\n\n" + "\n\n:\n\n".join(events).encode()
        return b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    server = Server(
        stream(
            'event: changed\nid: p/7\ndata: {"ids": null}',
            'id: p/8\nevent: changed\ndata: {"ids": ["a"]}',
            "event: changed\ndata: {",
        ),
        stream('event: end\ndata: {"reason": "shutdown"}\n\n'),
        stream('event: changed\nid: p/9\ndata: {"ids": ["b"]}\n\n'),
    )
    events = App(api=server.url).events(type="add")
    assert [next(events)["ids"] for _ in range(3)] == [None, ["a"], ["b"]]
    heads = [request.decode().lower() for request in server.requests]
    assert heads[0].startswith("get /v1/watch?type=add ") and "last-event-id" not in heads[0]
    assert all("last-event-id: p/8\r\n" in head for head in heads[1:])


def test_errors_are_those_of_the_client() -> None:
    with pytest.raises(Forbidden, match="forbidden: the role"):
        App(api=Server(response(403, {"code": "forbidden", "detail": "the role"})).url).bulk.cancel("tag:a")
    for id in ("", "..", "a::b"):
        with pytest.raises(Invalid, match="bad_id"):
            App().handle(id).tree()


# What people see


def test_repr_and_help_say_what_things_are() -> None:
    app = App()

    @app.task
    def greet(cx: Context, name: str, times: int = 3) -> str:
        """Says hello."""
        return name

    small: Bundle = app.bundle("small")

    @small.task
    def resize(path: "str") -> "bytes":
        return b""

    assert repr(greet) == "<Task greet(name: str, times: int = 3) -> str>"
    assert repr(resize) == "<Task resize(path: str) -> bytes>"
    assert repr(greet.handle("hello")) == "<Handle hello of greet>"
    assert repr(app.handle("hello")) == "<Handle hello>"
    assert repr(app.remote("echo")) == "<Remote echo>" and repr(app.external("ci")) == "<External ci>"
    assert repr(greet.map("ab")) == "<Group of 2 calls>"
    shown = pydoc.plain(pydoc.render_doc(greet))
    assert "greet(name: str, times: int = 3) -> str\n" in shown and "Says hello." in shown and "`submit`" in shown
    assert "retry(self, *, only_failed" in pydoc.plain(pydoc.render_doc(Handle))
