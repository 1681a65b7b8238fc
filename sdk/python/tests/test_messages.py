"""What people read who declare, call and spawn wrongly: each message has the place, the value and what to do."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafleet import UPSTREAM, App, Context, DeclarationError, Joined, Upstream, chain
from kafleet.testing import trial


def say(name: str, times: int = 1) -> str:
    return name * times


def join(cx: Joined[str], title: str) -> None: ...
def follow(x: str, before: Upstream[str] = UPSTREAM) -> None: ...


# Of types that no checker knows: it would refuse what is wrong here.
new_app: Any = App
app: Any = App()
greet, contact_sheet = app.task(name="greet")(say), app.task(name="sheet")(join)
chained = app.task(name="chained")(follow)


def late(x: int, cx: Context) -> None: ...
def late_joined(x: int, *, cx: Joined[int]) -> None: ...
def bound(self, x: int) -> None: ...  # type: ignore[no-untyped-def]
def plain(x: int = 1) -> None: ...
def rows() -> Any:
    yield 1


class Shop:
    def pay(self, x: int) -> None: ...
    @staticmethod
    def pack(x: int) -> None: ...
    @classmethod
    def ship(cls, x: int) -> None: ...


LISTED = "hint: list classes of exceptions, and names of kinds"
NAME = "is not a name of a type: 1 to 64 characters of `a-z 0-9 -`; hint: use"
ZONE = "is not a time with a time zone; hint: `datetime.now(timezone.utc)`, or `.astimezone()`"
SECONDS = 'is not a duration of 0 or more; hint: "30s", or datetime.timedelta(seconds=30)'

# A declaration, and the message behind file and line.
DECLARATIONS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: app.task(late),
        "the parameter `cx` of `late` is the context, which comes first; hint: use `def late(cx: Context, x)`",
    ),
    (
        lambda: app.task(late_joined),
        "the parameter `cx` of `late_joined` is the context, which comes first; hint: use `def late_joined(cx: Joined, x)`",
    ),
    (
        lambda: app.task(Shop.pay),
        "`Shop.pay` is a method: a task has no object to call it on; hint: use a function of the module, with what it needs as "
        "params",
    ),
    (
        lambda: app.task(bound),
        "the parameter `self` of `bound` has no annotation; hint: use `cx: Context`, the context of the attempt",
    ),
    (lambda: app.task(fail_on=ValueError)(plain), "`fail_on=ValueError` is not a list; hint: `fail_on=[ValueError]`"),
    (lambda: app.task(retry_on="timeout")(plain), "`retry_on='timeout'` is not a list; hint: `retry_on=['timeout']`"),
    (lambda: app.task(fail_on=[ValueError()])(plain), f"`fail_on` has `ValueError()`; {LISTED}"),
    (lambda: app.task(retry_on=[int])(plain), f"`retry_on` has `int`; {LISTED}"),
    (lambda: app.task(fail_on=5)(plain), f"`fail_on` has `5`; {LISTED}"),
    (
        lambda: app.task(rows),
        "`rows` is a generator function: its result would be a generator, and nothing would run; hint: use `return`, as of a "
        "list, or `cx.progress(…)` for values during the work",
    ),
    (lambda: app.task(retries=-1)(plain), "`retries=-1` is not a whole number, 0 or more"),
    (lambda: app.task(retries=True)(plain), "`retries=True` is not a whole number, 0 or more"),
    (lambda: app.task(concurrency="4")(plain), "`concurrency='4'` is not a whole number, 0 or more"),
    (lambda: app.task(publish_results=1)(plain), "`publish_results=1` is not `True` or `False`"),
    (lambda: app.task(on_error="ignore")(plain), "`on_error='ignore'` is not one of `retry`, `fail`, `skip`"),
    (lambda: app.task(trip_on="timeout")(plain), "`trip_on='timeout'` is not a list; hint: `trip_on=['timeout']`"),
    (lambda: app.task(timeout=timedelta(-1))(plain), f"`timeout=datetime.timedelta(days=-1)` {SECONDS}"),
    (lambda: app.task(timeout=[30])(plain), f"`timeout=[30]` {SECONDS}"),
    (
        lambda: app.task(rate="10/m")(plain),
        '`rate=\'10/m\'` is not a dict; hint: `rate={"count": 10, "per": "1m"}`, for the whole fleet',
    ),
    (lambda: app.task(name="shop.report")(plain), f'`shop.report` {NAME} `name="shop-report"` in the decorator'),
    (lambda: app.task(name="Report für Ada")(plain), f'`Report für Ada` {NAME} `name="report-f-r-ada"` in the decorator'),
    (lambda: app.bundle("Small.Tasks"), f'`Small.Tasks` {NAME} `app.bundle("small-tasks")`'),
]  # fmt: skip
WITHOUT_PLACE: list[tuple[Callable[[], Any], str]] = [
    (lambda: app.task(Shop().pay), "`pay` is a method; hint: declare a function of the module"),
    (lambda: app.task(Shop.__dict__["pack"]), "`pack` is a method; hint: declare a function of the module"),
    (lambda: app.task(Shop.__dict__["ship"]), "`ship` is a method; hint: declare a function of the module"),
    (lambda: app.task(print), "`<built-in function print>` is not a function: put the decorator directly above `def`"),
    (lambda: app.task(greet), "`greet` is declared already: put the decorator directly above `def`"),
    (
        lambda: new_app("shop"),
        "an app has no name in the code: `App('shop')`; hint: `App()`; `[apps.NAME]` in kafleet.toml names it",
    ),
]
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"tags": "shop"}, "`tags='shop'` is not a list; hint: `tags=['shop']`"),
    ({"retries": -1}, "`retries=-1` is not a whole number, 0 or more"),
    ({"at": datetime(2026, 1, 31, 12)}, f"`at=datetime.datetime(2026, 1, 31, 12, 0)` {ZONE}"),
    ({"at": 60}, '`at=60` is not a time with a time zone; hint: `delay="30s"`'),
    ({"at": timedelta(1)}, '`at=datetime.timedelta(days=1)` is not a time with a time zone; hint: `delay="30s"`'),
    (
        {"delay": timedelta(seconds=-5)},
        f"`delay=datetime.timedelta(days=-1, seconds=86395)` {SECONDS}",
    ),
    ({"id": 42}, '`id=42` is not text; hint: `id="42"`'),
    ({"link": greet}, "is not text; hint: `then=[other.call()]` for a task that follows; `link` is a URL for people"),
    ({"then": greet.call("Ada")}, "`then=…` is not a list; hint: `then=[…]`"),
    ({"headers": ["a"]}, "`headers=['a']` is not a dict"),
    ({"fail_fast": 1}, "`fail_fast=1` is not `True` or `False`"),
    ({"on": "success"}, "`on='success'` is not one of `succeeded`, `failed`, `ended`"),
    ({"on_failure": "skip"}, "`on_failure='skip'` is not one of `fail`, `ignore`"),
]
ARGUMENTS = "a function with `@app.task`, then its arguments"
SPAWNS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda cx: cx.spawn(print), f"`print`, of the type `builtin_function_or_method`, is not a task; hint: {ARGUMENTS}"),
    (lambda cx: cx.spawn(plain), f"`plain`, of the type `function`, is not a task; hint: {ARGUMENTS}"),
    (lambda cx: cx.spawn("mail"), '`mail`, of the type `str`, is not a task; hint: `app.remote("mail")`'),
    (lambda cx: cx.spawn(None), f"`None`, of the type `NoneType`, is not a task; hint: {ARGUMENTS}"),
    (lambda cx: cx.spawn(greet, 5), "`greet` does not take these params: /name: `5` is not a string"),
    (lambda cx: cx.spawn(greet, "a", times="2"), "`greet` does not take these params: /times: `'2'` is not an integer"),
    (lambda cx: cx.spawn(greet, nmae="a"), "`greet`: missing a required argument: 'name'"),
    (lambda cx: cx.then(contact_sheet, 5), "`sheet` does not take these params: /title: `5` is not a string"),
    (lambda cx: cx.then(print), "`print`, of the type `builtin_function_or_method`, is not a task; hint: "),
    (lambda cx: cx.spawn_now([greet.call(5)]), "`greet` does not take these params: /name: `5` is not a string"),
    (lambda cx: cx.spawn_now([print]), "`print`, of the type `builtin_function_or_method`, is not a task; hint: "),
    (lambda cx: cx.spawn_now(greet.call("a")), "`Call` is not a list of calls; hint: `[task.call(…), …]`"),
    (lambda cx: cx.spawn(greet.call("a"), "b"), "the call of `greet` has its arguments already: they belong into `call(…)`"),
    (lambda cx: cx.spawn(greet.map(["a", 5])), "`greet` does not take these params: /name: `5` is not a string"),
    (lambda cx: cx.spawn(chain(greet.call(""), greet.call(5))), "`greet` does not take these params: /name: `5` is not a string"),
    (lambda cx: cx.then(chain(greet.call(""), chained.call(5))), "`chained` does not take these params: /x: `5` is not a string"),
    (lambda cx: cx.then(greet.map("a")), "a group is no single task, and only the first of a chain; hint: "),
    (lambda cx: cx.spawn_now([greet.map("a")]), "a group is no single task, and only the first of a chain; hint: "),
    (lambda cx: cx.spawn(greet.map("a"), "b"), "a group has its arguments already: they belong into `call(…)`"),
    (lambda cx: cx.spawn(greet("a")), "`greet` is a task type, which is not called; hint: `submit(…)` creates a task, "),
    (lambda cx: greet.using(at=datetime.now()), ZONE),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "message"), DECLARATIONS, ids=[str(n) for n in range(len(DECLARATIONS))])
def test_wrong_declaration_says_what_to_write(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=rf"test_messages.py:\d+: {re.escape(message)}$"):
        declare()


@pytest.mark.parametrize(("declare", "message"), WITHOUT_PLACE, ids=[str(n) for n in range(len(WITHOUT_PLACE))])
def test_what_is_no_function_or_app_says_what_to_write(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=rf"^{re.escape(message)}$"):
        declare()


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[str(n) for n in range(len(OPTIONS))])
def test_wrong_option_says_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=rf"{re.escape(message)}$"):
        greet.using(**options)


@pytest.mark.parametrize(("spawn", "message"), SPAWNS, ids=[str(n) for n in range(len(SPAWNS))])
def test_wrong_child_is_an_error_where_it_is_written(spawn: Callable[[Any], Any], message: str) -> None:
    def handler(cx: Context) -> None:
        spawn(cx)

    run = trial(App().task(handler))
    assert run.failure and run.failure.kind == "TypeError" and message in run.failure.message
    assert run.failure.stack and "in handler" in run.failure.stack and not run.children and not run.then


def test_right_options_and_children_pass() -> None:
    options: dict[str, Any] = {
        "tags": ("a",), "retries": 0, "at": datetime.now(UTC), "id": None, "then": [greet.call("a")], "delay": timedelta(0),
        "headers": {"a": "b"}, "fail_fast": False, "link": "https://example.org", "on": "ended", "timeout": "30s",
    }  # fmt: skip
    assert greet.using(**options).options == options

    def spawns(cx: Context) -> None:
        cx.spawn(greet, "a")
        cx.spawn(greet.call("b"))
        cx.spawn_now(greet.call(name) for name in ["c"])
        cx.then(contact_sheet, title="d")
        cx.spawn(app.remote("elsewhere"), {"any": [1]})

    run = trial(App().task(spawns))
    assert run.failure is None and len(run.then) == 1
    assert [child["params"] for child in run.children] == [{"name": "c"}, {"name": "a"}, {"name": "b"}, {"any": [1]}]
