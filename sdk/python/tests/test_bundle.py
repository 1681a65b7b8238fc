"""Bundles: many tasks, one type."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driver import Worker
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from test_loading import APP, unable, write

from kafleet import App, Context, DeclarationError, Ended, Joined, Params
from kafleet.testing import recorded, trial
from kafleet.values import encode

app = App(api="http://127.0.0.1:1")
small = app.bundle("small", concurrency=4, retries=3, fail_on=[LookupError, ValueError, "bad_width"], retry_on=[KeyError])


@dataclass
class Thumb:
    path: str
    parts: "list[Thumb]"


@small.task
def resize(cx: Context, path: str, width: int = 200) -> Thumb:
    """Makes a thumbnail.

    Of the whole picture.
    """
    print(cx.type, cx.task_name)
    return Thumb(path, [])


@small.task(name="send-mail", fail_on=[KeyError], retry_on=[ValueError])
async def send_mail(to: str) -> None:
    raise {"key": KeyError, "index": IndexError, "value": ValueError, "other": RuntimeError}[to]


@small.task
def count(thumbs: Params[list[Thumb]]) -> int:
    return len(thumbs)


@small.task
def album(cx: Context) -> None:
    cx.spawn(resize.using(name="cover"), "a.jpg")
    cx.then(sheet, title="summer")


@small.task
def sheet(cx: Joined[Thumb], title: str) -> str:
    return title + "".join(result.output.path for result in cx.results if result.output)


schema: dict[str, Any] = small.declaration()["params"]
accepts: Callable[[Any], bool] = Draft202012Validator(schema).is_valid


def joined(params: Any) -> dict[str, Any]:
    return {"params": params, "task": {"id": "a", "state": "succeeded"}, "results": []}


def test_submitted_tasks_name_their_task_in_the_params() -> None:
    with recorded() as submitted:
        resize.submit("a.jpg", width=5)
        resize.using(name="cover", tags=["shop", "resize"], retries=1).submit("b.jpg")
        app.submit_many([count.call([Thumb("a", [])])])
        app.submit_many([album.call()])
    plain, labelled, whole, empty = [{key: task[key] for key in task if key != "id"} for task in submitted]
    params = {"task": "resize", "params": {"path": "a.jpg", "width": 5}}
    assert plain == {"type": "small", "params": params, "name": "resize", "tags": ["resize"]}
    assert (labelled["name"], labelled["tags"], labelled["retries"]) == ("cover", ["resize", "shop"], 1)
    assert whole["params"] == {"task": "count", "params": [{"path": "a", "parts": []}]}
    assert empty["params"] == {"task": "album", "params": {}}
    assert all(accepts(task["params"]) for task in submitted)


def test_children_and_continuations_are_tasks_of_the_bundle() -> None:
    run = trial(album)
    child = {"task": "resize", "params": {"path": "a.jpg"}}
    assert run.children == [{"type": "small", "params": child, "name": "cover", "tags": ["resize"]}]
    labels = {"name": "sheet", "tags": ["sheet"], "with_results": True}
    assert run.then == [{"type": "small", "params": {"task": "sheet", "params": {"title": "summer"}}, **labels}]
    with pytest.raises(TypeError, match=r"`sheet` has a `Joined` context .*use `cx.then\(sheet, …\)`"):
        sheet.submit("summer")


def test_trial_runs_a_bundled_task() -> None:
    run = trial(resize, "a.jpg")
    assert (run.output, run.log) == (Thumb("a.jpg", []), ["small resize"])
    assert trial(count, [Thumb("a", []), Thumb("b", [])]).output == 2
    lost: Ended[None] = Ended("trial:b", "small", "failed", None, {"kind": "broken", "message": "broken"})
    assert trial.using(results=[Thumb("a.jpg", []), lost])(sheet, "summer ").output == "summer a.jpg"
    failure = trial(resize, path=5).failure  # type: ignore[arg-type]
    assert failure and failure.message == "the params do not fit the type: /params/path: `5` is not a string"
    with pytest.raises(TypeError, match="`resize`: missing a required argument: 'path'"):
        resize.call()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("to", "outcome"),
    # Listed by the task; by the bundle; by both, where the task's own list counts; by neither.
    [("key", "fail"), ("index", "fail"), ("value", "retry"), ("other", "retry")],
)
def test_classes_of_a_task_and_of_its_bundle_decide(to: str, outcome: str) -> None:
    failure = trial(send_mail, to).failure
    assert failure and failure.outcome == outcome


def test_declaration_has_the_policy_and_the_tasks() -> None:
    declaration = small.declaration()
    assert declaration["policy"] == {"concurrency": 4, "retries": 3, "fail_on": ["bad_width"]}
    assert declaration["doc"].splitlines() == ["resize: Makes a thumbnail.", "send-mail", "count", "album", "sheet"]
    assert "output" not in declaration


@pytest.mark.parametrize(
    ("params", "is_valid"),
    [
        ({"task": "resize", "params": {"path": "a.jpg"}}, True),
        ({"task": "resize", "params": {"path": 5}}, False),
        ({"task": "resize", "params": None}, False),
        ({"task": "album", "params": None}, True),
        ({"task": "count", "params": [{"path": "a", "parts": [{"path": "b", "parts": []}]}]}, True),
        ({"task": "count", "params": [{"path": "a", "parts": [{"path": "b"}]}]}, False),
        ({"task": "of-a-newer-version", "params": 5}, True),
        (joined({"task": "of-a-newer-version", "params": 5}), True),
        (joined({"task": "sheet", "params": {"title": "summer"}}), True),
        (joined({"task": "sheet", "params": {"title": 5}}), False),
        ({"task": {"id": "a"}, "params": {"task": "sheet", "params": {"title": "summer"}}}, False),
        ({"task": "resize"}, False),
        ({"params": {"path": "a.jpg"}}, False),
        ({"task": 5, "params": {}}, False),
        ([], False),
    ],
)
def test_schema_checks_params_of_known_tasks_only(params: Any, is_valid: bool) -> None:
    assert accepts(params) == is_valid


def test_classes_of_one_name_in_several_tasks_stay_apart() -> None:
    bundle = App().bundle("small")

    def declare(name: str, kind: type) -> None:
        @dataclass
        class Item:
            value: kind  # type: ignore[valid-type]

        @bundle.task(name=name)
        def handler(item: Item) -> None: ...

    declare("text", str)
    declare("number", int)
    accepts = Draft202012Validator(bundle.declaration()["params"]).is_valid
    for task, value, other in [("text", "a", 5), ("number", 5, "a")]:
        assert accepts({"task": task, "params": {"item": {"value": value}}})
        assert not accepts({"task": task, "params": {"item": {"value": other}}})


def test_two_hundred_tasks_fit_into_a_declaration() -> None:
    many = App().bundle("many")
    for number in range(200):

        @many.task(name=f"send-notification-{number}")
        def handler(recipient: str, subject: str, attempts: int = 3, urgent: bool = False) -> None:
            """Sends a notification about something to somebody."""

    assert len(encode(many.declaration()["params"])) < 62 << 10


def test_strict_app_refuses_unknown_params() -> None:
    strict = App(strict=True).bundle("small")

    @strict.task
    def resize(path: str) -> None: ...

    accepts = Draft202012Validator(strict.declaration()["params"]).is_valid
    assert accepts({"task": "resize", "params": {"path": "a"}})
    assert not accepts({"task": "resize", "params": {"path": "a", "widht": 5}})


def test_wrong_declarations_name_the_place_and_the_remedy() -> None:
    app = App()
    bundle = app.bundle("small")

    def twice() -> None: ...

    def other() -> None: ...

    bundle.task(twice)
    app.task(other)
    here = r"test_bundle.py:\d+: "
    policy = "is for the whole bundle; a task has only `name`, and classes in `fail_on` and `retry_on`"
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: bundle.task(twice), here + r"`twice` is declared twice, first in .*test_bundle.py:\d+; hint: rename one"),
        (lambda: app.bundle("other"), here + r"`other` is declared twice, first in .*test_bundle.py:\d+"),
        (lambda: app.task(name="small")(twice), here + r"`small` is declared twice, first in .*test_bundle.py:\d+"),
        (lambda: app.bundle("small"), here + "`small` is declared twice"),
        (lambda: app.bundle("Small Tasks"), here + "`Small Tasks` is not a name of a type: 1 to 64 characters of `a-z 0-9 -`"),
        (lambda: bundle.task(name="No Name")(other), here + "`No Name` is not a name of a type"),
        (lambda: bundle.task(retries=3)(other), here + f'`retries` {policy}; hint: use `app.bundle\\("small", retries=…\\)`'),
        (lambda: bundle.task(fail_on=["bad_width"])(other), here + f"`fail_on` {policy}"),
        (lambda: app.bundle("more", retrys=3), here + "`retrys` is not a key of a policy; hint: did you mean"),  # type: ignore[call-arg]
        (lambda: bundle.task(5), "`5` is not a function"),  # type: ignore[call-overload]
        (lambda: app.bundle("empty").declaration(), here + "the bundle `empty` has no tasks; hint: put `@….task` above"),
    ]
    for declare, message in cases:
        with pytest.raises(DeclarationError, match=message):
            declare()


def test_app_with_an_empty_bundle_cannot_serve(tmp_path: Path) -> None:
    assert re.search(r"tasks.py:3: the bundle `small` has no tasks", unable(tmp_path, tasks=f'{APP}app.bundle("small")\n'))


def test_unknown_task_is_answered_with_a_wait_that_names_some_known_ones(tmp_path: Path) -> None:
    lines = 'many = app.bundle("many")\nfor n in range(25):\n    @many.task(name=f"task-{n}")\n    async def run() -> None: ...\n'
    write(tmp_path, {"tasks": APP + lines})
    with Worker("tasks.py", cwd=tmp_path) as worker:
        assert worker.welcome()["slots"] == 10
        error = worker.run("many", {"task": "x" * 5000, "params": None})["error"]
        assert (error["outcome"], error["kind"]) == ("wait", "unknown_task")
        message = f"the bundle `many` has no task `{'x' * 64}`, but `task-0`, "
        assert error["message"].startswith(message) and "`task-19` and 5 more; hint:" in error["message"]
        assert worker.run("many", joined({"task": "new", "params": None}))["error"]["kind"] == "unknown_task"
        for params in (None, {"task": 5}, joined(None)):
            assert worker.run("many", params)["error"]["kind"] == "bad_params"
        assert worker.run("many", {"task": "task-24", "params": None})["ok"]["output"] is None


def test_bundle_of_mixed_handlers_runs_both(tmp_path: Path) -> None:
    lines = 'small = app.bundle("small")\n@small.task\ndef a() -> int: return 1\n@small.task\nasync def b() -> int: return 2\n'
    write(tmp_path, {"tasks": APP + lines})
    with Worker("tasks.py", cwd=tmp_path) as worker:
        assert worker.welcome()["slots"] == 10
        assert [worker.run("small", {"task": name, "params": {}})["ok"]["output"] for name in "ab"] == [1, 2]


def test_bundled_task_runs_on_an_event_loop() -> None:
    async def main() -> None:
        failure = (await trial.atrial(send_mail, "key")).failure
        assert failure and failure.kind == "KeyError"

    asyncio.run(main())
